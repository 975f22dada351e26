"""The law of the state: it is a function of the journal. Cut anywhere and rebuilt, a search goes on as before."""

import math
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from tests.tune.search.world import LIMIT, STEP_SECONDS, Numbered, World
from tune.assembly import make_engine, make_trial_environment
from tune.devices import find_devices
from tune.facts import check_same_kind
from tune.search import engine
from tune.search.family import CostModel
from tune.search.forecast import NO_PROGRESS, Progress
from tune.search.listed import ListEntry
from tune.search.state import State
from tune.search_context import make_search_context
from tune.settings import Settings
from tune.store.accounting import Assignment
from tune.store.heartbeat import DRIVER, HEARTBEAT_FOLDER, write_heartbeat
from tune.store.journal import Journal

AHEAD = 7
"""Decisions and events that both play after a cut."""
CASES = [(0, 60), (1, 400), (2, 200), (3, 60), (4, 400), (7, 400), (8, 400), (11, 400)]
"""Seeds and caps; in these all of it occurs: refusals, what cannot be paid any more, deadlines, thirds of a device,
last comparisons, lists."""
LISTED = [
    ListEntry(config={"number": number}, steps=90 * number % 200 + 25, seconds=9.0) for number in range(40, 0, -1)
]


class Attentive(Numbered):
    """What it suggests depends on each result that it was told of, and on their order."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = 0.0

    def suggest(self, trial: str) -> dict[str, Any]:
        return super().suggest(trial) | {"heard": self.heard}

    def tell(self, trial: str, rung: int, loss: float | None, progress: Progress = NO_PROGRESS) -> None:
        self.heard = 0.5 * self.heard + len(trial) + rung + (loss or 0.0)


class Uneven(World):
    """Steps of every trial take another time, the first trial diverges, and some run out of memory, die, raise or
    turn."""

    def __init__(self, folder: Path, *, seed: int, cap: float = 400, processor: str = "one", slots: int = 3) -> None:
        limit, deadline, trials_each = (math.inf, LIMIT)[seed % 2], (None, 200)[seed % 2], (1, 3)[seed // 2 % 2]
        super().__init__(
            folder, cap=cap, slots=slots, seed=seed, memory_limit=limit, trials_each=trials_each, deadline=deadline,
            suggestions=Attentive, processor=processor, confirm=(0, 2)[seed // 4 % 2],
            listed=((), LISTED)[seed // 8 % 2], shares={"nanogpt": 1.0} if seed // 8 % 2 else None,
        )  # fmt: skip
        chance = random.Random(seed)
        self.dying = {f"t{number:03d}": chance.choice((0, 0, 0, 1, 2)) for number in range(2, 60)}
        self.turning = {number: chance.uniform(0, 20) for number in range(2, 60, 3)}
        self.diverging = {1: 1.0, 2: 1.0} | {number: chance.uniform(0, 9) for number in range(3, 60, 7)}
        self.raising = lambda assignment: "error: its loss raised it" if assignment.config["number"] % 9 == 4 else None

    def step_seconds(self, assignment: Assignment) -> float:
        return STEP_SECONDS * (0.5 + assignment.config["number"] * 7 % 5)

    def step(self) -> bool:
        """One decision or one event further. False at the end."""
        if self.begin():
            return True
        if not self.engine.is_done:
            self.go_on()
        return not self.engine.is_done

    def goes_on_like(self, other: "Uneven") -> None:
        """What is no part of the search: the noise to come, and which processes will die."""
        self.chance.setstate(other.chance.getstate())
        self.dying = dict(other.dying)


def copied(world: World, folder: Path) -> Path:
    """The journal as it is now, with the last signs of life of all that runs."""
    (folder / HEARTBEAT_FOLDER).mkdir(parents=True)
    journals = [sqlite3.connect(place / "journal.db") for place in (world.journal.folder, folder)]
    with closing(journals[0]) as there, closing(journals[1]) as here:
        here.execute("PRAGMA synchronous = OFF")
        there.backup(here)
    write_heartbeat(folder, DRIVER, 0, world.now)
    for name, run in world.engine.running.items():
        write_heartbeat(folder, name, run.assignment.lease, world.now)
    return folder


def all_machines_lost(world: World) -> None:
    """What a kill does to a search, done to one whose driver lives."""
    slots = world.engine.slots
    there, slots.there = slots.there, frozenset
    for name, run in list(world.engine.running.items()):
        world.live(run.assignment)
        world.engine.on_death(name, "")
        world.diverged_at.pop(name, None)
    assert world.engine.next_assignment() is None
    slots.there = there
    world.events.clear()


def moves(world: Uneven) -> list[Any]:
    """What is assigned from now on for a while, in full."""
    before = len(world.assignments)
    for _ in range(AHEAD):
        world.step()
    names = ((each, each.checkpoint and Path(each.checkpoint).name) for each in world.assignments[before:])
    return [astuple(replace(each, checkpoint=name)) for each, name in names]


def known(world: World) -> list[Any]:
    """What the search knows, prices included."""
    trials = {name: (each.deaths, each.micro_batches, each.goal) for name, each in world.engine.trials.items()}
    return [trials, world.engine.cut_short, {name: each.state() for name, each in world.families.items()}]


def apart(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Where they differ, by more than the few nanoseconds between two readings of a clock."""
    if isinstance(one, float) and isinstance(other, float):
        if not math.isclose(one, other, rel_tol=1e-7, abs_tol=1e-5):
            yield f"{where}: {one} {other}"
    elif isinstance(one, dict | list | tuple) and type(one) is type(other) and len(one) == len(other):
        pairs = one.items() if isinstance(one, dict) else enumerate(one)
        for key, value in pairs:
            there = not isinstance(other, dict) or key in other
            yield from apart(value, other[key], f"{where}/{key}") if there else [f"{where}: no {key}"]
    elif one != other:
        yield f"{where}: {one} {other}"


def at_each_event(tmp_path: Path, seed: int, cap: float, look: Callable[[Uneven, Path], None]) -> None:
    """Play a search to its end, and look at it after every event."""
    (tmp_path / "whole").mkdir()
    world = Uneven(tmp_path / "whole", seed=seed, cap=cap)
    looks = 0
    while looks == 0 or world.step():
        look(world, tmp_path / str(looks))
        looks += 1
    world.journal.close()
    assert looks > cap / 16


@pytest.mark.parametrize(("seed", "cap"), CASES)
def test_rebuilt_at_any_point_the_state_is_what_it_was(tmp_path: Path, seed: int, cap: float) -> None:
    """As it was after every second event, and of some again after what the kill itself changed."""

    def look(world: Uneven, folder: Path) -> None:
        number = int(folder.name) + seed
        for _ in range(0 if number % 2 else 1 if number % 8 else 2):
            rebuilt = Uneven(copied(world, folder) if not folder.exists() else folder, seed=seed, cap=cap)
            rebuilt.journal.close()
            assert rebuilt.told == []

    at_each_event(tmp_path, seed, cap, look)


@pytest.mark.parametrize(("seed", "cap", "offset"), [*((*case, 3 * case[0] % AHEAD) for case in CASES), (0, 400, 5)])
def test_cut_at_any_point_it_makes_the_same_moves_for_the_same_events(
    tmp_path: Path, seed: int, cap: float, offset: int
) -> None:
    """The one whose driver was killed, rebuilt from its journal, and one that lived through the same losses."""
    (tmp_path / "lives").mkdir()
    lives = Uneven(tmp_path / "lives", seed=seed, cap=cap)
    for _ in range(offset):
        lives.step()
    compared = 0
    while not lives.engine.is_done:
        killed = Uneven(copied(lives, tmp_path / str(compared)), seed=seed, cap=cap)
        all_machines_lost(lives)
        killed.goes_on_like(lives)
        assert list(apart(moves(killed), moves(lives))) == []
        assert list(apart(known(killed), known(lives))) == []
        killed.journal.close()
        compared += 1
    lives.journal.close()
    assert compared > 1


def test_rebuilt_after_memory_ran_out_in_parts_of_every_size_the_state_is_what_it_was(tmp_path: Path) -> None:
    """Which was not predicted of the first trial."""
    for _ in range(2):
        world = World(tmp_path, cap=400, slots=2, memory_limit=0.9 * LIMIT, shares={"nanogpt": 1.0})
        assert world.told == []
        world.run(3)
        world.journal.close()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as journal:
        (reason,) = journal.execute("SELECT reason FROM trials WHERE trial = 't001'").fetchone()
    assert reason.startswith("memory: ran out")


def test_rebuilt_after_batches_were_cut_within_a_lease_the_state_is_what_it_was(tmp_path: Path) -> None:
    world = World(tmp_path, cap=400, slots=1, shares={"nanogpt": 1.0})
    world.report_after(6, ended=None, steps=5, micro_batches=2, ran_out=True)
    assert world.engine.running
    assert World(tmp_path, cap=400, slots=1, shares={"nanogpt": 1.0}).told == []


@pytest.mark.parametrize("slots", [1, 8])
def test_on_another_machine_rungs_stay_and_prices_are_learned_anew_and_kept(tmp_path: Path, slots: int) -> None:
    """The third is on the second's machine, and knows what that one learned there."""
    first = Uneven(tmp_path, seed=0).run(8)
    second = Uneven(tmp_path, seed=0, slots=slots, processor="another")
    assert len(second.told) == 1 and "another processor" in second.told[0]
    for name, family in second.families.items():
        before = first.families[name]
        assert family.policy.ladder == before.policy.ladder
        assert family.step_seconds == before.step_seconds
        assert family.timed == 1 < before.timed and family.mean_step_seconds == before.mean_step_seconds
        assert before.cost_model.start_up != family.cost_model.start_up == CostModel().start_up
    second.run(6)
    third = Uneven(tmp_path, seed=0, slots=slots, processor="another")
    assert third.told == []
    assert [each.cost_model.state() for each in third.families.values()] == [
        each.cost_model.state() for each in second.families.values()
    ]
    for name, family in third.families.items():
        kept = second.families[name]
        assert (family.timed, family.mean_step_seconds) == (kept.timed, kept.mean_step_seconds)


def test_a_state_that_the_journal_does_not_tell_of_is_named_and_the_study_goes_on(tmp_path: Path) -> None:
    """Here what its leases' seconds were for was changed afterwards, and with it the prices that they taught."""
    world = Uneven(tmp_path, seed=2).run(5)
    for row in world.rows("SELECT charge FROM charges WHERE what = 'steps'"):
        world.journal.update("charges", row["charge"], {"what": "evaluation"})
    again = Uneven(tmp_path, seed=2)
    assert len(again.told) == 1 and "prices of nanogpt" in again.told[0] and "ladder" not in again.told[0]
    again.run()
    assert again.spent <= again.accounting.ledger.cap


def test_what_an_event_takes_does_not_grow_with_the_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest looks at all of them: of many it is of some events alone, and else there is none to be held to."""
    monkeypatch.setattr(engine, "DIGESTED_TRIALS", 10)
    looked, digest = list[int](), State.digest

    def counted(state: State) -> dict[str, str]:
        looked.append(len(state.trials))
        return digest(state)

    monkeypatch.setattr(State, "digest", counted)
    world = World(tmp_path, cap=12_000, slots=16).run()
    events = world.total("SELECT (SELECT COUNT(*) FROM reports) + (SELECT COUNT(*) FROM decisions)")
    assert max(looked) > 60 and sum(looked) < 11 * events
    assert world.journal.facts()["state"] is None and World(tmp_path, cap=12_000, slots=16).told == []


def test_a_deadline_counts_from_the_start_of_the_study_whoever_ran_meanwhile(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 s after it was asked for it has its engine, and 300 s later another one goes on with it."""
    now = 1e9
    monkeypatch.setattr("time.time", lambda: now)
    monkeypatch.setattr("time.monotonic", lambda: now)
    settings = Settings(budget=600.0, families="nanogpt", devices=1, deadline=500.0, text_corpus=text)
    context = make_search_context(settings, find_devices(settings))
    now += 40
    journal = Journal(tmp_path, new=True)
    assert make_engine(context, journal, [], now=lambda: now).wall_left() == 460
    now += 300
    again = make_search_context(settings, find_devices(settings))
    now += 10
    engine = make_engine(again, journal, [], now=lambda: now)
    assert engine.wall_left() == 150
    now += 200
    assert engine.next_assignment() is None and engine.stopping == "deadline"
    journal.close()


def test_what_is_measured_on_stays_the_studys_and_another_kind_of_device_is_refused(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On more cores, and in a version of the program that would take another subset."""
    settings = Settings(budget=600.0, families="nanogpt", oversubscribe=True, text_corpus=text)
    tokens, rungs = [], []
    for devices in (1, 8):
        cores = find_devices(replace(settings, devices=devices))
        context = make_search_context(settings, cores)
        journal = Journal(tmp_path, new=devices == 1)
        engine = make_engine(context, journal, [])
        tokens.append(make_trial_environment(context, engine).evaluation_tokens)
        rungs.append(journal.facts()["rung_seconds"])
        journal.close()
        monkeypatch.setattr("tune.recipe.EVALUATION_TOKENS_PER_RUNG_SECOND", {"cpu": 2_000})
    assert tokens[0] == tokens[1] and rungs[0] == rungs[1]
    check_same_kind(cores, {"devices": {"kind": "cpu"}})
    with pytest.raises(ValueError, match=r"^--resume: the study runs on GPUs, and here are CPU cores: [^\n]+$"):
        check_same_kind(cores, {"devices": {"kind": "cuda"}})
