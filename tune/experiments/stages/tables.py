"""The table of the stages of a training, beside the published figures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from model.experiments.stages import STAGES
from tune.experiments.experiment import Row, Table
from tune.experiments.published import published_by
from tune.experiments.tables import figure

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
    total = [cell for some in found.values() for cell in (f"{sum(stage_seconds(some).values()):.2f}", "")]
    lines.append(["all", *total, f"{sum(theirs.values()):.1f}", ""])
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
