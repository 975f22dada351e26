"""The copy of a study: with it the study goes on where the copy was made, and what ran since is charged."""

import json
import os
import random
import shutil
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from model.training.checkpoint import load, save
from tests.searches import PATIENCE_SECONDS
from tests.tune.search.world import World
from tune.errors import UserError
from tune.machine import UNFINISHED, make_locked_folder
from tune.reports import Report
from tune.search.engine import Engine, Listener
from tune.settings import Settings
from tune.store import mirror
from tune.store.heartbeat import DRIVER, read_heartbeat
from tune.store.journal import ENDED_BY_CAP, JOURNAL_FILE, LOCK, Journal, connect
from tune.store.mirror import LAST_NAMED, MIRROR_EVERY_SECONDS, Mirror, mirror_study, restore_from_mirror

CAP = 1200.0


class Saving(Listener):
    """Leaves the checkpoint that a report names."""

    def on_report(self, engine: Engine, trial: str, report: Report) -> None:
        keep(engine.accounting.journal.folder / str(report.checkpoint), report.steps)


def keep(path: Path, steps: int) -> None:
    save(path.parent, torch.nn.Linear(1, 1), {"random": torch.zeros(1)}, {"steps": steps}, path.name)


def world_in(folder: Path, cap: float = CAP, seed: int = 0, slots: int = 2, each: float = 1) -> World:
    """each: trials on a device."""
    folder.mkdir(exist_ok=True)
    made = World(folder, cap=cap, slots=slots, seed=seed, trials_each=each, listen=lambda _: [Saving()])
    made.journal.write_facts(devices={"slots": slots, "share": 1 / each})
    (folder / "study.json").write_text(json.dumps({"created": 1.0, "settings": Settings(budget=cap).stored()}))
    return made


def lose(world: World) -> Path:
    """The study's folder, which is gone with its machine."""
    world.journal.close()
    shutil.rmtree(world.journal.folder)
    return world.journal.folder


def named(place: Path) -> list[str]:
    with closing(connect(place)) as journal:
        return [path for (path,) in journal.execute(LAST_NAMED)]


def whole(place: Path) -> bool:
    """Whether each checkpoint that the journal there names last of a trial is there, undamaged."""
    return [load(place / path).state["steps"] for path in named(place)] != []


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return tmp_path / "study"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "drive").mkdir()
    return tmp_path / "drive" / "study"


@pytest.mark.parametrize("seed", range(3))
def test_a_study_whose_machine_is_gone_goes_on_from_its_copy_and_the_cap_holds(
    study: Path, place: Path, seed: int
) -> None:
    """Lost at any moment of the minute after a copy, what was spent until then is charged, if it was not known."""
    chance = random.Random(seed)
    world = world_in(study, seed=seed)
    copies = Mirror(study, place, lambda: world.now)
    for loss in range(3):
        world.run(chance.randrange(3, 15))
        copies.copy()
        copied, known, reports = world.now, world.spent, world.total("SELECT COUNT(*) FROM reports")
        while world.now < copied + MIRROR_EVERY_SECONDS / 2 and not world.engine.stopping:
            before = world.now
            world.run(1)
            if world.now == before:
                break
        late, really = world.now - copied, world.spent
        restore_from_mirror(place.parent, lose(world))
        world = world_in(study, seed=seed + 10 * loss)
        copies = Mirror(study, place, lambda world=world: world.now)
        assert world.total("SELECT COUNT(*) FROM reports") == reports
        if late <= MIRROR_EVERY_SECONDS:
            assert really <= world.spent + 1e-6
        assert world.spent <= min(CAP, known + 2 * (MIRROR_EVERY_SECONDS + 2))
    world.run()
    assert world.spent <= CAP
    assert world.total("SELECT TOTAL(seconds) FROM charges") == pytest.approx(
        world.total("SELECT TOTAL(closed - opened) FROM slots")
    )


@pytest.mark.parametrize(("slots", "each"), [(2, 1), (4, 4), (2, 0.5)])
@pytest.mark.parametrize(("cap", "seconds"), [(100.0, 5.0), (CAP, MIRROR_EVERY_SECONDS - 1)])
@pytest.mark.parametrize(("before", "kept"), [(0, None), (1, None), (0, 0)])
def test_slots_that_were_opened_after_a_copy_are_charged_as_if_at_once_within_the_cap(
    study: Path, place: Path, slots: int, each: float, cap: float, seconds: float, before: int, kept: int | None
) -> None:
    """So many there are when it is copied; kept: as a run that ended by itself had left it."""
    about = {"cap": cap, "slots": slots, "each": each}
    world = world_in(study, **about)
    world.journal.write_facts(slots_kept=kept)
    for _ in range(before):
        world.begin()
    Mirror(study, place, lambda: world.now).copy()
    while world.begin():
        pass
    world.now += seconds
    really = world.spent
    restore_from_mirror(place.parent, lose(world))
    world = world_in(study, **about)
    assert 0 < really <= world.spent <= min(cap, slots / each * MIRROR_EVERY_SECONDS + 1e-6)
    assert not world.accounting.ledger.open_slots
    assert world.total("SELECT TOTAL(seconds) FROM charges") == pytest.approx(world.spent)


@pytest.mark.parametrize("left", [0.5, 5.0, 20.0])
def test_however_little_of_the_cap_a_copy_leaves_what_may_have_run_since_is_within_it(
    study: Path, place: Path, left: float
) -> None:
    """Copied so many seconds before the last leases end."""
    world = world_in(study, cap=300.0)
    while any(run.assignment.rung is not None for run in world.engine.running.values()) or not world.engine.running:
        world.run(1)
        while world.begin():
            pass
    world.now = max(run.assignment.opened + run.assignment.seconds for run in world.engine.running.values()) - left
    Mirror(study, place, lambda: world.now).copy()
    restore_from_mirror(place.parent, lose(world))
    assert world_in(study, cap=300.0).spent <= 300.0


def test_what_the_copied_journal_names_is_in_the_copy_though_checkpoints_come_and_go(
    study: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the snapshot and the copying of checkpoints a trial reports once more, and drops its older ones."""
    world = world_in(study).run(9)
    copies, snapshot, tries = Mirror(study, place, lambda: world.now), Mirror._snapshot, list[str]()

    def and_then_it_goes_on(self: Mirror, file: Path) -> list[str]:
        found = snapshot(self, file)
        if len(tries) < 3:
            old = Path(found[0])
            new = old.with_name(f"step-{900_000 + len(tries)}")
            keep(study / new, 900_000)
            world.journal.insert("reports", {"trial": old.parent.name, "at": world.now, "checkpoint": str(new)})
            shutil.rmtree(study / old)
            tries.append(str(old))
        return found

    monkeypatch.setattr(Mirror, "_snapshot", and_then_it_goes_on)
    copies.copy()
    assert len(tries) > 1 and whole(place)
    monkeypatch.undo()
    copies.copy()
    assert whole(place) and named(place) == named(study)
    there = {path.relative_to(place) for path in place.glob("checkpoints/*/*")}
    assert there == {path.relative_to(study) for path in study.glob("checkpoints/*/*")}, "and nothing else"


def test_a_trial_that_has_saved_since_its_last_report_is_copied_as_it_is_now(study: Path, place: Path) -> None:
    """On its next lease it dropped the checkpoint that the report names, before any copy was made of that."""
    world = world_in(study).run(9)
    for path in named(study):
        keep((study / path).with_name("step-900000"), 900_000)
        shutil.rmtree(study / path)
    Mirror(study, place, lambda: world.now).copy()
    assert {load((place / path).with_name("step-900000")).state["steps"] for path in named(place)} == {900_000}


def test_a_checkpoint_is_copied_once_and_again_where_another_has_its_name(study: Path, place: Path) -> None:
    world = world_in(study).run(9)
    copies = Mirror(study, place, lambda: world.now)
    copies.copy()
    path = named(study)[0]
    (place / path / "mark").write_text("")
    copies.copy()
    assert (place / path / "mark").exists()
    keep(study / path, 12345)
    copies.copy()
    assert load(place / path).state["steps"] == 12345 and not (place / path / "mark").exists()


def test_a_copied_journal_names_no_checkpoint_that_a_power_failure_could_take(
    study: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk was told to keep every file of these, and their names, before it was told to keep the journal."""
    world, kept, sync = world_in(study).run(9), list[int](), os.fsync

    def noted(file: int) -> None:
        kept.append(os.stat(file).st_ino)
        sync(file)

    monkeypatch.setattr(os, "fsync", noted)
    Mirror(study, place, lambda: world.now).copy()
    before = kept[: kept.index((place / JOURNAL_FILE).stat().st_ino)]
    for folder in (place / path for path in named(place)):
        assert {each.stat().st_ino for each in (*folder.iterdir(), folder, folder.parent)} <= set(before)


def test_a_copy_that_fails_is_told_once_and_leaves_the_one_before(
    study: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, said = world_in(study), list[str]()
    world.run(9)
    Mirror(study, place, lambda: world.now).copy()
    before = named(place)
    monkeypatch.setattr(mirror, "MIRROR_EVERY_SECONDS", 0.0)
    fails: list[None] = []

    def full(source: Path, target: Path, **_: object) -> None:
        fails.append(None)
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(shutil, "copytree", full)
    with mirror_study(study, place.parent, lambda: world.now, said.append):
        while len(fails) < 3:
            world.run(1)
    assert len(said) == 2 and "No space left on device" in said[0]
    assert said[0].startswith(f"mirror: {place} could not be updated: ")
    assert ["trying again" in line for line in said] == [True, False], "as none comes after the last"
    assert named(place) == before and whole(place)


def test_while_a_copy_is_made_for_long_the_study_is_known_to_live_on(
    study: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, late, copied = world_in(study), threading.Event(), shutil.copytree
    world.run(9)
    monkeypatch.setattr(mirror, "MIRROR_EVERY_SECONDS", 0.02)

    def long(source: Path, target: Path, **more: Any) -> Any:
        world.clock.now += 300.0
        until = time.monotonic() + PATIENCE_SECONDS
        while not late.is_set() and time.monotonic() < until:
            said = read_heartbeat(place, DRIVER)
            late.set() if said is not None and said.at >= world.now else late.wait(0.01)
        return copied(source, target, **more)

    monkeypatch.setattr(shutil, "copytree", long)
    with mirror_study(study, place.parent, lambda: world.now, pytest.fail):
        assert late.wait(PATIENCE_SECONDS)


def test_at_an_end_in_order_all_is_there_but_what_is_of_the_machine(study: Path, place: Path) -> None:
    world = world_in(study)
    with mirror_study(study, place.parent, lambda: world.now, pytest.fail):
        world.run(9)
        (study / "log.txt").write_text("all")
        keep(study / "best-nanogpt" / "x", 1)
        keep(study / "tensorboard" / "x", 1)
    kept = {str(path.relative_to(place).parts[0]) for path in place.rglob("*")}
    assert kept == {"study.json", JOURNAL_FILE, "checkpoints", "heartbeats", "log.txt", "best-nanogpt", "tensorboard"}
    assert whole(place) and (study / LOCK).exists()
    assert read_heartbeat(place, DRIVER) is None, "it has ended"


def test_a_study_that_is_over_goes_on_until_its_copy_has_all_of_it(study: Path, place: Path) -> None:
    world = world_in(study)
    copies = Mirror(study, place, lambda: world.now)

    def is_over(cap: float, **more: Any) -> bool:
        return Settings.of_study(study, budget=cap, **more).nothing_to_do() is not None

    for cap in (CAP, 2 * CAP):
        world = world_in(study, cap).run()
        world.journal.write_facts(ended={"reason": ENDED_BY_CAP, "spent": world.spent, "cap": cap})
        assert is_over(cap) and not is_over(cap, mirror=place.parent)
        copies.copy()
        assert not is_over(cap, mirror=place.parent), "it is of the minute, without winners"
        copies.copy(whole=True)
        assert is_over(cap, mirror=place.parent)


def test_a_search_that_is_told_to_end_at_once_does_not_wait_for_a_copy(
    study: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, wholes, done = world_in(study), list[bool](), list[bool]()
    begun, told = threading.Event(), threading.Event()

    def copy(self: Mirror, *, whole: bool = False) -> None:
        wholes.append(whole)
        begun.set()
        done.append(told.wait(PATIENCE_SECONDS))

    monkeypatch.setattr(Mirror, "copy", copy)
    with pytest.raises(KeyboardInterrupt), mirror_study(study, place.parent, lambda: world.now, pytest.fail):
        assert begun.wait(PATIENCE_SECONDS)
        raise KeyboardInterrupt
    assert wholes == [False] and done == [], "it ended while the copy was still made"
    told.set()


def test_a_copy_that_another_run_went_on_from_is_not_replaced_by_what_is_older(study: Path, place: Path) -> None:
    """Neither while both run nor afterwards: of two that copy to one place, one holds it, with its checkpoints."""
    world = world_in(study).run(9)
    older = Mirror(study, place, lambda: world.now)
    older.copy()
    elsewhere = study.parent / "elsewhere" / study.name
    restore_from_mirror(place.parent, elsewhere)
    other = world_in(elsewhere, seed=1).run(5)
    Mirror(elsewhere, place, lambda: other.now).copy()
    there = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    world.run(3)
    with pytest.raises(UserError, match="another run went on from it"):
        older.copy(whole=True)
    older.extend_life()
    with pytest.raises(UserError, match=rf"^--mirror: '{place}' knows more than '{study}', as another run went on"):
        mirror_study(study, place.parent, lambda: world.now, pytest.fail).__enter__()
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == there
    shutil.rmtree(place)
    older.copy()
    assert named(place) == named(study) and read_heartbeat(place, DRIVER) is not None


def test_a_machine_that_slept_while_it_copied_replaces_no_copy_that_another_run_made_since(
    study: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, snapshot = world_in(study).run(9), Mirror._snapshot
    older, elsewhere = Mirror(study, place, lambda: world.now), study.parent / "elsewhere" / study.name
    older.copy()
    world.run(3)

    def and_then_another_goes_on(self: Mirror, file: Path) -> list[str]:
        found = snapshot(self, file)
        monkeypatch.undo()
        restore_from_mirror(place.parent, elsewhere)
        other = world_in(elsewhere, seed=1).run(5)
        Mirror(elsewhere, place, lambda: other.now).copy()
        return found

    monkeypatch.setattr(Mirror, "_snapshot", and_then_another_goes_on)
    with pytest.raises(UserError, match="another run went on from it"):
        older.copy()
    assert named(place) == named(elsewhere) != named(study) and whole(place)


def test_what_cannot_be_is_one_line(study: Path, place: Path) -> None:
    world_in(study).journal.close()
    for name in ("study.json", "checkpoints/mine/weights"):
        shutil.rmtree(place, ignore_errors=True)
        (place / name).parent.mkdir(parents=True)
        (place / name).write_text('{"created": 2.0}')
        with pytest.raises(UserError, match=rf"^--mirror: '{place}' is of another study, or none: "):
            mirror_study(study, place.parent, lambda: 0.0, pytest.fail).__enter__()
        assert (place / name).exists()
    with pytest.raises(UserError, match=rf"^--mirror: '{place}' exists already: "):
        Settings(budget="8h", out=study, mirror=place.parent).check_files()
    with pytest.raises(UserError, match=r"^--mirror: '/nowhere' cannot be written "):
        Settings(budget="8h", mirror="/nowhere").check_files()
    with pytest.raises(UserError, match=r"^--resume: '/x/none' is not there, nor a copy in "):
        Settings.of_study("/x/none", mirror=place.parent)
    with pytest.raises(UserError, match=r"^--resume: '/x/x{300}' is not there, nor a copy in "):
        Settings.of_study(f"/x/{'x' * 300}", mirror=place.parent)
    with mirror_study(study, study.parent, lambda: 0.0, pytest.fail):
        pass  # it is its own copy


def test_resume_takes_the_copy_where_the_folder_is_gone(study: Path, place: Path) -> None:
    world = world_in(study).run(9)
    Mirror(study, place, lambda: world.now).copy()
    (study / "mine").write_text("newer")
    assert Settings.of_study(study, mirror=place.parent).mirror == place.parent and (study / "mine").exists()
    lose(world)
    assert Settings.of_study(study, mirror=place.parent, plan=True).resume == place and not study.exists()
    settings = Settings.of_study(study, mirror=str(place.parent))
    assert settings.resume == study and settings.budget == CAP and whole(study)
    assert f"--resume {study} --mirror {place.parent}" in settings.resume_command(study)


def test_a_copy_has_the_name_of_the_study_however_that_is_typed(
    study: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_in(study).run(3)
    (study / "best").mkdir()
    beside = set(place.parent.parent.iterdir())
    monkeypatch.chdir(study / "best")
    for typed in ("..", "../../study", str(study / "best" / "..")):
        asked = Settings.of_study(typed, mirror=place.parent)
        assert asked.resume is not None
        with mirror_study(asked.resume, asked.mirror, lambda: world.now, pytest.fail):
            pass
        assert set(place.parent.iterdir()) == {place} and set(place.parent.parent.iterdir()) == beside
        shutil.rmtree(place)


@pytest.mark.parametrize("copied", [False, True])
def test_of_two_that_restore_a_study_at_once_the_second_finds_it_in_use_and_takes_nothing_from_the_first(
    study: Path, place: Path, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    """The first is done before the second has begun to copy, or once it has copied. Nor does it matter what one that
    was killed left there, which is gone afterwards."""
    world = world_in(study).run(9)
    Mirror(study, place, lambda: world.now).copy()
    lose(world)
    os.close(make_locked_folder(study.parent, UNFINISHED)[1])
    copy, first = shutil.copytree, list[Journal]()

    def restored() -> None:
        restore_from_mirror(place.parent, study)
        first.append(Journal(study, new=False))
        first[0].write_facts(said="by the first")

    def meanwhile(source: Path, target: Path, **more: Any) -> Any:
        monkeypatch.undo()
        if not copied:
            restored()
        made = copy(source, target, **more)
        if copied:
            restored()
        return made

    monkeypatch.setattr(shutil, "copytree", meanwhile)
    restore_from_mirror(place.parent, study)
    with pytest.raises(UserError, match="is in use by another run"):
        Journal(study, new=False)
    with Journal.in_memory_copy(study) as journal:
        assert journal.facts()["said"] == "by the first" and whole(study)
    assert set(study.parent.iterdir()) == {study, place.parent}
    first[0].close()
