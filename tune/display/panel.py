"""The live panel: a running study at a glance, read from its journal; on a terminal, other lines scroll by above it.

A thread of its own reads the journal and is the only one that draws, so the search waits for neither.
"""

import json
import math
import os
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.panel import Panel as Box
from rich.text import Text

from tune.display.console import MOST_RUNNING, LineWriter
from tune.reports import Metric
from tune.search_space import label
from tune.settings import Settings
from tune.store.heartbeat import GRACE_SECONDS
from tune.store.journal import SLOT_SHARE_SQL, connect
from tune.store.queries import best_so_far, level_text
from tune.units import duration_text

SLOTS = f"""
    SELECT TOTAL((IFNULL(closed, ?) - opened) * {SLOT_SHARE_SQL}), TOTAL(closed IS NULL),
           TOTAL((closed IS NULL) * {SLOT_SHARE_SQL})
    FROM slots"""
LOSS = "IIF(numbers IS NULL, train_loss, valid_loss)"
"""SQL for the training loss of a report; of a user's loop for its best so far, as a loss."""
LEASES = f"""
    SELECT leases.trial, family, config, leases.rung, purpose,
           reserved - (? - leases.opened) * {SLOT_SHARE_SQL} AS ahead, {SLOT_SHARE_SQL} AS share,
           {LOSS} AS loss, step_seconds
    FROM leases JOIN trials USING (trial) JOIN slots USING (slot) LEFT JOIN reports ON report = (
        SELECT MAX(report) FROM reports WHERE reports.trial = leases.trial AND {LOSS} IS NOT NULL)
    WHERE leases.closed IS NULL ORDER BY leases.lease"""
"""Query of the leases in use, each with the last report of its trial that has this loss."""
ENDED_WHY = {"finished": "finished", "failed": "error"}
"""Why a trial ended, by its state; trials that were stopped have a reason in the journal."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """First trial of a family's ranking so far. found: its result, such as `perplexity 4.2`; where: at which level, and
    on which split; curve: its training losses in nats, or its best metrics so far, one a report."""

    trial: str
    config: str
    found: str
    where: str
    curve: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class RunningTrial:
    """Running trial. goal: such as `to rung 1`; left: seconds to the end of its lease; found: such as `loss 2.255`;
    that is empty and step_seconds None before the first report."""

    trial: str
    config: str
    goal: str
    left: float
    found: str
    step_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class FamilyView:
    """A family's trials. paused: how many; ended: how many for which reason."""

    running: Sequence[RunningTrial]
    paused: int
    ended: dict[str, int]
    best: Best | None


@dataclass(frozen=True, kw_only=True)
class View:
    """Study as the panel shows it. cap, spent, reserved: device-seconds; slots: how many are held; rate: device-seconds
    that these take a second; wall: seconds to the deadline, inf where there is none."""

    cap: float
    spent: float
    reserved: float
    slots: int
    rate: float
    wall: float
    families: dict[str, FamilyView]

    @property
    def seconds_left(self) -> float:
        """Device-seconds neither spent nor reserved."""
        return max(0.0, self.cap - self.spent - self.reserved)

    @property
    def seconds_to_end(self) -> float | None:
        """Seconds of wall clock to the end, if the slots held now are kept until then; None while there are none."""
        if not self.slots:
            return None
        return max(0.0, min((self.cap - self.spent) / self.rate, self.wall))


def read_study_view(
    journal: sqlite3.Connection,
    families: Iterable[str],
    *,
    cap: float,
    now: float,
    wall: float = math.inf,
    metric: Metric | None = None,
) -> View:
    """Return the study as it is at `now` on its own clock, `wall` seconds before its deadline."""
    spent, held, rate = journal.execute(SLOTS, (now,)).fetchone()
    running = journal.execute(LEASES, (now,)).fetchall()
    trials = journal.execute("SELECT family, state, reason FROM trials").fetchall()
    best = best_so_far(journal)
    return View(
        cap=cap, spent=spent, slots=int(held), rate=rate, wall=wall,
        reserved=sum(max(0.0, lease["ahead"]) for lease in running) + rate * GRACE_SECONDS,
        families={
            name: FamilyView(
                running=list({
                    lease["trial"]: _running(lease, metric) for lease in running if lease["family"] == name
                }.values()),
                paused=sum(row["family"] == name and row["state"] == "paused" for row in trials),
                ended=dict(Counter(
                    ENDED_WHY.get(row["state"], str(row["reason"]).partition(":")[0])
                    for row in trials if row["family"] == name and row["state"] not in ("running", "paused")
                )),
                best=_best(journal, best[name], metric) if name in best else None,
            )
            for name in families
        },
    )  # fmt: skip


def _running(lease: sqlite3.Row, metric: Metric | None) -> RunningTrial:
    loss = lease["loss"]
    found = "" if loss is None else f"best {metric.text(loss)}" if metric else f"loss {loss:.3f}"
    goal = "to its end" if lease["purpose"] == "final" else f"to rung {lease['rung']}"
    return RunningTrial(
        trial=lease["trial"], config=label(json.loads(lease["config"])), goal=goal,
        left=max(0.0, lease["ahead"] / lease["share"]), found=found, step_seconds=lease["step_seconds"],
    )  # fmt: skip


def _best(journal: sqlite3.Connection, row: sqlite3.Row, metric: Metric | None) -> Best:
    query = f"SELECT {LOSS} FROM reports WHERE trial = ? AND {LOSS} IS NOT NULL ORDER BY report"
    return Best(
        trial=row["trial"], config=label(json.loads(row["config"])),
        found=metric.text(row["loss"]) if metric else f"perplexity {row['perplexity']:.4g}",
        where=level_text(row) + (", on the whole split" if row["on_whole"] else ""),
        curve=[metric.to_reported(loss) if metric else loss for (loss,) in journal.execute(query, (row["trial"],))],
    )  # fmt: skip


BLOCKS = "▁▂▃▄▅▆▇█"
LONGEST_CURVE = 60
"""Characters of a sparkline at most."""
FRAME = 4
"""Columns that the box around the lines takes."""


class Panel:
    """A view of a study for rich to draw."""

    def __init__(self, view: View, title: str) -> None:
        self._view, self._title = view, title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = Text("\n", no_wrap=True, overflow="ellipsis").join(_lines(self._view, options.max_width - FRAME))
        yield Box(lines, title=Text(self._title), title_align="left", border_style="dim")


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the values as at most `width` blocks, each for the mean of an equal part of them; the lowest mean has the
    lowest block."""
    width = min(width, len(values))
    if width <= 0:
        return ""
    parts = [values[len(values) * i // width : len(values) * (i + 1) // width] for i in range(width)]
    largest = max(map(abs, values)) or 1.0  # of its size: the sum of two numbers near the largest is infinite
    means = [sum(value / largest for value in part) / len(part) for part in parts]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(BLOCKS[int((len(BLOCKS) - 1) * (mean - low) / span + 0.5)] for mean in means)


def _lines(view: View, width: int) -> Iterator[Text]:
    yield _bar(view, width)
    money = f"spent {_short(view.spent)} of {duration_text(view.cap)} ({100 * view.spent / view.cap:.0f} %)"
    end = "" if view.seconds_to_end is None else f"; ends in about {_short(view.seconds_to_end)}"
    yield Text(f"{money}, reserved {_short(view.reserved)}, left {_short(view.seconds_left)}{end}")
    for name, family in view.families.items():
        yield _counts(name, family)
        yield from map(Text, _running_lines(family.running))
        if family.best is not None:
            yield _best_line(family.best, width)


def _bar(view: View, width: int) -> Text:
    """Return a bar of the cap: spent, reserved, left."""
    spent = min(width, round(width * view.spent / view.cap))
    reserved = min(width - spent, round(width * view.reserved / view.cap))
    left = width - spent - reserved
    return Text.assemble(("█" * spent, "green"), ("▒" * reserved, "yellow"), ("░" * left, "dim"))


def _counts(name: str, family: FamilyView) -> Text:
    counts = f"{len(family.running)} running, {family.paused} paused"
    ended = ", ".join(f"{count} {why}" for why, count in family.ended.items()) or "none"
    begun = family.running or family.paused or family.ended
    return Text.assemble((name, "bold"), f" {counts}, ended: {ended}" if begun else " no trial yet")


def _running_lines(running: Sequence[RunningTrial]) -> Iterator[str]:
    """Yield a line for each trial: `t003 d96 h8 l2 p0 bf16 to rung 1: loss 2.255, 31.2 steps/s, 12s left`."""
    shown = running[:MOST_RUNNING]
    for each in shown:
        speed = f"{1 / each.step_seconds:.3g} steps/s" if each.step_seconds else ""
        text = ", ".join(filter(None, (each.found, speed, f"{_short(each.left)} left")))
        yield f"  {each.trial} {each.config} {each.goal}: {text}"
    if len(running) > len(shown):
        yield f"  and {len(running) - len(shown)} more"


def _best_line(best: Best, width: int) -> Text:
    line = f"  best {best.trial} {best.config}: {best.found} {best.where} "
    return Text.assemble(line, (sparkline(best.curve, min(LONGEST_CURVE, width - len(line))), "cyan"))


def _short(seconds: float) -> str:
    """Return a duration to the second; from an hour on to the minute."""
    unit = 1 if seconds < 3600 else 60
    return duration_text(unit * round(seconds / unit))


REFRESH_SECONDS = 0.5
PANEL_SHARE = 0.05
"""Largest share of the time that reading the journal and drawing may take."""


@contextmanager
def show_live_panel(
    writer: LineWriter,
    study: Path,
    settings: Settings,
    clock: Callable[[], float],
    wall_left: Callable[[], float],
    metric: Metric | None = None,
) -> Iterator[None]:
    """Show the study in this folder while this lasts, on a terminal or in a notebook. clock: the study's own seconds;
    wall_left: seconds to its deadline.

    Lines that are written meanwhile are shown with the next drawing. Where there is neither a notebook nor a terminal
    that can draw, nothing changes.
    """
    console = Console(file=writer.screen, markup=False, emoji=False, highlight=False)
    draws = console.is_terminal and not console.is_dumb_terminal and "utf" in console.encoding
    canvas = Notebook() if in_notebook() else Terminal(writer, console) if writer.screen.isatty() and draws else None
    if canvas is None:
        yield
        return

    said, over = SimpleQueue[str](), threading.Event()

    def lines() -> list[str]:
        return [said.get() for _ in range(said.qsize())]

    def say_plainly() -> None:
        """Write the lines that were not shown yet, and all later ones, plainly: on a terminal all of them stand there
        at the end."""
        writer.show = writer.plain
        if new := lines():
            writer.plain("\n".join(new))

    def draw() -> None:
        wait, families, cap = 0.0, settings.families, settings.budget
        try:
            with closing(connect(study)) as journal, canvas.live:
                while not over.wait(wait):
                    began = time.monotonic()
                    view = read_study_view(journal, families, cap=cap, now=clock(), wall=wall_left(), metric=metric)
                    canvas.draw(Panel(view, study.name), lines())
                    wait = max(REFRESH_SECONDS, (time.monotonic() - began) / PANEL_SHARE)
        finally:
            say_plainly()

    writer.show = said.put
    thread = threading.Thread(target=draw, name="display", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        say_plainly()


class Terminal:
    """Draws the panel on a terminal, below the lines; it goes away at the end. live: context in which it is there."""

    def __init__(self, writer: LineWriter, console: Console) -> None:
        self._screen, self._console = writer.screen, console
        self.live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def draw(self, panel: Panel, lines: Sequence[str]) -> None:
        """Draw both, as wide as the terminal is now."""
        if all(size := os.get_terminal_size(self._screen.fileno())):
            self._console.size = size
        if lines:
            self._console.print("\n".join(lines), soft_wrap=True)
        self.live.update(panel, refresh=True)


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel, which has imported IPython."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


class Notebook:
    """Draws one panel in a notebook, which changes, and stays at the end, with the last line; the log has all lines.

    Make it in the thread that runs the cell: only there a cell's output is known.
    """

    def __init__(self) -> None:
        self.live = nullcontext()
        self._last: Sequence[str] = ()
        self._shown = import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)

    def draw(self, panel: Panel, lines: Sequence[str]) -> None:
        """Draw the panel and the last line as HTML, of a fixed width."""
        self._last = lines[-1:] or self._last
        console = Console(
            file=StringIO(), record=True, width=NOTEBOOK_WIDTH, markup=False, emoji=False, highlight=False,
            force_jupyter=False,  # else it prints into a notebook itself, each time anew
        )  # fmt: skip
        console.print(panel, *self._last, sep="\n", overflow="ellipsis", no_wrap=True)
        text = console.export_text(clear=False)
        html = console.export_html(inline_styles=True, code_format=CODE)
        self._shown.update({"text/plain": text, "text/html": html}, raw=True)


NOTEBOOK_WIDTH = 110
CODE = '<pre style="line-height: 1.2; white-space: pre; overflow-x: auto">{code}</pre>'
