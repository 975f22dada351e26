"""The short form of the soak, of the rows without which nothing is safe: searches killed and signalled."""

from pathlib import Path

import pytest

from tests.soak.table import line, measured


@pytest.mark.parametrize("name", ["kill", "signals"])
def test_what_the_table_asks_is_kept(name: str, tmp_path: Path) -> None:
    for row in measured([name], tmp_path, short=True):
        assert row.kept, f"{line(row)}\n{row.details}"
