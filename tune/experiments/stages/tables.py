"""The tables of the stages of a training, beside the published figures, and what they come to."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from model.experiments.stages import STAGES
from tune.experiments.experiment import Row, Table
from tune.experiments.published import published_by
from tune.experiments.stages.work import BEFORE
from tune.experiments.tables import figure

WITHIN = 0.02
"""The stages add up to the wall time to within this share."""
THEIR_NAMES = {"data": "data loading", "rest": "other"}


def ways(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each way, by what it is called."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "stages" in row:
            found.setdefault(f"{row['asked']['way']}, {row['config']['precision']}", []).append(row)
    return found


def stage_seconds(rows: Sequence[Row]) -> dict[str, float]:
    """Of each stage, the median over the seeds."""
    return {stage: median(row["stages"][stage] for row in rows) for stage in STAGES}


def tables(rows: Sequence[Row]) -> list[Table]:
    """Seconds and shares, ours and the report's."""
    found = ways(rows)
    if not found:
        return []
    theirs = published_seconds()
    columns = ["stage", *(each for way in found for each in (f"{way}, s", "share")), "published, s", "share"]
    lines = [[stage, *_cells(found.values(), stage), *_theirs(theirs, stage)] for stage in STAGES]
    walls = [median(row["wall_seconds"] for row in some) for some in found.values()]
    sums = [sum(stage_seconds(some).values()) for some in found.values()]
    total = [cell for each, wall in zip(sums, walls, strict=True) for cell in (f"{each:.2f}", f"{each / wall:.2%}")]
    whole = [cell for wall in walls for cell in (f"{wall:.2f}", "")]
    lines += [["all stages", *total, f"{sum(theirs.values()):.1f}", ""], ["wall time", *whole, "", ""]]
    note = (
        "of nanoGPT, as many steps each way; before: upstream's loop, eager, plain AdamW, batches from a memory map "
        "opened anew, an evaluation each 250 steps; after: a stretch of a search's trial. Published: RoBERTa-base."
    )
    return [Table(title="Stages of a training", columns=columns, rows=lines, note=note)]


def published_seconds() -> dict[str, float]:
    """Of the report's stages."""
    return {stage: row["seconds"] or 0.0 for (stage,), row in published_by("stages", "stage").items()}


def _cells(ways: Iterable[Sequence[Row]], stage: str) -> Iterator[str]:
    """Seconds and share of a stage, way by way."""
    for rows in ways:
        seconds = stage_seconds(rows)
        yield from (f"{seconds[stage]:.2f}", f"{seconds[stage] / sum(seconds.values()):.1%}")


def _theirs(seconds: Mapping[str, float], stage: str) -> tuple[str, str]:
    """The report has the optimizer under other."""
    found = seconds.get(THEIR_NAMES.get(stage, stage))
    return figure(found), figure(None if found is None else found / sum(seconds.values()), "{:.1%}")


def conclusions(rows: Sequence[Row]) -> list[str]:
    """Whether they add up, and what changed."""
    found = [row for some in ways(rows).values() for row in some]
    if not found:
        return []
    ratios = [sum(row["stages"].values()) / row["wall_seconds"] for row in found]
    held = sum(abs(ratio - 1) <= WITHIN for ratio in ratios)
    said = [f"The stages add up to the wall time, to {WITHIN:.0%}, in {held} of {len(found)} trainings "
            f"({min(ratios):.2%} to {max(ratios):.2%})."]  # fmt: skip
    return [*said, *_changes(rows)]


def _their_share() -> float:
    """Of loading, in the report."""
    theirs = published_seconds()
    return theirs[THEIR_NAMES["data"]] / sum(theirs.values())


def _changes(rows: Sequence[Row]) -> Iterator[str]:
    """Each of our ways against upstream's."""
    seconds = {way: stage_seconds(some) for way, some in ways(rows).items()}
    first = next((each for way, each in seconds.items() if way.startswith(BEFORE)), None)
    for way, ours in seconds.items():
        if first is None or way.startswith(BEFORE):
            continue
        times = sum(first.values()) / sum(ours.values())
        gained = {stage: first[stage] - ours[stage] for stage in STAGES}
        most, other = sorted(STAGES, key=lambda stage: -gained[stage])[:2]
        yield (f"{way.capitalize()}: {times:.2f} times as fast as before; most of it is {most}, {first[most]:.1f} to "
               f"{ours[most]:.1f} s, then {other}, {first[other]:.1f} to {ours[other]:.1f} s. Reading data is "
               f"{ours['data'] / sum(ours.values()):.1%} of the time, in the report {_their_share():.0%}.")  # fmt: skip
