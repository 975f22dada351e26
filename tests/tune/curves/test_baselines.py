"""Laws of the baselines: each keeps the cap, is asked alike, and decides as its own library does."""

import math
import random
from collections.abc import Callable, Iterator

import optuna
import pytest
import ray
from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler

from tests.tune.curves.made import played, search, table
from tune.curves.baselines import (
    ASHA_GRACE,
    ASHA_REDUCTION,
    OPTUNA_HALVING,
    OptunaPruner,
    Stub,
    make_baseline,
)
from tune.curves.recorded import CurveSuggestions
from tune.curves.replay_settings import SCHEDULERS, Amount
from tune.search.policy import BudgetLeft, HandBack, Policy, Promote, Start, Wait

LONGEST = 32
PATIENT = ("ray-hyperband", "oracle")
"""Those that keep a slot for a bracket's last trial, by their own rule, or have nothing more to do."""


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize(("workers", "diverge"), [(1, 0.25), (8, 0.0)])
def test_every_scheduler_keeps_the_cap_and_the_deadline(scheduler: str, workers: int, diverge: float) -> None:
    rng = random.Random(f"{scheduler} {workers}")
    for share, deadline in ((0.05, None), (0.3, None), (0.3, 1.0), (0.1, 2.0), (2.0, 2.0)):
        some = table(rng.randint(8, 20), seed=workers, reports=rng.randint(4, 20))
        times = deadline and Amount(text="", times=deadline)
        found = search(some, scheduler, share=share, workers=workers, diverge=diverge, deadline=times)
        assert found.unspent >= -1e-9
        assert found.wall <= (deadline or math.inf) * share * some.exhaustive_seconds / workers + 1e-6
        assert 0 <= found.regret < math.inf
    assert not ray.is_initialized()


@pytest.mark.parametrize("scheduler", [name for name in SCHEDULERS if name not in PATIENT])
@pytest.mark.parametrize("workers", [1, 8])
def test_no_slot_idles_beside_a_lease_that_reserved_for_long(scheduler: str, workers: int) -> None:
    """Where there is always another configuration, or another report of one, all of the cap buys steps."""
    some = table(60, reports=40)
    engine = played(some, scheduler, share=0.2, workers=workers, thaw=0.0)
    steps = sum(some.curves[each.config["curve"]].step_seconds * each.steps for each in engine.trials.values())
    assert steps >= 0.93 * 0.2 * some.exhaustive_seconds


def test_hyperband_draws_its_brackets_anew_for_each_seed() -> None:
    """Of a trial's number and the name of its study."""
    drawn, trials = set(), [f"t{number}" for number in range(40)]
    for seed in range(3):
        supply = CurveSuggestions([], seed=seed)
        policy = make_baseline(
            "optuna-hyperband", supply=supply, price=lambda *_: 1.0, unit=1.0, steps=64.0, step_seconds=1.0
        )
        assert isinstance(policy, OptunaPruner)
        for trial in trials:
            policy.begin(trial)
        drawn.add(tuple(policy.should_continue(trial, 4.0, float(place), False) for place, trial in enumerate(trials)))
    assert len(drawn) == 3


def test_every_scheduler_draws_the_same_configurations_in_the_same_order() -> None:
    some = table(25)
    orders = [
        [record.config["curve"] for record in played(some, scheduler, share=0.2, seed=3).trials.values()]
        for scheduler in SCHEDULERS
        if scheduler != "oracle"
    ]
    shortest = min(len(order) for order in orders)
    assert shortest > 1 and len({tuple(order[:shortest]) for order in orders}) == 1


# --- a rule by itself


def loss(trial: str, time: float) -> float:
    return random.Random(trial).uniform(2, 3) + random.Random(f"{trial} {time:.0f}").uniform(0, 0.5) + 2 / time


def rule(scheduler: str, configs: int) -> Policy:
    supply = CurveSuggestions(table(configs).curves, seed=0)
    return make_baseline(
        scheduler, supply=supply, price=lambda trial, rung: 1.0, unit=1.0, steps=LONGEST, step_seconds=1.0
    )


def moves(policy: Policy, *, slots: int = 1) -> Iterator[tuple[Start | Promote, str, int]]:
    """What it begins, with as much money as it likes: the move, the trial, and the rung."""
    running: list[tuple[str, int]] = []
    while True:
        while len(running) < slots:
            move = policy.decide(BudgetLeft(seconds=1e9, slots=slots - len(running), running=len(running)))
            if isinstance(move, HandBack | Wait):
                break
            assert isinstance(move, Start | Promote)
            starts = isinstance(move, Start)
            trial, rung = (f"t{len(policy.trials)}", 0) if starts else (move.trial, move.rung)
            if starts:
                policy.supply.suggest(trial)
            yield move, trial, rung
            policy.on_promoted(trial, rung, 1.0)
            running.append((trial, rung))
        if not running:
            return
        trial, rung = running.pop(0)
        if rung + 1 >= LONGEST:
            policy.on_finished(trial)
        else:
            policy.on_reported(trial, rung, loss(trial, rung + 1.0))


def by_ray() -> Callable[[str, int], bool]:
    """Whether a trial goes on after a time, as Ray's ASHA says that is told of every one."""
    scheduler = AsyncHyperBandScheduler(
        time_attr="time", metric="loss", mode="min", max_t=LONGEST, grace_period=ASHA_GRACE,
        reduction_factor=ASHA_REDUCTION,
    )  # fmt: skip
    stubs: dict[str, Stub] = {}

    def goes_on(trial: str, time: int) -> bool:
        if trial not in stubs:
            stubs[trial] = Stub(trial)
            scheduler.on_trial_add(None, stubs[trial])
        result = {"time": time, "loss": loss(trial, time)}
        return bool(scheduler.on_trial_result(None, stubs[trial], result) == TrialScheduler.CONTINUE)

    return goes_on


def by_optuna() -> Callable[[str, int], bool]:
    """The same of Optuna's successive halving."""
    pruner = optuna.pruners.SuccessiveHalvingPruner(
        min_resource=OPTUNA_HALVING["grace"], reduction_factor=OPTUNA_HALVING["reduction"]
    )
    study, asked = optuna.create_study(pruner=pruner), {}

    def goes_on(trial: str, time: int) -> bool:
        asked[trial] = asked.get(trial) or study.ask()
        asked[trial].report(loss(trial, time), time)
        return not asked[trial].should_prune()

    return goes_on


@pytest.mark.parametrize(("scheduler", "hand"), [("ray-asha", by_ray), ("optuna-halving", by_optuna)])
def test_it_decides_as_its_library_does_when_told_every_time(scheduler: str, hand: Callable) -> None:
    configs, goes_on = 40, hand()
    expected = {}
    for number in range(configs):
        time = 1
        while time < LONGEST and goes_on(f"t{number}", time):
            time += 1
        expected[f"t{number}"] = time
    found: dict[str, int] = {}
    for _, trial, rung in moves(rule(scheduler, configs)):
        if len(found) == configs and trial not in found:
            break  # a second round
        found[trial] = rung + 1
    assert found == expected and len(set(expected.values())) > 2


@pytest.mark.parametrize("slots", [1, 8])
def test_asha_promotes_among_the_best_of_a_rung_and_fills_up_when_configurations_are_used_up(slots: int) -> None:
    policy, at, filled = rule("promotion-asha", 40), {}, 0
    for move, trial, _ in moves(policy, slots=slots):
        for name, standing in policy.trials.items():
            if standing.state == "paused" and standing.rung >= ASHA_GRACE - 1:
                at.setdefault(standing.rung, {})[name] = standing.losses[standing.rung]
        before = policy.trials[trial].rung if trial in policy.trials else None
        if isinstance(move, Promote) and before in at and trial in at[before]:
            among = sorted(at[before].values()).index(at[before][trial]) < int(len(at[before]) / ASHA_REDUCTION)
            assert among or not policy.supply.has_more
            filled += not among
    assert filled and all(standing.state == "finished" for standing in policy.trials.values())


@pytest.mark.parametrize("slots", [1, 3])
def test_every_configuration_reports_once_before_the_best_go_on(slots: int) -> None:
    made_moves = [(type(move), trial) for move, trial, _ in moves(rule("one-report", 30), slots=slots)]
    assert [kind for kind, _ in made_moves[:30]] == [Start] * 30
    order = list(dict.fromkeys(trial for kind, trial in made_moves[30:]))
    assert order == sorted(order, key=lambda trial: loss(trial, 1.0)) and len(order) == 30
