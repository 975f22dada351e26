"""The laws of suggestion: only valid points, none twice, the same after a restart, better than chance once it knows."""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tune.recipe import life_share
from tune.search.forecast import NO_FAVOUR, Favour, Progress
from tune.search.outlook import Outlook
from tune.search.suggest import ENOUGH_RESULTS, Suggester, prior
from tune.search_space import Config, Space, layer_weights

SPACE = Space(family="nanogpt", precisions=("fp32", "bf16"))


def loss_of(config: Config) -> float:
    """Wide is good, dropout is bad."""
    return 3 - math.log(int(config["d_model"])) + 2 * float(config["dropout"])


def suggester(space: Space = SPACE, *, seed: int = 0, search: str = "tpe", **about: Any) -> Suggester:
    return Suggester(space, seed=seed, search=search, **{"prior": lambda config: NO_FAVOUR} | about)


def liking(promise: Callable[[Config], float], config: Config) -> Favour:
    """What a prior says that is no more than this."""
    return Favour(promise=promise(config))


def given(suggest: Suggester, count: int) -> list[Config]:
    """So many suggestions; it hears nothing of them."""
    return [suggest.suggest(f"t{number:03d}") for number in range(count)]


def learned(suggest: Suggester, count: int) -> list[Config]:
    """So many suggestions, each with a result at rung 0 before the next."""
    found = list[Config]()
    for number in range(count):
        found.append(suggest.suggest(f"t{number:03d}"))
        suggest.tell(f"t{number:03d}", 0, loss_of(found[-1]))
    return found


FREED = {"learning_rate": (1e-3, 2e-3, 4e-3), "batch_tokens": (384, 768)}
VARIED = Space(family="nanogpt", precisions=("fp32", "bf16"), vary=FREED)
FIXED = replace(VARIED, fix={"d_model": 128})


@pytest.mark.parametrize(("space", "search"), [(VARIED, "tpe"), (FIXED, "tpe"), (SPACE, "prior"), (VARIED, "random")])
def test_none_comes_twice_or_invalid_and_the_first_is_the_default_but_at_random(space: Space, search: str) -> None:
    found = learned(suggester(space, search=search), ENOUGH_RESULTS + 6)
    for place, config in enumerate(found):
        assert space.contains(config) and config not in found[:place] and list(config) == list(space.dimensions)
    assert search == "random" or found[0] == space.default()


@pytest.mark.parametrize("search", ["prior", "tpe"])
def test_siblings_that_are_one_training_at_first_wait_for_other_shapes(search: str) -> None:
    fix = {"d_model": 32, "precision": "fp32"}
    space = Space(family="nanogpt", precisions=("fp32",), fix=fix)
    shapes = len({(config["heads"], config["layers"]) for config in space.configs()})
    found = dict[tuple[str, ...], list[Config]]()
    for alike in ((), ("dropout",)):
        shallow = partial(liking, lambda config: 1 / int(config["layers"]))
        suggest = suggester(space, search=search, prior=shallow, alike=alike)
        found[alike] = given(suggest, shapes // 2)
    apart = {alike: len({(each["heads"], each["layers"]) for each in configs}) for alike, configs in found.items()}
    assert apart[()] < apart["dropout",] == shapes // 2


@pytest.mark.parametrize("seed", range(3))
def test_until_trials_tell_the_most_promising_of_all_that_are_left_comes_next(seed: int) -> None:
    promise = prior(SPACE.default(), family="nanogpt", weights=6e5, tokens=2e7, text_tokens=1e6)
    first, *others = given(suggester(seed=seed, search="prior", prior=promise), 12)
    best = sorted((promise(config).promise for config in SPACE.configs() if config != first), reverse=True)
    assert first == SPACE.default() and [promise(config).promise for config in others] == best[: len(others)]


@pytest.mark.parametrize(("fix", "epochs", "dropout"), [({}, 2, 0.0), ({}, 1e3, 0.1), ({"dropout": 0.2}, 2, 0.2)])
def test_the_default_one_comes_first_with_the_dropout_that_suits_the_cap(
    fix: dict[str, Any], epochs: float, dropout: float
) -> None:
    """As long as it is one training with any: none where the text is seen twice."""
    space = Space(family="nanogpt", precisions=("fp32",), fix=fix)
    promise = prior(space.default(), family="nanogpt", weights=6e5, tokens=epochs * 1e6, text_tokens=1e6)
    for alike, first in (((), space.default()["dropout"]), (("dropout",), dropout)):
        (config,) = given(suggester(space, prior=promise, alike=alike), 1)
        assert config == space.default() | {"dropout": first}


def test_trials_tell_of_trainings_that_are_apart_so_that_none_is_lost_among_siblings() -> None:
    space = Space(family="nanogpt", precisions=("fp32",), fix={"heads": 4})
    wide = Outlook(
        lambda config: float(config["d_model"]), lambda size, speed: (1 / size, 0.0),
        earlier=[(space.default(), Progress(size=128.0, tokens=1.0, seconds=1.0))],
    )  # fmt: skip
    narrow = partial(liking, lambda config: 1 / float(config["d_model"]))
    suggest = suggester(space, search="prior", outlook=wide, prior=narrow, alike=("dropout",))
    widths = [config["d_model"] for config in given(suggest, 4)]
    assert widths == [space.default()["d_model"], *[max(space.dimensions["d_model"])] * 3]


def test_a_trial_is_favoured_as_the_prior_has_it_and_none_is_where_draws_are_uniform() -> None:
    """Also of those that dropout does not yet set apart: what it will bring or cost is in none of their losses."""
    promise = prior(SPACE.default(), family="nanogpt", weights=6e5, tokens=1e6, text_tokens=1e6)
    twins = {f"p{rate}": SPACE.default() | {"dropout": rate} for rate in (0.0, 0.1, 0.5)}
    others = {"odd": SPACE.default() | {"d_model": 512, "layers": 16}}
    for search in ("prior", "tpe", "random"):
        suggest = suggester(search=search, prior=promise, alike=("dropout",))
        for trial, config in (twins | others).items():
            suggest.note_tried(trial, config)
        none, some, much, odd = (suggest.favour(trial).promise for trial in (*twins, "odd"))
        assert (max(odd, much) < some < none <= 1.0) == (search != "random") and 0 < min(odd, much) <= 1


def test_what_the_prior_says_of_dropout_is_told_apart_where_there_is_some_to_begin() -> None:
    """What it costs, against none: where some is better than that, nothing."""
    promise = prior(SPACE.default(), family="nanogpt", weights=6e5, tokens=1e6, text_tokens=1e6, begins=4e6)
    none, much = (promise(SPACE.default() | {"dropout": rate}) for rate in (0.0, 0.5))
    assert much.late == pytest.approx(much.promise / none.promise) and none.late == 1.0
    assert (none.begins, much.begins) == (0.0, 4e6)
    promise = prior(SPACE.default(), family="translation", weights=8e5, tokens=1e8, text_tokens=1e6, begins=4e6)
    none, some = (promise(SPACE.default() | {"dropout": rate}) for rate in (0.0, 0.1))
    assert some.promise > none.promise and some.late == 1.0


def test_random_is_uniform_over_the_valid_points_whatever_the_prior_says() -> None:
    """By Pearson's test, at one in a thousand, of the first four that many seeds draw."""
    space = Space(family="nanogpt", precisions=("fp32",), fix={"layers": 2, "dropout": 0.1})
    points = [tuple(config.items()) for config in space.configs()]
    freedom, found = len(points) - 1, {}
    for search, each in (("random", 60), ("prior", 5)):
        counts = dict.fromkeys(points, 0)
        for seed in range(each * len(points) // 4):
            likes = partial(liking, lambda config: 1 / int(config["d_model"]) ** 4)
            narrow = suggester(space, seed=seed, search=search, prior=likes)
            for config in given(narrow, 4):
                counts[tuple(config.items())] += 1
        found[search] = sum((count - each) ** 2 / each for count in counts.values())
    assert found["random"] < freedom + 3.1 * math.sqrt(2 * freedom) + 3.1**2 < found["prior"]


def test_a_plan_begins_as_the_search_does() -> None:
    """It draws by the prior alone."""
    assert given(suggester(search="prior"), 9) == given(suggester(search="tpe"), 9)


def test_what_is_freed_is_tried_at_its_recipes_value_first_and_then_elsewhere_too() -> None:
    promise = prior(VARIED.default(), family="nanogpt", weights=8e5, tokens=1e7, text_tokens=1e6)
    rates = [config["learning_rate"] for config in given(suggester(VARIED, search="prior", prior=promise), 24)]
    assert rates[0] == 2e-3 and set(rates) == {1e-3, 2e-3, 4e-3}
    assert promise(VARIED.default()).promise > promise({**VARIED.default(), "learning_rate": 4e-3}).promise


def test_a_small_space_is_handed_out_whole_and_then_there_is_nothing_more() -> None:
    vary = {"batch_tokens": (384, 768)}
    space = Space(family="nanogpt", precisions=("fp32",), fix={"d_model": 16, "layers": 2, "heads": 4}, vary=vary)
    suggest = suggester(space)
    assert len({tuple(sorted(config.items())) for config in given(suggest, space.count)}) == space.count
    assert not suggest.has_more


def test_one_that_was_told_of_earlier_trials_goes_on_as_if_it_had_made_them() -> None:
    """Also where the prior, by chance, lets some draws pass and others not."""
    first, second = (suggester(prior=partial(liking, lambda config: 0.5)) for _ in range(2))
    for number, config in enumerate(learned(first, 10)):
        second.note_tried(f"t{number:03d}", config)
        second.tell(f"t{number:03d}", 0, loss_of(config))
    assert first.suggest("t010") == second.suggest("t010")


def test_a_strangers_config_outside_of_the_space_is_refused() -> None:
    for change in ({"d_model": 2**30}, {"heads": 3}, {"layers": "2"}, {"colour": 1}):
        with pytest.raises(ValueError, match="no space"):
            suggester().note_tried("t001", SPACE.default() | change)


def test_results_of_a_precision_that_is_there_no_more_are_no_fault() -> None:
    suggest = suggester(replace(SPACE, precisions=("fp32",)))
    draws = iter(SPACE.configs())
    for number in range(ENOUGH_RESULTS + 4):
        suggest.note_tried(
            name := f"t{number:03d}", config := next(draws) | {"precision": ("fp32", "bf16")[number % 2]}
        )
        suggest.tell(name, 0, loss_of(config))
    assert suggest.suggest("t100")["precision"] == "fp32"


def test_what_only_another_device_could_train_uses_up_nothing_of_a_small_space() -> None:
    space = replace(SPACE, precisions=("fp32",), fix={"heads": 4, "layers": 4, "dropout": 0.1})
    suggest = suggester(space)
    for number, config in enumerate(space.configs()):
        assert suggest.has_more
        suggest.note_tried(f"t{number:03d}", config | {"precision": "bf16"})
    given(suggest, space.count)
    assert not suggest.has_more


@pytest.mark.parametrize(("own", "values"), [(0.1, (0.0, 0.05, 0.1, 0.4)), (0.0, (0.0, 0.1)), (0.0, (0.0,))])
def test_a_weight_decay_of_none_is_one_like_others(own: float, values: tuple[float, ...]) -> None:
    space = Space(family="nanogpt", precisions=("fp32",), vary={"weight_decay": values}, own={"weight_decay": own})
    promise = prior(space.default(), family="nanogpt", weights=6e5, tokens=2e7, text_tokens=1e6)
    of_each = [promise({**space.default(), "weight_decay": value}).promise for value in values]
    assert max(of_each) == of_each[values.index(own)] and all(each > 0 for each in of_each)
    assert len(set(of_each)) == len(values) and (own == 0.0 or min(of_each) == of_each[0])


def test_what_it_learns_beats_chance() -> None:
    def mean_loss(search: str) -> float:
        found = [learned(suggester(seed=seed, search=search), ENOUGH_RESULTS + 12) for seed in range(2)]
        return statistics.mean(loss_of(config) for each in found for config in each[ENOUGH_RESULTS:])

    assert mean_loss("tpe") < min(mean_loss("prior"), mean_loss("random")) - 0.2


def test_the_highest_rung_with_enough_results_counts() -> None:
    """Rung 0 says that narrow is good, rung 1 that wide is: rung 1 is believed once it has enough."""

    def widths(results_at_rung_1: int) -> float:
        suggest = suggester()
        for number in range(24):
            config = suggest.suggest(name := f"t{number:03d}")
            suggest.tell(name, 0, -loss_of(config))
            if number < results_at_rung_1:
                suggest.tell(name, 1, loss_of(config))
        suggested = [suggest.suggest(f"t1{number:02d}") for number in range(5)]
        return statistics.mean(math.log(int(config["d_model"])) for config in suggested)

    assert widths(24) > widths(ENOUGH_RESULTS - 1)


def test_what_runs_is_not_suggested_nearby() -> None:
    """Of many devices that ask at once each is to learn something else."""

    def near(running: int, seed: int) -> int:
        suggest = suggester(seed=seed)
        learned(suggest, ENOUGH_RESULTS + 4)
        for number, config in enumerate(each for each in SPACE.configs() if each["d_model"] == 512):
            if number < running:
                suggest.note_tried(f"r{number:03d}", config)
        return sum(suggest.suggest(f"n{number}")["d_model"] == 512 for number in range(3))

    assert sum(near(30, seed) for seed in range(2)) < sum(near(0, seed) for seed in range(2))


def test_what_the_prior_favours_has_about_the_size_that_it_is_centred_at() -> None:
    def favourite(weights: float) -> Config:
        promise = prior(SPACE.default(), family="nanogpt", weights=weights, tokens=1e7, text_tokens=1e6)
        return max(SPACE.configs(), key=lambda config: promise(config).promise)

    default, sizes = SPACE.default(), [1e5, layer_weights("nanogpt", SPACE.default()), 1e7]
    found = [favourite(weights) for weights in sizes]
    assert all(1 / 3 < layer_weights("nanogpt", each) / size < 3 for each, size in zip(found, sizes, strict=True))
    assert {each["precision"] for each in found} == {default["precision"]}


def test_the_more_often_pairs_are_seen_the_more_dropout_is_worth() -> None:
    config = {**SPACE.default(), "dropout": 0.3}

    def worth(epochs: float) -> float:
        promise = prior(SPACE.default(), family="translation", weights=8e5, tokens=1e6 * epochs, text_tokens=1e6)
        return promise(config).promise / promise({**config, "dropout": 0.0}).promise

    assert worth(1) < worth(10) < 1 < worth(1_000)


def test_too_much_dropout_counts_the_more_the_fewer_epochs_a_model_of_that_size_has() -> None:
    promise = prior(SPACE.default(), family="nanogpt", weights=8e5, tokens=1e7, text_tokens=1e6)

    def late(d_model: int) -> float:
        return promise({**SPACE.default(), "d_model": d_model, "dropout": 0.3}).late

    assert 1 > late(64) > late(128) > late(256) > 0


@pytest.mark.parametrize(("family", "times"), [("translation", 1), ("nanogpt", 2)])
def test_a_model_that_would_turn_without_is_given_dropout(family: str, times: int) -> None:
    """The more, the smaller the text, as ten and thirty thousand pairs said: after 5 epochs none, nanogpt after 10, and
    never more than .1 of a megabyte."""

    def favourite(epochs: float, text_tokens: float) -> float:
        tokens = times * epochs * text_tokens / life_share(family)
        weights = layer_weights(family, {**SPACE.default(), "d_model": 128, "layers": 2})
        promise = prior(SPACE.default(), family=family, weights=weights, tokens=tokens, text_tokens=text_tokens)
        shape = {**SPACE.default(), "d_model": 128, "layers": 2}
        rates = map(float, SPACE.dimensions["dropout"])
        return max(rates, key=lambda dropout: promise({**shape, "dropout": dropout}).promise)

    found = {size: [favourite(epochs, size) for epochs in (4, 20, 40)] for size in (1e5, 1e6)}
    assert found[1e5][0] == found[1e6][0] == 0.0
    assert all(some == sorted(some) and some[-1] > 0 for some in found.values())
    if family == "translation":
        assert all(some == sorted(set(some)) for some in found.values()) and found[1e5][1] > found[1e6][1] > 0
    else:
        assert favourite(1_000, 1e8) == favourite(1_000, 1e6) == 0.1 < favourite(1_000, 5e4)


def test_heads_are_few_until_they_are_as_wide_as_gpt2s() -> None:
    promise = prior(SPACE.default(), family="nanogpt", weights=8e5, tokens=1e7, text_tokens=1e6)

    def best(width: int) -> int:
        wide = {**SPACE.default(), "d_model": width}
        return max((4, 8, 16, 32), key=lambda heads: promise({**wide, "heads": heads}).promise)

    assert [best(width) for width in (96, 128, 256, 512, 1024)] == [4, 4, 4, 8, 16]


def test_the_draws_of_one_seed_are_not_those_of_its_neighbour() -> None:
    def drawn(seed: int) -> list[str]:
        return list(map(str, given(suggester(seed=seed), 12)[1:]))

    assert drawn(3) == drawn(3)
    assert len(set(drawn(3)) & set(drawn(4))) < 4
