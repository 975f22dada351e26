"""The laws of the live display: it says what the journal says, fits the terminal, and loses no line."""

import codecs
import math
import os
import re
import sys
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.tune.display.conftest import Sampled
from tests.tune.search.world import World
from tune.display.console import ERASE, PROGRESS_SECONDS, GuardedListener, LineWriter, Progress, Screen, redirect_output
from tune.display.panel import (
    BLOCKS,
    Best,
    FamilyView,
    Panel,
    RunningTrial,
    View,
    read_study_view,
    show_live_panel,
    sparkline,
)
from tune.reports import Ended, Evaluation, Metric, Report
from tune.search.engine import Engine, Listener
from tune.settings import Settings
from tune.store.journal import connect

CAP = 600.0
FAMILIES = ("translation", "nanogpt")
CURSOR_SHOWN, CURSOR_HIDDEN = "\x1b[?25h", "\x1b[?25l"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, cap=CAP, slots=2, suggestions=Sampled).run(9)


def view_of(world: World, wall: float = math.inf) -> View:
    return read_study_view(connect(world.journal.folder), FAMILIES, cap=CAP, now=world.now, wall=wall)


@pytest.mark.parametrize("each", [1, 7])
def test_it_sees_what_the_engine_knows_and_at_the_end_the_winners_and_why_others_ended(
    tmp_path: Path, each: int
) -> None:
    """Also where trials share a GPU."""
    world = World(tmp_path, cap=CAP, slots=2, trials_each=each, suggestions=Sampled)
    world.diverging = {2: 1.0}
    for reports in (0, 9, 10_000):
        world.run(reports)
        view, ledger = view_of(world), world.accounting.ledger
        assert view.spent == pytest.approx(ledger.spent, abs=0.01)
        assert view.reserved == pytest.approx(ledger.reserved, abs=1)
        assert view.spent + view.reserved + view.seconds_left == pytest.approx(CAP)
        assert view.slots == len(ledger.open_slots)
        families = view.families.values()
        running = [who.trial for family in families for who in family.running]
        assert sorted(running) == sorted(world.engine.running)
        ended = sum(sum(family.ended.values()) for family in families)
        assert len(running) + sum(family.paused for family in families) + ended == len(world.engine.trials)
        for who in (each for family in families for each in family.running):
            lease = world.engine.running[who.trial].assignment
            assert who.left == pytest.approx(lease.opened + lease.seconds - world.now)
        if reports == 9:
            assert view.seconds_to_end == pytest.approx((CAP - ledger.spent) / 2 * each, abs=0.1)
            assert view_of(world, wall=7.0).seconds_to_end == 7.0
    assert view.seconds_to_end is None
    for family in families:
        assert family.ended == {"diverged": 1, "finished": 1}
        assert family.best is not None and family.best.curve
        assert family.best.where == "after its decay, on the whole split"


def test_of_what_runs_it_tells_what_was_reported_last(world: World) -> None:
    (who,) = world.engine.running
    assert [each.found for family in view_of(world).families.values() for each in family.running] == [""]
    for loss in (3.0, 2.0, None):
        world.journal.insert("reports", {"trial": who, "at": 0.0, "train_loss": loss, "step_seconds": loss})
    (told,) = (each for family in view_of(world).families.values() for each in family.running)
    assert (told.trial, told.found, told.step_seconds) == (who, "loss 2.000", 2.0)


def test_of_a_loop_that_runs_it_tells_its_speed_and_what_it_is_judged_by(world: World) -> None:
    (who,) = world.engine.running
    for best in (0.5, 0.75):
        row = {"trial": who, "at": 0.0, "valid_loss": -best, "numbers": '{"accuracy": 0.25}', "step_seconds": best}
        world.journal.insert("reports", row)
    accuracy = Metric(name="accuracy", maximize=True)
    view = read_study_view(connect(world.journal.folder), FAMILIES, cap=CAP, now=world.now, metric=accuracy)
    (told,) = (each for family in view.families.values() for each in family.running)
    assert (told.trial, told.found, told.step_seconds) == (who, "best accuracy 0.75", 0.75)


def test_that_a_loop_never_saves_is_said_once_and_what_one_lost_that_does_each_time(world: World) -> None:
    (who,), said = world.engine.running, list[str]()
    screen = Screen(said.append)

    def ends(**more: Any) -> list[str]:
        said.clear()
        about = {"steps": 9, "tokens": 9, "training_seconds": 1.0, "numbers": {"loss": 2.0}}
        screen.on_report(world.engine, who, Report(**{**about, **more}))
        return said

    assert not any(ends(lost=9, ended=ended) for ended in (None, "diverged", "returned"))
    for _ in range(2):
        saves: dict[str, Any]
        for saves in ({"checkpoint": "step-5", "lost": 4}, {"seconds": {"lost": 2.0}, "lost": 9}):
            assert f"lost {saves['lost']} steps since its newest checkpoint" in ends(ended="lease", **saves)[-1]
    (once,) = ends(ended="lease", lost=9)
    assert "its loop never saves" in once and "save=" in once
    assert not ends(ended="rung", lost=9)
    assert "loop" not in ends(ended="lease", lost=9, numbers=None)[-1], "it is none"


@pytest.mark.parametrize(
    ("ended", "of_loop", "told"),
    [
        ("final", False, "after its decay"),
        ("final", True, "when its last lease ended"),
        ("returned", True, "at its end"),
    ],
)
def test_a_loop_that_its_last_lease_cut_short_is_not_told_to_be_at_its_end(
    world: World, ended: Ended, of_loop: bool, told: str
) -> None:
    (who,), said = world.engine.running, list[str]()
    report = Report(steps=9, tokens=9, training_seconds=1.0, ended=ended, valid=Evaluation(loss=2.0))
    Screen(said.append, Metric(name="loss") if of_loop else None).on_report(world.engine, who, report)
    assert f" {told}: " in said[0]


def test_at_its_end_a_trial_is_told_with_the_loss_of_the_weights_that_are_kept(world: World) -> None:
    """On the whole split if there was time for it; at a rung with that of the weights with which it goes on."""
    (who,), said = world.engine.running, list[str]()
    valid, averaged, whole = (Evaluation(loss=math.log(each)) for each in (8.0, 4.0, 5.0))
    ends: dict[str, dict[str, Any]] = {
        "8": {"rung": 1}, "4": {"ended": "final"}, "5 on the whole split": {"ended": "final", "whole": whole},
    }  # fmt: skip
    for told, more in ends.items():
        report = Report(steps=9, tokens=9, training_seconds=1.0, valid=valid, averaged=averaged, **more)
        Screen(said.append).on_report(world.engine, who, report)
        assert f": perplexity {told} after 9 steps" in said[-1]


@pytest.mark.parametrize("width", [40, 120])
def test_the_panel_fits_the_terminal(width: int) -> None:
    best = Best(
        trial="t023", config="d96 h4 l3 p0 bf16", found="perplexity 57.93", where="at rung 2", curve=range(99, 0, -1)
    )
    at_work = [
        RunningTrial(
            trial=f"t{n:03d}", config="d96 h4 l3 p0 bf16", goal="to rung 2", left=12.0, found=found, step_seconds=pace
        )
        for n, (found, pace) in enumerate([("loss 2.250", 0.032), ("", None), *[("loss 9.000", 0.001)] * 14])
    ]
    busy = FamilyView(running=at_work, paused=9, ended={"diverged": 2}, best=best)
    idle = FamilyView(running=[], paused=0, ended={}, best=None)
    families = {"translation": busy, "nanogpt": idle}
    view = View(cap=1200, spent=300, reserved=150, slots=2, rate=2.0, wall=math.inf, families=families)
    out = StringIO()
    Console(file=out, width=width).print(Panel(view, "search-0"))
    lines = out.getvalue().splitlines()
    assert {len(line) for line in lines} == {width}
    assert len(lines) == 14
    spent, reserved, left = (lines[1].count(block) for block in "█▒░")
    assert (spent, reserved) == (round((width - 4) / 4), round((width - 4) / 8))
    assert spent + reserved + left == width - 4
    if width >= 80:
        assert "spent 5m of 20m (25 %), reserved 2m30s, left 12m30s; ends in about 7m30s" in lines[2]
        assert "16 running, 9 paused, ended: 2 diverged" in lines[3]
        assert "t000 d96 h4 l3 p0 bf16 to rung 2: loss 2.250, 31.2 steps/s, 12s left" in lines[4]
        assert "t001 d96 h4 l3 p0 bf16 to rung 2: 12s left" in lines[5] and "and 10 more" in lines[10]
        assert "best t023 d96 h4 l3 p0 bf16: perplexity 57.93 at rung 2 █" in lines[11]
        assert "nanogpt no trial yet" in lines[12]


def test_at_80_columns_the_time_left_is_told_in_the_last_segment_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tune.display.panel.label", lambda config: "d128 h16 l16 p0 bf16")
    while all(each.assignment.rung is not None for each in world.engine.running.values()):
        world.run(1)
    out = StringIO()
    Console(file=out, width=80).print(Panel(view_of(world), "search"))
    told = [line for line in out.getvalue().splitlines() if "steps/s" in line]
    assert told and all(" left " in line for line in told)


def test_a_sparkline_falls_with_its_values() -> None:
    line = sparkline([1 / (1 + n) for n in range(100)], 20)
    assert len(line) == 20
    assert (line[0], line[-1]) == (BLOCKS[-1], BLOCKS[0])
    assert sorted(line, key=BLOCKS.index, reverse=True) == list(line)
    assert sparkline([3.0, 1.0], 20) == BLOCKS[-1] + BLOCKS[0]
    assert sparkline([2.0, 2.0, 2.0], 20) == 3 * BLOCKS[0]
    assert sparkline([], 20) == sparkline([1.0], -3) == ""


@pytest.mark.parametrize("scale", [sys.float_info.max, 1e300, 1e-300, 5e-324])
def test_a_sparkline_is_drawn_of_values_of_any_size(scale: float) -> None:
    assert sparkline([scale, -scale], 2) == BLOCKS[-1] + BLOCKS[0]
    assert sparkline([0.0, 0.0, scale, scale], 2) == BLOCKS[0] + BLOCKS[-1]
    assert sparkline([-scale, -scale], 1) == BLOCKS[0]
    assert sparkline([0.0, 0.0], 2) == 2 * BLOCKS[0]


@pytest.mark.parametrize("gone", ["full", "a pipe that nobody reads"])
def test_a_search_goes_on_with_its_log_alone_where_the_screen_takes_nothing_more(tmp_path: Path, gone: str) -> None:
    reader, screen = (None, os.open("/dev/full", os.O_WRONLY)) if gone == "full" else os.pipe()
    kept, lines = os.dup(1), [f"line {number}" for number in range(3)]
    try:
        os.dup2(screen, 1)
        with redirect_output(tmp_path / "log.txt") as write:
            if reader is not None:
                os.close(reader)
            for line in lines:
                write(line)
    finally:
        os.dup2(kept, 1)
    assert (tmp_path / "log.txt").read_text().splitlines() == lines


class Terminal:
    """Both ends of a terminal: the search writes on `writer`, a person reads."""

    def __init__(self) -> None:
        self.person, search = os.openpty()
        self.log = StringIO()
        self.screen = os.fdopen(search, "w", buffering=1, encoding="utf-8")
        self.writer = LineWriter(self.screen, self.log)
        self.seen, self._decoded = "", codecs.getincrementaldecoder("utf-8")()

    def read_until(self, said: str) -> None:
        """Wait for it; the test's own limit of time ends it where it does not come."""
        while said not in self.seen:
            self.seen += self._decoded.decode(os.read(self.person, 65536))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    made = Terminal()
    yield made
    made.screen.close()
    os.close(made.person)


SETTINGS = Settings(budget=CAP)


def test_on_a_terminal_lines_scroll_above_a_panel_that_goes_away(terminal: Terminal, world: World) -> None:
    said = [f"[0:00:0{n}] t00{n} [bold] promote: {'long ' * 40}" for n in range(3)]
    with show_live_panel(terminal.writer, world.journal.folder, SETTINGS, world.clock, lambda: math.inf):
        terminal.read_until("reserved")
        for line in said:
            terminal.writer(line)
        terminal.read_until(said[-1])
    terminal.writer("the last line")
    terminal.read_until("the last line")
    assert terminal.seen.index(CURSOR_HIDDEN) < terminal.seen.index("reserved")
    assert CURSOR_SHOWN in terminal.seen
    assert "reserved" not in terminal.seen.rpartition(CURSOR_SHOWN)[2]
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.seen)
    places = [plain.index(line) for line in [*said, "the last line"]]
    assert places == sorted(places)
    assert terminal.log.getvalue().splitlines() == [*said, "the last line"]


def test_an_interrupt_takes_the_panel_away_and_loses_no_line(terminal: Terminal, world: World) -> None:
    panel = show_live_panel(terminal.writer, world.journal.folder, SETTINGS, world.clock, lambda: math.inf)
    with pytest.raises(KeyboardInterrupt), panel:
        terminal.read_until("reserved")
        terminal.writer("just before")
        raise KeyboardInterrupt
    terminal.writer("the end")
    terminal.read_until("the end")
    assert "just before" in terminal.seen
    assert terminal.seen.index(CURSOR_SHOWN) < terminal.seen.index("the end")


class Faulty(Listener):
    """Fails at its second report; told: what it heard."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_decision(self, engine: Engine, trial: str | None, action: str, reason: str) -> None:
        self.told.append(action)

    def on_report(self, engine: Engine, trial: str, report: Report) -> None:
        self.told.append("report")
        if self.told.count("report") == 2:
            raise RuntimeError("no\nnetwork")


class Counting(Listener):
    """Has one method of the three."""

    reports = 0

    def on_report(self, engine: Engine, trial: str, report: Report) -> None:
        self.reports += 1


def test_a_callback_hears_of_everything_and_its_error_ends_it_alone(tmp_path: Path) -> None:
    faulty, counting, said = Faulty(), Counting(), list[str]()
    callbacks = [GuardedListener(each, said.append) for each in (faulty, counting)]
    world = World(tmp_path, cap=CAP, slots=2, suggestions=Sampled, listen=lambda _: [*callbacks]).run(10_000)
    for callback in callbacks:
        callback.on_close(world.engine)
    assert said == ["callback Faulty failed and is off from now on: RuntimeError: no network (traceback in log.txt)"]
    assert faulty.told[0] == "start" and faulty.told[-1] == "report" and faulty.told.count("report") == 2
    assert counting.reports == len(world.journal.rows("SELECT * FROM reports")) > 2


class Kernel:
    """A notebook's kernel, as far as it is asked: what was shown, and with what that was replaced, in order."""

    def __init__(self) -> None:
        self.kernel: Kernel | None = self
        self.shown: list[dict[str, str]] = []
        self.updated: list[dict[str, str]] = []
        self.drawn = threading.Event()

    def get_ipython(self) -> "Kernel":
        return self

    def display(self, data: dict[str, str], **_: object) -> "Kernel":
        self.shown.append(data)
        return self

    def update(self, data: dict[str, str], **_: object) -> None:
        self.updated.append(data)
        self.drawn.set()


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setitem(sys.modules, "IPython", made)
    monkeypatch.setitem(sys.modules, "IPython.display", made)
    return made


def test_in_a_notebook_one_panel_changes_and_notes_stay(kernel: Kernel, world: World) -> None:
    out, log = StringIO(), StringIO()
    writer = LineWriter(out, log)
    writer("a note")
    with show_live_panel(writer, world.journal.folder, SETTINGS, world.clock, lambda: math.inf):
        for line in ("first", "<b>last</b>"):
            writer(line)
            while not kernel.updated or line not in kernel.updated[-1]["text/plain"]:
                kernel.drawn.wait()
                kernel.drawn.clear()
    writer("the winner")
    assert out.getvalue() == "a note\nthe winner\n"
    assert log.getvalue().splitlines() == ["a note", "first", "<b>last</b>", "the winner"]
    assert len(kernel.shown) == 1
    assert "nanogpt 1 running" in kernel.updated[-1]["text/plain"]
    assert "&lt;b&gt;last" in kernel.updated[-1]["text/html"] and "<b>" not in kernel.updated[-1]["text/html"]


def test_an_ipython_on_a_terminal_is_no_notebook(kernel: Kernel, terminal: Terminal, world: World) -> None:
    kernel.kernel = None
    with show_live_panel(terminal.writer, world.journal.folder, SETTINGS, world.clock, lambda: math.inf):
        terminal.read_until("reserved")
    assert kernel.shown == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_display_that_fails_leaves_plain_lines(terminal: Terminal, tmp_path: Path) -> None:
    with show_live_panel(terminal.writer, tmp_path, SETTINGS, lambda: 0.0, lambda: math.inf):
        terminal.writer("still said")
    terminal.read_until("still said")


@pytest.mark.parametrize("term", [None, "dumb"])
def test_where_no_terminal_can_draw_nothing_changes(
    term: str | None, terminal: Terminal, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = StringIO()
    writer = LineWriter(out, StringIO()) if term is None else terminal.writer
    monkeypatch.setenv("TERM", term or "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with show_live_panel(writer, world.journal.folder, SETTINGS, world.clock, lambda: math.inf):
        writer("a line")
    if term is None:
        assert out.getvalue() == "a line\n"
    else:
        terminal.read_until("a line")
        assert terminal.seen == "a line\r\n"


class Tty(StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_under_way_is_one_line_in_its_place_on_a_terminal_and_gives_way_to_what_is_said() -> None:
    writer = LineWriter(screen := Tty(), log := StringIO())
    progress = Progress(writer, clock=lambda: 0.0)
    for line in ("1 s", "2 s of a point with so long a name that no terminal is so wide " * 9):
        progress(line)
    writer("done")
    shown = screen.getvalue().split(ERASE)
    assert [shown[0], shown[1], shown[3]] == ["", "1 s", "done\n"] and "\n" not in shown[2] and len(shown[2]) < 500
    assert log.getvalue() == "done\n"


def test_elsewhere_it_is_a_line_now_and_then() -> None:
    now = [0.0]
    progress = Progress(LineWriter(screen := StringIO(), StringIO()), clock=lambda: now[0])
    for second in range(int(2.5 * PROGRESS_SECONDS)):
        now[0] = second
        progress(f"{second} s")
    assert screen.getvalue() == f"{PROGRESS_SECONDS:.0f} s\n{2 * PROGRESS_SECONDS:.0f} s\n"
