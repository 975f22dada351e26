import math
import random
from collections import Counter

import pytest

from model.nn import precision
from tune.errors import UserError
from tune.search_space import (
    CENTRE,
    DIMENSIONS,
    PRECISIONS,
    ROWS,
    Dimension,
    Space,
    fix_text,
    label,
    parse_fix,
    parse_vary,
    recipe_field_values,
)

CPU = ("fp32", "bf16")


def space(**changes):
    return Space(**{"family": "nanogpt", "precisions": CPU} | changes)


def key(config):
    return tuple(config.items())


def test_every_valid_point_comes_out_once_under_one_name_in_one_order():
    configs = list(space().configs())
    assert configs == list(space(precisions=CPU[::-1]).configs())
    assert len(configs) == space().count == len(set(map(key, configs))) == len(set(map(label, configs)))
    pairs = [(d, h) for d in DIMENSIONS["d_model"] for h in DIMENSIONS["heads"] if d % h == 0 and d // h >= 4]
    assert {(config["d_model"], config["heads"]) for config in configs} == set(pairs)
    assert len(configs) == len(pairs) * len(DIMENSIONS["layers"]) * len(DIMENSIONS["dropout"]) * len(CPU)
    assert all(config[name] in values for config in configs for name, values in space().dimensions.items())


def test_a_precision_that_is_not_native_is_never_proposed():
    assert {config["precision"] for config in space().configs()} == set(CPU)
    with pytest.raises(ValueError, match="'precision=tf32' is not native to this device: native are fp32, bf16"):
        space(fix={"precision": "tf32"})


def test_samples_are_members_follow_their_seed_reach_every_value_and_favour_no_width():
    drawn = [space().sample(random.Random(seed)) for seed in range(1_000)]
    assert drawn[:50] == [space().sample(random.Random(seed)) for seed in range(50)]
    assert all(space().contains(config) for config in drawn)
    for name, values in space().dimensions.items():
        assert {config[name] for config in drawn} == set(values)
    widths = Counter(config["d_model"] for config in drawn)
    assert max(widths.values()) < 2 * min(widths.values())


def test_contains_is_what_configs_gives():
    for changes in ({"d_model": 16, "heads": 32}, {"heads": 3}, {"precision": "fp16"}, {"family": "nanogpt"}):
        assert not space().contains(space().default() | changes)
    fixed = space(fix={"heads": 32, "dropout": 0.2})
    members = set(map(key, fixed.configs()))
    assert members == {key(config) for config in space().configs() if fixed.contains(config)}
    assert all(config["heads"] == 32 and config["dropout"] == 0.2 for config in fixed.configs())


def test_default_is_the_centre_in_the_fastest_precision_and_nearest_to_it_whatever_is_fixed():
    assert space().default() == CENTRE | {"precision": "bf16"}
    assert space(precisions=PRECISIONS[:2]).default()["precision"] == "tf32"
    for text in ("d_model=16", "heads=32", "d_model=512,heads=32", "layers=16,dropout=0"):
        fixed = space(fix=parse_fix(text))
        assert fixed.contains(fixed.default())
        free = set(CENTRE) - set(fixed.fix) - {"heads", "d_model"}
        assert all(fixed.default()[name] == CENTRE[name] for name in free)


def test_a_label_is_short_and_readable():
    assert label(space().default()) == "d128 h4 l4 p.1 bf16"
    assert label(space().default() | {"dropout": 0.0}) == "d128 h4 l4 p0 bf16"
    assert (
        label({"d_model": 64, "optimizer": "sgd", "parts": 4, "again": True}) == "d64 optimizer=sgd parts4 again=True"
    )
    assert label({"l2": 0.0}) != label({"l": 20}), "where a name ends in a digit"


def test_a_fix_is_read_in_the_type_of_its_dimension():
    fix = parse_fix("precision=bf16, heads=4,dropout=.1")
    assert fix == {"precision": "bf16", "heads": 4, "dropout": 0.1} == parse_fix(fix_text(fix))
    assert isinstance(fix["heads"], int)
    with pytest.raises(ValueError, match=r"heads=32 fix d_model at 128, .* d_model=64 fix heads at 4, 8, 16$"):
        space(fix={"heads": 32, "d_model": 64})


def test_precisions_are_those_the_models_know():
    assert PRECISIONS == precision.PRECISIONS


RECIPE = {"learning_rate": 3e-3, "batch_tokens": 768, "weight_decay": 0.1}


@pytest.mark.parametrize("names", ["learning_rate", "weight_decay,batch_tokens"])
def test_what_is_freed_of_the_recipe_varies_around_its_own_value(names):
    vary = recipe_field_values(parse_vary(names), RECIPE)
    varied = space(vary=vary, fix={"dropout": 0.0, "layers": 2})
    assert varied.default() == space().default() | {"dropout": 0.0, "layers": 2} | {name: RECIPE[name] for name in vary}
    configs = list(varied.configs())
    assert len(configs) == varied.count == len(set(map(label, configs)))
    assert len(configs) == space(fix=varied.fix).count * 5 ** len(vary)
    assert all(varied.contains(config) for config in configs)
    assert not varied.contains(space(fix=varied.fix).default())
    for name, values in vary.items():
        assert {config[name] for config in configs} == set(values) and {type(v) for v in values} == {type(RECIPE[name])}
        assert min(values) == RECIPE[name] / 4 and max(values) == RECIPE[name] * 4


@pytest.mark.parametrize("names", ["context", "context,batch_tokens", "batch_tokens"])
@pytest.mark.parametrize("own", [(64, 768), (256, 768), (256, 300), (96, 4096), (8, 8), (34, 768), (51, 768)])
def test_no_batch_has_fewer_rows_than_were_tried_and_contexts_are_powers_of_two_around_the_recipes(names, own):
    context, batch = own
    recipe = {**RECIPE, "context": context, "batch_tokens": batch}
    vary = recipe_field_values(parse_vary(names), recipe, longest=512)
    varied = space(vary=vary, own={name: recipe[name] for name in vary}, fix={"d_model": 16, "layers": 2})
    assert varied.default().items() >= {name: recipe[name] for name in vary}.items()
    points = [{**recipe, **config} for config in varied.configs()]
    for point in points:
        assert point["batch_tokens"] >= min(ROWS * point["context"], batch // context * point["context"])
        assert max(vary.get("context", (context,))) % point["context"] == 0
        assert math.log2(point["context"] / context).is_integer() and 8 <= point["context"] <= max(context, 512)
    for name, values in vary.items():
        assert {point[name] for point in points} == set(values)
        assert all(max(values) % value == 0 for value in values if name == "context")
    assert len(points) == varied.count and all(map(varied.contains, varied.configs()))
    assert all(varied.contains(varied.sample(random.Random(seed))) for seed in range(50))


def test_where_no_batch_holds_a_context_that_is_the_rule_that_is_told():
    recipe = {**RECIPE, "context": 256, "batch_tokens": 768}
    names = ("context", "batch_tokens")
    ranges = {"batch_tokens": Dimension(values=(16, 32))}
    with pytest.raises(UserError, match="batch_tokens must be at least 3 times context"):
        space(vary=recipe_field_values(names, recipe), own={name: recipe[name] for name in names}, ranges=ranges)
