"""Whether four of five ends lie in the intervals of 80 % that are told of them, on the published tables of curves."""

import math
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.bench.table import Row
from tune.curves.recorded import PUBLISHED, Curve, load
from tune.search.forecast import FEWEST_SIZES
from tune.search.other_caps import SPREAD
from tune.search.scaling_law import Forecaster, Observation

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Of the life, that is known of each trial; the end is that of the life, at the rate or schedule of the table."""
RUNGS = (1 / 8, 1 / 4, 1 / 2, 1)
"""Of that: when its losses were seen."""
TRIALS, SEEDS = 10, 20
LEAST, MOST = 0.7, 0.9

Inside = tuple[int, int]
"""How many ends are inside, and of how many."""


def intervals(data: Path, *, short: bool) -> Iterator[Row]:
    """The published tables, and recorded ones (.jsonl) that lie in the folder; then all of a kind as one."""
    kinds: dict[str, list[list[Inside]]] = {}
    for path in (*sorted(PUBLISHED.glob("*.jsonl")), *sorted(data.glob("*.jsonl"))):
        for table in load(path):
            curves = table.curves
            seconds = min(curve.seconds for curve in curves) if table.own_mode else None
            found = [inside(curves, share, seconds, seeds=2 if short else SEEDS) for share in SHARES]
            yield _row(table.name, found)
            kinds.setdefault("own mode" if table.own_mode else "recorded", []).append(found)
    for kind, tables in kinds.items():
        yield _row(f"all {len(tables)} of {kind}", [pooled(share) for share in zip(*tables, strict=True)])


def pooled(found: Iterable[Inside]) -> Inside:
    """Of several, as one."""
    hits, counts = zip(*found, strict=True)
    return sum(hits), sum(counts)


def _row(what: str, found: list[Inside]) -> Row:
    shares = [(f"1/{1 / share:.0f}", *each) for share, each in zip(SHARES, found, strict=True) if each[1]]
    told = {name: hits / count for name, hits, count in [*shares, ("all", *pooled(found))] if count}
    return Row(
        what=f"{what}: ends inside the interval of 80 %, by what is known of the life",
        against=", ".join(told), asked=f"{LEAST:g} to {MOST:g}",
        measured=", ".join(f"{share:.2f}" for share in told.values()),
        reached=LEAST <= told.get("all", 0.0) <= MOST,
    )  # fmt: skip


def inside(curves: tuple[Curve, ...], share: float, seconds: float | None, *, seeds: int) -> Inside:
    """Of the ends of curves, foretold at a share of their lives. seconds: of the lives; None: each has its own."""
    hits = count = 0
    for seed in range(seeds):
        tried = random.Random(seed).sample(curves, min(TRIALS, 2 * len(curves) // 3))
        lives = [(curve, curve.most if seconds is None else seconds / curve.step_seconds) for curve in tried]
        known = [(curve, life, seen(curve, share * life)) for curve, life in lives]
        known = [(curve, life, losses) for curve, life, losses in known if losses and math.isfinite(curve.loss(life))]
        if len({curve.parameters for curve, _, _ in known}) < FEWEST_SIZES:
            continue
        forecaster = Forecaster.fit([losses for _, _, losses in known])
        for curve, life, losses in known:
            loss, doubt = forecaster.interval(curve.parameters, losses, life)
            hits += abs(math.log(curve.loss(life) / loss)) < SPREAD * doubt
            count += 1
    return hits, count


def seen(curve: Curve, steps: float) -> list[Observation]:
    """What is known of a trial after so many steps: its losses after the warm-up."""
    least = max(curve.warm_up_steps, curve.steps_per_report)
    return [
        Observation(size=curve.parameters, tokens=at, loss=curve.loss(at))
        for at in (rung * steps for rung in RUNGS) if at >= least and math.isfinite(curve.loss(at))
    ]  # fmt: skip
