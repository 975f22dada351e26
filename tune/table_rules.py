"""Finds where a table of published figures contradicts itself, or the claims beside it: rules by the names of columns.
Columns that no rule knows are ignored. Standard library only.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from statistics import median

from tune.arithmetic import Expression
from tune.errors import UserError
from tune.reports import LARGEST_LOG


@dataclass(frozen=True)
class Figure:
    """A number as it is printed: it stands for all values within half a unit of its last digit."""

    text: str
    value: float
    half: float

    @property
    def interval(self) -> tuple[float, float]:
        return self.value - self.half, self.value + self.half

    def may_lie_in(self, low: float, high: float) -> bool:
        """Whether any value that it stands for is between these two."""
        slack = 1e-9 * max(abs(low), abs(high))
        return self.interval[0] <= high + slack and self.interval[1] >= low - slack


THOUSANDS = re.compile(r"[-+]?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]*)?(?:[eE].*)?")
LARGEST_EXPONENT = 308
"""Largest decimal exponent of a float; a number such as `0e400`, whose last digit is beyond it, is no figure."""


def figure(text: str) -> Figure | None:
    """Return the figure that a text is, such as `28,616`, `1.7e03` or `61.9%`; `1,5` is one and a half; None: none."""
    plain = text.strip().removesuffix("%").strip()
    try:
        number = Decimal(plain.replace(",", "" if THOUSANDS.fullmatch(plain) else "."))
    except InvalidOperation:
        return None
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or exponent > LARGEST_EXPONENT or not math.isfinite(float(number)):
        return None
    return Figure(text.strip(), float(number), 10.0**exponent / 2)


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What a report claims beside a table.

    vocabulary: number of words, or classes, of which one is predicted; hours: that all rows together took, one after
    the other; formulas: by column, of other columns of the row; order: the score by which the report ranks rows, low
    first.
    """

    vocabulary: int | None = None
    hours: float | None = None
    formulas: Mapping[str, Expression] = field(default_factory=dict)
    order: Expression | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A figure that is impossible or odd; recomputed: what it would have to be."""

    row: str
    column: str
    printed: str
    recomputed: str
    rule: str


@dataclass(frozen=True)
class Figures:
    """A table's cells by column; column names are in lower case with underscores."""

    columns: Mapping[str, Sequence[str]]

    @property
    def count(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    @property
    def sums(self) -> list[int]:
        """Return the rows that are the sum of the others, as one of their cells says."""
        texts = self.columns.values()
        return [row for row in range(self.count) if any(cells[row].strip().lower() in WHOLE for cells in texts)]

    def in_column(self, column: str) -> list[Figure | None]:
        return [figure(text) for text in self.columns[column]]

    def matching(self, pattern: str) -> list[str]:
        """Return the columns whose whole name matches a pattern."""
        return [name for name in self.columns if re.fullmatch(pattern, name)]

    def pairs(self, one: str, other: str) -> Iterator[tuple[int, Figure, Figure]]:
        """Yield each row in which both columns have a figure, with the two."""
        for row, (first, second) in enumerate(zip(self.in_column(one), self.in_column(other), strict=True)):
            if first and second:
                yield row, first, second

    def first(self, pattern: str) -> str | None:
        return next(iter(self.matching(pattern)), None)

    def setting(self, row: int, *without: str) -> tuple[str, ...]:
        """Return the settings of a row, without some columns."""
        names = [name for name in self.matching(f"{SETTINGS}|{DEVICES}") if name not in without]
        return tuple(self.columns[name][row] for name in names)

    def values(self) -> dict[str, list[float | None]]:
        """Return the values of each column, for formulas."""
        return {name: [None if each is None else each.value for each in self.in_column(name)] for name in self.columns}

    def name(self, row: int) -> str:
        """Return a row's number and settings, such as `3: devices 2, batch_size 128`."""
        named = self.matching(f"{SETTINGS}|{DEVICES}")
        cells = [(name, self.columns[name][row]) for name in named if self.columns[name][row]]
        listed = ", ".join(text if figure(text) is None else f"{name} {text}" for name, text in cells[:NAMED])
        return f"{row + 1}: {listed}" if listed else f"{row + 1}"

    def add_finding(self, row: int, column: str, recomputed: str, rule: str) -> Finding:
        return Finding(
            row=self.name(row), column=column, printed=self.columns[column][row], recomputed=recomputed, rule=rule
        )


NAMED = 4
"""Most settings in a row's name."""
SETTINGS = (
    "batch_size|batch_size_per_device|d_model|heads|layers|dropout|precision|optimizer|method|doubled|seed|model|"
    "function|implementation|stage"
)
DEVICES = "devices|gpus|ranks"
LOSS = r"loss|\w+_loss|loss_\w+"
PERPLEXITY = r"(?:\w+_)?perplexity"
ACCURACY = r"(?:\w+_)?accuracy(?:_percent)?"
TIMES = {"epoch_seconds": 1.0, "training_seconds": 1.0, "total_seconds": 1.0, "seconds": 1.0, "minutes": 60.0,
         "hours": 3600.0, "time": 1.0, "runtime": 1.0}  # fmt: skip
"""Columns with the time of a row's whole work, and their units in seconds; that of `time` and `runtime` is not known,
and they are not summed into hours."""
TIME = "|".join(TIMES)
SPLITS = "train", "valid", "test"
WHOLE = {"all", "sum", "total"}
"""Names of a row that adds up the others."""
FAR = 3.0
"""Nats by which a validation loss is far above its training loss: a factor of 20 in perplexity."""
COINCIDENCES = 0.05
"""Pairs of equal figures expected by chance, below which equal figures are a finding."""
SUM_SLACK = 1.05
"""Factor by which a sum of hours may exceed the claim, as claims such as `8 hours` are rounded."""
FORMULA_SLACK = 0.005
"""Largest relative error of a formula, as formulas leave out what is small, such as biases."""
FORWARD_TO_STEP = 2.4, 3.6
"""Range of the FLOPs of a training step over those of its forward pass: the backward pass has about twice as many
(Kaplan et al. 2020, arXiv:2001.08361, 2.1)."""
GROWTH_SLACK = 1.5


def split(name: str) -> str | None:
    """Return the split that a column is of; None: its name does not say."""
    return next((each for each in SPLITS if each in name or each[:3] in name.split("_")), None)


def beside(table: Figures, name: str, pattern: str) -> str | None:
    """Return the column of a kind, given as a pattern, that is of the same split as another column. Where one of the
    two names no split, the kind must have only this column. None: there is none."""
    others = table.matching(pattern)
    same = [other for other in others if split(other) == split(name)]
    unsaid = [other for other in others if split(other) is None or split(name) is None]
    return next(iter(same or (unsaid if len(others) == 1 else [])), None)


def speed_ups(columns: Mapping[str, Sequence[str]]) -> list[float | None]:
    """Return T_1 / T_n of each row: the time on one device over the row's, all else alike; None: one is missing."""
    return [None if pair is None else pair[0].value / pair[1].value for pair in _pairs(Figures(columns))]


def _pairs(table: Figures) -> list[tuple[Figure, Figure] | None]:
    devices, time = table.first(DEVICES), table.first(TIME)
    if devices is None or time is None:
        return [None] * table.count
    counts, times = table.in_column(devices), table.in_column(time)
    single = {
        table.setting(row, devices): times[row]
        for row, count in enumerate(counts) if count is not None and count.value == 1
    }  # fmt: skip
    found = [(single.get(table.setting(row, devices)), times[row]) for row in range(table.count)]
    return [(one, own) if one and own and own.value > own.half else None for one, own in found]


def speed_up(table: Figures, claims: Claims) -> Iterator[Finding]:
    """Find speed-ups other than T_1 / T_n."""
    if column := table.first("speed_?up"):
        for row, (printed, pair) in enumerate(zip(table.in_column(column), _pairs(table), strict=True)):
            if printed and pair:
                one, own = pair
                if not printed.may_lie_in(one.interval[0] / own.interval[1], one.interval[1] / own.interval[0]):
                    rule = f"T_1 / T_n of its own {table.first(TIME)}"
                    yield table.add_finding(row, column, f"{one.value / own.value:.2f}", rule)


def uniform_guess(table: Figures, claims: Claims) -> Iterator[Finding]:
    """Find losses above ln V, which are worse than a uniform guess among V words."""
    for column in table.matching(LOSS) if claims.vocabulary else ():
        assert claims.vocabulary is not None
        most, train = math.log(claims.vocabulary), _training(table, column)
        for row, loss in enumerate(table.in_column(column)):
            if loss and loss.interval[0] > most:
                known = f", at a training loss of {table.columns[train][row]}" if train else ""
                rule = f"above ln {claims.vocabulary:,}, a uniform guess{known}"
                yield table.add_finding(row, column, f"at most {most:.2f}", rule)


def _training(table: Figures, column: str) -> str | None:
    """Return the column of the training loss, for a column of a validation or test loss; None: there is none."""
    losses = [name for name in table.matching(LOSS) if split(name) == "train"]
    return losses[0] if losses and split(column) in ("valid", "test") else None


def far_above_training(table: Figures, claims: Claims) -> Iterator[Finding]:
    """Find validation and test losses far above the training loss, and below a uniform guess: the model memorized its
    text, or the losses are mismeasured."""
    most = math.log(claims.vocabulary) if claims.vocabulary else math.inf
    for column in table.matching(LOSS):
        if train := _training(table, column):
            for row, loss, own in table.pairs(column, train):
                if own.value + FAR < loss.value and loss.interval[0] <= most:
                    rule = f"{loss.value - own.value:.1f} above its training loss of {own.text}"
                    yield table.add_finding(row, column, "-", rule)


def perplexity(table: Figures, claims: Claims) -> Iterator[Finding]:
    """Find perplexities other than exp(loss)."""
    for column in table.matching(PERPLEXITY):
        if of := beside(table, column, LOSS):
            for row, printed, loss in table.pairs(column, of):
                if loss.interval[1] < LARGEST_LOG and not printed.may_lie_in(*map(math.exp, loss.interval)):
                    yield table.add_finding(row, column, f"{math.exp(loss.value):.4g}", f"exp of its {of}")


def wrong_answers(table: Figures, claims: Claims) -> Iterator[Finding]:
    """Find mean cross-entropies below (1 - accuracy) ln 2, as a wrong answer costs at least ln 2.

    Where another class than the true one is predicted, it is at least as probable as the true one, and both together
    are at most 1: the true one has at most 1/2. The cross-entropy in bits is above the 0-1 loss (Bartlett, Jordan and
    McAuliffe 2006, "Convexity, classification, and risk bounds").
    """
    for column in table.matching(LOSS):
        if of := beside(table, column, ACCURACY):
            shares = [each for each in table.in_column(of) if each]
            whole = 100 if of.endswith("percent") or any(each.value > 1 or "%" in each.text for each in shares) else 1
            for row, loss, share in table.pairs(column, of):
                if loss.interval[1] < (1 - share.interval[1] / whole) * math.log(2):
                    least = (1 - share.value / whole) * math.log(2)
                    rule = f"each wrong answer costs ln 2 at least, and its {of} is {share.text}"
                    yield table.add_finding(row, column, f"at least {least:.3f}", rule)


def repeated_figures(table: Figures, claims: Claims) -> Iterator[Finding]:
    """Find equal figures in rows that were measured apart, where hardly any are expected by chance."""
    units: Sequence[str] = table.columns.get("unit", [""] * table.count)
    for column in table.matching(f"{TIME}|{LOSS}"):
        for unit in dict.fromkeys(units):
            cells = {row: each for row, each in enumerate(table.in_column(column)) if each and units[row] == unit}
            if len(cells) > 1 and _expected_pairs(list(cells.values())) < COINCIDENCES:
                yield from _equal(table, column, cells)


def _equal(table: Figures, column: str, cells: Mapping[int, Figure]) -> Iterator[Finding]:
    """Yield a finding for the first row with each repeated figure; its rule names the other rows."""
    alike: dict[float, list[int]] = {}
    for row, each in cells.items():
        alike.setdefault(each.value, []).append(row)
    for rows in alike.values():
        if len(rows) > 1:
            others = ", ".join(str(row + 1) for row in rows[1:])
            rule = f"the same in row {others}" if len(rows) == 2 else f"the same in rows {others}"
            yield table.add_finding(rows[0], column, "-", f"{rule}, where it would be measured apart")


def _expected_pairs(figures: Sequence[Figure]) -> float:
    """Return the pairs that would be equal by chance if the figures were spread evenly over their range in steps of
    their last digit."""
    exponents = [Decimal(repr(each.value)).normalize().as_tuple().exponent for each in figures]
    step = 10.0 ** min(each for each in exponents if isinstance(each, int))
    values = [each.value for each in figures]
    reach = (max(values) - min(values)) or max(map(abs, values))
    return math.comb(len(values), 2) * step / reach if reach else math.inf


def hours(table: Figures, claims: Claims) -> Iterator[Finding]:
    """Find a sum of the rows' times above the hours that are claimed for all."""
    column = next((name for name in table.columns if name in TIMES and name not in ("time", "runtime")), None)
    if claims.hours is not None and column is not None:
        sums = table.sums
        rows = (each for row, each in enumerate(table.in_column(column)) if each and row not in sums)
        taken = sum(each.value for each in rows) * TIMES[column] / 3600
        if taken > SUM_SLACK * claims.hours:
            yield Finding(row="all", column=column, printed=f"{claims.hours:g} h", recomputed=f"{taken:.1f} h",
                          rule=f"the sum of the rows; {claims.hours:g} h are told of all")  # fmt: skip


def totals(table: Figures, claims: Claims) -> Iterator[Finding]:
    """Find rows called a sum that are not the sum of the others."""
    for row in table.sums:
        for column in table.matching(rf"{TIME}|\w+_(?:seconds|minutes|hours|bytes|parameters|flops)|parameters"):
            cells = table.in_column(column)
            rest, printed = [each for place, each in enumerate(cells) if place != row and each], cells[row]
            if printed and rest:
                low, high = (sum(each.interval[end] for each in rest) for end in (0, 1))
                if not printed.may_lie_in(low, high):
                    yield table.add_finding(row, column, f"{(low + high) / 2:.6g}", "the sum of the other rows")


def multiplications(table: Figures, claims: Claims) -> Iterator[Finding]:
    """Find FLOPs other than two for each multiplication with addition."""
    for macs in table.matching(r"(?:\w+_)?macs"):
        if (flops := macs.replace("macs", "flops")) in table.columns:
            for row, one, two in table.pairs(macs, flops):
                if not two.may_lie_in(2 * one.interval[0], 2 * one.interval[1]):
                    yield table.add_finding(row, flops, f"{2 * one.value:.6g}", f"2 FLOPs for each of its {macs}")


def forward_for_step(table: Figures, claims: Claims) -> Iterator[Finding]:
    """Find measured FLOPs of a training step that are compared with an estimate of the forward pass alone."""
    paper, measured = table.first("(?:estimated|expected|theoretical)_flops"), table.first("(?:measured|actual)_flops")
    if paper and measured:
        times = [two.value / one.value for _, one, two in table.pairs(paper, measured) if one.value]
        if times and FORWARD_TO_STEP[0] < median(times) < FORWARD_TO_STEP[1]:
            rule = f"a step is a forward pass and a backward pass of twice as much; {paper} is of the forward pass"
            printed = f"{min(times):.2f} to {max(times):.2f} times {paper}"
            yield Finding(row="all", column=measured, printed=printed, recomputed=f"3 times {paper}", rule=rule)


def growth(table: Figures, claims: Claims) -> Iterator[Finding]:
    """Find FLOPs and bytes that fall as the batch grows, or grow faster than it."""
    batch = table.first("batch_size|batch_size_per_device")
    for column in table.matching(r"\w*(?:flops|bytes|memory)\w*") if batch else ():
        assert batch is not None
        last: dict[tuple[str, ...], tuple[float, float]] = {}
        rows = (each for each in table.pairs(batch, column) if each[1].value > 0)
        for row, size, cell in sorted(rows, key=lambda each: each[1].value):
            setting = table.setting(row, batch)
            before, value = last.get(setting, (size.value, cell.value))
            most = value * size.value / before
            if not value <= cell.interval[1] or cell.value > GROWTH_SLACK * most:
                rule = f"grows with the batch, and no faster: {value:g} at {before:g}"
                yield table.add_finding(row, column, f"about {most:.6g}", rule)
            else:
                last[setting] = size.value, cell.value


NO_VALUE = "no value"
"""Shown for a formula that divides by zero, or takes the logarithm of zero or less."""


def _values(table: Figures, flag: str, formula: Expression) -> list[float | None]:
    """Return a formula's value in each row; None where a figure is missing, NaN where all are there and it still has no
    value. UserError: no such column, under the flag."""
    columns = table.values()
    try:
        values = formula.evaluate(columns)
    except UserError as error:
        raise UserError(f"--{flag}: {error}") from None
    missing = [None in (columns[name][row] for name in formula.names) for row in range(table.count)]
    return [value if value is not None or lacks else math.nan for value, lacks in zip(values, missing, strict=True)]


def formulas(table: Figures, claims: Claims) -> Iterator[Finding]:
    """Find cells other than what their column's formula gives. UserError: a formula of or with an unknown column."""
    for column, formula in claims.formulas.items():
        if column not in table.columns:
            raise UserError(f"--formulas: {column!r} is no column: there are {', '.join(table.columns)}")
        for row, (printed, value) in enumerate(
            zip(table.in_column(column), _values(table, "formulas", formula), strict=True)
        ):
            if printed and value is not None:
                slack = FORMULA_SLACK * abs(value)
                if not printed.may_lie_in(value - slack, value + slack):
                    text = NO_VALUE if math.isnan(value) else f"{value:.6g}"
                    yield table.add_finding(row, column, text, f"{formula.text}, to {FORMULA_SLACK:.1%}")


def order(table: Figures, claims: Claims) -> Iterator[Finding]:
    """Find rows whose place, or whose figure in a column `rank`, is not that of their score. UserError: the score has
    an unknown column."""
    if claims.order is None:
        return
    scores = _values(table, "order", claims.order)
    known = [score for score in scores if score is not None and not math.isnan(score)]
    places = table.values().get("rank", [row + 1.0 for row in range(table.count)])
    for row, (score, printed) in enumerate(zip(scores, places, strict=True)):
        if score is not None and printed is not None:
            first, ties = sum(each < score for each in known) + 1, known.count(score)
            if not first <= printed < first + ties:
                text = NO_VALUE if math.isnan(score) else str(first)
                yield Finding(row=table.name(row), column="rank", printed=f"{printed:g}", recomputed=text,
                              rule=f"by {claims.order.text}, low first")  # fmt: skip


RULES: Sequence[Callable[[Figures, Claims], Iterator[Finding]]] = (
    speed_up, uniform_guess, far_above_training, perplexity, wrong_answers, repeated_figures, hours, totals,
    multiplications, forward_for_step, growth, formulas, order,
)  # fmt: skip


def findings(columns: Mapping[str, Sequence[str]], claims: Claims) -> list[Finding]:
    """Return all that the rules find. UserError: a formula names a column that is not there."""
    return [each for rule in RULES for each in rule(Figures(columns), claims)]
