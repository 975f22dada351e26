"""What is expected of configurations that were not tried: by how fast they train and what a law says of their size."""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tune.search.forecast import NO_FAVOUR, Favour, Progress
from tune.search.front import Forecast, expected_gain
from tune.search.outlook import Outlook, Speeds, most_promising
from tune.search.scaling_law import ScalingLaw
from tune.search_space import Config

SECONDS, END = 10.0, 600.0
LAW = ScalingLaw(floor=1.2, of_size=0.3, size_power=0.5, of_tokens=0.6, token_power=0.4, size_unit=2e5, token_unit=2e6)


def config(d_model: int, layers: int) -> Config:
    return {"d_model": d_model, "layers": layers, "dropout": 0.0, "precision": "bf16"}


def size(point: Config) -> float:
    return 12.0 * float(point["d_model"]) ** 2 * float(point["layers"])


def speed(point: Config) -> float:
    """Depth costs more than its weights do."""
    return 1e8 * size(point) ** -0.6 * float(point["layers"]) ** -0.3


TRIED = [config(32, 2), config(64, 4), config(128, 2), config(96, 8), config(192, 4), config(256, 2)]
NEW = [config(32, 8), config(64, 2), config(128, 8), config(192, 2), config(256, 8), config(384, 4)]


def progress(point: Config) -> Progress:
    return Progress(size=size(point), tokens=SECONDS * speed(point), seconds=SECONDS)


def by_law(weights: float, rate: float) -> Forecast:
    return LAW.loss(weights, END * rate), 0.02


def outlook(
    tried: Sequence[Config], forecast: Callable[[float, float], Forecast | None] = by_law, **about: Any
) -> Outlook:
    seen = Outlook(size, forecast, **about)
    for number, point in enumerate(tried):
        seen.tell(f"t{number}", point, progress(point))
    return seen


def test_speeds_of_new_shapes_follow_from_those_that_were_measured() -> None:
    speeds = Speeds.fit([(point, progress(point)) for point in TRIED])
    assert [speeds.tokens_per_second(point, size(point)) for point in NEW] == pytest.approx(
        [speed(point) for point in NEW], rel=0.15
    )


def test_of_one_trial_all_that_is_known_is_that_larger_ones_are_slower() -> None:
    speeds = Speeds.fit([(TRIED[1], progress(TRIED[1]))])
    rates = [speeds.tokens_per_second(point, size(point)) for point in sorted(NEW, key=size)]
    assert rates == sorted(rates, reverse=True)
    assert speeds.tokens_per_second(TRIED[1], size(TRIED[1])) == pytest.approx(speed(TRIED[1]), rel=0.01)


def test_earlier_studies_tell_the_powers_and_the_first_trials_the_mean() -> None:
    """With another recipe all was twice as fast."""
    before = [(point, replace(progress(point), seconds=SECONDS / 2)) for point in TRIED]
    assert [Speeds.fit([], before).tokens_per_second(point, size(point)) for point in NEW] == pytest.approx(
        [2 * speed(point) for point in NEW], rel=0.15
    )
    speeds = Speeds.fit([(point, progress(point)) for point in NEW[:2]], before)
    assert [speeds.tokens_per_second(point, size(point)) for point in NEW[2:]] == pytest.approx(
        [speed(point) for point in NEW[2:]], rel=0.15
    )


def test_the_size_that_is_best_at_the_end_of_the_cap_is_favoured() -> None:
    """Not the one that is best now: the larger ones have seen few tokens."""
    truly = min(NEW, key=lambda point: LAW.loss(size(point), END * speed(point)))
    now = min(NEW, key=lambda point: LAW.loss(size(point), SECONDS * speed(point)))
    for seen in (outlook(TRIED), outlook([], earlier=[(point, progress(point)) for point in TRIED])):
        assert NEW[most_promising(NEW, lambda point: NO_FAVOUR, seen)] == truly != now


def test_until_trials_tell_and_among_equals_the_prior_decides() -> None:
    def prior(point: Config) -> Favour:
        return Favour(promise=math.exp(-float(point["layers"])))

    shallow = min(NEW, key=lambda point: float(point["layers"]))
    for nothing in (outlook([]), outlook(TRIED[:1], lambda weights, rate: None)):
        assert nothing.forecasts(NEW) is None and NEW[most_promising(NEW, prior, nothing)] == shallow
    alike = outlook(TRIED[:1], lambda weights, rate: (2.0, 0.02))
    assert NEW[most_promising(NEW, prior, alike)] == shallow


@pytest.mark.parametrize("other", [2.1, 1.9])
def test_what_a_rival_is_expected_to_gain_grows_with_how_little_is_known_of_it(other: float) -> None:
    gains = [expected_gain((2.0, doubt), (other, doubt)) for doubt in (0.0, 0.01, 0.03, 0.1)]
    assert gains == sorted(gains) and gains[0] == pytest.approx(max(0.0, 2.0 - other)) and gains[-1] > 0.05
    chance = random.Random(0)
    drawn = [2.0 * chance.gauss(1.0, 0.03) - other * chance.gauss(1.0, 0.03) for _ in range(20_000)]
    assert gains[2] == pytest.approx(statistics.fmean(max(0.0, gain) for gain in drawn), rel=0.1)


def test_a_dimension_may_be_zero_and_a_size_unknown() -> None:
    """Dropout, where none of those that were tried had none."""
    seen = outlook([{**point, "dropout": 0.1} for point in TRIED])
    for found, before in zip(seen.forecasts(NEW) or [], outlook(TRIED).forecasts(NEW) or [], strict=True):
        assert found == pytest.approx(before)
    nameless = Outlook(forecast=lambda weights, rate: (2.0, 0.02))
    nameless.tell("t0", TRIED[0], progress(TRIED[0]))
    assert nameless.forecasts(NEW) is None


def test_however_many_trials_tell_speeds_are_fitted_to_few_and_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, fit = list[int](), Speeds.fit

    def counted(seen: Sequence[tuple[Config, Progress]], earlier: Sequence[tuple[Config, Progress]] = ()) -> Speeds:
        fitted.append(len(seen))
        return fit(seen, earlier)

    monkeypatch.setattr(Speeds, "fit", counted)
    seen = outlook([])
    for number in range(2000):
        seen.tell(f"t{number}", TRIED[number % len(TRIED)], progress(TRIED[number % len(TRIED)]))
        seen.forecasts(NEW)
    assert len(fitted) < 100 and max(fitted) <= 200


def test_a_trial_of_which_no_size_is_known_tells_nothing() -> None:
    seen = outlook([])
    seen.tell("t0", TRIED[0], Progress(tokens=1.0, seconds=1.0))
    assert seen.forecasts(NEW) is None


def test_where_the_front_counts_what_is_expected_to_add_the_most_to_it_is_favoured() -> None:
    def favoured(additions: Callable[[Sequence[float], Sequence[Forecast]], list[float] | None]) -> Config:
        return NEW[most_promising(NEW, lambda point: NO_FAVOUR, outlook(TRIED[1:2], additions=additions))]

    assert favoured(lambda sizes, forecasts: [1 / each for each in sizes]) == min(NEW, key=size)
    lowest = favoured(lambda sizes, forecasts: None)
    assert favoured(lambda sizes, forecasts: [0.0] * len(sizes)) == lowest != min(NEW, key=size)
