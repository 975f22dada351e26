"""TensorBoard's part of an experiment: the numbers of each row over devices, and the tables as text."""

from collections.abc import Sequence
from pathlib import Path

from tensorboard.plugins.text.summary_v2 import text_pb

from tune.board.event_file import EventFile, scalar
from tune.experiments.experiment import Row, Table


class Board:
    """One run, which bears the experiment's name."""

    def __init__(self, folder: Path) -> None:
        self._file = EventFile(folder)

    def measured(self, row: Row) -> None:
        """Its numbers, of those with an interval the figure itself, under what was asked of which configuration."""
        asked = " ".join(str(value) for value in {**row["asked"], **row["config"]}.values())
        known = {name: value for name, value in row.items() if value != []}
        figures = {name: value[0] if isinstance(value, list | tuple) else value for name, value in known.items()}
        numbers = {name: value for name, value in figures.items() if isinstance(value, int | float)}
        self._file.add(*(scalar(f"{asked}/{name}", value) for name, value in numbers.items()), step=row["devices"])

    def concluded(self, tables: Sequence[Table], conclusions: Sequence[str]) -> None:
        """What the experiment ends with."""
        texts = {table.title: markdown(table) for table in tables}
        if conclusions:
            texts["conclusions"] = "\n\n".join(conclusions)
        for title, text in texts.items():
            self._file.add(*text_pb(title, text).value, step=0)


def markdown(table: Table) -> str:
    """The table as Markdown."""
    lines = [list(table.columns), ["---"] * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + f"\n\n{table.note}"
