"""A search of trials whose losses turn: none is trained far past its best, the best of any is what is found, and what
none is expected to gain by is handed back, and said."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.tune.search.alone import STEP, Alone, bare, left, reach
from tune.search.forecast import FEWEST_TURNED, RUNG_1_APART, RUNG_1_LEAST, Favour, Progress, Standings
from tune.search.ladder import Rules
from tune.search.policy import Finish, HandBack, Promote, Start
from tune.search.simulator import PowerLaw
from tune.search.successive_halving import PAST_BEST, SuccessiveHalving
from tune.winners import spending_lines

SEEDS = range(2)
CASES: list[dict[str, Any]] = [
    {"seconds": 600.0, "turning": (12.0, 60.0)},
    {"seconds": 1200.0, "turning": (12.0, 40.0), "slots": 2},
    {"seconds": 600.0, "turning": (200.0, 400.0)},
    {"seconds": 1200.0, "turning": (30.0, 90.0), "slots": 2, "seeds": 2},
]


class Like(Alone):
    """All its trials are about as good, and turn alike."""

    def course(self, trial: str, *_: Any) -> PowerLaw:
        off = 0.001 * (int(trial[1:]) % 3)
        return PowerLaw(step_seconds=STEP, floor=2.0 + off, turning_steps=15 / STEP, parameters=1000 * int(trial[1:]))


@pytest.fixture(scope="module", params=[(case, seed) for case in CASES for seed in SEEDS], ids=str)
def found(request: pytest.FixtureRequest) -> Alone:
    case, seed = request.param
    return Alone(seed=seed, **case).run()


@pytest.fixture(scope="module")
def turned() -> Alone:
    return Alone(**CASES[0]).run()


def trained(search: Alone) -> dict[str, tuple[float, PowerLaw]]:
    """Of each trial its steps, and how it trains."""
    rows = search.rows("SELECT trial, MAX(steps) AS steps FROM reports GROUP BY trial")
    return {row["trial"]: (row["steps"], search.course(row["trial"], "", {})) for row in rows}


def test_none_is_trained_past_its_best_by_more_than_a_twentieth_of_the_cap(found: Alone) -> None:
    past = [(steps - like.turning_steps) * STEP for steps, like in trained(found).values()]
    assert max(past) > 0 and max(past) <= 0.05 * found.seconds
    assert found.spent <= found.seconds


def test_what_is_found_is_the_best_of_any_trial_at_any_time(found: Alone) -> None:
    best = min(like.loss(min(steps, like.turning_steps)) for steps, like in trained(found).values())
    (lowest,) = found.rows("SELECT MIN(valid_loss) AS loss FROM reports WHERE final")
    assert lowest["loss"] <= best + 0.01


@pytest.mark.parametrize("slots", [1, 2])
def test_where_none_is_expected_to_gain_the_rest_is_handed_back_and_said(slots: int) -> None:
    search = Like(seconds=900.0, slots=slots).run()
    assert search.spent < 0.8 * search.seconds
    *_, last = search.on_decision()
    assert last["action"] == "hand back" and last["reason"].endswith(PAST_BEST)
    lines = spending_lines(search.accounting.journal, cap=search.seconds, spent=search.spent)
    assert [*lines][-1].endswith(f"handed back: {PAST_BEST}")
    assert len(search.rows("SELECT DISTINCT trial FROM reports WHERE ended = 'turned'")) >= FEWEST_TURNED


def test_after_the_leader_has_turned_others_are_tried(turned: Alone) -> None:
    """As long as these may gain: here some turn late."""
    moves = turned.on_decision("start", "promote", "finish")
    first = next(place for place, row in enumerate(moves) if row["action"] == "finish")
    assert {row["action"] for row in moves[first + 1 :]} >= {"start", "finish"}
    assert turned.spent >= 0.9 * turned.seconds


def one_turned(other: float) -> SuccessiveHalving:
    """A policy with two trials: one turned at a loss of 3 after a minute of training, the other one waits at rung 0."""
    policy = bare(more=False)
    reach(policy, "t001", 3.5)
    reach(policy, "t002", other)
    policy.on_finishing("t001")
    policy.on_turned("t001", 3.0, 60.0)
    return policy


def test_what_is_better_than_all_that_turned_goes_on_though_time_is_short() -> None:
    move = one_turned(2.0).decide(left(30.0))
    assert isinstance(move, Finish) and move.trial == "t002"


@pytest.mark.parametrize(
    ("seconds", "wall", "goes_on"), [(30.0, math.inf, False), (300.0, 30.0, False), (300.0, 300.0, True)]
)
def test_what_is_worse_than_one_that_turned_goes_on_if_there_is_time_for_as_much_training(
    seconds: float, wall: float, goes_on: bool
) -> None:
    move = one_turned(3.6).decide(left(seconds, wall=wall))
    assert isinstance(move, HandBack) != goes_on and (goes_on or move.reason.endswith(PAST_BEST))


def all_made_worse(best: int) -> SuccessiveHalving:
    """A policy whose rung 0 is full, and whose rung 1 made worse all that came there; the first so many are better than
    these, and wait at rung 0."""
    policy = bare(seconds=3000.0, life=200.0, first=10.0)
    for number in range(math.ceil(policy.ladder.starts)):
        reach(policy, f"t{number:03d}", 1.0 if number < best else 5.0)
    for number in range(best, RUNG_1_LEAST + best):
        reach(policy, f"t{number:03d}", 6.0)
    return policy


@pytest.mark.parametrize(("times", "begins"), [(0.5, False), (1.5, True)])
def test_new_trials_before_a_rung_that_makes_all_worse_leave_what_is_kept_for_the_leader(
    times: float, begins: bool
) -> None:
    """times: of what rung 0 takes, beside what is kept."""
    policy = all_made_worse(0)
    seconds = policy.ladder.kept + times * policy.ladder.cost(0)
    assert begins == isinstance(policy.decide(left(seconds, running=1)), Start)


@pytest.mark.parametrize("asked", [False, True])
def test_who_comes_from_the_middle_hangs_on_no_question_that_was_asked_before(asked: bool) -> None:
    policy = bare(seconds=3000.0, life=200.0, first=10.0)
    for number in range(12):
        reach(policy, f"t{number:03d}", 5.0 + 0.01 * number)
    policy.on_promoted("t000", 1, 20.0)
    if asked:
        policy.standings.first(0)
    policy.on_interrupted("t000")
    for number in range(1, RUNG_1_LEAST - RUNG_1_APART + 1):
        reach(policy, f"t{number:03d}", 6.0)
    assert policy.standings.first(0) == "t010"  # of t000, t009, t010 and t011
    assert policy.standings.leader() == "t000", "only who goes up to rung 1 comes from the middle"


@pytest.mark.parametrize(("times", "past_best"), [(0.7, True), (1.2, False), (1.7, False), (3.0, True)])
def test_a_rung_that_a_loss_rises_on_as_dropout_begins_makes_no_trial_past_its_best(
    times: float, past_best: bool
) -> None:
    """times: of the tokens that it begins after, those at a rung; at the one before there are half as many."""
    favour = Favour(begins=100.0)
    standings = Standings(lambda rung: 0.0, lambda rung, seconds: 4.0, Rules(), favour=lambda trial: favour)
    for rung, share in enumerate((0.5, 1.0)):
        standings.note_departure("t000", rung)
        progress = Progress(tokens=share * times * 100.0)
        standings.record("t000", rung, 2.0 + 0.1 * rung, telling=True, progress=progress)
    assert standings.trials["t000"].past_best == past_best


def test_of_trials_that_tell_their_best_so_far_one_that_a_rung_made_no_better_waits_behind_the_others() -> None:
    policy = bare()
    told = {"turned": (2.0, 2.5), "gains little": (3.0, 3.5), "stays": (4.0, 4.0), "gains": (5.0, 4.9)}
    for trial, losses in told.items():
        for rung, latest in enumerate(losses):
            best = 2.9999 if trial == "gains little" and rung else min(losses[: rung + 1])
            policy.on_promoted(trial, rung, policy.ladder.cost(rung))
            policy.on_reported(trial, rung, best, progress=Progress(numbers={"loss": latest, "seen": 1.0}))
    assert [trial for trial, each in policy.trials.items() if each.past_best] == ["turned"]
    policy.has_more = False
    move = policy.decide(left(300.0))
    assert isinstance(move, Promote | Finish) and move.trial == "gains little"


@pytest.mark.parametrize("shift", [10.0, 0.0, -1.5, -1.6, -10.0])
def test_whether_a_trial_can_improve_does_not_hang_on_where_zero_is(shift: float) -> None:
    standings = Standings(lambda rung: 1.0, lambda rung, seconds: 2.0, Rules())
    for number in range(FEWEST_TURNED + 2):
        trial = f"t{number:03d}"
        standings.note_departure(trial, 0)
        turns = number <= FEWEST_TURNED
        loss, progress = (2.0 if turns else 1.95) + shift, Progress(tokens=10, seconds=1.0, size=1000)
        standings.record(trial, 0, loss, telling=True, progress=progress)
        if turns:
            standings.note_departure(trial, 1)
            standings.note_turn(trial, 1.5 + 0.01 * number + shift, 5.0)
    assert standings.can_improve(trial, 100.0)


def moved(loss: Callable[[int, int], float], configs: int = 10_000, slots: int = 1) -> list[tuple[str, int]]:
    """Who was taken to which rung, where a trial has a loss there; until the cap is used or a trial has its end. Trials
    report when all slots are taken. No slot is of no use before only what is kept for the leader is left."""
    policy, rest = bare(seconds=3000.0, life=200.0, first=10.0, slots=slots), 3000.0
    moves, running = list[tuple[str, int]](), list[tuple[str, int]]()
    while True:
        move = policy.decide(left(rest, len(running), slots=slots - len(running)))
        if isinstance(move, Start | Promote):
            taken = (move.trial, move.rung) if isinstance(move, Promote) else (f"t{len(policy.trials):03}", 0)
            price = policy.ladder.cost(taken[1])
            policy.on_promoted(*taken, price)
            running.append(taken)
            moves.append(taken)
            rest, policy.has_more = rest - price, len(policy.trials) < configs
        elif not running:
            return moves
        else:
            assert policy.has_more is False or rest < policy.ladder.kept + policy.ladder.cost(0)
        if len(running) == slots or not isinstance(move, Start | Promote):
            for trial, rung in running:
                policy.on_reported(trial, rung, loss(int(trial[1:]), rung))
            running.clear()


def counts(moves: list[tuple[str, int]]) -> Counter[int]:
    return Counter(rung for _, rung in moves)


@pytest.mark.parametrize("one_in", [1, 3, math.inf])
@pytest.mark.parametrize("slots", [1, 4])
def test_where_rung_1_makes_nearly_all_worse_new_trials_go_before_it_as_long_as_there_are_any(
    one_in: float, slots: int
) -> None:
    """One in so many is worse there, the others better."""

    def loss(number: int, rung: int) -> float:
        return 5 + number % 7 + (1 if number % one_in == 0 else -1) * min(rung, 1)

    for configs in (30, 10_000):
        taken = counts(moved(loss, configs, slots))
        left_out = one_in == 1 and taken[0] < configs
        assert taken[0] > 2 * RUNG_1_LEAST
        assert RUNG_1_LEAST <= taken[1] < taken[0] / 6 if left_out else taken[1] >= taken[0] // 2 - slots


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("behind", [0.0, 1.0])
def test_a_few_that_rung_1_makes_better_reach_their_ends_though_it_made_all_worse_that_led(
    slots: int, behind: float
) -> None:
    """Those that fall are as good as the others at rung 0, and one in ten; or behind all of them, and two in three."""

    def falls(number: int) -> bool:
        return number % 3 > 0 if behind else number % 10 == 3

    def loss(number: int, rung: int) -> float:
        start = 5 + (number * 0.618) % 1
        return start + behind - 0.5 * rung if falls(number) else start + rung

    *_, top = sorted(counts(moved(loss, slots=slots)))
    assert top >= 4


def test_beside_the_leaders_before_a_deadline_new_trials_go_before_a_rung_that_makes_all_worse() -> None:
    policy = all_made_worse(2)
    for leader in ("t000", "t001"):
        policy.on_promoted(leader, 1, policy.ladder.cost(1))
    move = policy.decide(left(policy.ladder.kept, running=2, wall=50.0, binding=True))
    assert isinstance(move, Start)


def test_trials_past_their_best_stay_at_their_ends_under_a_larger_cap() -> None:
    search = Alone(**CASES[0]).run()
    turned = {row["trial"] for row in search.rows("SELECT trial FROM reports WHERE ended = 'turned'")}
    search.policy.refit(search.policy.make_ladder(6000.0))
    assert turned and {search.policy.trials[trial].state for trial in turned} == {"finished"}


def test_where_losses_only_fall_nothing_is_said_of_a_best() -> None:
    search = Alone(seconds=600.0).run()
    assert not search.policy.past_best and not search.rows("SELECT 1 FROM reports WHERE ended = 'turned'")
    lines = spending_lines(search.accounting.journal, cap=search.seconds, spent=search.spent)
    assert not any(PAST_BEST in line for line in lines)


def test_what_other_caps_would_bring_is_not_predicted_by_a_law_of_falling_losses(turned: Alone) -> None:
    predicted = turned.predicted()
    assert not predicted.rows and predicted.why and "past their best" in predicted.why
