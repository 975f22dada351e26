"""Laws of one search on recorded curves: whose rules it plays, what it uses, and what counts as regret."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.tune.curves.made import curve, played, search, settings, table
from tune.curves import benchmark
from tune.curves.benchmark import IDEAS, MAX_T, Cell, Outcome, diverging, dominated, searches
from tune.curves.recorded import Curve, Table, load_table
from tune.curves.replay_settings import Amount
from tune.errors import UserError
from tune.search.forecast import Standing
from tune.search.ladder import WALL_CLOCK_MULTIPLE
from tune.search.scaling_law import ScalingLaw
from tune.search.successive_halving import SuccessiveHalving
from tune.search_space import Config


def test_ration_is_the_policy_of_the_search() -> None:
    engine = played(table(), "ration", workers=2)
    assert type(engine.families["replay"].policy) is SuccessiveHalving


def turning() -> Table:
    """As users' loops: half are at their best, 2 nats, after two of sixteen reports; the others end lower."""

    def loss(number: int, report: int) -> float:
        falls = 1.0 + (2.0 + number / 100) * (report + 1) ** -0.5
        return falls if number % 2 else 2.0 + number / 1000 + abs(report - 1) / 20

    losses = [tuple(loss(number, report) for report in range(16)) for number in range(30)]
    curves = [
        Curve(config={"number": number}, parameters=0, seconds_per_report=60.0, losses=each)
        for number, each in enumerate(losses)
    ]
    return Table(name="some turn", curves=tuple(curves))


@cache
def decided(scheduler: str, *, of_loops: bool) -> tuple[list[tuple[Config, int]], float]:
    """What it tried, the steps of each and what was spent: of loops, or of models with a law from the start."""
    models = load_table(Path("nanogpt-shakespeare-600s"))
    some, told = (turning(), {}) if of_loops else (models, {"suggest": "prior", "earlier": models})
    engine = played(some, scheduler, share=0.2, workers=4, seed=1, **told)
    return [(each.config, each.steps) for each in engine.trials.values()], engine.accounting.ledger.spent


@pytest.mark.parametrize("idea", IDEAS)
def test_without_any_of_its_ideas_a_search_decides_otherwise(idea: str) -> None:
    of_loops = idea in ("extrapolation", "past-best")
    assert decided(f"without {idea}", of_loops=of_loops) != decided("ration", of_loops=of_loops)


@pytest.mark.parametrize("warm_up", [5, 20, 50, 100])
def test_rung_0_is_past_the_warm_up_of_a_table_whatever_that_is(warm_up: int) -> None:
    curves = tuple(replace(each, warm_up_steps=warm_up, report_every=1.0) for each in by_size(3).curves)
    ladder = played(Table(name="warm", curves=curves), "ration", share=100.0).families["replay"].policy.ladder
    assert ladder.first >= warm_up


@pytest.mark.parametrize("workers", [1, 8])
def test_nothing_is_left_unspent_that_a_trial_could_use(workers: int) -> None:
    some = table(40, reports=40)
    assert search(some, "ration", share=0.2, workers=workers).unspent <= 0.01
    in_time = search(some, "ration", share=0.2, workers=workers, deadline=Amount(text="", times=1.0))
    assert in_time.unspent <= 0.05


def by_size(configs: int) -> Table:
    """In own mode: each half as large again as the one before, and slower by as much."""
    law = ScalingLaw(floor=1.2, of_size=1.0, size_power=0.5, of_tokens=1.0, token_power=0.6, token_unit=2000)
    curves = []
    for number in range(configs):
        size = 1.5**number
        losses = tuple(law.loss(size, 100 / size * (report + 1)) for report in range(2000))
        known: dict[str, float] = {"seconds_per_report": 1.0, "report_every": 100 / size}
        curves.append(
            Curve(config={"number": number}, parameters=round(1000 * size), losses=losses, decayed=losses, **known)
        )
    return Table(name="sizes", curves=tuple(curves))


@pytest.mark.parametrize("seed", range(3))
def test_a_large_model_that_is_behind_is_not_given_up(seed: int) -> None:
    """Of a family in which size pays late."""
    some = by_size(12)
    share = 1000 / some.exhaustive_seconds
    found, without = (search(some, name, share=share, seed=seed) for name in ("ration", "without law"))
    assert found.regret < 0.9 * without.regret


@pytest.mark.parametrize("workers", [2, 8, 16])
def test_the_wall_stays_within_about_twice_what_all_slots_take_for_the_cap(workers: int) -> None:
    """And a patient search, which lets one trial have the most, takes longer where slots are many. Unspent is the
    margin of a lease that ends after the last segments began, too little for another."""
    some = own_mode(40, reports=600)
    cap = 0.03 * some.exhaustive_seconds
    found, patient = (search(some, "ration", share=0.03, workers=workers, patient=each) for each in (False, True))
    assert found.wall <= 1.1 * WALL_CLOCK_MULTIPLE * cap / workers and found.unspent <= 0.02
    assert patient.wall > 2 * found.wall if workers > 2 else patient.wall == pytest.approx(found.wall, rel=0.1)


@pytest.mark.parametrize("seed", range(2))
def test_what_tells_its_best_so_far_and_is_past_that_does_not_keep_others_from_going_on(seed: int) -> None:
    some = turning()
    for scheduler, best in (("ration", True), ("promotion-asha", False)):
        trials = played(some, scheduler, share=0.2, seed=seed).families["replay"].policy.trials.values()
        told = [[loss for _, loss in sorted(each.losses.items())] for each in trials]
        assert all(losses == sorted(losses, reverse=True) for losses in told) is best
    found = search(some, "ration", share=0.05, seed=seed)
    assert found.regret < 0.1, "the best that turns is 65 % above the lowest of all"


@pytest.mark.parametrize("scheduler", ["ration", "ray-asha", "random"])
def test_divergence_is_seen_at_its_first_report_and_nothing_follows(scheduler: str) -> None:
    some = table(40)
    engine, broken = played(some, scheduler, diverge=0.25), diverging(some.curves, 0.25, seed=0)
    ends = [(each.steps, broken[each.config["curve"]].diverges) for each in engine.trials.values()]
    assert all(steps <= diverges for steps, diverges in ends) and any(steps == diverges for steps, diverges in ends)


def test_regret_is_to_the_best_that_does_not_diverge_within_the_cap() -> None:
    """In own mode, where decays were measured that its constant rate does not come to."""
    worse, better = (tuple(level + 1 / report**level for report in range(1, 21)) for level in (2.0, 1.0))
    known: dict[str, Any] = {"parameters": 1, "seconds_per_report": 1.0}
    sound = Curve(config={"number": 0}, losses=worse, decayed=worse, **known)
    broken = Curve(config={"number": 1}, losses=(*better[:4], *[math.nan] * 16), decayed=better, **known)
    found = search(Table(name="two", curves=(sound, broken)), "oracle", share=0.25)
    assert found.bound == pytest.approx(math.expm1(worse[5] - worse[9]))


def test_what_ran_out_of_memory_is_never_tried_again() -> None:
    some = Table(name="memory", curves=tuple(curve(number, memory=1e9 * (number % 2 + 1)) for number in range(10)))
    found = search(some, "ration", share=2.0, memory_limit=1.5e9)
    assert found.trials == 10 and 0 < found.unfit < 0.01
    engine = played(some, "ration", share=2.0, memory_limit=1.5e9)
    trained = {each.config["curve"] for each in engine.trials.values() if each.steps}
    assert trained == {number for number in range(10) if some.curves[number].memory_bytes == 1e9}


@pytest.mark.parametrize("scheduler", ["oracle", "random", "ration", "promotion-asha", "one-report"])
def test_regret_is_nil_for_the_oracle_and_for_all_once_everything_fits(scheduler: str) -> None:
    assert search(table(12), scheduler, share=3.0, workers=2).regret == pytest.approx(0.0)


def own_mode(configs: int, reports: int = 60) -> Table:
    """A decay brings a loss half of the way down to 1."""
    rng, curves = random.Random(0), []
    for number in range(configs):
        low, power = rng.uniform(1.5, 2.5), rng.uniform(0.3, 0.6)
        losses = tuple(low + 3 * (report + 1) ** -power for report in range(reports))
        decayed = tuple(1 + (loss - 1) / 2 if report % 10 == 9 else math.nan for report, loss in enumerate(losses))
        steps: dict[str, float] = {"seconds_per_report": 20.0, "report_every": 100.0}
        config = {"number": number}
        curves.append(Curve(config=config, parameters=1000 + number, losses=losses, decayed=decayed, **steps))
    return Table(name="own", curves=tuple(curves))


@pytest.mark.parametrize("workers", [1, 4])
def test_in_own_mode_the_last_segment_ends_with_the_decay_and_takes_what_was_kept(workers: int) -> None:
    """What counts is the decayed loss; regret is against the best curve, trained alone for the whole cap."""
    some = own_mode(12)
    engine = played(some, "ration", share=0.08, workers=workers)
    ladder, standings = engine.families["replay"].policy.ladder, engine.families["replay"].policy.trials
    finished = [each.state for each in standings.values()].count("finished")
    assert ladder.last > 0 and (finished == 1 if workers == 1 else finished >= 1)
    found = search(some, "ration", share=0.08, workers=workers)
    assert found.regret < math.expm1(0.2) and found.unspent < 0.02
    shorter, whole = (
        min(curve.final(share * 0.08 * some.exhaustive_seconds / 0.2) for curve in some.curves) for share in (0.6, 1)
    )
    assert found.bound == pytest.approx(math.expm1(shorter - whole))
    alone = search(Table(name="one", curves=some.curves[:1]), "ration", share=0.5)
    assert 0 <= alone.regret < 0.02


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_a_baseline_in_own_mode_has_trials_that_decay_at_their_max_t(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several the one that serves it best, which may be nearly all that a slot can train for."""
    some = load_table(Path("nanogpt-shakespeare-600s"))
    share, asked, tried = 600 / some.exhaustive_seconds, settings(seeds=1), dict[float, float]()
    budget = Amount(text="", times=share)

    def noted(cell: Cell, *about: Any, alone: Callable[..., Outcome] = benchmark.search) -> Outcome:
        found = alone(cell, *about)
        tried[cell.max_t] = found.regret
        return found

    with monkeypatch.context() as patch:
        patch.setattr(benchmark, "search", noted)
        (found,) = searches(Cell(table=some, scheduler="ray-asha", budget=budget, workers=workers), asked)
    assert tuple(tried) == MAX_T and found.regret == min(tried.values()) < max(tried.values())
    engine = played(some, "ray-asha", share=share, workers=workers, max_t=MAX_T[0])
    standings = engine.families["replay"].policy.trials
    longest = max(
        record.steps * some.curves[int(record.config["curve"])].step_seconds
        for name, record in engine.trials.items() if standings[name].state == "finished"
    )  # fmt: skip
    assert longest > 0.95 * (600 / workers - asked.start_up - asked.thaw)


def test_a_search_of_a_measured_table_is_suggested_to_as_a_search_is_and_of_another_not() -> None:
    """The prior's centre is another with each seed; a table that says nothing of its models has none."""
    shapes = [(32, 2), (64, 2), (64, 4), (128, 4), (256, 4), (256, 8)]
    curves = [
        replace(
            each, config={"d_model": width, "heads": 4, "layers": layers, "dropout": 0.0, "precision": "fp32"},
            parameters=12 * width**2 * layers, family="nanogpt", tokens_per_step=1000.0, text_tokens=1e6,
        )
        for (width, layers), each in zip(shapes, own_mode(6).curves, strict=True)
    ]  # fmt: skip
    measured = Table(name="measured", curves=tuple(curves))
    begun = {played(measured, "ration", suggest="prior", seed=seed).trials["t001"].config["curve"] for seed in range(8)}
    assert len(begun) > 1
    with pytest.raises(UserError, match="--suggest prior"):
        search(own_mode(6), "ration", suggest="prior")


def test_a_search_that_is_told_of_another_begins_with_the_winner_of_that_and_a_baseline_is_told_nothing() -> None:
    table = load_table(Path("nanogpt-shakespeare"))

    def tried(scheduler: str, earlier: Table | None) -> tuple[list[int], list[int]]:
        """The curves that it began with, in order, and those that it trained to their ends."""
        share = 180.0 / table.exhaustive_seconds
        engine = played(table, scheduler, share=share, seed=4, suggest="prior", earlier=earlier)
        curves = {trial: int(record.config["curve"]) for trial, record in engine.trials.items()}
        standings = engine.families["replay"].policy.trials
        return [*curves.values()], [curves[trial] for trial in curves if standings[trial].state == "finished"]

    begun, winners = tried("ration", None)
    assert begun[0] not in winners and tried("ration", table)[0][0] in winners
    assert tried("random", table) == tried("random", None)


def test_the_search_before_has_as_much_cap_also_where_that_is_a_share_of_another_table() -> None:
    table = load_table(Path("nanogpt-shakespeare"))
    share = Cell(
        table=table, scheduler="ration", budget=Amount(text="", times=0.05), workers=1,
        earlier=replace(table, curves=table.curves[:4]),
    )  # fmt: skip
    seconds = replace(share, budget=Amount(text="", seconds=share.cap))
    by_share, by_seconds = (searches(cell, settings(suggest="prior")) for cell in (share, seconds))
    assert by_share == by_seconds


def test_a_decision_looks_at_few_trials_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, expected = [0], Standing.expected

    def counted(standing: Standing, falls: float) -> float:
        looks[0] += 1
        return expected(standing, falls)

    monkeypatch.setattr(Standing, "expected", counted)

    def looks_a_trial(trials: int) -> float:
        looks[0] = 0
        engine = played(table(trials, reports=10), "ration", share=0.5, workers=trials // 10)
        return looks[0] / len(engine.trials)

    assert looks_a_trial(400) < 2 * looks_a_trial(40)


def test_hypervolume_of_two_points_by_hand() -> None:
    small = Curve(config={}, parameters=99, seconds_per_report=1.0, losses=(3.0,))
    large = Curve(config={}, parameters=9999, seconds_per_report=1.0, losses=(2.0,))
    widest = Curve(config={}, parameters=999999, seconds_per_report=1.0, losses=(4.0,))
    area = dominated([(small, 3.0), (large, 2.0)], [small, large, widest])
    assert area == pytest.approx(math.log(1e4) * 1.0 + math.log(1e2) * 1.0)


def test_a_search_for_the_front_finds_more_of_it_at_the_same_cap() -> None:
    volumes = {
        scheduler: fmean(
            search(table(30, seed=seed), scheduler, share=share, seed=seed).hypervolume
            for seed in range(4)
            for share in (0.1, 0.3)
        )
        for scheduler in ("ration", "ration-front", "random")
    }
    assert volumes["ration-front"] > max(volumes["ration"], volumes["random"])
