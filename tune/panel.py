"""A view of a running study as a panel of text, as wide as the terminal."""

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.panel import Panel as Box
from rich.text import Text

from tune.duration import duration_text
from tune.view import Best, FamilyView, View

BLOCKS = "▁▂▃▄▅▆▇█"
LONGEST_CURVE = 60
"""Characters."""
FRAME = 4
"""Columns of the box around the lines."""


class Panel:
    """What rich draws."""

    def __init__(self, view: View, title: str) -> None:
        self._view, self._title = view, title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = Text("\n", no_wrap=True, overflow="ellipsis").join(_lines(self._view, options.max_width - FRAME))
        yield Box(lines, title=Text(self._title), title_align="left", border_style="dim")


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of the values in at most `width` blocks: each the mean of as many values, the lowest the least."""
    width = min(width, len(values))
    if width <= 0:
        return ""
    parts = [values[len(values) * i // width : len(values) * (i + 1) // width] for i in range(width)]
    means = [sum(part) / len(part) for part in parts]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(BLOCKS[int((len(BLOCKS) - 1) * (mean - low) / span + 0.5)] for mean in means)


def _lines(view: View, width: int) -> Iterator[Text]:
    yield _bar(view, width)
    money = f"spent {_short(view.spent)} of {duration_text(view.cap)} ({100 * view.spent / view.cap:.0f} %)"
    end = "" if view.seconds_to_end is None else f"; ends in about {_short(view.seconds_to_end)}"
    yield Text(f"{money}, reserved {_short(view.reserved)}, left {_short(view.left)}{end}")
    for name, family in view.families.items():
        yield _counts(name, family)
        if family.best is not None:
            yield _best_line(family.best, width)


def _bar(view: View, width: int) -> Text:
    """The cap: spent, reserved, left."""
    spent = min(width, round(width * view.spent / view.cap))
    reserved = min(width - spent, round(width * view.reserved / view.cap))
    left = width - spent - reserved
    return Text.assemble(("█" * spent, "green"), ("▒" * reserved, "yellow"), ("░" * left, "dim"))


def _counts(name: str, family: FamilyView) -> Text:
    counts = f"{len(family.running)} running, {family.paused} paused"
    ended = ", ".join(f"{count} {why}" for why, count in family.ended.items()) or "none"
    said = "; ".join([f"{counts}, ended: {ended}", *([", ".join(family.running)] if family.running else [])])
    return Text.assemble((name, "bold"), f" {said}")


def _best_line(best: Best, width: int) -> Text:
    said = f"  best {best.trial} {best.config}: perplexity {best.perplexity:.4g} {best.where} "
    return Text.assemble(said, (sparkline(best.curve, min(LONGEST_CURVE, width - len(said))), "cyan"))


def _short(seconds: float) -> str:
    """To a second; from an hour on to a minute."""
    unit = 1 if seconds < 3600 else 60
    return duration_text(unit * round(seconds / unit))
