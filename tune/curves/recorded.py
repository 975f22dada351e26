"""Recorded learning curves, and tables of them that a search may choose from, read from files."""

import hashlib
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any

from tune.errors import UserError
from tune.reports import EPOCHS_AS_NEW, LARGEST_LOG, NEW_DROPOUT, WATCH_SHARE, LossTracker
from tune.search.family import Suggestions
from tune.search.forecast import NO_FAVOUR, NO_PROGRESS, Favour, Progress
from tune.search.outlook import Outlook, most_promising
from tune.search_space import Config, Value


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One configuration trained to its end: losses in nats, one a report (NaN: not finite), and what a report cost.

    decayed: in own mode, for each number of reports the loss of a training of that length that ends with a decay (NaN:
    not measured); averaged: losses of the average of the weights, one a report, where they were measured; report_every:
    steps between two reports; warm_up_steps: of the learning rate; family: of built-in models, "" where it is another;
    tokens_per_step: trained on in a step; text_tokens: of the training split (0: not known); dropout_after: passes over
    it after which dropout begins. As a LearningCurve of the simulator it counts in steps; nothing is known of it beyond
    its last report.
    """

    config: dict[str, Any]
    parameters: int
    seconds_per_report: float
    losses: tuple[float, ...]
    report_every: float = 1.0
    memory_bytes: float = 0.0
    decayed: tuple[float, ...] = ()
    averaged: tuple[float, ...] = ()
    warm_up_steps: int = 0
    family: str = ""
    tokens_per_step: float = 0.0
    text_tokens: float = 0.0
    dropout_after: float = EPOCHS_AS_NEW

    @cached_property
    def step_seconds(self) -> float:
        """Device-seconds of a step."""
        return self.seconds_per_report / self.report_every

    @cached_property
    def max_steps(self) -> float:
        """Steps to its end."""
        return round(len(self.losses) * self.report_every)

    @cached_property
    def diverges(self) -> float:
        """Steps at its first report that is not finite; inf: there is none."""
        whole = self.finite_reports == len(self.losses)
        return math.inf if whole else math.ceil((self.finite_reports + 1) * self.report_every)

    def steps_in(self, passes: float) -> float:
        """Return the steps in so many passes over the training split."""
        return passes * self.text_tokens / (self.tokens_per_step or 1.0)

    @cached_property
    def turning_steps(self) -> float:
        """Steps at its best, if a search that knows no training loss would see it past that while its text is no longer
        as good as new, with dropout as in its recipe; inf: it would not, or its text is not known."""
        if not self.text_tokens:
            return math.inf
        lowest, best, look = LossTracker(), math.inf, self.steps_in(EPOCHS_AS_NEW)
        settled = NEW_DROPOUT * self.steps_in(self.dropout_after) if self.config.get("dropout") else 0.0
        for place, losses in enumerate(zip_longest(self.losses, self.averaged, fillvalue=math.inf), 1):
            steps = place * self.report_every
            kept = min((loss for loss in losses if math.isfinite(loss)), default=math.inf)
            if steps < look:
                continue
            look = (1 + WATCH_SHARE) * steps
            if lowest.add(kept):
                best = steps
            if steps < settled:
                lowest.reset()
            if lowest.has_turned:
                return best
        return math.inf

    def loss(self, steps: float) -> float:
        """Return the loss at a constant rate, or with a schedule of its own: between two reports it is linear in log
        steps."""
        return _between(self.losses, steps / self.report_every)

    def final(self, steps: float) -> float:
        """Return the loss of a training of so many steps that ends with a decay: between two that were measured, its
        log is linear in log steps; for one shorter than any that was measured it is the loss without a decay."""
        reports = steps / self.report_every
        measured = any(math.isfinite(loss) for loss in self.decayed[: int(reports + 1e-9)])
        return math.exp(_between(self._log_decayed, reports)) if measured else self.loss(steps)

    @cached_property
    def _log_decayed(self) -> tuple[float, ...]:
        return tuple(math.log(loss) if loss > 0 else math.nan for loss in self.decayed)

    def lowest(self, steps: float) -> float:
        """Return the lowest loss of the reports that a training of so many steps passes; inf: it passes none."""
        passed = int(steps / self.report_every + 1e-9)
        return self.best[min(passed, len(self.best)) - 1] if passed else math.inf

    @property
    def seconds(self) -> float:
        """Device-seconds to its end."""
        return self.seconds_per_report * len(self.losses)

    @cached_property
    def finite_reports(self) -> int:
        """Number of reports before the first loss that is not finite."""
        return next((count for count, loss in enumerate(self.losses) if not math.isfinite(loss)), len(self.losses))

    @cached_property
    def best(self) -> tuple[float, ...]:
        """The lowest loss up to each report (inf before the first finite one)."""
        return tuple(accumulate((loss if math.isfinite(loss) else math.inf for loss in self.losses), min))


@dataclass(frozen=True, kw_only=True)
class Table:
    """Configurations that a search may choose from."""

    name: str
    curves: tuple[Curve, ...]

    @property
    def exhaustive_seconds(self) -> float:
        """Device-seconds to train all configurations to their ends."""
        return sum(curve.seconds for curve in self.curves)

    @property
    def is_own_mode(self) -> bool:
        """Whether its trials have no end of their own, and losses after a decay are known."""
        return any(curve.decayed for curve in self.curves)

    @cached_property
    def content(self) -> str:
        """A digest of the curves."""
        return hashlib.sha256(repr(self.curves).encode()).hexdigest()[:12]


class CurveSuggestions(Suggestions):
    """Suggestions for the engine that hand out each curve of a table once: in a seeded order, or as a search suggests
    them. A configuration is the number of its curve.

    only: these curves and no others; prior, outlook, first: as of a Suggester; without a prior the order is the seeded
    one.
    """

    def __init__(
        self, curves: Sequence[Curve], *, seed: int, only: Sequence[int] | None = None,
        prior: Callable[[Config], Favour] | None = None, first: Sequence[Config] = (),
    ) -> None:  # fmt: skip
        self._curves, self.seed, self._prior, self._first = curves, seed, prior, first
        self.outlook = Outlook()
        self._indices = range(len(curves)) if only is None else only
        self._given: dict[str, int] = {}
        self._round = -1
        self.begin_again()

    def begin_again(self) -> None:
        """Let every curve be handed out once more."""
        self._round += 1
        rng = random.Random(f"{self.seed} {self._round}")
        self._left = dict.fromkeys(rng.sample(self._indices, len(self._indices)))

    @property
    def count(self) -> int:
        """Number of curves."""
        return len(self._indices)

    @property
    def has_more(self) -> bool:
        """Whether there is a curve that was not handed out."""
        return bool(self._left)

    def first(self) -> Curve:
        """Return the curve that is handed out next: before a search, its first."""
        return self._curves[self._next()]

    def suggest(self, trial: str) -> dict[str, Value]:
        """Hand out the next curve, by its number."""
        self._given[trial] = index = self._next()
        del self._left[index]
        return {"curve": index}

    def favour(self, trial: str) -> Favour:
        """Return how promising a trial was before anything was known: all alike without a prior."""
        return NO_FAVOUR if self._prior is None else self._prior(self._curves[self._given[trial]].config)

    def tell(self, trial: str, rung: int, loss: float | None, progress: Progress = NO_PROGRESS) -> None:
        """Tell the outlook how far a trial is at a rung."""
        self.outlook.tell(trial, self._curves[self._given[trial]].config, progress)

    def _next(self) -> int:
        left = list(self._left)
        if asked := [index for config in self._first for index in left if self._curves[index].config == config]:
            return asked[0]
        if self._prior is None:
            return left[0]
        return left[most_promising([self._curves[index].config for index in left], self._prior, self.outlook)]


def _between(losses: Sequence[float], reports: float) -> float:
    """Return the loss after so many reports, interpolated between the finite ones before and after; beyond these it is
    the first or last."""
    low, high = min(len(losses), max(1, math.floor(reports))), min(len(losses), max(1, math.ceil(reports)))
    while low > 1 and not math.isfinite(losses[low - 1]):
        low -= 1
    while high < len(losses) and not math.isfinite(losses[high - 1]):
        high += 1
    before, after = losses[low - 1], losses[high - 1]
    if low >= high or not math.isfinite(after):
        return before
    if not math.isfinite(before):
        return after
    return before + (after - before) * math.log(max(reports, low) / low) / math.log(high / low)


KEYS = ("config", "parameters", "seconds_per_report", "valid_loss")


PUBLISHED = Path(__file__).parent / "tables"
"""Folder of tables in own mode that the project measured (`tune/experiment.py curves`), which are named as their
files."""


def load_table(path: Path) -> Table:
    """Return the table of a JSON-lines file, or a published one, by its name. UserError: it is neither, or has no
    finite loss, or losses too far apart."""
    remedy = f"name a .jsonl table, or one of {', '.join(sorted(each.stem for each in PUBLISHED.glob('*.jsonl')))}"
    try:
        if not path.exists() and (published := PUBLISHED / f"{path}.jsonl").is_file():
            path = published
        table = from_lines(path)
    except OSError as error:
        raise UserError(f"table: '{path}' cannot be read ({error.strerror}); {remedy}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"table: '{path}' is not UTF-8 text; {remedy}") from error
    if not any(curve.finite_reports for curve in table.curves):
        raise UserError(f"table: '{path}' has no curve with a finite loss; replay needs at least one")
    losses = [loss for curve in table.curves for loss in curve.losses if math.isfinite(loss)]
    if (apart := max(losses) - min(losses)) > LARGEST_LOG:
        rule = f"a regret is of perplexities, e to the loss: they may lie {LARGEST_LOG:.0f} apart, such as logarithms"
        raise UserError(f"table: '{path}' has losses that lie {apart:.4g} apart: {rule}")
    return table


def from_lines(path: Path) -> Table:
    """Read a table of one JSON object a line, each a configuration."""
    curves = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            curves.append(_curve(line, f"table: '{path}' line {number}"))
    if not curves:
        raise UserError(f"table: '{path}' is empty; one JSON object a line is needed, with {', '.join(KEYS)}")
    return Table(name=path.stem, curves=tuple(curves))


def _curve(line: str, where: str) -> Curve:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON ({error.msg}); write one object a line with {', '.join(KEYS)}") from error
    missing = [key for key in KEYS if not isinstance(row, dict) or key not in row]
    if missing:
        raise UserError(f"{where} has no {missing[0]}; each line needs {', '.join(KEYS)}")
    try:
        losses, averaged, decayed = (
            tuple(math.nan if loss is None else float(loss) for loss in row.get(name, ()))
            for name in ("valid_loss", "averaged_loss", "decayed_loss")
        )
        steps = float(row.get("steps_per_report", 1.0))
        curve = Curve(
            config=row["config"], parameters=int(row["parameters"]), family=str(row.get("family") or ""),
            seconds_per_report=float(row["seconds_per_report"]), report_every=steps,
            losses=_filled(losses) if decayed else losses, decayed=decayed, averaged=_filled(averaged),
            memory_bytes=float(row.get("memory_mb") or 0.0) * 1e6, warm_up_steps=int(row.get("warm_up_steps") or 0),
            tokens_per_step=float(row.get("tokens_per_report") or 0.0) / (steps or 1.0),
            text_tokens=float(row.get("text_tokens") or 0.0),
            dropout_after=float(row.get("dropout_after", EPOCHS_AS_NEW)),
        )  # fmt: skip
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where} holds something that is not a number ({error})") from error
    counts = 0 < curve.seconds_per_report < math.inf and 0 < steps < math.inf and curve.parameters >= 0
    if not losses or not counts or not isinstance(curve.config, dict):
        rule = "a config object, at least one loss, parameters, and seconds and steps per report above 0"
        raise UserError(f"{where} needs {rule}")
    return curve


def _filled(losses: tuple[float, ...]) -> tuple[float, ...]:
    """Fill in missing losses, as in own mode not every report has one: interpolated between two, none after the
    last."""
    finite = [report for report, loss in enumerate(losses, 1) if math.isfinite(loss)]
    last = finite[-1] if finite else 0
    return tuple(_between(losses[:last], report) for report in range(1, last + 1)) + losses[last:]
