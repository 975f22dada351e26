"""Laws of the policy: what it may never do, whatever the curves are."""

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.tune.search.alone import OVERHEAD, START_UP, Alone, bare, framed, left, reach
from tests.tune.search.world import Numbered
from tune.recipe import LIFE_SHARE
from tune.search.forecast import Progress
from tune.search.ladder import WALL_CLOCK_MULTIPLE, Frame, Rules
from tune.search.policy import Finish, HandBack, Promote, Start, Wait
from tune.search.successive_halving import DIVERGED_TO_GIVE_UP, ENOUGH, HOPELESS, LEADERS, NO_LONGER
from tune.store.heartbeat import GRACE_SECONDS

SCENARIOS: list[dict[str, Any]] = [
    {},
    {"slots": 2, "diverging": 0.3},
    {"seconds": 60.0},
    {"seconds": 5000.0, "slots": 4, "diverging": 0.2, "deadline": 1500.0},
    {"life": 100.0},
    {"seconds": 3000.0, "slots": 8, "life": 200.0, "diverging": 0.3},
    {"seconds": 3000.0, "slots": 8, "life": 200.0, "diverging": 0.3, "deadline": 750.0},
    {"seconds": 900.0, "slots": 3, "life": 1000.0, "diverging": 0.5},
    {"seeds": 2},
    {"seeds": 3, "seconds": 3000.0, "slots": 8, "diverging": 0.3, "deadline": 750.0},
    {"turning": (12.0, 60.0), "slots": 2, "seeds": 2},
    {"seconds": 3000.0, "slots": 2, "diverging": 0.2, "rules": Rules(front=True)},
    {"seconds": 3000.0, "slots": 4, "life": 200.0, "diverging": 0.2, "rules": Rules(front=True)},
    {"turning": (12.0, 60.0), "slots": 2, "deadline": 400.0, "rules": Rules(front=True)},
]
KEPT = [scenario for scenario in SCENARIOS if not {"life", "deadline", "seeds", "rules"} & set(scenario)]
everywhere = pytest.mark.parametrize("scenario", SCENARIOS)


# --- what it may spend


@everywhere
def test_the_cap_and_the_deadline_hold_and_something_starts(scenario: dict[str, Any]) -> None:
    search = Alone(**scenario).run()
    assert search.on_decision("start") and search.spent <= search.seconds
    assert search.clock.now <= scenario.get("deadline", math.inf)


def test_a_first_trial_that_no_rung_has_room_for_is_said_to_be_the_first() -> None:
    assert Alone(seconds=20.0).run().on_decision("start")[0]["reason"] == "nothing was tried yet"


@pytest.mark.parametrize(
    ("slots", "deadline", "alike"),
    [(1, math.inf, False), (1, 300.0, False), (2, math.inf, False), (4, math.inf, True), (8, math.inf, True)],
)
def test_a_steeper_familys_leader_has_more_unless_the_wall_clock_binds_and_others_run_beside_it(
    slots: int, deadline: float, alike: bool
) -> None:
    """On many slots more of that would leave the others less to explore than any leader is worth."""
    ladders = [
        framed(slots=slots, rules=Rules(last_share=share)).fit(600.0 * slots, 2 * 600.0, deadline)
        for share in (LIFE_SHARE, 0.85)
    ]
    assert (ladders[0] == ladders[1]) is alike and ladders[0].kept <= ladders[1].kept


@pytest.mark.parametrize("seconds", [60.0, 100.0, 200.0])
def test_six_trials_fit_at_rung_0_or_it_takes_no_longer_than_what_is_beside_it(seconds: float) -> None:
    ladder = framed().fit(seconds)
    assert 6 * ladder.cost(0) <= ladder.explore or ladder.first == OVERHEAD


@pytest.mark.parametrize(("seconds", "trials"), [(60.0, 3), (100.0, 3), (160.0, 4), (250.0, 6)])
def test_six_trials_do_not_make_it_shorter_than_tells_anything_and_three_do(seconds: float, trials: int) -> None:
    """A fifth of a warm-up that takes 50 s."""
    ladder = Frame(slots=1, shortest=50.0, overhead=1.0).fit(seconds)
    assert trials == math.floor(ladder.explore / ladder.cost(0) + 1e-9) and (ladder.first >= 10.0 or trials == 3)


@pytest.mark.parametrize("shortest", [0.01, 0.6])
@pytest.mark.parametrize(("deadline", "slots"), [(60.0, 16), (120.0, 8), (120.0, 128), (300.0, 64)])
def test_before_a_deadline_each_slot_has_time_for_two_rungs_however_many_there_are(
    deadline: float, slots: int, shortest: float
) -> None:
    """Where 3/5 of the deadline are asked for at rung 0, of which less is not kept for the last segment; and where it
    is lengthened, as more trials would begin than it is planned for."""
    search = Alone(seconds=slots * deadline, slots=slots, deadline=deadline, shortest=shortest * deadline).run()
    assert 2 * search.ladder.cost(0) + START_UP <= deadline - search.ladder.kept + 1e-9
    assert len(search.policy.trials) >= slots and search.spent >= 0.9 * search.seconds


@pytest.mark.parametrize("scenario", KEPT)
def test_one_trial_finishes_with_what_was_kept_for_it_and_nothing_follows(scenario: dict[str, Any]) -> None:
    """But for the grace to end it, and what the last segment of the rungs went beyond their shares."""
    search = Alone(**scenario).run()
    (last,) = search.rows("SELECT * FROM leases WHERE rung IS NULL")
    assert last["reserved"] >= search.ladder.kept - GRACE_SECONDS - OVERHEAD
    after = itertools.dropwhile(lambda row: row["action"] != "finish", search.on_decision())
    assert {row["action"] for row in list(after)[1:]} == {"hand back"}
    assert search.spent >= 0.95 * search.seconds


@pytest.mark.parametrize("seconds", [40.0, 600.0, 14400.0])
def test_a_cap_of_any_size_compares_trials_and_finishes_one(seconds: float) -> None:
    search = Alone(seed=1, seconds=seconds).run()
    assert 2 <= len(search.on_decision("start")) <= seconds / 10
    (last,) = search.rows("SELECT * FROM leases WHERE rung IS NULL")
    assert last["reserved"] >= 0.5 * seconds


@pytest.mark.parametrize("slots", [1, 8])
def test_with_a_life_trials_climb_to_its_end_and_all_is_used_as_long_as_one_can_use_it(slots: int) -> None:
    search = Alone(seconds=4000.0, slots=slots, life=200.0).run()
    assert search.ladder.last == 0 and search.ladder.rung_seconds(search.ladder.top) == 200.0
    assert search.spent >= 0.99 * search.seconds
    assert any(record.steps == search.most for record in search.engine.trials.values())
    few = Alone(seconds=4000.0, slots=slots, life=200.0, configs=5).run()
    assert [record.steps for record in few.engine.trials.values()] == [few.most] * 5
    assert {standing.state for standing in few.policy.trials.values()} == {"finished"}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("life", [200.0, 400.0, 600.0, 3000.0])
def test_the_wall_clock_is_bound_by_the_slots_but_leaves_room_for_one_whole_life(life: float, seed: int) -> None:
    even = 300.0
    search = Alone(seconds=8 * even, slots=8, life=life, within=WALL_CLOCK_MULTIPLE * even, seed=seed).run()
    if fits := life <= WALL_CLOCK_MULTIPLE * even:
        assert any(record.steps == search.most for record in search.engine.trials.values())
    assert search.clock.now <= 1.1 * (even + max(even, life) if fits else WALL_CLOCK_MULTIPLE * even)
    bound = Alone(
        seconds=8 * even, slots=8, life=life, within=WALL_CLOCK_MULTIPLE * even, deadline=even, seed=seed
    ).run()
    assert bound.clock.now <= even


@pytest.mark.parametrize("shortest", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("slots", [4, 8, 16])
def test_the_wall_clock_holds_however_much_is_asked_for_at_rung_0(slots: int, shortest: float) -> None:
    """As where a step takes long, in shares of cap / slots. More than half of the slots are used."""
    even = 120.0
    search = Alone(seconds=slots * even, slots=slots, within=WALL_CLOCK_MULTIPLE * even, shortest=shortest * even).run()
    assert search.clock.now <= 1.02 * WALL_CLOCK_MULTIPLE * even
    assert len(search.policy.trials) > slots / 2 and search.spent >= 0.9 * search.seconds


@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("life", [300.0, 5000.0, math.inf])
@pytest.mark.parametrize("gap", [0.0, 60.0])
@pytest.mark.parametrize("deadline", [1000.0, math.inf])
def test_a_life_that_the_first_report_tells_makes_the_ladder_of_one_that_was_known(
    slots: int, life: float, gap: float, deadline: float
) -> None:
    frame, walls = framed(slots=slots), (8000.0 / slots, deadline)
    later = frame.fit(4000.0, *walls).with_life(life, gap)
    known = replace(frame, life=life).fit(4000.0, *walls, first=later.first)
    assert later.first >= gap and later.to_json() == pytest.approx(known.to_json())


def test_a_cap_that_cannot_be_used_within_what_was_wanted_is_used_all_the_same() -> None:
    """As after a time in which machines were lost."""
    search = Alone(seconds=600.0, slots=2)
    search.engine.within = 30.0
    assert search.run().spent >= 0.95 * search.seconds


# --- whom it serves


@pytest.mark.parametrize(("slots", "seed"), [(8, 0), (8, 1), (12, 2)])
def test_before_a_deadline_that_no_life_fits_in_half_of_each_rung_go_on_beside_the_leaders(
    slots: int, seed: int
) -> None:
    search = Alone(seconds=300.0 * slots, slots=slots, life=1000.0, deadline=300.0, seed=seed).run()
    rows = search.rows(
        "SELECT COUNT(DISTINCT trial) AS trials FROM leases WHERE rung IS NOT NULL GROUP BY rung ORDER BY rung"
    )
    reached = [row["trials"] for row in rows]
    assert len(reached) > 4 and search.spent >= 0.97 * search.seconds
    assert all(above <= below / 2 + LEADERS for below, above in itertools.pairwise(reached))


def test_a_deadline_that_does_not_bind_changes_nothing() -> None:
    about = {"seconds": 2400.0, "slots": 8, "life": 1000.0, "within": 600.0}
    free, bound = (Alone(**about, deadline=deadline).run() for deadline in (math.inf, 1e7))
    assert [dict(row) for row in free.on_decision()] == [dict(row) for row in bound.on_decision()]


def test_a_deadline_binds_on_a_clock_that_goes_on_between_two_readings() -> None:
    still, moving = (Alone(seconds=2400.0, slots=8, life=1000.0, deadline=300.0) for _ in range(2))
    wall_left, readings = moving.engine.wall_left, itertools.count()
    moving.engine.wall_left = lambda: wall_left() - 1e-12 * next(readings)
    one, other = (
        [(row["trial"], row["action"], row["rung"], row["reason"]) for row in each.run().on_decision()]
        for each in (still, moving)
    )
    assert one == other and any("the leaders have their slots" in reason for *_, reason in one)


@pytest.mark.parametrize(("waits", "binding", "begins"), [(2.1, True, False), (3.5, True, True), (3.5, False, False)])
def test_before_a_deadline_the_two_that_lead_go_on_before_others_begin(
    waits: float, binding: bool, begins: bool
) -> None:
    policy = bare(seconds=3000.0, life=200.0, first=10.0)
    for trial, *losses in (("t001", 3.9, 2.0), ("t002", 3.9, waits), ("t003", 3.9, 3.2), ("t004", 4.5)):
        reach(policy, trial, *losses)
    for trial in ("t001", "t003"):
        policy.on_promoted(trial, 2, 1e6)
    for rung in range(policy.ladder.top + 1):
        policy.on_promoted("t005", rung, 1e6)
    move = policy.decide(left(900.0, running=3, wall=100.0, binding=binding))
    assert isinstance(move, Start) if begins else isinstance(move, Promote) and move.trial == "t002"


def test_a_trial_that_fails_is_told_of_as_failed_on_its_way_there_and_not_below() -> None:
    search = Alone(seconds=3000.0, diverging=0.5).run()
    ended = {trial: each.rung for trial, each in search.policy.trials.items() if each.state == "ended"}
    suggestions = search.families["alone"].suggestions
    assert isinstance(suggestions, Numbered) and max(ended.values()) > 0
    assert suggestions.failed == {trial: rung + 1 for trial, rung in ended.items()}


@everywhere
def test_a_diverged_trial_gets_nothing_more(scenario: dict[str, Any]) -> None:
    search = Alone(**scenario | {"diverging": 0.5}).run()
    over = {row["trial"]: row["at"] for row in search.on_decision("stop") if row["reason"] == "diverged"}
    assert all(over.get(row["trial"], math.inf) > row["opened"] for row in search.rows("SELECT * FROM leases"))
    assert over or search.seconds < 100


@pytest.mark.parametrize("seconds", [60.0, 600.0, 14_400.0])
def test_half_of_the_places_of_a_rung_are_at_the_next(seconds: float) -> None:
    ladder = bare(seconds=seconds).ladder
    quotas = ladder.quotas
    places = [quota / ladder.cost(rung) for rung, quota in enumerate(quotas)]
    assert sum(quotas) == pytest.approx(ladder.explore)
    assert all(above == pytest.approx(below / Rules.eta) for below, above in itertools.pairwise(places))


def test_the_lowest_rung_below_its_quota_is_served_first_and_the_best_of_it() -> None:
    policy = bare()
    quota, cost = policy.ladder.quotas[0], policy.ladder.cost(0)
    started = 0
    while isinstance(move := policy.decide(left(600.0 - started * cost)), Start):
        reach(policy, f"t{started}", 3.0 - (started == 2))
        started += 1
    assert started == math.ceil(quota / cost) >= 12
    assert isinstance(move, Promote) and (move.trial, move.rung) == ("t2", 1)


def test_a_trial_that_waited_long_goes_on_when_better_ones_fall_behind() -> None:
    policy = bare(more=False)
    for trial, loss in (("a", 2.0), ("b", 2.1), ("c", 2.2)):
        reach(policy, trial, loss)
    for trial in "ab":
        move = policy.decide(left())
        assert isinstance(move, Promote) and (move.trial, move.rung) == (trial, 1)
        reach(policy, trial, 2.5)
    move = policy.decide(left())
    assert isinstance(move, Promote | Finish) and move.trial == "c"


@pytest.mark.parametrize(("telling", "leader"), [(True, "steep"), (False, "flat")])
def test_a_trial_that_falls_faster_leads_where_its_fall_tells(telling: bool, leader: str) -> None:
    policy = bare(more=False)
    for trial, first, second in (("flat", 2.0, 1.95), ("steep", 2.5, 1.97)):
        reach(policy, trial, first, second, telling=telling)
    move = policy.decide(left())
    assert isinstance(move, Promote | Finish) and move.trial == leader


def test_a_trial_that_got_worse_goes_on_once_no_other_can() -> None:
    policy = bare(more=False)
    reach(policy, "risen", 1.0, 1.5)
    reach(policy, "other", 4.0, 3.9)
    move = policy.decide(left())
    assert isinstance(move, Promote | Finish) and move.trial == "other"
    policy.on_ended("other", "memory")
    move = policy.decide(left())
    assert isinstance(move, Promote | Finish) and move.trial == "risen"


def test_who_leads_climbs_while_a_rung_is_cheap_beside_its_last_segment_and_may_be_overtaken() -> None:
    policy = bare(more=False)
    reach(policy, "a", 2.0)
    reach(policy, "b", 2.1)
    spent = [policy.ladder.quotas[rung] for rung in range(policy.ladder.top + 1)]
    for rung, seconds in enumerate(spent):  # the share of each rung is used
        policy.on_promoted(f"gone{rung}", rung, seconds)
        policy.on_ended(f"gone{rung}", "memory")
    move = policy.decide(left(400.0))
    assert isinstance(move, Promote) and (move.trial, move.rung) == ("a", 1)
    reach(policy, "a", 2.0, 2.5)
    move = policy.decide(left(400.0))
    assert isinstance(move, Promote) and (move.trial, move.rung) == ("b", 1)
    short = policy.ladder.last / 20
    assert not isinstance(policy.decide(left(short)), Promote)


def test_while_the_leader_has_its_last_segment_nothing_else_is_begun() -> None:
    policy = bare(slots=2)
    reach(policy, "a", 2.0)
    policy.on_finishing("a")
    assert isinstance(policy.decide(left(running=1)), HandBack)


# --- what its events make of it


def test_after_another_cap_those_that_wait_are_compared_by_its_ladder() -> None:
    """Also one that was put in order under the ladder of before."""
    policy = bare(more=False)
    losses = {"early": (5.0, 4.0), "late": (4.9, 3.95)}
    for trial, (first, second) in losses.items():
        if trial == "late":
            policy.refit(policy.make_ladder(6000.0))
        reach(policy, trial, first, second)
    falls = policy.ladder.falls(1)
    expected = {trial: second - falls * (first - second) for trial, (first, second) in losses.items()}
    move = policy.decide(left(6000.0))
    assert isinstance(move, Promote | Finish) and move.trial == min(expected, key=lambda trial: expected[trial])


def test_the_order_of_equal_reports_does_not_matter() -> None:
    losses = {f"t{number}": loss for number, loss in enumerate([2.0, 2.0, 1.5, 1.5, 1.5, 3.0, 2.0, 1.0])}
    answers = []
    for seed in range(6):
        policy = bare(slots=8, more=False)
        for trial in losses:
            policy.on_promoted(trial, 0, policy.ladder.cost(0))
        for trial in random.Random(seed).sample(sorted(losses), len(losses)):
            policy.on_reported(trial, 0, losses[trial])
        answers.append(policy.decide(left()))
    assert answers == [answers[0]] * 6


def test_an_interrupted_segment_costs_its_rung_nothing_and_can_be_had_again() -> None:
    policy = bare(more=False)
    reach(policy, "a", 2.0)
    moves = []
    for _ in range(50):
        moves.append(move := policy.decide(left()))
        assert isinstance(move, Promote)
        policy.on_promoted(move.trial, move.rung, policy.ladder.cost(move.rung))
        policy.on_interrupted(move.trial)
    assert moves == [moves[0]] * 50


def test_who_was_cut_short_before_rung_0_goes_on_before_a_new_one_begins() -> None:
    policy = bare()
    policy.on_promoted("a", 0, policy.ladder.cost(0))
    policy.on_interrupted("a")
    move = policy.decide(left())
    assert isinstance(move, Promote) and (move.trial, move.rung) == ("a", 0)
    reach(policy, "a", 2.0)
    assert isinstance(policy.decide(left()), Start)


@pytest.mark.parametrize("reason", ["diverged", "memory", "error: mine", None])
def test_a_last_segment_that_fails_or_is_interrupted_leaves_all_else_as_it_was(reason: str | None) -> None:
    policy = bare(slots=2)
    for trial, loss in (("a", 2.0), ("b", 3.0)):
        reach(policy, trial, loss)
    before = policy.decide(left(running=1))
    assert isinstance(before, Start)
    policy.on_finishing("a")
    assert policy.decide(left(running=1)) != before
    if reason is None:
        policy.on_interrupted("a")
    else:
        policy.on_ended("a", reason)
    assert policy.decide(left(running=1)) == before


@pytest.mark.parametrize(("times", "begins"), [(0.5, False), (1.5, True)])
def test_where_trials_took_longer_than_planned_no_new_one_has_what_is_kept_for_the_last_segment(
    times: float, begins: bool
) -> None:
    """times: of what rung 0 takes, beside that."""
    policy = bare()
    reach(policy, "a", 2.0)
    seconds = policy.ladder.last + times * policy.ladder.cost(0)
    assert begins == isinstance(policy.decide(left(seconds, running=1)), Start)


def test_where_trials_have_lives_of_their_own_others_go_on_when_one_is_at_its_end() -> None:
    policy = bare(life=100.0)
    reach(policy, "a", 2.0)
    policy.on_finishing("a")
    policy.on_finished("a", 100.0)
    assert isinstance(policy.decide(left()), Start)


@pytest.mark.parametrize(("gap", "ends"), [(0.0, True), (30.0, False)])
def test_no_last_segment_begins_that_is_too_short_for_a_report_of_its_loop(gap: float, ends: bool) -> None:
    policy = bare(more=False)
    policy.on_promoted("a", 0, policy.ladder.cost(0))
    policy.on_reported("a", 0, 2.0, progress=Progress(gap=gap))
    assert isinstance(policy.decide(left(OVERHEAD + 30.0)), Finish) is ends


def test_a_share_that_grows_lets_the_finished_trial_go_on_at_the_same_rungs() -> None:
    policy = Alone().run().policy
    rungs = [policy.rung_seconds(rung) for rung in range(5)]
    (finished,) = (trial for trial, standing in policy.trials.items() if standing.state == "finished")
    policy.refit(policy.make_ladder(1200.0))
    assert policy.trials[finished].state == "paused"
    assert [policy.rung_seconds(rung) for rung in range(5)] == rungs
    assert not isinstance(policy.decide(left(600.0)), HandBack | Wait)


@pytest.mark.parametrize(("beside", "goes_on"), [(0.0, True), (30.0, False)])
def test_a_winner_goes_on_only_where_it_is_trained_for_longer_whatever_its_end_takes_beside(
    beside: float, goes_on: bool
) -> None:
    """As the last one took: to measure the whole splits, above all."""
    policy = bare(more=False)
    reach(policy, "a", 2.0)
    policy.on_finishing("a")
    policy.on_finished("a", 100.0, beside)
    policy.refit(policy.make_ladder(1200.0))
    move = policy.decide(left(ENOUGH * 100.0 + OVERHEAD + 20.0))
    assert isinstance(move, HandBack) is not goes_on and (goes_on or NO_LONGER in move.reason)


def test_a_life_of_which_trials_told_stays_under_another_cap() -> None:
    policy = bare()
    policy.on_life_known(100.0, 0.5)
    assert policy.ladder.life == policy.make_ladder(1200.0).life == 100.0


@pytest.mark.parametrize("spare", [0.5, 2.0])
def test_under_a_larger_cap_none_has_what_the_leader_needs_to_an_end_of_its_own(spare: float) -> None:
    """spare: beside that, in rungs 0."""
    policy = bare(life=100.0)
    reach(policy, "a", 3.0, 2.5, 2.0)
    policy.refit(policy.make_ladder(6000.0))
    top, rung_0 = policy.ladder.top, policy.ladder.cost(0)
    needed = 100.0 - policy.rung_seconds(2) + OVERHEAD
    move = policy.decide(left(needed + spare * rung_0))
    assert isinstance(move, Start) if spare > 1 else (isinstance(move, Promote) and move.trial == "a")
    assert isinstance(policy.decide(left(needed)), Promote) and policy.trials["a"].rung < top


def test_under_a_larger_cap_a_leader_with_an_end_of_its_own_climbs_on_where_its_rungs_shares_are_used() -> None:
    """A last segment would have the other slots handed back."""
    policy = bare(life=100.0, more=False)
    reach(policy, "a", 3.0, 2.5)
    policy.refit(policy.make_ladder(1200.0))
    for rung in range(policy.ladder.top + 1):
        policy.on_promoted("b", rung, 1200.0)
    policy.on_ended("b", "diverged")
    move = policy.decide(left(100.0))
    assert isinstance(move, Promote) and (move.trial, move.rung) == ("a", 2)


def test_what_ended_by_itself_stays_at_its_end_under_a_larger_cap() -> None:
    policy = bare()
    reach(policy, "a", 2.0)
    policy.on_promoted("a", 1, policy.ladder.cost(1))
    policy.on_returned("a")
    policy.refit(policy.make_ladder(6000.0))
    assert policy.trials["a"].state == "finished"


def test_where_all_that_began_in_a_run_diverge_no_other_begins_until_the_next_run() -> None:
    """A loop that always reports NaN would spend the whole cap."""
    policy = bare()
    for number in range(DIVERGED_TO_GIVE_UP):
        assert isinstance(policy.decide(left()), Start)
        policy.on_promoted(f"{number}", 0, 0.0)
        policy.on_ended(f"{number}", "diverged")
    assert policy.decide(left()) == HandBack(HOPELESS)
    policy.on_resumed({})
    assert isinstance(policy.decide(left()), Start)


@pytest.mark.parametrize("how", ["at a rung", "past its best", "by itself", "at its end"])
def test_where_any_trial_went_well_errors_that_are_alike_end_no_search(how: str) -> None:
    policy = bare()
    policy.on_promoted("a", 0, policy.ladder.cost(0))
    match how:
        case "at a rung":
            policy.on_reported("a", 0, 2.0)
        case "past its best":
            policy.on_turned("a", 2.0, 5.0)
        case "by itself":
            policy.on_returned("a")
        case "at its end":
            policy.on_finished("a")
    for trial in "bcd":
        policy.on_promoted(trial, 0, policy.ladder.cost(0))
        policy.on_ended(trial, "error: mine")
    assert not policy.is_hopeless


# --- its ladder


@pytest.mark.parametrize("deadline", [60.0, 600.0])
def test_what_is_beyond_the_end_of_a_ladder_is_at_its_end_whatever_its_training_took(deadline: float) -> None:
    ladder = bare(seconds=3000.0).make_ladder(3000.0, deadline)
    for rung in range(20):
        ahead = [ladder.training_multiple(rung, seconds) for seconds in (0.1, 10.0, 1e4)]
        assert min(ahead) >= 1.0 and (ladder.rung_seconds(rung) < ladder.end or max(ahead) == 1.0)


def test_the_further_the_end_the_more_of_a_fall_is_still_to_come() -> None:
    ladder = bare().ladder
    falls = [ladder.falls(rung) for rung in range(ladder.top + 1)]
    assert all(below > above > 0 for below, above in itertools.pairwise(falls))
    assert replace(ladder, kept=ladder.rung_seconds(ladder.top)).falls(ladder.top) == pytest.approx(Rules.fall_kept)
    at_its_end = bare(life=100.0).ladder
    assert at_its_end.falls(at_its_end.top) == 0
