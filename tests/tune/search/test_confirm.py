"""Laws of the last comparison: two configurations trained alike, with seeds that chose nothing, on what was kept."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.config import Config
from tests.tune.search.alone import OVERHEAD, START_UP, STEP, Alone, Search, bare, framed, left, reach
from tests.tune.search.world import Numbered, World
from tune.search.confirm import HalvingWithConfirmation
from tune.search.family import CostModel, Family, TrialRecord
from tune.search.forecast import NO_PROGRESS, Progress
from tune.search.ladder import Frame
from tune.search.policy import Confirm, Finish, HandBack, Wait
from tune.search.simulator import PowerLaw
from tune.search_space import LARGEST_SEED

SCENARIOS: list[dict[str, Any]] = [
    {},
    {"slots": 2, "rungs": "tokens"},
    {"slots": 8, "seconds": 4800.0, "deadline": 1300.0, "seeds": 3},
    {"slots": 2, "seconds": 3000.0, "diverging": 0.3, "rungs": "tokens"},
    {"seconds": 70.0},
]


class Uneven(Alone):
    """Steps of every configuration take another time, whatever its seed."""

    def course(self, trial: str, family: str, config: Mapping[str, Any]) -> PowerLaw:
        course = super().course(f"t{config['number']:03d}", family, config)
        return replace(course, step_seconds=self.step * (1 + config["number"] % 3))


def anew(search: Alone | World) -> dict[str, list[str]]:
    """Those that train a configuration anew, by the trial that had it first."""
    found = defaultdict(list)
    for name, record in search.engine.trials.items():
        if record.confirms is not None:
            found[record.confirms].append(name)
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_are_trained_alike_with_seeds_of_their_own_and_one_of_them_has_the_last_segment(
    scenario: dict[str, Any],
) -> None:
    search = Uneven(**{"seeds": 2} | scenario).run()
    pairs, records, seeds = anew(search), search.engine.trials, scenario.get("seeds", 2)
    assert len(pairs) == 2 and {len(names) for names in pairs.values()} == {seeds}
    for of, names in pairs.items():
        assert [records[name].config for name in names] == [
            records[of].config | {"seed": number} for number in range(1, seeds + 1)
        ]
    (family,) = search.engine.families.values()
    assert family.timed == sum(each.confirms is None and each.step_seconds is not None for each in records.values())
    steps = {of: {records[name].steps for name in names} for of, names in pairs.items()}
    assert all(len(each) == 1 for each in steps.values()), "each seed of one as long"
    ends = {
        of: each.pop() * (1 if "rungs" in scenario else records[of].step_seconds or 0.0) for of, each in steps.items()
    }
    assert min(ends.values()) == pytest.approx(max(ends.values()), rel=0.03)
    finished = [row["trial"] for row in search.on_decision("finish")]
    assert finished[0] == next(iter(pairs)) and not {name for names in pairs.values() for name in names} & {*finished}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_they_keep_to_what_was_kept_and_what_they_leave_over_is_used(scenario: dict[str, Any]) -> None:
    search = Uneven(**{"seeds": 2} | scenario).run()
    for names in anew(search).values():
        for name in names:
            (lease,) = search.rows(f"SELECT * FROM leases WHERE trial = '{name}'")
            assert lease["charged"] <= search.ladder.confirm + START_UP + 1e-6
    (last,) = search.rows("SELECT MAX(charged) AS most FROM leases WHERE rung IS NULL")
    assert last["most"] > search.ladder.confirm
    assert 0.97 * search.seconds <= search.spent <= search.seconds


def test_where_there_is_nobody_to_compare_with_the_leader_has_it_all() -> None:
    search = Alone(seeds=2, configs=1).run()
    assert not anew(search) and search.spent >= 0.95 * search.seconds


def test_a_seed_of_its_own_counts_where_all_others_have_the_studys() -> None:
    assert [Config.at(point, family="nanogpt", seed=7).seed for point in ({"layers": 2}, {"layers": 2, "seed": 8})] == [
        7,
        8,
    ]


def test_without_seeds_nothing_is_kept_and_nothing_is_trained_anew() -> None:
    search, plain = Alone(seeds=2), Alone()
    assert plain.ladder.confirm == 0 and plain.ladder.kept > search.ladder.kept
    plain.run()
    assert not anew(plain)


def compared(frame: Frame, seconds: float, price: float = 10.0) -> HalvingWithConfirmation:
    """A policy whose last two were trained anew; price: of a rung."""
    policy = HalvingWithConfirmation(frame, frame.fit(seconds), lambda trial, rung: price)
    for trial, loss in (("a", 3.0), ("b", 4.0)):
        reach(policy, trial, loss)
    for anew, of in (("c", "a"), ("d", "b")):
        policy.on_confirming(anew, of)
        policy.on_finished(anew)
    return policy


def test_another_comparison_has_its_part_of_what_is_new() -> None:
    frame = framed(seeds=1)
    policy = compared(frame, 600.0)
    for seconds, more in ((600.0, 0.0), (660.0, 60.0), (1200.0, 600.0)):
        assert policy.make_ladder(seconds).confirm == pytest.approx(frame.fit(seconds).confirm * more / seconds)


@pytest.mark.parametrize(("seeds", "again"), [(2, True), (16, False)])
def test_under_a_larger_cap_the_last_two_are_trained_anew_once_more_if_it_pays_for_trainings(
    seeds: int, again: bool
) -> None:
    first = Search(seconds=900.0, seeds=seeds).run()
    more = Search(seconds=1300.0, seeds=seeds, journal=first.accounting.journal).run()
    assert sum(map(len, anew(more).values())) == 2 * seeds * (1 + again)
    for names in anew(more).values():
        assert [more.engine.trials[name].config["seed"] for name in names] == [*range(1, len(names) + 1)]
    assert 0.99 * 1300.0 < more.spent <= 1300.0


@pytest.mark.parametrize(("times", "move"), [(0.9, HandBack), (1.1, Finish)])
def test_what_pays_for_no_step_of_the_last_segment_is_handed_back(times: float, move: type) -> None:
    policy = compared(framed(seeds=1), 600.0)
    assert isinstance(policy.decide(left(times * policy.ladder.overhead)), move)


def test_no_training_lasts_longer_than_the_last_segment_however_many_slots_there_are() -> None:
    for slots in (1, 4, 64):
        ladder = Alone(seeds=2, slots=slots, seconds=600.0 * slots, deadline=1200.0).ladder
        assert OVERHEAD < ladder.confirm < ladder.kept


@pytest.mark.parametrize("closing", [0.0, 30.0, 1e6])
def test_the_steps_of_each_leave_time_for_its_end_as_long_as_a_third_is_left_for_them(closing: float) -> None:
    family = Family(
        seconds=600.0, policy=bare(), cost_model=CostModel(), suggestions=Numbered(), closing=lambda step: closing
    )
    record = TrialRecord(family="alone", config={"number": 1}, steps=100, step_seconds=STEP)
    goal = family.confirming_record(Confirm("a", "b", 1, 60.0, ""), record, record).goal
    assert goal is not None and 20.0 - STEP <= goal * STEP <= max(20.0, 60.0 - OVERHEAD - closing)


def test_any_seed_of_a_study_has_others_after_it_that_are_seeds() -> None:
    """Also the last one that there is."""
    family = Family(seconds=600.0, policy=bare(), cost_model=CostModel(), suggestions=Numbered(), seed=LARGEST_SEED)
    record = TrialRecord(family="alone", config={"number": 1}, steps=100, step_seconds=STEP)
    seeds = {
        family.confirming_record(Confirm("a", "b", number, 60.0, ""), record, record).config["seed"]
        for number in (1, 2)
    }
    assert seeds == {0, 1}


def test_its_batches_are_cut_as_small_as_those_of_what_it_trains_anew() -> None:
    """They ran out of memory in larger parts."""
    family = Family(seconds=600.0, policy=bare(), cost_model=CostModel(), suggestions=Numbered())
    record = TrialRecord(family="alone", config={"number": 1}, steps=100, step_seconds=STEP, micro_batches=4)
    assert family.confirming_record(Confirm("a", "b", 1, 60.0, ""), record, record).micro_batches == 4


@pytest.mark.parametrize("times", [0.9, 1.1])
def test_no_such_training_begins_that_is_not_paid_for(times: float) -> None:
    policy = compared(framed(seeds=2), 600.0)
    assert isinstance(policy.decide(left(times * policy.ladder.confirm)), Confirm) == (times > 1)


def test_where_the_wall_clock_leaves_no_time_for_such_a_training_none_begins() -> None:
    """However many slots there are for them."""
    frame = framed(seeds=1, slots=8)
    policy = HalvingWithConfirmation(frame, frame.fit(4800.0, 600.0), lambda trial, rung: 1e6)
    for trial, loss in (("a", 3.0), ("b", 4.0)):
        reach(policy, trial, loss)
    for times, move in ((1.1, Confirm), (0.9, Finish)):
        wall = times * policy.ladder.confirm
        assert isinstance(policy.decide(left(4800.0, slots=8, wall=wall)), move)


def test_a_leader_that_is_past_its_best_in_its_last_segment_has_no_other() -> None:
    policy = compared(framed(seeds=1), 600.0, price=1e6)
    policy.on_finishing("a")
    policy.on_turned("a", 2.5, 60.0)
    move = policy.decide(left(300.0))
    assert not isinstance(move, Finish) or move.trial == "b"


@pytest.mark.parametrize(("times", "move"), [(0.9, Wait), (1.1, HandBack)])
def test_before_a_deadline_a_slot_waits_without_which_they_would_not_end_in_time(times: float, move: type) -> None:
    frame = framed(seeds=1, slots=2)
    policy = HalvingWithConfirmation(frame, frame.fit(1200.0, 600.0), lambda trial, rung: 1e6)
    for trial in "abc":
        reach(policy, trial, 3.0)
    policy.on_promoted("c", policy.ladder.top, 1.0)
    wall = times * (2 * policy.ladder.confirm + policy.ladder.kept)
    assert isinstance(policy.decide(left(2.1 * policy.ladder.confirm, running=1, wall=wall)), move)


@pytest.mark.parametrize("wall", [60.0, 150.0, 190.0])
def test_where_time_was_lost_before_a_deadline_the_leader_has_what_these_would_not_end_in(wall: float) -> None:
    search = Alone(seeds=2, deadline=650.0).run(15)
    assert wall < 4 * search.ladder.confirm
    ends = search.clock.now + wall
    search.engine.wall_left = lambda: ends - search.clock.now
    search.run()
    assert len(search.on_decision("finish")) == 1 and ends - 10.0 < search.clock.now <= ends


def test_a_training_anew_that_was_cut_short_goes_on_under_a_larger_cap(tmp_path: Path) -> None:
    """And is no suggestion."""
    about: dict[str, Any] = {"slots": 1, "shares": {"nanogpt": 1.0}, "confirm": 1}
    world = World(tmp_path, cap=600, **about)
    while not anew(world):
        world.begin() or world.go_on()
    ((name,),) = anew(world).values()
    world.now += 1
    later = World(tmp_path, cap=1800, **about)
    suggested = later.total("SELECT COUNT(*) FROM trials WHERE config NOT LIKE '%seed%'")
    assert later.families["nanogpt"].suggestions.given == suggested  # type: ignore[attr-defined]
    later.run()
    assert later.total(f"SELECT COUNT(*) FROM reports WHERE final AND trial = '{name}'") == 1
    (again,) = (each for each in later.assignments if each.trial == name)
    assert again.seconds >= world.families["nanogpt"].policy.ladder.confirm, "its steps may be slower than they were"


class Seedless(Numbered):
    """Has no seed in its space."""

    def note_tried(self, trial: str, config: dict[str, Any]) -> None:
        assert "seed" not in config
        super().note_tried(trial, config)


def test_a_training_anew_for_which_the_driver_slept_too_long_is_made_when_the_study_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about: dict[str, Any] = {"cap": 600, "slots": 1, "shares": {"nanogpt": 1.0}, "confirm": 1, "suggestions": Seedless}
    world, silences, record = World(tmp_path, **about), list[float](), Family.confirming_record
    world.engine.silence = lambda: silences.pop() if silences else None

    def late(*given: Any) -> TrialRecord:
        monkeypatch.undo()
        silences.append(world.now)
        world.now += 700
        return record(*given)

    monkeypatch.setattr(Family, "confirming_record", late)
    while Family.confirming_record is late:
        if not world.begin() and world.events:
            world.go_on()
    again = World(tmp_path, **about).run()
    query = "SELECT trial FROM reports JOIN decisions USING (trial) WHERE final AND action = 'confirm'"
    assert again.spent <= 600 and len(again.rows(query)) == 2


class Knowing(Numbered):
    """Is told of nothing but what it suggested, in this run or an earlier one."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[str] = set()

    def suggest(self, trial: str) -> dict[str, Any]:
        self.known.add(trial)
        return super().suggest(trial)

    def note_tried(self, trial: str, config: dict[str, Any]) -> None:
        self.known.add(trial)
        super().note_tried(trial, config)

    def tell(self, trial: str, rung: int, loss: float | None, progress: Progress = NO_PROGRESS) -> None:
        assert trial in self.known


def test_a_training_anew_that_fails_is_no_result_of_what_was_suggested_also_when_the_study_goes_on(
    tmp_path: Path,
) -> None:
    about: dict[str, Any] = {"cap": 600, "slots": 1, "shares": {"nanogpt": 1.0}, "confirm": 1, "suggestions": Knowing}
    world = World(tmp_path, **about)
    world.raising = lambda lease: "error: mine" if world.engine.trials[lease.trial].confirms else None
    world.run()
    failed = {row["trial"] for row in world.rows("SELECT trial FROM trials WHERE state = 'failed'")}
    assert failed and failed == {name for names in anew(world).values() for name in names}
    assert World(tmp_path, **about).told == []
