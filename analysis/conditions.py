"""Conditions on columns, as in --where "layers<=4 and precision=='bf16'". Nothing is evaluated as Python."""

import ast
import operator
from typing import Any

import pandas as pd

from tune.errors import UserError

LONGEST = 1000
RULE = "write comparisons of columns with numbers or quoted words, joined by and, or, not, in"
COMPARISONS = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def select(table: pd.DataFrame, condition: str) -> pd.DataFrame:
    """The rows for which the condition holds. UserError for one that is not understood."""
    if len(condition) > LONGEST:
        raise UserError(f"--where: {len(condition)} characters: {LONGEST} are the most; write a shorter one")
    try:
        tree = ast.parse(condition.strip(), mode="eval").body
        return table[_mask(table, tree)]
    except (SyntaxError, RecursionError, MemoryError):
        raise UserError(f"--where: {condition!r} is not a condition; {RULE}") from None
    except TypeError:
        raise UserError(
            f"--where: {condition!r} compares words with numbers; quote words, as in precision=='bf16'"
        ) from None


def _mask(table: pd.DataFrame, node: ast.expr) -> pd.Series:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return pd.concat([_mask(table, value) for value in values], axis=1).all(axis=1)
        case ast.BoolOp(op=ast.Or(), values=values):
            return pd.concat([_mask(table, value) for value in values], axis=1).any(axis=1)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_mask(table, operand)
        case ast.Compare(left=left, ops=comparisons, comparators=rights):
            sides = [left, *rights]
            pairs = zip(comparisons, sides, sides[1:], strict=False)
            return pd.concat([_compare(table, *pair) for pair in pairs], axis=1).all(axis=1)
        case ast.Name(id=name) if name in table and table[name].dtype == bool:
            return table[name]
        case _:
            raise UserError(f"--where: {ast.unparse(node)!r} is not a condition; {RULE}")


def _compare(table: pd.DataFrame, comparison: ast.cmpop, left: ast.expr, right: ast.expr) -> pd.Series:
    if isinstance(comparison, ast.In | ast.NotIn):
        if not isinstance(right, ast.Tuple | ast.List):
            raise UserError(
                f"--where: {ast.unparse(right)!r} is not a list; write one, as in precision in ('fp32', 'bf16')"
            )
        inside = _column(table, left).isin([_constant(item) for item in right.elts])
        return inside if isinstance(comparison, ast.In) else ~inside
    if type(comparison) not in COMPARISONS:
        raise UserError(f"--where: 'is' is not a comparison here; {RULE}")
    return COMPARISONS[type(comparison)](_side(table, left), _side(table, right))


def _side(table: pd.DataFrame, node: ast.expr) -> pd.Series:
    if isinstance(node, ast.Name):
        return _column(table, node)
    return pd.Series(_constant(node), index=table.index)


def _column(table: pd.DataFrame, node: ast.expr) -> pd.Series:
    if not isinstance(node, ast.Name) or node.id not in table:
        raise UserError(f"--where: no column {ast.unparse(node)!r}: there are {', '.join(map(str, table.columns))}")
    return table[node.id]


def _constant(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        value = None
    if not isinstance(value, bool | int | float | str):
        raise UserError(f"--where: {ast.unparse(node)!r} is not a number, a quoted word, True or False; {RULE}")
    return value
