"""The laws of suggestion: only valid points, none twice, the same after a restart, better than chance once it knows."""

import math
import statistics

import pytest

from tune.searcher import ENOUGH_RESULTS, PRIOR_SECONDS, Suggester, prior
from tune.space import Config, Space

SPACE = Space(family="nanogpt", precisions=("fp32", "bf16"))


def suggester(space: Space = SPACE, *, seed: int = 0, search: str = "tpe") -> Suggester:
    return Suggester(space, seed=seed, search=search, prior=lambda config: 1.0)


def loss_of(config: Config) -> float:
    """Wide is good, dropout is bad."""
    return 3 - math.log(int(config["d_model"])) + 2 * float(config["dropout"])


@pytest.mark.parametrize("search", ["tpe", "random"])
def test_the_first_is_the_default_and_none_comes_twice_or_invalid(search: str) -> None:
    suggest = suggester(search=search)
    given = []
    for number in range(30):
        config = suggest.suggest(f"t{number:03d}")
        assert config is not None and SPACE.contains(config) and config not in given
        given.append(config)
        suggest.tell(f"t{number:03d}", 0, loss_of(config))
    assert given[0] == SPACE.default()


def test_a_small_space_is_handed_out_whole_and_then_there_is_nothing_more() -> None:
    space = Space(family="nanogpt", precisions=("fp32",), fix={"d_model": 16, "layers": 2, "heads": 4})
    suggest = suggester(space)
    given = [suggest.suggest(f"t{number:03d}") for number in range(space.count)]
    assert len({tuple(sorted(config.items())) for config in given if config}) == space.count
    assert suggest.suggest("t999") is None


def test_one_that_was_told_of_earlier_trials_goes_on_as_if_it_had_made_them() -> None:
    first, second = suggester(), suggester()
    for number in range(10):
        config = first.suggest(name := f"t{number:03d}")
        assert config is not None
        second.tried(name, config)
        for each in (first, second):
            each.tell(name, 0, loss_of(config))
    assert first.suggest("t010") == second.suggest("t010")


def test_what_it_learns_beats_chance() -> None:
    def mean_loss(search: str) -> float:
        losses = []
        for seed in range(5):
            suggest = suggester(seed=seed, search=search)
            for number in range(40):
                config = suggest.suggest(name := f"t{number:03d}")
                assert config is not None
                suggest.tell(name, 0, loss_of(config))
                losses += [loss_of(config)] if number >= 20 else []
        return statistics.mean(losses)

    assert mean_loss("tpe") < mean_loss("random") - 0.2


def test_the_highest_rung_with_enough_results_counts() -> None:
    """Rung 0 says that narrow is good, rung 1 that wide is: rung 1 is believed once it has enough."""

    def widths(results_at_rung_1: int) -> float:
        suggest = suggester()
        for number in range(24):
            config = suggest.suggest(name := f"t{number:03d}")
            assert config is not None
            suggest.tell(name, 0, -loss_of(config))
            if number < results_at_rung_1:
                suggest.tell(name, 1, loss_of(config))
        suggested = [suggest.suggest(f"t1{number:02d}") for number in range(12)]
        return statistics.mean(math.log(int(config["d_model"])) for config in suggested if config)

    assert widths(24) > widths(ENOUGH_RESULTS - 1)


def test_the_prior_is_highest_at_the_default_on_its_compute_and_grows_with_the_cap() -> None:
    def favourite(seconds: float) -> Config:
        return max(SPACE.configs(), key=prior("nanogpt", seconds=seconds, kind="cpu", fastest="bf16"))

    default = SPACE.default()
    assert all(favourite(PRIOR_SECONDS)[name] == default[name] for name in ("d_model", "heads", "layers", "precision"))
    assert int(favourite(60_000)["d_model"]) > int(favourite(60)["d_model"])
