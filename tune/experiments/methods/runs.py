"""The rows of the comparison of methods with those of several seeds taken together, and how the report ranks them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from tune.experiments.experiment import Row
from tune.experiments.published import published_by

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
