"""The space of a loop of one's own: what is drawn is valid, conditions hold, and it survives being written down."""

import random
from pathlib import Path
from typing import Any

import optuna
import pytest
import ray.tune
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from tune.errors import UserError
from tune.own_space import (
    OwnSpace,
    choice,
    first_text,
    floats,
    integers,
    make_space,
    parse_first,
    parse_range,
    parse_space,
    range_text,
    space_text,
)
from tune.search.forecast import NO_FAVOUR
from tune.search.suggest import Suggester
from tune.search_space import Config, label

GIVEN = {
    "optimizer": ["sgd", "adam"],
    "rate": floats(1e-4, 1e-2, log=True),
    "decay": floats(0, 1),
    "momentum": floats(0.5, 0.99, when={"optimizer": "sgd"}),
    "nesterov": choice(True, False, when={"optimizer": "sgd"}),
    "layers": integers(2, 8),
    "width": integers(8, 512, log=True),
}
SPACE = OwnSpace(given=make_space(GIVEN))
FEW = OwnSpace(
    given=make_space({"a": [1, 2], "b": choice("x", "y", when={"a": 1}), "c": choice(0.5, 1.5, when={"b": "x"})})
)


def check(config: Config) -> None:
    assert SPACE.contains(config)
    assert ("momentum" in config) == ("nesterov" in config) == (config["optimizer"] == "sgd")
    assert 1e-4 <= float(config["rate"]) <= 1e-2 and isinstance(config["layers"], int) and 2 <= config["layers"] <= 8
    assert len(f"{config['rate']:.12g}".strip("0.").replace("e-0", "")) <= 6, "short enough to be read"


@pytest.mark.parametrize("search", ["random", "prior", "tpe"])
def test_what_is_suggested_is_valid_new_and_alike_for_one_seed(search: str) -> None:
    def suggested(seed: int) -> list[Config]:
        suggester = Suggester(SPACE, seed=seed, search=search, prior=lambda config: NO_FAVOUR)
        found = []
        for number in range(40):
            found.append(suggester.suggest(f"t{number}"))
            suggester.tell(f"t{number}", 0, float(found[-1]["rate"]))
        return found

    one, again, other = suggested(1), suggested(1), suggested(2)
    assert one == again != other
    for config in one:
        check(config)
    assert len({frozenset(config.items()) for config in one}) == 40


def test_results_draw_tpe_to_where_they_are_good() -> None:
    suggester = Suggester(SPACE, seed=3, search="tpe", prior=lambda config: NO_FAVOUR)
    rates = []
    for number in range(80):
        config = suggester.suggest(f"t{number}")
        rates.append(float(config["rate"]))
        suggester.tell(f"t{number}", 0, abs(rates[-1] - 1e-3) / 1e-3)
    near = [abs(rate / 1e-3 - 1) < 0.5 for rate in rates]
    assert sum(near[-20:]) > 2 * sum(near[:20])


def test_a_space_with_an_end_is_counted_and_used_up() -> None:
    every = list(FEW.configs())
    assert len(every) == FEW.count == 4 and all(map(FEW.contains, every))
    assert {"a": 2} in every and {"a": 1, "b": "y"} in every and {"a": 1, "b": "x", "c": 0.5} in every
    for search in ("random", "tpe"):
        suggester = Suggester(FEW, seed=0, search=search, prior=lambda config: NO_FAVOUR)
        found = [suggester.suggest(f"t{number}") for number in range(4)]
        assert not suggester.has_more and sorted(map(label, found)) == sorted(map(label, every))


@pytest.mark.parametrize("search", ["random", "tpe"])
def test_a_range_of_fractions_ends_too_and_what_is_used_up_leaves_the_rest(search: str) -> None:
    """As many as their digits tell apart; and of two kinds the one that is worse and has more of them."""
    narrow = OwnSpace(given=make_space({"beta": floats(0.999, 0.9999)}))
    suggester = Suggester(narrow, seed=0, search=search, prior=lambda config: NO_FAVOUR)
    found = [suggester.suggest(f"t{number}") for number in range(10)]
    assert not suggester.has_more and sorted(map(label, found)) == sorted(map(label, narrow.configs()))
    two = OwnSpace(given=make_space({"kind": choice("a", "b"), "rate": floats(0.5, 0.99, when={"kind": "b"})}))
    suggester = Suggester(two, seed=0, search=search, prior=lambda config: NO_FAVOUR)
    for number in range(40):
        config = suggester.suggest(f"t{number}")
        suggester.tell(f"t{number}", 0, 1.0 if config["kind"] == "a" else 2.0)
    assert suggester.has_more


@pytest.mark.parametrize("scale", [1e5, -1e5])
def test_what_fails_is_worse_than_all_that_do_not_however_large_these_are(scale: float) -> None:
    """High rates fail; the higher the rest, the better."""
    suggester = Suggester(SPACE, seed=3, search="tpe", prior=lambda config: NO_FAVOUR)
    failed = []
    for number in range(60):
        rate = float(suggester.suggest(f"t{number}")["rate"])
        failed.append(rate > 3e-3)
        suggester.tell(f"t{number}", 0, None if failed[-1] else scale + abs(scale) * abs(rate - 5e-4) / 1e-3)
    assert sum(failed[-20:]) <= sum(failed[:20])


def test_what_is_not_there_or_not_within_is_no_configuration() -> None:
    good = SPACE.default()
    check(good)
    for name, value in {"rate": 1.0, "layers": 2.0, "width": 7, "nesterov": 1, "optimizer": "lamb", "other": 1}.items():
        assert not SPACE.contains({**good, name: value})
    assert not SPACE.contains({**good, "optimizer": "adam"}) and not SPACE.contains({"rate": 1e-3})


def test_it_is_the_same_when_it_was_written_down_and_from_toml(tmp_path: Path) -> None:
    assert parse_space(space_text(SPACE.given)) == SPACE.given
    file, text = (
        tmp_path / "space.toml",
        """
optimizer = ["sgd", "adam"]
rate = { low = 1e-4, high = 1e-2, log = true }
decay = { low = 0.0, high = 1.0 }
momentum = { low = 0.5, high = 0.99, when = { optimizer = "sgd" } }
nesterov = { values = [true, false], when = { optimizer = ["sgd"] } }
layers = { low = 2, high = 8 }
width = { low = 8, high = 512, log = true }
""",
    )
    for encoding in ("utf-8", "utf-8-sig"):  # some editors of Windows begin a file with a byte order mark
        file.write_text(text, encoding=encoding)
        assert parse_space(str(file)) == SPACE.given


@pytest.mark.parametrize(
    "word", ["cosine annealing", "a,b", "1", "true", "1e-3", "x=1", "{", "[1]", "..", "1..2", "nan"]
)
def test_words_that_cannot_be_typed_are_written_down_all_the_same(word: str) -> None:
    given = {"rate": 0.5, "how": word}
    assert parse_first(first_text((given, {"on": True}))) == (given, {"on": True})
    ranges = {"how": choice("plain", word), "rate": floats(1.0, 2.0)}
    assert parse_range(range_text(ranges)) == ranges
    assert parse_first(first_text(({"how": "plain"},))) == ({"how": "plain"},)


def test_a_domain_that_cannot_be_is_refused_by_its_name() -> None:
    with pytest.raises(UserError, match=r"^choice: has the value None[^\n]*$"):
        choice(1, None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^integers: goes from 8 to 2[^\n]*$"):
        integers(8, 2)


def test_ray_tunes_domains_are_taken_as_they_are_or_refused_in_one_line() -> None:
    rng = random.Random(0)
    given = {
        "rate": ray.tune.loguniform(1e-4, 1e-2), "drop": ray.tune.uniform(0, 1), "layers": ray.tune.randint(2, 4),
        "width": ray.tune.qrandint(64, 256, 64), "kind": ray.tune.choice(["a", 1]), "seen": ray.tune.lograndint(2, 512),
    }  # fmt: skip
    space = OwnSpace(given=make_space(given)).given
    for name, each in given.items():
        assert all(each.is_valid(space[name].draw(rng)) for _ in range(100)), name
    assert space["rate"].log and not space["drop"].whole and (space["seen"].log, space["seen"].whole) == (True, True)
    assert OwnSpace(given={"layers": space["layers"]}).count == 2, "its upper end is not included, as Ray has it"
    assert space["width"].values == (64, 128, 192, 256)
    odd: Any
    for odd in (ray.tune.randn(0, 1), ray.tune.sample_from(lambda: 1), ray.tune.qloguniform(1e-2, 1.0, 1e-2)):
        with pytest.raises(UserError, match=r"^'rate' has [^\n]*: write [^\n]*$"):
            make_space({"rate": odd})


def test_optunas_distributions_are_taken_as_they_are() -> None:
    rng = random.Random(0)
    given: dict[str, optuna.distributions.BaseDistribution] = {
        "rate": FloatDistribution(1e-4, 1e-2, log=True), "drop": FloatDistribution(0, 0.5, step=0.1),
        "layers": IntDistribution(2, 8), "width": IntDistribution(64, 256, step=64),
        "kind": CategoricalDistribution(["a", 1]),
    }  # fmt: skip
    space = OwnSpace(given=make_space(given))
    for _ in range(100):
        for name, value in space.sample(rng).items():
            assert given[name]._contains(given[name].to_internal_repr(value))
    assert space.given["width"].values == (64, 128, 192, 256)
