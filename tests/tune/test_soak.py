"""The short form of the soak: searches killed, signalled and extended, and trials killed, each once or twice."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.soak.table import line, measured


@pytest.mark.parametrize("names", [("kill",), ("signals",), ("deaths", "extension")], ids=" and ".join)
def test_what_the_table_asks_is_kept(names: tuple[str, ...], tmp_path: Path) -> None:
    """Those named together have one slot each, and run side by side."""
    with ThreadPoolExecutor(len(names)) as together:
        found = list(together.map(lambda name: list(measured([name], tmp_path, short=True)), names))
    for row in (row for rows in found for row in rows):
        assert row.kept, f"{line(row)}\n{row.details}"
