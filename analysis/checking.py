"""The command behind check_table.py: the findings of each table."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from analysis import tables
from analysis.settings import CheckSettings
from tune.published import PUBLISHED, findings_table, published_claims, read_csv
from tune.table_rules import Claims, Finding, findings


def check(settings: CheckSettings) -> int:
    """Print what was found. UserError: a table does not serve."""
    found = {name: findings(read_csv(file), claims) for name, file, claims in tables_to_check(settings)}
    if settings.json:
        print(json.dumps([{"table": name, **asdict(each)} for name in found for each in found[name]], indent=1))
    elif settings.format:
        print(settings.render(findings_table(name, found[name]) for name in found if found[name]))
    else:
        for name in found:
            show(name, found[name])
    return 0


def tables_to_check(settings: CheckSettings) -> Iterator[tuple[str, Path, Claims]]:
    """Yield name, file and claims of each table that is named, else of all published ones, which come with claims."""
    for table in settings.tables or map(Path, published_claims()):
        published = str(table) in published_claims() and not table.is_file()
        claims = published_claims()[str(table)] if published else Claims()
        typed = {name: getattr(settings, name) for name in ("vocabulary", "hours", "formulas", "order")}
        own = replace(claims, **{name: value for name, value in typed.items() if value})
        yield str(table), PUBLISHED / f"{table}.csv" if published else table, own


def show(name: str, found: list[Finding]) -> None:
    """Print the findings of a table on a screen."""
    if found:
        tables.draw(findings_table(f"{name}: {len(found)} found", found))
        print()
    else:
        print(f"{name}: no rule finds anything\n")
