"""Formulas over the columns of a table, as they are typed: names, numbers, + - * / **, and some functions; and the mean
of a few figures and the ratio of two medians, with their intervals. Standard library only.
"""

import ast
import itertools
import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tune.errors import UserError

Columns = Mapping[str, Sequence[float | None]]
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}  # fmt: skip
ROW_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "log": math.log,
    "log2": math.log2,
    "exp": math.exp,
    "sqrt": math.sqrt,
}
COLUMN_FUNCTIONS: dict[str, Callable[[Sequence[float]], float]] = {"max": max, "min": min, "sum": math.fsum}
"""Functions of all rows of a column, such as max(seconds)."""
STUDENT = {
    0.0: 1.960, 1 / 20: 2.086, 1 / 10: 2.228, 1 / 8: 2.306, 1 / 6: 2.447, 1 / 5: 2.571, 1 / 4: 2.776, 1 / 3: 3.182,
    1 / 2: 4.303, 1.0: 12.706,
}  # fmt: skip
"""The 97.5 % quantile of Student's t, by the reciprocal of its degrees of freedom."""

RESAMPLES = 1000
Interval = tuple[float, float, float]
"""A figure, and the lower and upper end of its interval."""

RULE = f"write columns, numbers, + - * / **, {', '.join(ROW_FUNCTIONS)}, and of all rows {', '.join(COLUMN_FUNCTIONS)}"
LONGEST = 400


@dataclass(frozen=True)
class Expression:
    """A formula that parse_expression() accepted."""

    text: str

    @property
    def names(self) -> set[str]:
        """Return the names of the columns in the formula."""
        tree = ast.parse(self.text, mode="eval").body
        called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in called}

    def evaluate(self, columns: Columns) -> list[float | None]:
        """Return its value in each row; None where a figure is missing or it has none. UserError: no such column."""
        tree = ast.parse(self.text, mode="eval").body
        if unknown := sorted(self.names - columns.keys()):
            raise UserError(f"{self.text!r}: {unknown[0]!r} is no column: there are {', '.join(columns)}")
        rows = range(len(next(iter(columns.values()), ())))
        return [_value(tree, columns, row) for row in rows]


def parse_expression(text: str) -> Expression:
    """Read a formula. UserError: it is anything but such arithmetic."""
    try:
        tree = ast.parse(text.strip(), mode="eval") if len(text) <= LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if tree is None or not _plain(tree.body):
        raise UserError(f"{text[:LONGEST]!r} is no formula: {RULE}")
    return Expression(text.strip())


def _plain(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.Name():
            return True
        case ast.UnaryOp(op=ast.USub(), operand=one):
            return _plain(one)
        case ast.BinOp(left=left, op=by, right=right):
            return type(by) in OPERATORS and _plain(left) and _plain(right)
        case ast.Call(func=ast.Name(id=name), args=[one], keywords=[]):
            return name in ROW_FUNCTIONS.keys() | COLUMN_FUNCTIONS.keys() and _plain(one)
    return False


def _value(node: ast.AST, columns: Columns, row: int) -> float | None:
    """Return a node's value in a row; None where it has none: a missing figure, a division by zero, an overflow."""
    match node:
        case ast.Constant(value=value):
            return _done(float, value)  # type: ignore[arg-type]
        case ast.Name(id=name):
            return columns[name][row]
        case ast.UnaryOp(operand=one):
            inner = _value(one, columns, row)
            return None if inner is None else -inner
        case ast.BinOp(left=left, op=by, right=right):
            return _done(OPERATORS[type(by)], _value(left, columns, row), _value(right, columns, row))
        case ast.Call(func=ast.Name(id=name), args=[one]) if name in ROW_FUNCTIONS:
            return _done(ROW_FUNCTIONS[name], _value(one, columns, row))
        case ast.Call(func=ast.Name(id=name), args=[one]):
            every = [_value(one, columns, each) for each in range(len(next(iter(columns.values()), ())))]
            known = [each for each in every if each is not None]
            return _done(COLUMN_FUNCTIONS[name], known) if known else None
    raise AssertionError("parse_expression() took it")


def _done(function: Callable[..., float], *values: float | Sequence[float] | None) -> float | None:
    try:
        made = None if None in values else function(*values)
    except (ArithmeticError, ValueError):
        return None
    return made if isinstance(made, float) and math.isfinite(made) else None


def student(freedom: float) -> float:
    """Return the quantile of STUDENT for so many degrees of freedom, interpolated. ValueError: fewer than 1."""
    at = 1 / freedom
    for (low, less), (high, more) in itertools.pairwise(STUDENT.items()):
        if at <= high:
            return less + (more - less) * (at - low) / (high - low)
    raise ValueError(f"freedom: {freedom} is less than 1")


def ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Return the ratio of the medians of two series that were measured apart; its 95 % interval is by resampling."""
    random = Random(0)
    both = ([statistics.median(random.choices(each, k=len(each))) for _ in range(RESAMPLES)] for each in (above, below))
    drawn = sorted(one / other for one, other in zip(*both, strict=True))
    beyond = RESAMPLES // 40
    return statistics.median(above) / statistics.median(below), drawn[beyond], drawn[-1 - beyond]


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the mean of a few values, such as one a seed, with Student's 95 % interval; None for fewer than two."""
    if len(values) < 2:
        return None
    mean, half = statistics.fmean(values), student(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half
