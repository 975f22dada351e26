"""Laws of the contest: what it may never do, whatever the curves are."""

import itertools
import math
import random
from dataclasses import replace

import pytest

from tests.tune.lone_family import START_UP, Family
from tune.search.successive_halving import FALL_KEPT, Finish, HandBack, Left, Promote, Start

SCENARIOS = [
    dict(zip(("seed", "seconds", "slots", "horizon", "diverging", "deadline"), (seed, *values), strict=True))
    for seed, values in enumerate(
        [
            (600.0, 1, None, 0.0, None),
            (600.0, 2, None, 0.3, None),
            (30.0, 1, None, 0.0, None),
            (5000.0, 4, None, 0.2, 1500.0),
            (600.0, 1, 100.0, 0.0, None),
            (3000.0, 8, 200.0, 0.3, None),
            (3000.0, 8, 200.0, 0.3, 750.0),
            (900.0, 3, 1000.0, 0.5, None),
        ]
    )
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_move_needs_more_than_is_left(scenario):
    family = Family(**scenario).play()
    assert family.left >= -1e-9
    assert any(isinstance(move, Start) for move in family.moves)


WITHOUT_END = [scenario for scenario in SCENARIOS if scenario["horizon"] is None]


@pytest.mark.parametrize("scenario", [scenario for scenario in WITHOUT_END if scenario["deadline"] is None])
def test_one_trial_finishes_with_what_was_kept_for_it_and_nothing_follows(scenario):
    family = Family(**scenario).play()
    finishes = [move for move in family.moves if isinstance(move, Finish)]
    assert len(finishes) == 1
    assert finishes[0].seconds >= family.contest.ladder.kept - START_UP
    assert family.left <= START_UP
    after = family.moves[family.moves.index(finishes[0]) + 1 :]
    assert all(isinstance(move, HandBack) for move in after)


@pytest.mark.parametrize("seconds", [60.0, 600.0, 14_400.0])
def test_without_an_end_in_sight_half_of_a_rung_goes_on(seconds):
    ladder = Family(seed=0, seconds=seconds).contest.ladder
    quotas = ladder.quotas([1.0] * (ladder.top + 1))
    places = [quota / ladder.cost(rung) for rung, quota in enumerate(quotas)]
    assert sum(quotas) == pytest.approx(ladder.explore)
    assert all(above == pytest.approx(below / 2) for below, above in itertools.pairwise(places))


@pytest.mark.parametrize("scenario", [scenario for scenario in SCENARIOS if scenario["deadline"]])
def test_nothing_is_planned_past_the_deadline(scenario):
    family = Family(**scenario).play()
    assert family.now <= family.deadline + 1e-6


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_diverged_trial_gets_nothing_more(scenario):
    late = 0
    for seed in range(5):
        family = Family(**scenario | {"diverging": 0.5, "seed": seed}).play()
        over = [event[1] for event in family.events if event[0] == "ended"]
        for trial in over:
            after = family.events[family.events.index(("ended", trial, "diverged")) + 1 :]
            assert trial not in [event[1] for event in after]
        late += sum(bool(family.contest.trials[trial].losses) for trial in over)
    assert scenario["seconds"] < 100 or late


def test_a_loss_that_is_not_finite_ends_a_trial_and_the_next_begins_as_long_as_it_can_be_paid():
    contest = Family(seed=0).contest
    contest.started("a")
    contest.reported("a", 0, math.nan)
    assert isinstance(contest.next(Left(seconds=300.0, slots=1, running=0)), Start)
    assert isinstance(contest.next(Left(seconds=0.5, slots=1, running=0)), HandBack)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("moves", [1, 5, 20, 40])
def test_a_resumed_contest_decides_like_an_uninterrupted_one(scenario, moves):
    family = Family(**scenario).play(stop_after=moves)
    resumed = family.new_contest()
    for event in family.events:
        getattr(resumed, event[0])(*event[1:])
    left = Left(seconds=family.left, slots=1, running=len(family.running), wall=family.wall())
    assert resumed.next(left) == family.contest.next(left)


def test_the_order_of_equal_reports_does_not_matter():
    trials, losses = [f"t{number}" for number in range(8)], [2.0, 2.0, 1.5, 1.5, 1.5, 3.0, 2.0, 1.0]
    answers = []
    for seed in range(6):
        family = Family(seed=0, slots=8)
        for trial in trials:
            family.contest.started(trial)
        for trial, loss in random.Random(seed).sample(list(zip(trials, losses, strict=True)), 8):
            family.contest.reported(trial, 0, loss)
        family.contest.configs = 8
        answers.append([family.contest.next(Left(seconds=500.0, slots=8, running=0)) for _ in range(5)])
    assert all(answer == answers[0] for answer in answers)


def test_the_lowest_rung_below_its_quota_is_served_first_and_the_best_of_it():
    contest = Family(seed=0).contest
    quota, cost = contest.ladder.quotas([1.0] * (contest.ladder.top + 1))[0], contest.ladder.cost(0)
    started = 0
    while isinstance(contest.next(Left(seconds=600.0 - started * cost, slots=1, running=0)), Start):
        contest.started(f"t{started}")
        contest.reported(f"t{started}", 0, 3.0 - (started == 2))
        started += 1
    assert started == math.ceil(quota / cost) >= 12
    promoted = next(trial for trial, standing in contest.trials.items() if standing.goal == 1)
    assert promoted == "t2"


def test_a_trial_that_waited_long_goes_on_when_better_ones_fall_behind():
    contest = Family(seed=0).contest
    contest.configs = 3
    for trial, loss in (("a", 2.0), ("b", 2.1), ("c", 2.2)):
        contest.started(trial)
        contest.reported(trial, 0, loss)
    for trial in "ab":
        assert contest.next(Left(seconds=500.0, slots=1, running=0)) == Promote(trial, 1, contest._place(trial))
        contest.reported(trial, 1, 2.5)
    move = contest.next(Left(seconds=500.0, slots=1, running=0))
    assert isinstance(move, Promote | Finish) and move.trial == "c"


@pytest.mark.parametrize(("telling", "leader"), [(True, "steep"), (False, "flat")])
def test_a_trial_that_falls_faster_leads_where_its_fall_tells(telling: bool, leader: str) -> None:
    contest = Family(seed=0).contest
    contest.configs = 2
    for trial, first, second in (("flat", 2.0, 1.95), ("steep", 2.5, 1.97)):
        contest.started(trial)
        contest.reported(trial, 0, first, telling=telling)
        contest.promoted(trial, 1)
        contest.reported(trial, 1, second, telling=telling)
    move = contest.next(Left(seconds=500.0, slots=1, running=0))
    assert isinstance(move, Promote | Finish) and move.trial == leader


def test_the_best_trial_so_far_shares_the_climb_where_it_is_past_its_best():
    contest = Family(seed=0, seconds=600.0, horizon=5.0 * 2**8).contest
    contest.configs = 12
    losses = {"risen": lambda rung: 1.0 + rung, **{f"t{n}": lambda rung, n=n: 9.0 + n - rung / 10 for n in range(11)}}
    for trial, loss in losses.items():
        contest.started(trial)
        contest.reported(trial, 0, loss(0))
    climbed = {True: 0.0, False: 0.0}
    while sum(climbed.values()) < 2000:
        move = contest.next(Left(seconds=1e6, slots=1, running=0))
        if isinstance(move, Finish):
            contest.finished(move.trial, losses[move.trial](9))
            continue
        assert isinstance(move, Promote)
        revived, leads = contest.trials[move.trial].past_best, move.reason.startswith("leads")
        assert leads or not revived
        if leads:
            climbed[revived] += contest.ladder.cost(move.rung, move.trial)
        contest.reported(move.trial, move.rung, losses[move.trial](move.rung))
    assert 0.25 < climbed[True] / sum(climbed.values()) < 0.75


def test_a_rung_that_makes_trials_worse_loses_its_share():
    ladder = Family(seed=0).contest.ladder
    even, worse = ladder.quotas([1.0] * (ladder.top + 1)), ladder.quotas([1.0, 0.2] + [1.0] * (ladder.top - 1))
    assert worse[0] > even[0] and all(low < high for low, high in zip(worse[1:], even[1:], strict=True))
    assert sum(worse) == pytest.approx(sum(even)) == pytest.approx(ladder.explore)


def test_an_interrupted_stretch_costs_its_rung_nothing_and_can_be_had_again():
    contest = Family(seed=0).contest
    contest.configs = 1
    contest.started("a")
    contest.reported("a", 0, 2.0)
    left = Left(seconds=500.0, slots=1, running=0)
    moves = []
    for _ in range(50):
        moves.append(contest.next(left))
        contest.interrupted("a")
    assert moves == [moves[0]] * 50 and isinstance(moves[0], Promote)


def test_while_the_leader_has_its_last_stretch_nothing_else_is_begun():
    contest = Family(seed=0, slots=2).contest
    contest.started("a")
    contest.reported("a", 0, 2.0)
    contest.finishing("a")
    assert isinstance(contest.next(Left(seconds=500.0, slots=1, running=1)), HandBack)


def test_a_share_that_grows_lets_the_finished_trial_go_on_at_the_same_rungs():
    family = Family(seed=0).play()
    rungs = [family.contest.rung_seconds(rung) for rung in range(5)]
    finished = next(move.trial for move in family.moves if isinstance(move, Finish))
    family.contest.refit(1200.0)
    assert family.contest.trials[finished].state == "paused"
    assert [family.contest.rung_seconds(rung) for rung in range(5)] == rungs
    family.left = 600.0
    before = len([move for move in family.moves if isinstance(move, Finish)])
    family.play()
    assert len([move for move in family.moves if isinstance(move, Finish)]) == before + 1


@pytest.mark.parametrize("seconds", [30.0, 60.0, 600.0, 7200.0, 14400.0])
def test_a_cap_of_any_size_compares_trials_and_finishes_one(seconds):
    family = Family(seed=1, seconds=seconds).play()
    starts = sum(isinstance(move, Start) for move in family.moves)
    finish = next(move for move in family.moves if isinstance(move, Finish))
    assert 2 <= starts <= seconds / 10
    assert finish.seconds >= 0.5 * seconds


def test_the_further_the_end_the_more_of_a_fall_is_still_to_come() -> None:
    ladder = Family(seed=0, seconds=600.0).contest.ladder
    falls = [ladder.falls(rung) for rung in range(ladder.top + 1)]
    assert all(below > above > 0 for below, above in itertools.pairwise(falls))
    one_more = replace(ladder, kept=ladder.rung_seconds(ladder.top)).falls(ladder.top)
    assert one_more == pytest.approx(FALL_KEPT)
