"""The report of a trial, from train() to the row of the journal and back. Standard library only.

A report is sent from a worker to the driver, and written into the journal, as a flat row of plain values by column of
the journal's table `reports`. `to_row` makes that row, and `from_row` is its inverse.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeVar, get_args

Value = int | float | str | None
Row = Mapping[str, Value]

Ended = Literal["rung", "lease", "final", "turned", "returned", "stopped", "diverged", "unmeasured"]
"""How a segment ended, in this order: with its steps; with its lease, which was too short for them; after the decay;
past its best, which is what is kept; by itself, as a user's loop does at an end of its own; as it was told to; with a
loss that exploded; without memory for the smallest evaluation at its end."""
ENDS: tuple[Ended, ...] = ("final", "turned", "returned")
"""Those after which a trial has nothing more to do."""
TIE = 0.003
"""Losses closer than this, in nats, count as equal: the noise of a seed."""
TURN_WINDOW = 3
"""Losses in a row that must each be more than TIE above the median of as many before them for a turn: the noise of one
is larger than what training gains between several."""
TURN_RISE = 0.02
"""Nats above the lowest loss at which two losses in a row are enough for a turn: none of the trainings that still fell
had two .012 above. In a turn the training loss has fallen by as much since the lowest."""
WATCH_SHARE, WATCH_POINTS = 0.07, 60
"""A loss that may turn is evaluated whenever the training is longer by such a share, or so many times in a lease if
that is more often."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What trials are compared by: nats a token, or a number that a user's loop reports. The search has it as a loss,
    low is good; tie: losses closer than this count as equal."""

    name: str = "loss"
    maximize: bool = False
    tie: float = TIE

    def to_reported(self, loss: float) -> float:
        """Return the metric as it was reported, from the search's loss."""
        return 0.0 - loss if self.maximize else loss  # of 0 not -0

    def loss_of(self, numbers: Mapping[str, float] | None) -> float | None:
        """Return the loss that the search has for what a loop reported; None: no loop, or no finite metric."""
        value = (numbers or {}).get(self.name)
        return None if value is None else self.to_reported(value)

    def text(self, loss: float, digits: str = ".4g") -> str:
        """Return the metric with its name: `accuracy 0.91`."""
        return f"{self.name} {self.to_reported(loss):{digits}}"


NATS = Metric()
LEASE_RESERVE_FACTOR = 1.5
"""A lease of a user's loop ends at a report where less is left of it than so many times the longest time between two
reports and a checkpoint."""
EPOCHS_AS_NEW = 4
"""Times that a text can be seen and be about as good as new text (Muennighoff et al. 2023, arXiv:2305.16264): a loss
turns later, if at all, and dropout waits until then."""
NEW_DROPOUT = 1.5
"""Dropout is new until a trial has seen so many times the tokens after which it began: until then the model adapts to
it (docs/log.md, day 26)."""

LARGEST_LOG = 700.0
"""Largest argument for which exp() is a finite float."""
MOST_OF_LOG = 1e140
"""Most that a logarithmic axis shows, beside its reciprocal: their ratio is a float."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How good a model is: means over a split's target tokens, padding not counted, without label smoothing.

    loss: nats a token; accuracy: share of tokens to which the model gave the highest probability; None: not known;
    seconds: what it took; blocks: only for test, the nats of each of its blocks, as JSON, to compare two models.
    """

    loss: float
    bits_per_character: float | None = None
    nats_per_word: float | None = None
    accuracy: float | None = None
    tokens: int = 0
    seconds: float = 0.0
    blocks: str | None = None

    @property
    def perplexity(self) -> float:
        """Return the perplexity a token."""
        return math.exp(min(self.loss, LARGEST_LOG))

    def __post_init__(self) -> None:
        _finite(self)


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a trial is doing, about once a second; the last one of a segment has `ended`.

    None: not measured, or no finite number; an evaluation without a finite loss becomes None.
    """

    steps: int  # of the trial's life, as are tokens and training_seconds
    tokens: int  # target tokens seen, padding not counted
    training_seconds: float  # spent in steps
    train_loss: float | None = None  # nats a token, un-smoothed, mean since the report before
    learning_rate: float | None = None  # the base rate at this step
    gradient_norm: float | None = None
    tokens_per_second: float | None = None
    step_seconds: float | None = None  # median
    mfu: float | None = None  # share of peak_flops that training used
    peak_flops: float | None = None  # FLOP/s of the device, at its peak
    parameters: int = 0
    memory_bytes: int = 0  # peak, above what the process held before the trial
    limited_bytes: int = 0  # the same, as the memory limit of its process counts it
    micro_batches: int = 1  # parts that a batch is cut into
    ran_out: bool = False  # memory ran out on this segment, and smaller parts helped
    seconds: Mapping[str, float] = field(default_factory=dict)  # wall clock since the report before, by phase
    valid: Evaluation | None = None  # of the fixed validation subset, which makes the curve
    averaged: Evaluation | None = None  # of the same subset, by the average of the weights
    valid_subset: int | None = None  # target tokens of the subset, about
    whole: Evaluation | None = None  # of all of the validation split; as test by the better of both weights
    test: Evaluation | None = None
    trained: Evaluation | None = None  # of a subset of the training split as large as valid's, without dropout
    bleu: float | None = None  # 0 to 100, on some sentences of the validation split, as chrf
    chrf: float | None = None
    step_bytes: int | None = None  # most that a few eager steps, taken for this, allocate at once
    step_allocations: float | None = None  # number of allocations in one of them
    step_ratio: float | None = None  # seconds of a step over one of the shape's plain training, taken in turns
    ended: Ended | None = None
    rung: int | None = None  # which it completes; the driver adds it
    checkpoint: str | None = None  # the newest of the trial, with `ended`; None where it diverged
    numbers: Mapping[str, float] | None = None  # what a user's loop reported; valid is then its best metric so far
    gap: float | None = None  # longest seconds between two reports of such a loop
    lost: int = 0  # steps that are in no checkpoint, with `ended`

    def __post_init__(self) -> None:
        _finite(self)
        for split in SPLITS:
            evaluation: Evaluation | None = getattr(self, split)
            if evaluation is not None and not math.isfinite(evaluation.loss):
                object.__setattr__(self, split, None)
            elif evaluation is not None and split != "test":
                object.__setattr__(self, split, replace(evaluation, blocks=None))

    @property
    def better_evaluation(self) -> Evaluation | None:
        """Return the evaluation of the subset with the lower loss: by the weights, or by their average."""
        return min((each for each in (self.valid, self.averaged) if each), key=lambda each: each.loss, default=None)

    @property
    def final(self) -> bool:
        """Whether it has the final result of a trial: after its decay, at its best, or at a loop's own end."""
        return self.ended in ENDS and self.valid is not None


@dataclass
class LossTracker:
    """The lowest and the latest validation loss of one trial; losses are added in order, all on one subset."""

    loss: float = math.inf
    latest: float = -math.inf
    last: list[float] = field(default_factory=list)  # the last 2 * TURN_WINDOW, which show a turn
    lately: float = math.inf  # the lowest since the last reset()
    trained: float = math.inf  # mean training loss of the steps before that one
    training: float = -math.inf  # the same of the steps before the latest

    def add(self, loss: float, training: float = -math.inf) -> bool:
        """Add a loss, and the mean training loss of the steps since the one before, where it is known. Return whether
        the loss is the lowest."""
        lower = loss < self.loss
        self.loss, self.latest, self.training = min(self.loss, loss), loss, training
        self.last = [*self.last, loss][-2 * TURN_WINDOW :]
        if loss < self.lately:
            self.lately, self.trained = loss, training
        return lower

    def reset(self) -> None:
        """Use none of the losses so far to detect a turn: they are of a training before this one."""
        self.last, self.lately = [], math.inf

    @property
    def is_above_lowest(self) -> bool:
        """Whether the latest is worse than the lowest by more than TIE."""
        return self.latest > self.loss + TIE

    @property
    def learned(self) -> bool:
        """Whether the training loss has fallen since the lowest validation loss, by more than noise."""
        return self.training <= self.trained - TURN_RISE

    @property
    def has_turned(self) -> bool:
        """Whether the trial is past its best, by more than noise: its training loss has fallen since, and its
        validation loss has risen. Where neither falls it may still be better after a decay."""
        before, since = self.last[:TURN_WINDOW], self.last[TURN_WINDOW:]
        rises = len(since) == TURN_WINDOW and min(since) > sorted(before)[TURN_WINDOW // 2] + TIE
        return self.learned and (rises or min(self.last[-2:], default=0.0) > self.lately + TURN_RISE)


def merge(before: Report | None, after: Report) -> Report:
    """Return two reports in a row as one: seconds add up, evaluations stay, all else is the later one's."""
    if before is None:
        return after
    one, other = before.seconds, after.seconds
    return replace(
        after, **{split: getattr(after, split) or getattr(before, split) for split in SPLITS},
        seconds={phase: one.get(phase, 0.0) + other.get(phase, 0.0) for phase in {**one, **other}},
    )  # fmt: skip


SPLITS = ("valid", "averaged", "whole", "test", "trained")
SECONDS = "seconds_"
"""Prefix of the columns of phases."""
_PLAIN = ("perplexity", "bits_per_character", "nats_per_word", "accuracy")
_SCALARS = {each.name: each.name for each in fields(Report) if each.name not in (*SPLITS, "seconds", "numbers")}


def _columns(split: str, *derived: str) -> dict[str, str]:
    """Return the column of each field of an evaluation: most of the subset's have no prefix."""
    names = (*(each.name for each in fields(Evaluation) if each.name != "blocks" or split == "test"), *derived)
    return {name: name if split == "valid" and name in _PLAIN else f"{split}_{name}" for name in names}


_READ = {split: _columns(split) for split in SPLITS}
_WRITTEN = {split: _columns(split, "perplexity") for split in SPLITS}
_OPTIONAL = {kind: [each.name for each in fields(kind) if each.default is None] for kind in (Evaluation, Report)}


def _finite(told: Evaluation | Report) -> None:
    for name in _OPTIONAL[type(told)]:
        value = getattr(told, name)
        if isinstance(value, float) and not math.isfinite(value):
            object.__setattr__(told, name, None)


def to_row(report: Report) -> dict[str, Value]:
    """Return a report as plain values, as JSON and SQLite take them; what it lacks is None."""
    row: dict[str, Value] = {name: getattr(report, name) for name in _SCALARS}
    for split in SPLITS:
        row |= split_row(split, getattr(report, split))
    if report.numbers is not None:
        row |= dict.fromkeys(columns["perplexity"] for columns in _WRITTEN.values())
    row |= {f"{SECONDS}{phase}": seconds for phase, seconds in report.seconds.items()}
    numbers = None if report.numbers is None else json.dumps(dict(report.numbers))
    return row | {"numbers": numbers, "ran_out": int(report.ran_out), "final": int(report.final)}


def split_row(split: str, evaluation: Evaluation | None) -> dict[str, Value]:
    """Return the columns of an evaluation of one of SPLITS."""
    return {column: getattr(evaluation, name, None) for name, column in _WRITTEN[split].items()}


def journal_row(report: Report) -> dict[str, Value]:
    """Return the columns of the journal's table `reports`: seconds are in `charges`, parameters in `trials`."""
    row = to_row(replace(report, seconds={}))
    del row["parameters"]
    return row


def from_row(row: Row) -> Report:
    """Return the report that a row was made of; other columns are ignored, and those of later versions may be missing.

    TypeError, ValueError: the row is of no report.
    """
    ended = row.get("ended")
    if ended not in (None, *get_args(Ended)):
        raise ValueError(f"no segment ends with {ended!r}")
    evaluations = {
        split: _made(Evaluation, row, columns) for split, columns in _READ.items()
        if row.get(columns["loss"]) is not None
    }  # fmt: skip
    seconds = {column.removeprefix(SECONDS): row[column] for column in row if column.startswith(SECONDS)}
    numbers = row.get("numbers")
    reported = {"numbers": {name: float(value) for name, value in json.loads(str(numbers)).items()}} if numbers else {}
    return _made(Report, row, _SCALARS, **evaluations, **reported, seconds=seconds, ran_out=bool(row.get("ran_out")))


T = TypeVar("T")


def _made(make: Callable[..., T], row: Row, columns: Mapping[str, str], **more: object) -> T:
    """Make a dataclass of a row's values in these columns, given by field; what is NULL has its default."""
    found = {name: row[column] for name, column in columns.items() if row.get(column) is not None}
    return make(**found | more)
