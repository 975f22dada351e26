"""The rows of the comparison of methods, seeds taken together, how the report ranks them, and the tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from tune.experiments.base import Row, Table
from tune.experiments.tables import NOTHING, figure, published_by

BASELINE, SMALLER, FULL, MIXED = "baseline", "smaller batch", "full precision", "mixed precision"
ACCUMULATION, SGD = "accumulation", "SGD"
EQUAL = "equal FLOPs"
"""In place of what is doubled: of a shape that costs what the shape as it is costs."""
Published = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A method on a shape. flops: of the training; allocations: of all its steps; losses: of each seed."""

    method: str
    doubled: str
    checkpointing: str
    config: Mapping[str, Any]
    parameters: int
    steps: int
    flops: float
    seconds: float
    memory_bytes: float
    allocations: float
    losses: Sequence[float]
    accuracy: float

    @property
    def name(self) -> str:
        """The method, and on which shape."""
        if self.doubled == EQUAL:
            return f"{self.method}, d_model {self.config['d_model']}, layers {self.config['layers']}"
        return self.method if self.doubled == "nothing" else f"{self.method}, {self.doubled} doubled"

    @property
    def loss(self) -> float:
        return fmean(self.losses)

    @property
    def published(self) -> Published:
        """What the report tells of it."""
        return published_by("methods", "method", "doubled").get((self.method, self.doubled), {})


def runs_of(rows: Sequence[Row]) -> list[Run]:
    """In the order of the rows."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if "valid_loss" in row:
            asked, layers = row["asked"], row["config"]["layers"]
            groups.setdefault((asked["method"], asked["doubled"], asked["checkpointing"], layers), []).append(row)
    return [_run(group) for group in groups.values()]


def _run(rows: Sequence[Row]) -> Run:
    """Of one method and shape: seconds are the median, accuracies the mean."""
    first, asked = rows[0], rows[0]["asked"]
    return Run(
        method=asked["method"], doubled=asked["doubled"], checkpointing=asked["checkpointing"], config=first["config"],
        parameters=first["parameters"], steps=first["steps"], flops=first["flops_per_token"] * first["tokens"],
        seconds=median(row["seconds"] for row in rows),
        memory_bytes=median(row["memory_bytes"] for row in rows),
        allocations=median(row["allocations_a_step"] for row in rows) * first["steps"],
        losses=[row["valid_loss"] for row in rows], accuracy=fmean(row["accuracy"] for row in rows),
    )  # fmt: skip


def pairs(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Each method's run with the baseline's on the same shape, neither with checkpointing."""
    plain = [run for run in runs if run.checkpointing == "off" and run.doubled != EQUAL]
    baselines = {run.doubled: run for run in plain if run.method == BASELINE}
    return [(run, baselines[run.doubled]) for run in plain if run.doubled in baselines and run.method != BASELINE]


def checkpointed(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Each run with checkpointing, and the same without."""
    plain = {(run.method, run.doubled): run for run in runs if run.checkpointing == "off"}
    found = [(run, plain.get((run.method, run.doubled))) for run in runs if run.checkpointing == "on"]
    return [(run, other) for run, other in found if other is not None]


def equals(runs: Sequence[Run]) -> list[Run]:
    """Shapes of the baseline that cost the same, the one as it is first."""
    plain = [run for run in runs if run.method == BASELINE and run.checkpointing == "off"]
    return [run for doubled in ("nothing", "heads", EQUAL) for run in plain if run.doubled == doubled]


def ranked(runs: Sequence[Run]) -> list[Run]:
    """What the report's formula compares: all with checkpointing, as there, or where there is none without."""
    return [run for run in runs if run.checkpointing == "on"] or [run for run in runs if run.doubled != EQUAL]


def scores(runs: Sequence[Run]) -> list[float]:
    """By the report's formula: the lower, the better."""
    return ranking_scores([(run.loss, run.seconds, run.allocations) for run in runs])


def published_scores() -> dict[tuple[str, ...], float]:
    """Of the report's own rows, which stand in the order in which it ranks them."""
    theirs = published_by("methods", "method", "doubled")
    taken = [(row["loss_at_2000"], row["seconds"], row["allocations"]) for row in theirs.values()]
    return dict(zip(theirs, ranking_scores(taken), strict=True))


def ranking_scores(taken: Sequence[tuple[float, float, float]]) -> list[float]:
    """loss - max(seconds) / seconds - max(allocations) / allocations.

    The report prints accuracy in the place of the loss; with the loss, sorted upwards, its order comes out.
    """
    most = [max(each) for each in zip(*taken, strict=True)]
    return [loss - most[1] / seconds - most[2] / allocations for loss, seconds, allocations in taken]


def ranks(values: Sequence[float]) -> list[int]:
    """1 is the smallest's."""
    order = sorted(values)
    return [order.index(value) + 1 for value in values]


THEIRS = "published: nanoGPT on a laptop's CPU, with checkpointing throughout"


def tables(rows: Sequence[Row]) -> list[Table]:
    """All that there are rows for."""
    runs = runs_of(rows)
    made = [measured(runs), against_baseline(runs), checkpointing(runs), ranking(runs), equal_flops(runs)]
    return [table for table in made if table.rows]


def measured(runs: Sequence[Run]) -> Table:
    """What each took and came to."""
    rows = [
        [
            run.name, run.checkpointing, f"{run.parameters:,}", f"{run.seconds:.1f}",
            f"{run.memory_bytes / 1e6:.1f}", f"{run.allocations:,.0f}", loss_text(run), f"{run.accuracy:.1%}",
            figure(run.published.get("seconds")),
            figure(run.published.get("allocations"), "{:,.0f}"), figure(run.published.get("loss_at_2000"), "{:.4f}"),
        ]
        for run in runs
    ]  # fmt: skip
    columns = (
        *("method", "checkpointing", "parameters", "s", "peak MB", "allocations", "loss", "accuracy"),
        *("published s", "allocations", "loss"),
    )
    note = (
        "s: of steps alone; peak and allocations: of a short run apart, by memray on a CPU, allocations a step times "
        f"the steps; loss and accuracy: on the validation split. {THEIRS}."
    )
    steps = runs[0].steps if runs else 0
    return Table(title=f"Methods, after {steps:,} steps", columns=columns, rows=rows, note=note)


def loss_text(run: Run) -> str:
    """Of several seeds the mean, and half of what lies between the least and the greatest."""
    if len(run.losses) == 1:
        return f"{run.loss:.4f}"
    return f"{run.loss:.3f} ±{(max(run.losses) - min(run.losses)) / 2:.3f}"


def against_baseline(runs: Sequence[Run]) -> Table:
    """Each method beside the baseline on the same shape, and the report's beside its full precision."""
    rows = []
    for run, base in pairs(runs):
        theirs, first = run.published, published_by("methods", "method", "doubled").get((FULL, run.doubled), {})
        rows.append([
            run.name, *ratios(run, base), f"{run.loss - base.loss:+.4f}", quotient(theirs, first, "seconds"),
            quotient(theirs, first, "allocations"), difference(theirs, first, "loss_at_2000"),
        ])  # fmt: skip
    columns = (
        *("method", "s", "peak", "allocations", "loss"),
        *("published s", "allocations", "loss"),
    )
    note = "times the baseline's, of losses the difference; published: times those of full precision"
    return Table(title="Against the baseline, without checkpointing", columns=columns, rows=rows, note=note)


def ratios(run: Run, other: Run) -> list[str]:
    """Of seconds, of the peak and of allocations."""
    quotients = (getattr(run, name) / getattr(other, name) for name in ("seconds", "memory_bytes", "allocations"))
    return [f"{each:.2f}" for each in quotients]


def quotient(row: Published, first: Published, name: str) -> str:
    """Of two published figures."""
    above, below = row.get(name), first.get(name)
    return NOTHING if above is None or below is None else f"{above / below:.2f}"


def difference(row: Published, first: Published, name: str) -> str:
    """Of two published figures."""
    one, other = row.get(name), first.get(name)
    return NOTHING if one is None or other is None else f"{one - other:+.4f}"


def checkpointing(runs: Sequence[Run]) -> Table:
    """The same with it and without."""
    rows = [[run.name, *ratios(run, plain), f"{run.loss - plain.loss:+.1e}"] for run, plain in checkpointed(runs)]
    columns = "method", "s", "peak", "allocations", "loss"
    note = "each block keeps its input only; times those without, of losses the difference"
    return Table(title="Activation checkpointing", columns=columns, rows=rows, note=note)


def ranking(every: Sequence[Run]) -> Table:
    """By the report's formula, the best first; beside it the report's own rows by the same, and where it has them."""
    runs, theirs = ranked(every), published_scores()
    recomputed = dict(zip(theirs, ranks(list(theirs.values())), strict=True))
    printed = {key: place for place, key in enumerate(theirs, start=1)}
    ours = scores(runs)
    rows = []
    for place, score, run in sorted(zip(ranks(ours), ours, runs, strict=True), key=lambda each: each[0]):
        key = run.method, run.doubled
        beside = figure(theirs.get(key), "{:.2f}"), figure(recomputed.get(key)), figure(printed.get(key))
        rows.append([run.name, f"{score:.2f}", str(place), *beside])
    columns = "method", "score", "rank", "published score", "its rank", "rank as printed"
    note = (
        "score: loss - max(seconds) / seconds - max(allocations) / allocations, the lower the better. The report "
        "prints accuracy for the loss; its order is that of its losses. All with checkpointing, as there, if measured."
    )
    return Table(title="Ranking by the report's formula", columns=columns, rows=rows, note=note)


def equal_flops(runs: Sequence[Run]) -> Table:
    """Shapes that cost the same, and beside them what is doubled at its own cost."""
    same = equals(runs)
    if not same or same[0].doubled != "nothing":
        return Table(title="", columns=(), rows=())
    first, own = same[0], ("layers", "d_model")
    more = [run for run in runs if run.method == BASELINE and run.checkpointing == "off" and run.doubled in own]
    rows = [
        [
            "as it is" if run is first else EQUAL if run in same else f"{run.doubled} doubled",
            *(str(run.config[name]) for name in ("d_model", "heads", "layers")), f"{run.parameters:,}",
            f"{run.flops:.3g}", f"{run.flops / first.flops:.3f}", f"{run.seconds:.1f}", loss_text(run),
            f"{run.loss - first.loss:+.4f}", f"{run.accuracy:.1%}",
        ]
        for run in (*same, *more)
    ]  # fmt: skip
    columns = (
        *("shape", "d_model", "heads", "layers", "parameters", "FLOPs", "of the first's", "s", "loss", "difference"),
        "accuracy",
    )
    note = "FLOPs of the training on paper, model/cost/estimates.py; how far seeds lie apart, --seeds tells"
    return Table(title="Shapes of equal FLOPs", columns=columns, rows=rows, note=note)
