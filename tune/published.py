"""The tables of the published reports, the claims beside them, and where they contradict themselves.

analysis/published/ says where each is from. analysis/ checks them; kernels/ and tune/experiments/ show them and the
findings beside their own figures. As those do not import one another, this is here. Standard library only.
"""

import csv
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tune.arithmetic import parse_expression
from tune.errors import ROOT, UserError
from tune.table_rules import Claims, Finding, findings, speed_ups
from tune.table_text import Table

PUBLISHED = ROOT / "analysis" / "published"
CLAIMS = "claims.toml"
"""File with what the reports claim beside each table there."""
OUR_STAGES = {"data loading": "data", "other": "rest"}
"""Our names of the stages of a training, by the report's where these differ; its `other` includes the optimizer."""


def read_csv(file: Path) -> dict[str, list[str]]:
    """Return the columns of a CSV file by name. UserError: it cannot be read, or is no table."""

    def wrong(rule: str) -> UserError:
        return UserError(f"TABLE: {str(file)!r} {rule}: name a CSV file with a line of column names, and rows below")

    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            head, *rows = [row for row in csv.reader(opened, strict=True) if row]
    except OSError as error:
        raise wrong(f"cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise wrong(f"is no CSV file ({error})") from None
    except ValueError:
        raise wrong("is empty") from None
    names = [re.sub(r"\W+", "_", each.strip().lower()).strip("_") for each in head]  # `Speed-up`: speed_up
    if not rows or len(set(names)) < len(names):
        raise wrong("has no rows" if not rows else "has two columns of one name")
    if uneven := next((place for place, row in enumerate(rows, start=1) if len(row) != len(head)), None):
        raise wrong(f"has {len(rows[uneven - 1])} cells in row {uneven}, and {len(head)} columns")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


@cache
def published(name: str) -> tuple[dict[str, Any], ...]:
    """Return the rows of a published table: numbers, words where the report has words, None where it has nothing."""
    columns = read_csv(PUBLISHED / f"{name}.csv")
    rows = zip(*columns.values(), strict=True)
    return tuple({column: _value(text) for column, text in zip(columns, row, strict=True)} for row in rows)


def published_speed_ups() -> dict[tuple[float, float], float]:
    """Return the speed-ups of the report on scaling by its own epochs, by devices and batch a device: seconds on one
    device over those on so many, with that batch on each."""
    keys = ((row["devices"], row["batch_size_per_device"]) for row in published("scaling"))
    found = zip(keys, speed_ups(read_csv(PUBLISHED / "scaling.csv")), strict=True)
    return {key: times for key, times in found if times is not None}


def _value(text: str) -> float | str | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text


def claims_of(stored: Mapping[str, Any]) -> Claims:
    """Return the claims that a table of claims.toml has."""
    return Claims(
        vocabulary=stored.get("vocabulary"), hours=stored.get("hours"),
        formulas={name: parse_expression(text) for name, text in stored.get("formulas", {}).items()},
        order=parse_expression(stored["order"]) if "order" in stored else None,
    )  # fmt: skip


@cache
def published_claims() -> dict[str, Claims]:
    """Return the claims of each published table."""
    stored = tomllib.loads((PUBLISHED / CLAIMS).read_text(encoding="utf-8"))
    return {file.stem: claims_of(stored.get(file.stem, {})) for file in sorted(PUBLISHED.glob("*.csv"))}


def findings_table(title: str, found: Iterable[Finding]) -> Table:
    """Return a table of findings, one a row."""
    rows = [[each.row, each.column, each.printed, each.recomputed, each.rule] for each in found]
    return Table(title=title, columns=("row", "column", "printed", "recomputed", "rule"), rows=rows)


def contradiction_tables(name: str) -> list[Table]:
    """Return a table of where a published table contradicts itself, to show beside its figures; no table where it does
    not."""
    if name not in published_claims():
        return []
    found = findings(read_csv(PUBLISHED / f"{name}.csv"), published_claims()[name])
    title = "What the report's figures say against themselves"
    return [findings_table(title, found)] if found else []
