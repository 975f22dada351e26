"""The law of all trials and what is predicted of one: exact where the law is, robust, and as sure as it is right."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tune.search.forecast import NO_FAVOUR, Favour, Progress, Standings
from tune.search.ladder import Rules
from tune.search.scaling_law import Forecaster, Observation, ScalingLaw

TRUE = ScalingLaw(floor=1.2, of_size=0.2, size_power=0.5, of_tokens=0.5, token_power=0.4, size_unit=2e5, token_unit=2e6)
SIZES = [2e4 * 2**step for step in range(8)]


def seen(size: float, tokens: Sequence[float], *, level: float = 0.0, slope: float = 0.0) -> list[Observation]:
    """A trial that is off the law by so much, in logs of the loss, and by so much more for each factor of e."""

    def loss(after: float) -> float:
        return TRUE.loss(size, after) * math.exp(level + slope * math.log(after / TRUE.token_unit))

    return [Observation(size=size, tokens=each, loss=loss(each)) for each in tokens]


def equal_seconds(**off: float) -> list[list[Observation]]:
    """Small models see more tokens in the same time."""
    return [seen(size, [3e10 / size * 2**rung for rung in range(3)], **off) for size in SIZES]


def test_of_exact_losses_it_predicts_ten_times_as_many_tokens() -> None:
    law = ScalingLaw.fit([each for trial in equal_seconds() for each in trial])
    for trial in equal_seconds():
        size, tokens = trial[-1].size, trial[-1].tokens
        assert law.loss(size, tokens) == pytest.approx(trial[-1].loss, rel=0.01)
        assert law.loss(size, 10 * tokens) == pytest.approx(TRUE.loss(size, 10 * tokens), rel=0.03)


def test_the_largest_is_predicted_to_win_where_it_is_behind() -> None:
    """At equal seconds it has seen the fewest tokens."""
    trials = equal_seconds()
    forecaster = Forecaster.fit(trials)
    now = [trial[-1].loss for trial in trials]
    ends = [forecaster.loss(trial[-1].size, trial, 30 * trial[-1].tokens)[0] for trial in trials]
    truly = [TRUE.loss(trial[-1].size, 30 * trial[-1].tokens) for trial in trials]
    assert now.index(min(now)) < ends.index(min(ends)) == truly.index(min(truly))


def test_a_trial_that_went_astray_does_not_bend_it() -> None:
    sound = [each for trial in equal_seconds() for each in trial]
    astray = [*sound, Observation(size=SIZES[3], tokens=1e6, loss=40.0)]
    straight, bent = ScalingLaw.fit(sound), ScalingLaw.fit(astray)
    assert bent.loss(SIZES[5], 2e7) == pytest.approx(straight.loss(SIZES[5], 2e7), rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_more_weights_and_more_tokens_never_make_it_worse_whatever_was_seen(seed: int) -> None:
    chance = random.Random(seed)
    law = ScalingLaw.fit(
        [
            Observation(size=10 ** chance.uniform(4, 7), tokens=10 ** chance.uniform(5, 8), loss=chance.uniform(1, 6))
            for _ in range(chance.randrange(1, 30))
        ]
    )
    assert law.loss(1e5, 1e6) >= law.loss(2e5, 1e6) >= law.loss(2e5, 2e6) > 0


def test_what_is_known_of_a_trial_is_carried_on_and_of_one_that_is_not_known_the_law() -> None:
    tokens = [1e6, 2e6, 4e6, 8e6]
    alike = [seen(size, tokens) for size in SIZES]
    good, steep = seen(2e5, tokens, level=-0.05), seen(2e5, tokens, slope=-0.05)
    forecaster = Forecaster.fit([*alike, good, steep])

    def predicted(trial: Sequence[Observation]) -> float:
        return forecaster.loss(2e5, trial, 1e8)[0]

    true = TRUE.loss(2e5, 1e8)
    assert predicted([]) == pytest.approx(true, rel=0.03)
    assert predicted(good) == pytest.approx(true * math.exp(-0.05), rel=0.03)
    assert predicted(steep) < predicted(good), "what falls faster ends lower"
    doubts = [forecaster.loss(2e5, good[:count], 1e8)[1] for count in range(len(good) + 1)]
    assert doubts == sorted(doubts, reverse=True), "the more is known, the surer it is"


def bent(power: float) -> list[list[Observation]]:
    """After their second loss all trials fall by this power of what the law has."""

    def after(known: Observation, lawful: Observation) -> Observation:
        return replace(lawful, loss=known.loss * (lawful.loss / known.loss) ** power)

    trials = [seen(size, [3e10 / size * 2**rung for rung in range(5)]) for size in SIZES]
    return [[*trial[:2], *(after(trial[1], each) for each in trial[2:])] for trial in trials]


def test_forecasts_learn_from_what_came_true_of_them() -> None:
    none, half, whole, twice = (Forecaster.fit(bent(power)).came_true for power in (0.0, 0.5, 1.0, 2.0))
    assert none < half < whole < twice
    assert whole == pytest.approx(1.0, abs=0.01)
    forecaster = Forecaster.fit(bent(0.0))
    known = seen(2e5, [1e6])
    trusted = replace(forecaster, came_true=1.0)
    assert trusted.loss(2e5, known, 1e7)[0] < forecaster.loss(2e5, known, 1e7)[0] < known[-1].loss


def test_before_a_second_loss_of_any_trial_nothing_is_corrected() -> None:
    assert Forecaster.fit([trial[:1] for trial in equal_seconds()]).came_true == 1.0


def test_four_of_five_ends_are_within_their_interval() -> None:
    """Of trials with levels, slopes and errors of their own, predicted from a tenth of their tokens."""
    chance, inside, ends = random.Random(0), 0, 0
    for _ in range(10):
        trials, last = [], []
        for size in SIZES * 2:
            level, slope = chance.gauss(0, 0.02), chance.gauss(0, 0.015)
            *known, end = (
                Observation(size=each.size, tokens=each.tokens, loss=each.loss * math.exp(chance.gauss(0, 0.003)))
                for each in seen(size, [1e6, 2e6, 4e6, 4e7], level=level, slope=slope)
            )
            trials.append(known)
            last.append(end)
        forecaster = Forecaster.fit(trials)
        for known, end in zip(trials, last, strict=True):
            loss, doubt = forecaster.loss(end.size, known, end.tokens)
            inside += abs(math.log(end.loss / loss)) < 1.2816 * doubt
            ends += 1
    assert 0.7 <= inside / ends <= 0.9


def test_four_of_five_ends_lie_in_the_interval_of_trials_that_stray() -> None:
    """Each from its course by a step of chance while its tokens double; a comparison leaves that doubt out."""
    chance, inside, narrow = random.Random(0), 0, 0
    for _ in range(20):
        ends, trials = [], []
        for size in SIZES:
            tokens, level = 3e10 / size, 0.0
            trial: list[Observation] = []
            for _ in range(7):
                level += chance.gauss(0.0, 0.03 * math.sqrt(math.log(2)))
                trial += seen(size, [tokens], level=level)
                tokens *= 2
            trials.append(trial[:4])
            ends.append(trial[-1])
        forecaster = Forecaster.fit(trials)
        for trial, end in zip(trials, ends, strict=True):
            loss, doubt = forecaster.interval(end.size, trial, end.tokens)
            inside += abs(math.log(end.loss / loss)) < 1.28 * doubt
            narrow += doubt > forecaster.loss(end.size, trial, end.tokens)[1]
    assert 0.7 < inside / (20 * len(SIZES)) < 0.9 and narrow == 20 * len(SIZES)


def test_the_interval_widens_by_how_far_falls_came_out_beside_those_predicted() -> None:
    """Before any was seen it is as wide as the fall is deep, and more."""
    calm = equal_seconds()
    wild = [
        [replace(each, loss=each.loss * (1 + 0.1 * (-1) ** (number + place))) for place, each in enumerate(trial)]
        for number, trial in enumerate(calm)
    ]
    widths = []
    for trials in (calm, wild, [trial[:1] for trial in calm]):
        forecaster, (first, *_) = Forecaster.fit(trials), trials[0]
        loss, doubt = forecaster.interval(first.size, [first], 32 * first.tokens)
        widths.append(doubt / math.log(first.loss / loss))
    assert widths[0] < widths[1] and widths[0] < 0.5 and widths[2] > 1


def test_no_law_is_asked_before_one_trial_was_seen_to_fall() -> None:
    """After the same little training the largest is the best, and nothing tells what it lacks at its end."""
    standings = Standings(lambda rung: 1.0, lambda rung, seconds: 32.0, Rules())
    losses = {"small": (1e5, 4.8), "medium": (2e5, 4.7), "large": (2e6, 4.6)}
    for trial, (weights, loss) in losses.items():
        standings.note_departure(trial, 0)
        standings.record(trial, 0, loss, telling=False, progress=Progress(size=weights, tokens=1e5, seconds=10.0))
        assert standings.forecast_new(2e7, 1e6) is None and standings.expected(trial) == (loss, 0.0)
    standings.note_departure("medium", 1)
    standings.record("medium", 1, 3.6, telling=True, progress=Progress(size=2e5, tokens=2e5, seconds=20.0))
    assert standings.forecast_new(2e7, 1e6) is not None and standings.expected("small")[0] < 3.6


@pytest.mark.parametrize(("better", "favour", "leader"), [
    (0.0, 1.0, "odd"), (0.0, 1e-2, "likely"), (0.2, 1e-2, "odd"), (0.0, 0.0, "likely"),
])  # fmt: skip
def test_where_forecasts_are_level_who_was_promising_before_leads(better: float, favour: float, leader: str) -> None:
    """The less, the surer a forecast is: of thirty trials the lowest is mostly that of the luckiest."""
    assert led(Favour(promise=favour), better) == leader


def led(odd: Favour, better: float) -> str | None:
    """Who leads of two after rung 1, of which the odd one is better by so much: all have seen two million tokens there,
    and eight at their ends."""
    standings = Standings(
        lambda rung: 0.0, lambda rung, seconds: 4.0, Rules(),
        favour=lambda trial: odd if trial == "odd" else NO_FAVOUR,
    )  # fmt: skip
    for rung in (0, 1):
        for trial, weights in (("likely", 2e5), ("odd", 2e5), ("small", 1e5)):
            loss = 3.0 - 0.5 * rung + (0.4 if trial == "small" else 0.0) - (0.01 + better if trial == "odd" else 0.0)
            standings.note_departure(trial, rung)
            progress = Progress(size=weights, tokens=1e6 * 2**rung, seconds=10.0 * 2**rung)
            standings.record(trial, rung, loss, telling=True, progress=progress)
    assert standings.leader() == standings.first(1)
    return standings.leader()


@pytest.mark.parametrize(
    ("begins", "leader"), [(3e6, "likely"), (2e6, "likely"), (1.3e6, "odd"), (7.9e6, "odd"), (9e6, "odd"), (0.0, "odd")]
)
def test_dropout_counts_in_full_that_is_to_begin_before_the_end(begins: float, leader: str) -> None:
    """As much of it as is to come until it was learned to do with."""
    assert led(Favour(promise=0.1, late=0.1, begins=begins), 0.06) == leader
    assert led(Favour(promise=0.1, begins=begins), 0.06) == "odd"


def test_a_family_whose_losses_go_below_zero_has_no_law_and_its_lowest_leads() -> None:
    standings = Standings(lambda rung: 1.0, lambda rung, seconds: 4.0, Rules())
    losses = {"t001": (0.9, 0.6), "t002": (1.0, 0.7), "t003": (0.5, -0.2), "t004": (-0.1, -0.8)}
    for rung in (0, 1):
        for place, (trial, each) in enumerate(losses.items()):
            standings.note_departure(trial, rung)
            progress = Progress(size=1e5 * 2**place, tokens=1e6 * 2**rung, seconds=10.0 * 2**rung)
            standings.record(trial, rung, each[rung], telling=True, progress=progress)
    assert standings.forecast_new(1e5, 1e7) is None and standings.leader() == "t004"
