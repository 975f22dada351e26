"""What a trial tells of itself: one report, from train() to the row of the journal and back. Standard library only.

A report goes two ways as a flat row of plain values, by column of the journal's table `reports`: from a worker to the
driver, and into the journal. Both are `to_row`, and `from_row` is its inverse.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeVar, get_args

Value = int | float | str | None
Row = Mapping[str, Value]

Ended = Literal["rung", "lease", "final", "turned", "returned", "stopped", "diverged", "unmeasured"]
"""How a segment ended: with its steps; with its lease, which was too short for them; after the decay; past its best,
which is what is kept; by itself, as a user's loop does at an end of its own; as it was told to; with a loss that
exploded; without memory for the smallest evaluation at its end."""
ENDS: tuple[Ended, ...] = ("final", "turned", "returned")
"""Of these, those after which a trial has nothing more to do."""
TIE = 0.003
"""Losses closer than this, in nats, are the same: the noise of a seed."""
LOOKS = 3
"""So many in a row must each be above the median of as many before by more than that: one look is off by more than
several of them gain."""
RISEN = 0.02
"""Two in a row that are so much above the lowest are enough: of trainings that still fell none was by .012."""
WATCH_SHARE, WATCH_POINTS = 0.07, 60
"""A loss that may turn is looked at after so much more training, and so often in a lease."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What trials are compared by: nats a token, or a number that a user's loop reports. To the search it is a loss,
    low is good; tie: losses closer than this are the same."""

    name: str = "loss"
    maximize: bool = False
    tie: float = TIE

    def own(self, loss: float) -> float:
        """As it was reported."""
        return -loss if self.maximize else loss

    def latest(self, numbers: Mapping[str, float] | None) -> float | None:
        """Of what a loop reported, as the search has it; None: it is no loop, or the metric was no finite number."""
        value = (numbers or {}).get(self.name)
        return None if value is None else self.own(value)

    def text(self, loss: float, digits: str = ".4g") -> str:
        """With its name: `accuracy 0.91`."""
        return f"{self.name} {self.own(loss):{digits}}"


NATS = Metric()
KEPT_BACK = 1.5
"""Times the longest time between two reports of a user's loop, of a lease: with less than that left it ends at one."""
EPOCHS_AS_NEW = 4
"""A text that is seen so often is about as good as a new one (Muennighoff et al. 2023, arXiv:2305.16264): a loss turns
later, if at all, and dropout waits until then."""
NEW_DROPOUT = 1.5
"""Times what was trained on when it began: until then a model learns to do with it (docs/log.md, day 26)."""

LARGEST_LOG = 700.0
"""Of a float: exp() of more is none."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How good a model is: means over a split's target tokens, padding not counted, without label smoothing.

    loss: nats a token; accuracy: share of the tokens that were predicted first; None: not known; seconds: that it took;
    blocks: of test alone, the nats of each of its blocks, as JSON: what compares two models token by token.
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
        """A token."""
        return math.exp(min(self.loss, LARGEST_LOG))

    def __post_init__(self) -> None:
        _finite(self)


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a trial is doing, about once a second; the last one of a segment has `ended`.

    None: not measured, or no finite number; an evaluation without a finite loss is none.
    """

    steps: int  # of the trial's life, and so tokens and training_seconds
    tokens: int  # target tokens seen, padding not counted
    training_seconds: float  # spent in steps
    train_loss: float | None = None  # nats a token, un-smoothed, mean since the report before
    learning_rate: float | None = None  # of the base shape
    gradient_norm: float | None = None
    tokens_per_second: float | None = None
    step_seconds: float | None = None  # median
    mfu: float | None = None  # share of peak_flops that training took
    peak_flops: float | None = None  # FLOP/s of the device at most
    parameters: int = 0
    memory_bytes: int = 0  # peak, above what the process held before the trial
    limited_bytes: int = 0  # the same as the memory limit of its process counts it
    micro_batches: int = 1  # parts that a batch is cut into
    ran_out: bool = False  # of memory, on this segment; smaller parts helped
    seconds: Mapping[str, float] = field(default_factory=dict)  # of the clock since the report before, by phase
    valid: Evaluation | None = None  # of the fixed subset, always the same one: what a curve is made of
    averaged: Evaluation | None = None  # of the same subset, by the average of the weights
    valid_subset: int | None = None  # about so many target tokens
    whole: Evaluation | None = None  # of all of the validation split, and so test, by the better of both
    test: Evaluation | None = None
    trained: Evaluation | None = None  # of as much of the training split as valid is of its own, without dropout
    bleu: float | None = None  # 0 to 100, of some sentences of the validation split, and so chrf
    chrf: float | None = None
    step_bytes: int | None = None  # that a few eager steps, taken anew, allocate at once at most
    step_allocations: float | None = None  # and how often one of them does
    step_ratio: float | None = None  # seconds of one to those of the shape's plain training, in turns with it
    ended: Ended | None = None
    rung: int | None = None  # that it completes, as the driver knows
    checkpoint: str | None = None  # the newest of the trial, with `ended`; None where it diverged
    numbers: Mapping[str, float] | None = None  # that a user's loop told; valid is then its best metric so far
    gap: float | None = None  # longest seconds between two reports of such a loop
    lost: int = 0  # of the steps, those that are in no checkpoint of it

    def __post_init__(self) -> None:
        _finite(self)
        for split in SPLITS:
            evaluation: Evaluation | None = getattr(self, split)
            if evaluation is not None and not math.isfinite(evaluation.loss):
                object.__setattr__(self, split, None)
            elif evaluation is not None and split != "test":
                object.__setattr__(self, split, replace(evaluation, blocks=None))

    @property
    def kept(self) -> Evaluation | None:
        """Of the weights as they are and of their average, on the subset, the one with the lower loss."""
        return min((each for each in (self.valid, self.averaged) if each), key=lambda each: each.loss, default=None)

    @property
    def final(self) -> bool:
        """Whether it has what a trial came to in the end: after its decay, or at its best."""
        return self.ended in ENDS and self.valid is not None


@dataclass
class Lowest:
    """Of validation losses of one trial, in their order and all on one subset, the lowest, and the latest."""

    loss: float = math.inf
    latest: float = -math.inf
    last: list[float] = field(default_factory=list)  # those that tell of a turn
    lately: float = math.inf  # the lowest since those before were forgotten
    trained: float = math.inf  # the loss of the steps before that one
    training: float = -math.inf  # and before the latest

    def add(self, loss: float, training: float = -math.inf) -> bool:
        """Take note of another one, and of the mean loss of the steps since the one before, where it is known. Whether
        it is the lowest."""
        lower = loss < self.loss
        self.loss, self.latest, self.training = min(self.loss, loss), loss, training
        self.last = [*self.last, loss][-2 * LOOKS :]
        if loss < self.lately:
            self.lately, self.trained = loss, training
        return lower

    def forget(self) -> None:
        """Those so far say nothing about a turn: what was trained was another training."""
        self.last, self.lately = [], math.inf

    @property
    def above(self) -> bool:
        """Whether the latest is worse."""
        return self.latest > self.loss + TIE

    @property
    def learned(self) -> bool:
        """Whether the loss of the steps has fallen since the lowest, for all that noise may do."""
        return self.training <= self.trained - RISEN

    @property
    def turned(self) -> bool:
        """Whether the trial is past its best, for all that noise may do: it has learned its training text since, and
        what that teaches does not hold elsewhere. Where neither loss falls it may yet be better after a decay."""
        before, since = self.last[:LOOKS], self.last[LOOKS:]
        rises = len(since) == LOOKS and min(since) > sorted(before)[LOOKS // 2] + TIE
        return self.learned and (rises or min(self.last[-2:], default=0.0) > self.lately + RISEN)


def merge(before: Report | None, after: Report) -> Report:
    """Two reports in a row as one: seconds add up, evaluations stay, all else is the later one's."""
    if before is None:
        return after
    one, other = before.seconds, after.seconds
    return replace(
        after, **{split: getattr(after, split) or getattr(before, split) for split in SPLITS},
        seconds={phase: one.get(phase, 0.0) + other.get(phase, 0.0) for phase in {**one, **other}},
    )  # fmt: skip


SPLITS = ("valid", "averaged", "whole", "test", "trained")
SECONDS = "seconds_"
"""Before the name of a phase."""
_PLAIN = ("perplexity", "bits_per_character", "nats_per_word", "accuracy")
_SCALARS = {each.name: each.name for each in fields(Report) if each.name not in (*SPLITS, "seconds", "numbers")}


def _columns(split: str, *derived: str) -> dict[str, str]:
    """The column of each field of an evaluation: the subset's, which came first, are mostly without a prefix."""
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
    """The report as plain values, as JSON and SQLite take them; what it lacks is None."""
    row: dict[str, Value] = {name: getattr(report, name) for name in _SCALARS}
    for split in SPLITS:
        row |= split_row(split, getattr(report, split))
    if report.numbers is not None:
        row |= dict.fromkeys(columns["perplexity"] for columns in _WRITTEN.values())
    row |= {f"{SECONDS}{phase}": seconds for phase, seconds in report.seconds.items()}
    numbers = None if report.numbers is None else json.dumps(dict(report.numbers))
    return row | {"numbers": numbers, "ran_out": int(report.ran_out), "final": int(report.final)}


def split_row(split: str, evaluation: Evaluation | None) -> dict[str, Value]:
    """The columns of one of SPLITS."""
    return {column: getattr(evaluation, name, None) for name, column in _WRITTEN[split].items()}


def journal_row(report: Report) -> dict[str, Value]:
    """Of these, the columns of the journal's table `reports`: it has seconds as charges, parameters by trial."""
    row = to_row(replace(report, seconds={}))
    del row["parameters"]
    return row


def from_row(row: Row) -> Report:
    """The report that a row was made of; other columns do not matter, nor do those that an earlier version had not.

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
    told = {"numbers": {name: float(value) for name, value in json.loads(str(numbers)).items()}} if numbers else {}
    return _made(Report, row, _SCALARS, **evaluations, **told, seconds=seconds, ran_out=bool(row.get("ran_out")))


T = TypeVar("T")


def _made(make: Callable[..., T], row: Row, columns: Mapping[str, str], **more: object) -> T:
    """What a row has of these columns, by the name of its field; what is NULL has its default."""
    found = {name: row[column] for name, column in columns.items() if row.get(column) is not None}
    return make(**found | more)
