"""What fails alike in every trial costs next to nothing, and is told by its own name: before Ray, in the search, after
it.
"""

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model.families import FAMILIES
from tests.model.test_families import Bigrams, Guess
from tests.tune.search.world import World, add_trial
from tests.tune.test_registry import CORE
from tune import facts
from tune import search_context as context_file
from tune.backend.scheduler import failure_reason
from tune.display.console import MOST_RUNNING, budget_line
from tune.registry import register
from tune.reports import Report
from tune.search.engine import MACHINES_LOST, Engine
from tune.search_context import make_search_context
from tune.settings import Settings
from tune.study import Outcome
from tune.winners import last_lines, no_winner_reason

pytestmark = pytest.mark.usefixtures("forgotten")
RAISED = "error: its loss raised ValueError: expected {} (mine.py:12)"
"""What a trial says, with a number that is another in each."""


class NoSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("no slope")


def raising(*_: Any) -> Any:
    raise ArithmeticError("the flux capacitor\nis empty")


def without_slope(self: Bigrams, *arguments: Any) -> torch.Tensor:
    return NoSlope.apply(Bigrams.loss(self, *arguments))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"build": raising}, r"its build raised ArithmeticError: the flux capacitor \(test_faults\.py:\d+\)"),
        ({"loss": without_slope}, r"its loss\.backward raised ArithmeticError: no slope \(test_faults\.py:\d+\)"),
        ({"loss": lambda *_: 1.0}, r"its loss raised AttributeError: 'float' object has no attribute 'detach'"),
        ({"build": lambda *_: Guess(1, 4)}, r"its loss raised IndexError: "),
    ],
    ids=["build", "backward", "no tensor", "few"],
)
def test_a_family_that_cannot_learn_is_refused_in_one_line_before_anything_is_charged(
    changes: dict[str, Any], said: str, text: Path, tmp_path: Path
) -> None:
    register("made")(type("Made", (Bigrams,), changes))
    settings = Settings(budget="1h", families="made", text_corpus=text, out=tmp_path / "study")
    with pytest.raises(ValueError, match=f"^--families: 'made': {said}[^\n]*: correct it; nothing was spent$"):
        make_search_context(settings, CORE)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("families", "given"),
    [
        *(("translation", name) for name in ("context=128", "taps=2", "architecture=nanogpt")),
        *(("made", name) for name in ("taps=2", "optimizer=adamw", "dropout_after=2.0")),
        ("made,translation", "taps=2"),
    ],
)
def test_what_set_would_not_change_is_refused_and_a_study_that_has_it_goes_on(
    families: str, given: str, tmp_path: Path
) -> None:
    register("made")(type("Made", (Bigrams,), {}))
    settings = Settings(budget="1h", families=families, set=given)
    name = given.partition("=")[0]
    with pytest.raises(ValueError, match=f"^--set: '{name}' changes nothing of {families.replace(',', ' or ')}: leave"):
        make_search_context(settings, CORE)
    (tmp_path / "study.json").write_text(json.dumps({"settings": settings.stored()}))
    assert Settings.of_study(tmp_path).set == settings.set


@pytest.mark.parametrize(
    ("idle", "said"),
    [
        ({"skip_bad_lines": True}, "--skip-bad-lines: changes nothing of nanogpt"),
        ({"own_corpus": "images.bin"}, "--own-corpus: '.*images.bin' changes nothing of nanogpt"),
        ({"set": "architecture=nanogpt,taps=3"}, "--set: 'taps=3': the architecture nanogpt has none"),
    ],
)
def test_what_no_family_reads_or_has_is_refused(idle: dict[str, Any], said: str, text: Path) -> None:
    with pytest.raises(ValueError, match=f"^{said}: leave it out$"):
        make_search_context(Settings(budget="1h", families="nanogpt", text_corpus=text, **idle), CORE)


def test_lines_are_left_out_of_a_file_of_pairs_alone(tmp_path: Path) -> None:
    asked = Settings(budget="1h", families="translation", skip_bad_lines=True)
    for pairs in (None, "builtin", "hub:Helsinki-NLP/opus-100:en-es"):
        with pytest.raises(ValueError, match=r"^--skip-bad-lines: works only with --translation-corpus FILE$"):
            make_search_context(replace(asked, translation_corpus=pairs), CORE)
    (file := tmp_path / "pairs.txt").write_text("".join(f"one {n}\tuno {n}\n" for n in range(2000)) + "bad\n")
    assert make_search_context(replace(asked, translation_corpus=file), CORE).settings.skip_bad_lines


def test_a_family_that_learns_is_tried_on_two_rows_and_changes_no_random_number(text: Path) -> None:
    rows = []

    def seen(self: Bigrams, model: torch.nn.Module, inputs: Any, targets: torch.Tensor) -> torch.Tensor:
        rows.append(len(targets))
        return Bigrams.loss(self, model, inputs, targets)

    register("made")(type("Made", (Bigrams,), {"loss": seen}))
    before = torch.get_rng_state()
    make_search_context(Settings(budget="1h", families="made", text_corpus=text), CORE)
    assert rows == [2] and torch.equal(before, torch.get_rng_state())


def test_a_fault_of_a_family_of_ours_keeps_its_traceback(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(FAMILIES["nanogpt"]), "losses", raising)
    with pytest.raises(ArithmeticError, match="flux"):
        make_search_context(Settings(budget="1h", families="nanogpt", text_corpus=text), CORE)


@pytest.mark.parametrize("slots", [1, 8])
def test_a_family_whose_trials_all_raise_one_error_ends_after_three_of_them(tmp_path: Path, slots: int) -> None:
    """The cap stays; of those that ran beside the third, none is begun again."""
    world = World(tmp_path, cap=1200, slots=slots, shares={"nanogpt": 1.0})
    world.raising = lambda assignment: RAISED.format(assignment.config["number"])
    world.run()
    assert len(world.assignments) <= 2 + slots
    assert world.accounting.ledger.spent < 0.1 * 1200
    assert world.total("SELECT COUNT(*) FROM trials WHERE state = 'failed'") == len(world.assignments)
    assert world.total("SELECT COUNT(*) FROM decisions WHERE action = 'give up'") == 1


def test_its_share_goes_to_the_other_family_and_a_search_that_goes_on_begins_it_no_more(tmp_path: Path) -> None:
    for reports in (40, 100_000):
        world = World(tmp_path, cap=1200, slots=2)
        world.raising = lambda assignment: RAISED.format(1) if assignment.family == "nanogpt" else None
        world.run(reports)
        world.journal.close()
    world = World(tmp_path, cap=1200, slots=2)
    assert world.total("SELECT COUNT(*) FROM trials WHERE family = 'nanogpt'") <= 4
    assert world.families["translation"].charged >= 0.9 * 1200
    assert world.total("SELECT COUNT(*) FROM trials WHERE state = 'finished'") == 1


OTHERS = {1: "KeyError: 'a'", 2: "ValueError: b", 3: "TypeError: c"}


@pytest.mark.parametrize(
    "raises", [lambda number: number != 1 and RAISED, lambda number: number != 3 and RAISED, OTHERS.get]
)
def test_a_family_goes_on_of_which_a_trial_reached_a_rung_or_whose_errors_are_not_one(
    tmp_path: Path, raises: Callable[[int], str | None]
) -> None:
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    world.raising = lambda assignment: raises(assignment.config["number"]) or None
    world.run()
    assert world.total("SELECT COUNT(*) FROM trials WHERE state = 'finished'") == 1


def test_a_trial_that_raises_is_not_tried_again_and_one_whose_process_dies_is_and_pays_for_what_was_lost(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0})
    world.raising = lambda assignment: RAISED.format(1) if assignment.trial == "t002" else None
    world.dying = {"t003": 1}
    world.run()
    begun = [(assignment.trial, assignment.rung) for assignment in world.assignments]
    assert [trial for trial, _ in begun].count("t002") == 1 and begun.count(("t003", 0)) == 2
    assert world.total("SELECT SUM(seconds) FROM charges WHERE what = 'lost' AND trial = 't003'") > 0
    assert world.total("SELECT COUNT(*) FROM reports WHERE trial = 't003'") > 0
    states = dict(world.journal.rows("SELECT trial, state FROM trials"))
    assert states["t002"] == "failed" != states["t003"]
    (said,) = world.journal.rows("SELECT action, reason FROM decisions WHERE trial = 't002' AND action != 'start'")
    assert tuple(said) == ("stop", RAISED.format(1))
    held = world.total("SELECT SUM(closed - opened) FROM slots")
    assert held == pytest.approx(world.total("SELECT SUM(seconds) FROM charges"))


OURS = "trainable.py"
TRACE = """Failure # 1 (occurred at 2026-11-22_17-00-00)
ray::TrainingTrial.train() (pid=1, ip=::1, repr=<tune.backend.trainable.TrainingTrial object at 0x7f>)
  File "{root}/site-packages/ray/tune/trainable/trainable.py", line 328, in train
    result = self.step()
  File "{root}/tune/backend/trainable.py", line 92, in step
    report = self._measured(self._train_on())
  File "/home/someone/mine.py", line 40, in loss
    return helped(model)
           ^^^^^^^^^^^^^
  File "/home/someone/helper.py", line 7, in helped
    raise ValueError("one\\ntwo")
mine.Odd: one
two
"""


NOT_IMPORTED = """Failure # 1 (occurred at 2026-11-22_17-00-00)
The actor died because of an error in its creation task, \x1b[36mray::LoopTrial.__init__()\x1b[39m (pid=1, ip=::1)
           ^^^^^^^^^^^^^
RuntimeError: The actor with name LoopTrial failed to import on the worker:

\x1b[36mray::LoopTrial.__init__()\x1b[39m (pid=1, ip=::1)
           ^^^^^^^^^^^^^
ModuleNotFoundError: No module named 'mine'
"""


@pytest.mark.parametrize(
    ("text", "its_own", "said"),
    [
        (TRACE, True, "its loss raised Odd: one (helper.py:7)"),
        (TRACE.replace("/home/someone", "/tune/tune/backend").replace("mine.py", OURS).replace("helper.py", OURS),
         True, "it raised Odd: one"),
        ("Failure # 1 (occurred at now)\nThe actor died unexpectedly before finishing this task.\n\tclass_name: X\n",
         False, "its process died: The actor died unexpectedly before finishing this task."),
        (NOT_IMPORTED, False, "its process died: ModuleNotFoundError: No module named 'mine'"),
    ],
    ids=["theirs", "ours", "died", "not imported"],
)  # fmt: skip
def test_an_exception_is_called_that_and_a_death_a_death(text: str, its_own: bool, said: str, tmp_path: Path) -> None:
    """As Ray writes down what a trial ended with."""
    root = Path(__file__).resolve().parents[2]
    (tmp_path / "error.txt").write_text(text.replace("{root}", str(root)))
    assert failure_reason(SimpleNamespace(error_file=str(tmp_path / "error.txt"))) == (its_own, said)  # type: ignore[arg-type]
    assert failure_reason(SimpleNamespace(error_file=None)) == (False, "its process died: Ray lost it")  # type: ignore[arg-type]


def test_where_a_loop_failed_its_own_output_is_named_where_its_traceback_is(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=1)
    for trial, reason in {"t001": "diverged", "t002": "error: x: a", "t003": "error: b", "t004": "error: x: a"}.items():
        add_trial(world.journal, trial, state="failed", family="loop", reason=reason)
    assert "; see output/t002.txt, correct that" in no_winner_reason(world.journal, "loop")


@pytest.mark.parametrize(
    ("reasons", "ended", "settings", "told"),
    [
        ([], "cap", {}, "no trial was started; a larger --budget goes on"),
        ([], "SIGINT", {}, "no trial was started"),
        (["memory: x", "memory"], "cap", {"memory_limit": "1GB"}, "2 of 2 did not fit in memory; in a new search allow "
         "them more with --memory-limit"),
        (["memory"], "cap", {}, "1 of 1 did not fit in memory; in a new search fix smaller sizes with --fix"),
        (["diverged", "diverged"], "cap", {}, "2 of 2 diverged; in a new search lower learning rates may help: --vary "
         "learning_rate tries some"),
        (["error: its loss raised KeyError: 'a' (mine.py:3)"] * 3 + ["diverged"], "cap", {}, "3 of 4 failed (its loss "
         "raised KeyError: 'a' (mine.py:3)), 1 diverged; see log.txt, correct that and go on with --resume"),
        ([f"error: a loss of {n} is a text" for n in (3, 4)], "cap", {}, "2 of 2 failed (a loss of 3 is a text); see "
         "log.txt, correct that and go on with --resume"),
        (["price", "lease"], "cap", {}, "2 of 2 had too little time; a larger --budget goes on"),
        (["stopped"], "deadline", {}, "1 of 1 had too little time; a later --deadline goes on"),
        (["stopped"], "SIGTERM", {}, "1 of 1 had too little time"),
        (["waits: error: hung"], "cap", {}, "1 of 1 could go on after an error (hung); see log.txt; a larger "
         "--budget goes on"),
        (["waits: error: hung", "error: x: a", "error: x: a"], "cap", {}, "2 of 3 failed (x: a), 1 could go on after "
         "an error (hung); see log.txt, correct that and go on with --resume"),
    ],
)  # fmt: skip
def test_where_no_trial_reached_a_rung_the_true_reason_is_told(
    tmp_path: Path, reasons: list[str], ended: str, settings: dict[str, str], told: str
) -> None:
    world = World(tmp_path, cap=600, slots=1)
    for number, reason in enumerate(reasons):
        state = "failed" if reason.startswith("error") else "stopped"
        if reason.startswith("waits: "):
            state, reason = "paused", reason.removeprefix("waits: ")
        add_trial(world.journal, f"t{number:03d}", state=state, reason=reason)
    world.journal.write_facts(ended={"reason": ended, "spent": 1.0}, settings=settings)
    (line,) = last_lines(world.journal, {}, {}, ["nanogpt"])
    assert line == f"nanogpt: {'no trial reached a rung: ' if reasons else ''}{told}"


@pytest.mark.parametrize(
    ("reason", "near", "told"),
    [
        ("cap", False, "a larger --budget goes on"),
        ("cap", True, "a later --deadline goes on"),
        ("SIGINT", True, "time"),
    ],
)
def test_more_time_is_advised_as_it_was_missing(tmp_path: Path, reason: str, near: bool, told: str) -> None:
    """After a signal the search can simply go on, however near its deadline was."""
    world = World(tmp_path, cap=600, slots=1)
    add_trial(world.journal, state="stopped", reason="price")
    world.journal.write_facts(ended={"reason": reason, "near_deadline": near, "spent": 9.0, "cap": 600.0})
    (line,) = last_lines(world.journal, {}, {}, ["nanogpt"])
    assert line.endswith(told)


@pytest.mark.parametrize(("spent", "more"), [(9.0, ""), (595.0, " and a larger --budget")])
def test_a_search_that_gave_up_is_not_over_and_says_what_it_needs(tmp_path: Path, spent: float, more: str) -> None:
    """Also if an earlier run had found something."""
    world = World(tmp_path, cap=600, slots=1)
    add_trial(world.journal, state="failed", reason="error: x")
    world.journal.write_facts(ended={"reason": "errors", "spent": spent, "cap": 600.0})
    (line,) = last_lines(world.journal, {}, {}, ["nanogpt"])
    assert line.endswith(f"correct that and go on with --resume{more}")


def test_where_nothing_was_found_the_exit_code_is_1() -> None:
    """And where no machine is left, so that whoever began it knows to begin it again."""
    codes = {(True, None): 0, (False, None): 1, (True, "deadline"): 0, (False, "deadline"): 1, (False, "SIGINT"): 130}
    codes[True, MACHINES_LOST] = 1
    for (found, interrupted), code in codes.items():
        assert Outcome(folder=Path(), found=found, interrupted=interrupted).exit_code == code


def test_a_memory_limit_above_the_machine_s_memory_is_bounded_in_one_line(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_file, "machine_bytes", lambda: 16_000_000_000)
    monkeypatch.setattr(context_file, "missing_for_compiling", lambda: None)
    asked = Settings(budget="1h", families="nanogpt", text_corpus=text, memory_limit="99999999999GB")
    found = make_search_context(asked, CORE)
    assert found.trial_memory_limit == found.memories["nanogpt"].limit == 16_000_000_000
    assert found.notes == ["--memory-limit: there are only 16GB: using that"]
    assert make_search_context(replace(asked, memory_limit="8GB"), CORE).notes == []
    with pytest.raises(ValueError, match=r"^--memory-limit: '999999999'\.\.\. is more memory than there is[^\n]*$"):
        replace(asked, memory_limit=f"{'9' * 400}GB")


def test_the_budget_line_never_says_that_nothing_runs_while_a_slot_is_held(tmp_path: Path) -> None:
    """It is told at reports, where the trial that reports may just have ended its lease. It names a few trials, and
    counts the others."""
    held = []

    class Told:
        def on_decision(self, *_: object) -> None: ...

        def on_report(self, engine: Engine, trial: str, report: Report) -> None:
            count = world.total("SELECT COUNT(*) FROM slots WHERE closed IS NULL")
            held.append((budget_line(engine), count, len(engine.running)))

    world = World(tmp_path, cap=960, slots=8, listen=lambda journal: [Told()])
    world.run()
    assert max(running for *_, running in held) > MOST_RUNNING
    for line, count, running in held:
        said = re.search(r"; (\d+) slots? held(?:, by (t\d+(?:, t\d+)*)(?: and (\d+) more)?)?$", line)
        assert said is not None and said[1] == f"{count:.0f}"
        names = said[2].split(", ") if said[2] else []
        assert len(names) == min(running, MOST_RUNNING) and len(names) + int(said[3] or 0) == running


def test_the_commit_is_of_our_own_repository_and_none_without_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of a user's, in which a virtual environment may lie."""
    (installed := tmp_path / ".venv").mkdir()
    said = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", *said, "-C", tmp_path, "commit", "-q", "--allow-empty", "-m", "a"], check=True)
    found = []
    for root in (installed, tmp_path):
        monkeypatch.setattr(facts, "ROOT", root)
        found.append(facts.git_commit())
    assert found[0] is None and found[1] is not None and re.fullmatch("[0-9a-f]{40}", found[1])
    monkeypatch.setenv("PATH", str(installed))
    assert facts.git_commit() is None
