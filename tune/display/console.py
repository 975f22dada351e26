"""What a study shows on the screen: one line for each decision, with its reason; the output of libraries goes to its
log."""

import io
import logging
import os
import shutil
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from tune.reports import Metric, Report
from tune.search.engine import Engine, Listener
from tune.search_space import label
from tune.units import counted, duration_text, whole_text

log = logging.getLogger(__name__)


class LineWriter:
    """Writer of lines to the real screen and to the log. show: how a line gets to the screen, which a display may
    replace."""

    def __init__(self, screen: TextIO, log: TextIO) -> None:
        self.screen, self._log = screen, log
        self.show: Callable[[str], None] = self.plain

    def __call__(self, line: str) -> None:
        self.show(line)
        self._log.write(line + "\n")

    def plain(self, line: str) -> None:
        """Write a line to the screen as it is."""
        self.screen.write(line + "\n")


PROGRESS_SECONDS = 30.0


class Progress:
    """Line on what is under way: on a terminal always in one place, and out of the way of other lines; elsewhere now
    and then one more line, which the log has too."""

    def __init__(self, writer: LineWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer, self._clock, self._told = writer, clock, clock()
        self._in_place = writer.screen.isatty()
        if self._in_place:
            writer.show = lambda line: writer.plain(f"{ERASE}{line}")

    def __call__(self, line: str) -> None:
        if self._in_place:
            self._writer.screen.write(f"{ERASE}{line[: shutil.get_terminal_size().columns - 1]}")
            self._writer.screen.flush()
        elif self._clock() - self._told >= PROGRESS_SECONDS:
            self._told = self._clock()
            self._writer(line)


ERASE = "\r\x1b[K"


class ErrorIgnoringFile(io.FileIO):
    """The real screen, whose write errors are ignored: what a full disk or a pipe that nobody reads does not take, only
    the log has."""

    def write(self, data: Any, /) -> int:
        """Write bytes; return how many there are."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


@contextmanager
def redirect_output(path: Path) -> Iterator[LineWriter]:
    """Send this process's output, of C libraries and in a notebook too, and its log and warnings to the file at `path`.

    Yields a LineWriter, which writes to the real screen and to that file; the file also has the traceback if an error
    ends it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    real = io.BufferedWriter(ErrorIgnoringFile(os.dup(1), "w"))
    with (
        path.open("a", encoding="utf-8", buffering=1) as file,
        io.TextIOWrapper(real, errors="backslashreplace", line_buffering=True) as screen,
    ):
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        handler = logging.StreamHandler(file)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.getLogger().addHandler(handler)
        logging.captureWarnings(True)

        try:
            with warnings.catch_warnings(), redirect_stdout(file), redirect_stderr(file):
                yield LineWriter(screen, file)
        except BaseException:
            with suppress(OSError):
                traceback.print_exc(file=file)
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, descriptor)
                os.close(copy)
            logging.captureWarnings(False)
            logging.getLogger().removeHandler(handler)


@contextmanager
def print_if_killed(line: str) -> Iterator[None]:
    """Print this line on stderr if this process ends inside without a word: by SIGKILL, or as Ray ends it from C++
    code.

    A shell that lives on prints it, if the pipe to it closes before it was told that all is well.
    """
    words = ["/bin/sh", "-c", 'read -r over || printf "%s\\n" "$0" >&2', line]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as waits:
        try:
            yield
        finally:
            waits.communicate(b"over\n")


BUDGET_LINE_SECONDS = 30.0
MOST_RUNNING = 6
"""Running trials that are named, here for all families, in the panel for each."""


class GuardedListener(Listener):
    """Wrapper of a user's listener: an error in it ends the listener, which is told in one line, and not the search."""

    def __init__(self, listener: Listener, write: Callable[[str], None]) -> None:
        self._listener: Listener | None = listener
        self._write = write

    def on_decision(self, engine: Engine, trial: str | None, action: str, reason: str) -> None:
        """Pass it on to the listener."""
        self._tell(lambda listener: listener.on_decision(engine, trial, action, reason))

    def on_report(self, engine: Engine, trial: str, report: Report) -> None:
        """Pass it on to the listener."""
        self._tell(lambda listener: listener.on_report(engine, trial, report))

    def on_close(self, engine: Engine) -> None:
        """Pass it on to the listener."""
        self._tell(lambda listener: listener.on_close(engine))

    def _tell(self, what: Callable[[Listener], None]) -> None:
        if self._listener is None:
            return
        try:
            what(self._listener)
        except Exception as error:
            name, self._listener = type(self._listener).__name__, None
            log.warning("callback", exc_info=True)
            text = " ".join(f"{type(error).__name__}: {error}".split())
            self._write(f"callback {name} failed and is off from now on: {text} (traceback in log.txt)")


class Screen(Listener):
    """Listener that writes one line for each decision with its reason, and now and then a line on the budget."""

    def __init__(self, write: Callable[[str], None], metric: Metric | None = None) -> None:
        self._write, self._metric = write, metric
        self._next_budget_line, self._said_once = time.monotonic() + BUDGET_LINE_SECONDS, False

    def on_decision(self, engine: Engine, trial: str | None, action: str, reason: str) -> None:
        """Write a decision: `t003 nanogpt d128 h4 l4 p.1 bf16: promote: place 1 of 5 at rung 0`."""
        record = engine.trials.get(trial or "")
        who = f"{trial} {record.family} {label(record.config)}" if record else "slot"
        self._write(f"{_clock(engine.accounting.clock())} {who}: {action}: {reason}")

    def on_report(self, engine: Engine, trial: str, report: Report) -> None:
        """Write the result of a rung or of a last segment; and the budget, when it was not shown for a while."""
        if report.valid is not None and (report.rung is not None or report.final):
            last = "after its decay" if self._metric is None else "when its last lease ended"
            where = {"final": last, "turned": "at its best", "returned": "at its end"}.get(
                report.ended or "", f"at rung {report.rung}"
            )
            kept = report.whole or (report.better_evaluation if report.final else None)
            family, shown = engine.trials[trial].family, kept or report.valid
            found = self._metric.text(shown.loss) if self._metric else f"perplexity {shown.perplexity:.4g}"
            measured = f"{found}{' on the whole split' if report.whole else ''}"
            result = f"{measured} after {counted(report.steps, 'step')}"
            self._write(f"{_clock(engine.accounting.clock())} {trial} {family} {where}: {result}")
        for line in self._lost(report):
            self._write(f"{_clock(engine.accounting.clock())} {trial} {engine.trials[trial].family}: {line}")
        if time.monotonic() >= self._next_budget_line:
            self._next_budget_line = time.monotonic() + BUDGET_LINE_SECONDS
            self._write(budget_line(engine))

    def _lost(self, report: Report) -> Iterator[str]:
        """Yield what a trial lost where its lease did not end as it should; that a user's loop never saves is said only
        once."""
        forced = "lost" in report.seconds
        if forced:
            yield f"ended by force at the end of its lease: no report for {report.seconds['lost']:.1f} s"
        if not report.lost or report.ended in (None, "diverged", "returned"):
            return
        if report.numbers is None:
            yield f"lost {counted(report.lost, 'step')}, which there was no time left to save"
        elif forced or report.checkpoint is not None:
            yield f"lost {counted(report.lost, 'step')} since its newest checkpoint, which its loop did not save"
        elif not self._said_once:  # its lease ended in order: a loop that saves would have saved
            self._said_once = True
            yield "its loop never saves, so each lease of a trial begins again: give ration.report(...) a save="


def budget_line(engine: Engine) -> str:
    """Return a line on what is spent, reserved and left, how many slots are held, and by which trials, of which it
    names a few; a slot that none of them holds is between two leases."""
    ledger, held = engine.accounting.ledger, engine.accounting.idle_slots + len(engine.running)
    money = f"spent {whole_text(ledger.spent)} of {duration_text(ledger.cap)} ({100 * ledger.spent / ledger.cap:.0f} %)"
    rest = f"reserved {whole_text(ledger.reserved)}, left {whole_text(max(0.0, ledger.left))}"
    names, more = ", ".join(islice(engine.running, MOST_RUNNING)), len(engine.running) - MOST_RUNNING
    by = f", by {names}{f' and {more} more' if more > 0 else ''}" if names else ""
    holds = f"{counted(held, 'slot')} held{by}"
    return f"{_clock(engine.accounting.clock())} budget: {money}, {rest}; {holds}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"[{minutes // 60}:{minutes % 60:02d}:{rest:02d}]"
