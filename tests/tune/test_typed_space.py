"""What a user says of the space: --range and --space, --at-most, --first; of a loop of their own; and --config, which
has it all in a file.
"""

import asyncio
import functools
import importlib
import json
import pickle
import re
import runpy
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.tune
import yaml

from model.config import pad_of
from model.data.batches import batch_shape
from model.families import FAMILIES
from tests.model.test_families import Bigrams
from tests.tune.test_registry import CORE
from tune import cli
from tune.assembly import make_engine
from tune.errors import UserError
from tune.own_loop import loop_change_warnings, loop_of, make_loop_context
from tune.own_space import choice, floats, integers
from tune.recipe import StepPrices
from tune.registry import register
from tune.search.suggest import Suggester
from tune.search_context import SearchContext, first_configs, make_search_context
from tune.search_space import CENTRE, Config, Dimension
from tune.settings import Settings
from tune.store.journal import Journal

CPU = ("fp32", "bf16")
LOOP = {"train": "../train.py:train", "space": "../space.toml", "metric": "loss"}
TRAIN, SPACE = "def train(config): ...\n", "width = [64, 128, 256]\nrate = { low = 1e-4, high = 1e-2, log = true }\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty present folder, with a loop and texts beside it, on a machine whose prices nobody measures."""
    monkeypatch.setattr("tune.search_context.measured_prices", lambda *_: (StepPrices(flops=2e10), 1.0))
    (tmp_path / "here").mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "space.toml").write_text(SPACE)
    (tmp_path / "text.txt").write_text("the cat sat on a mat\n" * 30_000)
    (tmp_path / "pairs.txt").write_text("".join(f"we count {i}\tcontamos {i}\n" for i in range(1500)))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.fixture
def no_hooks_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `ray.tune.with_parameters` would have the next Ray of this process do is forgotten."""
    monkeypatch.setattr(ray._private.worker, "_post_init_hooks", [])


@pytest.fixture
def surveyed(here: Path) -> Callable[..., SearchContext]:
    """What a search of these settings stands on."""

    def made(**asked: Any) -> SearchContext:
        texts = {"text_corpus": here / "text.txt", "translation_corpus": here / "pairs.txt"}
        return make_search_context(Settings(**{"budget": "1h", **texts, **asked}), CORE)

    return made


def suggestions(context: SearchContext, family: str, folder: Path) -> Iterator[Config]:
    """As a search would have them."""
    folder.mkdir()
    with Journal(folder, new=True) as journal:
        suggester: Suggester = make_engine(context, journal, []).families[family].suggestions
        for number in range(30):
            yield suggester.suggest(f"t{number}")


def test_a_range_narrows_and_widens_each_dimension_that_a_family_has() -> None:
    settings = Settings(budget="1h", range="d_model=64..200 layers=1,5 dropout=0,0.15", fix="precision=bf16")
    for family in settings.families:
        space = settings.space_of(family, CPU)
        assert space.dimensions == {
            "d_model": (64, 96, 128, 192, 200), "heads": (4, 8, 16, 32), "layers": (1, 5), "dropout": (0.0, 0.15),
            "precision": ("bf16",),
        }  # fmt: skip
        assert {config["d_model"] for config in space.configs()} == {64, 96, 128, 192, 200}
        assert all((config["d_model"] // config["heads"]) % 2 == 0 for config in space.configs())
        assert space.default()["d_model"] == CENTRE["d_model"]
    again = Settings.from_stored(json.loads(json.dumps(settings.stored())))
    assert again == settings
    wide = Settings(budget="1h", range="d_model=512..1024").space_of("nanogpt", CPU)
    assert wide.dimensions["d_model"] == (512, 768, 1024)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("asked", ["precision=fp32", "d_model=64,128", "heads=4", "layers=2,4", "dropout=0,0.1"])
def test_a_range_is_of_the_families_that_have_the_dimension_and_leaves_others_as_they_are(asked: str) -> None:
    register("made")(type("Made", (Bigrams,), {}))
    name, _, values = asked.partition("=")
    settings = Settings(budget="1h", families="made,nanogpt", range=asked)
    assert len(settings.space_of("nanogpt", CPU).dimensions[name]) == len(values.split(","))
    assert settings.space_of("made", CPU).dimensions == {"width": (4, 8, 16)}


def test_a_file_says_the_same_and_a_range_counts_more(here: Path) -> None:
    (here / "shapes.toml").write_text("d_model = { low = 64, high = 128 }\nlayers = [2, 10]\n")
    settings = Settings(budget="1h", space=here / "shapes.toml", range="layers=3")
    dimensions = settings.space_of("nanogpt", CPU).dimensions
    assert dimensions["d_model"] == (64, 96, 128) and dimensions["layers"] == (3,)


def test_a_mapping_in_python_is_what_such_a_file_says_of_a_family_too(here: Path) -> None:
    (here / "shapes.toml").write_text("d_model = { low = 64, high = 128 }\nlayers = [2, 10]\n")
    given = {"d_model": {"low": 64, "high": 128}, "layers": [2, 10]}
    assert Settings(budget="1h", space=given) == Settings(budget="1h", space=here / "shapes.toml")
    with pytest.raises(UserError, match=r"^--space: 'layers' has 3: write a list of values[^\n]*$"):
        Settings(budget="1h", space={"layers": 3})


def test_of_a_loop_too_a_range_is_in_the_place_of_what_its_space_has(here: Path) -> None:
    settings = Settings(budget="1h", **LOOP, range="rate=0.001..0.01 width=512")
    varying = settings.own_space.given
    assert varying["width"].values == (512,) and (varying["rate"].low, varying["rate"].high) == (1e-3, 1e-2)
    assert varying["rate"].log, "it is drawn as it was"
    assert Settings.from_stored(settings.stored(), train=settings.train) == settings


@pytest.mark.parametrize(
    ("given", "typed"),
    [
        ({"range": {"d_model": "64..128", "layers": [2, 4]}}, {"range": "d_model=64..128 layers=2,4"}),
        ({"range": [{"d_model": "64..128"}, {"layers": [2, 4]}]}, {"range": "d_model=64..128 layers=2,4"}),
        ({"range": ["d_model=64..128", "layers=2,4"]}, {"range": "d_model=64..128 layers=2,4"}),
        ({"first": ["d_model=64,heads=4", "layers=2"]}, {"first": "d_model=64,heads=4 layers=2"}),
        ({"first": [{"d_model": 64, "heads": 4}, "layers=2"]}, {"first": "d_model=64,heads=4 layers=2"}),
        ({"first": {"d_model": 64, "heads": 4}}, {"first": "d_model=64,heads=4"}),
        ({"first": ("d_model=64,heads=4", "layers=2")}, {"first": "d_model=64,heads=4 layers=2"}),
        ({"range": ("d_model=64..128", "layers=2,4")}, {"range": "d_model=64..128 layers=2,4"}),
        ({"families": ["nanogpt"]}, {"families": "nanogpt"}),
    ],
)
def test_lists_and_mappings_in_python_and_in_a_file_are_what_is_typed_once_or_several_times(
    here: Path, given: dict[str, Any], typed: dict[str, str]
) -> None:
    asked = Settings(budget="1h", **typed)
    assert Settings(budget="1h", **given) == asked
    (here / "study.yaml").write_text(yaml.safe_dump({"budget": "1h", **given}))
    assert cli.parse(Settings, ["--config", str(here / "study.yaml")]) == asked
    words = [word for name, text in typed.items() for each in text.split() for word in (f"--{name}", each)]
    assert cli.parse(Settings, ["--budget", "1h", *words]) == asked


@pytest.mark.parametrize(("optimizers", "left"), [("adam", ["optimizer"]), ("sgd,adam", ["optimizer", "momentum"])])
def test_what_is_there_only_beside_values_that_a_range_leaves_out_is_not_there(
    optimizers: str, left: list[str]
) -> None:
    space = {
        "optimizer": choice("sgd", "adam", "lion"), "momentum": floats(0.5, 0.9, when={"optimizer": ("sgd", "lion")})
    }  # fmt: skip
    settings = Settings(
        budget="1h", train=lambda config: None, metric="loss", space=space, range=f"optimizer={optimizers}"
    )
    assert list(settings.own_space.given) == left


def test_a_range_in_the_place_of_a_loops_own_is_whole_where_that_is() -> None:
    space: dict[str, Any] = {"drop": floats(0, 0.5), "layers": integers(2, 8), "part": [0.5, 0.75], "kind": ["a", "b"]}
    settings = Settings(
        budget="1h", train=lambda config: None, space=space, metric="loss",
        range="drop=0..1 layers=2..4 part=0..1 kind=c,7",
    )  # fmt: skip
    given = settings.own_space.given
    assert not given["drop"].whole and given["layers"].whole and not given["part"].whole
    assert given["layers"].count == 3 and given["kind"].values == ("c", 7), "words stay as free as they were"


VARIED = {"vary": "context", "families": "nanogpt"}


@pytest.mark.parametrize(
    "asked", [{}, {"set": "architecture=nanogpt"}, {**VARIED, "set": "architecture=nanogpt,context=64"}]
)
def test_at_most_leaves_out_what_is_larger_and_nothing_else(
    surveyed: Callable[..., SearchContext], asked: dict[str, str], tmp_path: Path
) -> None:
    """The bound is what a model of nanogpt has with the recipe's own context."""
    free = surveyed(**asked)

    def weights(family: str, config: Config) -> int:
        data = free.data[family]
        return FAMILIES[family].parameters(free.config(family, config), data.vocabulary, pad_of(data))

    most = weights("nanogpt", free.spaces["nanogpt"].nearest({"d_model": 64, "layers": 2}))
    bound = surveyed(**asked, at_most=f"parameters={most}")
    for family, space in bound.spaces.items():
        for config in free.spaces[family].configs():
            small = weights(family, config) <= most
            assert space.contains(config) <= small
            if "vary" not in asked:
                assert space.contains(config) == small
        assert "vary" not in asked or max(space.dimensions["context"]) > bound.recipes[family].context
        assert 0 < space.count == len(list(space.configs())) < free.spaces[family].count
        for config in suggestions(bound, family, tmp_path / family):
            assert weights(family, config) <= most


@pytest.mark.parametrize("search", ["random", "prior", "tpe"])
def test_what_is_asked_for_first_is_tried_first_and_the_rest_is_the_defaults(
    surveyed: Callable[..., SearchContext], search: str, tmp_path: Path
) -> None:
    context = surveyed(search=search, first="d_model=64,layers=2 d_model=256,dropout=0.3")
    for family, space in context.spaces.items():
        one, two, three = islice(suggestions(context, family, tmp_path / family), 3)
        default = space.default()
        assert one == {**default, "d_model": 64, "layers": 2} and two == {**default, "d_model": 256, "dropout": 0.3}
        assert search == "random" or three == default | {"dropout": three["dropout"]}  # which suits the cap


@pytest.mark.usefixtures("forgotten")
def test_what_is_asked_for_first_is_asked_of_the_families_that_have_it(
    surveyed: Callable[..., SearchContext], tmp_path: Path
) -> None:
    register("made")(type("Made", (Bigrams,), {}))
    contexts = {first: surveyed(families="made,nanogpt", first=first) for first in ("width=16", "")}
    asked, free = (
        {family: next(suggestions(context, family, tmp_path / f"{family}{first}")) for family in context.spaces}
        for first, context in contexts.items()
    )
    assert asked["made"] == {"width": 16} != free["made"] and asked["nanogpt"] == free["nanogpt"]


def test_a_study_goes_on_without_what_was_asked_for_first_in_a_precision_that_its_device_lacks(here: Path) -> None:
    asked = Settings(budget="1h", families="nanogpt", first="precision=bf16 d_model=64")
    space = asked.space_of("nanogpt", ("fp32",))
    with pytest.raises(UserError, match=r"^--first: 'precision=bf16' is not in the space of nanogpt: choose of fp32$"):
        first_configs(asked, space)
    assert first_configs(replace(asked, resume=here), space) == [space.nearest({"d_model": 64})]


@pytest.mark.parametrize("family", ["nanogpt", "translation"])
@pytest.mark.parametrize("flag", ["set", "range"])
def test_a_step_that_was_asked_for_has_a_row_at_least_and_the_rate_follows_what_it_has(
    surveyed: Callable[..., SearchContext], flag: str, family: str
) -> None:
    asked = {"families": family} | ({"vary": "batch_tokens"} if flag == "range" else {})
    with pytest.raises(UserError, match=rf"^--{flag}: 'batch_tokens=8': a step of {family}[^\n]*: write batch_tokens="):
        surveyed(**asked, **{flag: "batch_tokens=8" if flag == "set" else "batch_tokens=8..640"})
    context = surveyed(**asked, **{flag: "batch_tokens=640" if flag == "set" else "batch_tokens=256,640"})
    config = context.config(family, context.spaces[family].default())
    shape = batch_shape(context.data[family], batch_tokens=config.batch_tokens, context=config.context)
    assert abs(shape.rows * shape.target - config.batch_tokens) <= shape.target / 2


def test_what_is_counted_is_whole_however_it_was_typed(surveyed: Callable[..., SearchContext]) -> None:
    typed = "batch_tokens=1e3..4e3 context=64.0,128.0 learning_rate=1e-3,1"
    (space,) = surveyed(families="nanogpt", vary="batch_tokens,context,learning_rate", range=typed).spaces.values()
    assert {1000, 4000} <= set(space.dimensions["batch_tokens"]) and space.dimensions["context"] == (64, 128)
    assert {type(value) for name in ("batch_tokens", "context") for value in space.dimensions[name]} == {int}


@pytest.mark.parametrize("after", [4, 0])
def test_siblings_in_dropout_wait_for_other_shapes_where_dropout_waits(
    surveyed: Callable[..., SearchContext], after: int, tmp_path: Path
) -> None:
    context = surveyed(families="nanogpt", fix="layers=2", set=f"dropout_after={after}")
    given = [*islice(suggestions(context, "nanogpt", tmp_path / "study"), 12)]
    shapes = {(config["d_model"], config["heads"], config["precision"]) for config in given}
    assert (len(shapes) == len(given)) == (after > 0)


@pytest.mark.parametrize(("cores", "each"), [(4, 1), (2, 1), (1, 8), (1, 2)])
def test_a_recipe_counts_the_device_seconds_that_one_trial_can_have(here: Path, cores: int, each: int) -> None:
    """As long as no trial has the cap to itself: by what it holds of the devices."""

    def compute(**asked: Any) -> float:
        devices = replace(CORE, count=8, cores=64, cores_each=asked.get("cores_per_trial", 1))
        devices = replace(devices, kind="cuda", memory_bytes=10**11) if "trials_per_gpu" in asked else devices
        settings = Settings(budget="8h", families="nanogpt", text_corpus=here / "text.txt", **asked)
        (found,) = make_search_context(settings, devices).recipes.values()
        return found.weights * found.tokens / found.flops

    of_one = {"devices": 8, "oversubscribe": True}
    alone = compute(**of_one, cores_per_trial=1) if cores > 1 else compute(**of_one, trials_per_gpu=1)
    shared = compute(**of_one, cores_per_trial=cores) if cores > 1 else compute(**of_one, trials_per_gpu=each)
    assert shared == pytest.approx(alone * cores / each, rel=0.01)


def test_what_a_study_was_asked_for_can_be_asked_for_again_from_its_file(here: Path) -> None:
    texts = {"text_corpus": here / "text.txt", "translation_corpus": here / "pairs.txt"}
    settings = Settings(
        budget="90m", families="nanogpt", fix="heads=4", vary="weight_decay", range="d_model=64..128 layers=2,10",
        first="d_model=64 d_model=96,layers=10", at_most="parameters=2M", set="context=128", oversubscribe=True,
        devices=3, **texts,
    )  # fmt: skip
    study = here / "study.json"
    study.write_text(json.dumps({"settings": settings.stored(), "recipes": {}}))
    assert cli.parse(Settings, ["--config", str(study)]) == settings
    typed = cli.parse(Settings, ["--seed", "5", "--config", str(study), "--budget", "2h"])
    assert (typed.seed, typed.budget, typed.fix) == (5, 7200.0, settings.fix)
    file = here / "study.yaml"
    file.write_text(
        f"budget: 90m\nfamilies: nanogpt\nfix: {{heads: 4}}\nvary: [weight_decay]\nset: {{context: 128}}\n"
        "range: {d_model: 64..128, layers: [2, 10]}\nfirst: [{d_model: 64}, {d_model: 96, layers: 10}]\n"
        "at-most: parameters=2M\noversubscribe: true\nskip-bad-lines: false\ndevices: 3\n"
        f"text_corpus: {here / 'text.txt'}\ntranslation_corpus: {here / 'pairs.txt'}\n"
    )
    assert cli.parse(Settings, ["--config", str(file)]) == settings


def test_a_file_of_settings_never_says_what_is_executed(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = here / "study.yaml"
    file.write_text("budget: 1h\ntrain: ../train.py:train\nspace: {width: [64, 128]}\nmetric: loss\n")
    assert cli.main(Settings, ["--config", str(file)]) == 2
    assert "add --train ../train.py:train" in capfd.readouterr().err
    settings = cli.parse(Settings, ["--config", str(file), "--train", "../train.py:train"])
    assert settings.own_space.given["width"].values == (64, 128)
    (here / "study.json").write_text(json.dumps({"settings": settings.stored()}))
    assert cli.main(Settings, ["--plan", "--resume", str(here)]) == 2
    assert re.match("--plan: '.*' is of a training loop of yours, .*: leave it out$", capfd.readouterr().err)


def test_in_a_file_numbers_are_those_of_toml(here: Path) -> None:
    space = (
        "{rate: [1e-4, 1.5E+2, .5e1, '1e-4'], low: {low: 1e-4, high: 1e-2}, day: [2020-01-01, 2021-01-01], on: [1, 2]}"
    )
    (here / "study.yaml").write_text(f"budget: 1h\nmetric: loss\nspace: {space}\n")
    given = cli.parse(Settings, ["--config", str(here / "study.yaml"), "--train", "../train.py:train"]).own_space.given
    assert given["rate"].values == (1e-4, 150.0, 5.0, "1e-4") and given["day"].values == ("2020-01-01", "2021-01-01")
    assert (given["low"].low, given["low"].high) == (1e-4, 1e-2)


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (3, "3 is no function"),
        (Dimension, ".* is no function"),
        (lambda: None, "'<lambda>' takes no argument"),
        (lambda a, b: None, "'<lambda>' needs 2 arguments"),
        (lambda config: (yield config), "'<lambda>' is a generator or async: give a function that calls report"),
        (functools.partial(asyncio.sleep, result=None), "'train' is a generator or async"),
    ],
)
def test_what_cannot_train_is_refused(train: Any, said: str) -> None:
    with pytest.raises(UserError, match=rf"^--train: {said}[^\n]*$"):
        Settings(budget="1h", train=train, space={"width": (1, 2)}, metric="loss")


@pytest.mark.usefixtures("no_hooks_of_ray")
@pytest.mark.parametrize("given", [functools.partial, ray.tune.with_parameters])
def test_one_that_yields_is_refused_whatever_it_is_given_by(given: Callable[..., Any]) -> None:
    async def train(config: dict[str, Any], data: int) -> AsyncIterator[int]:
        yield data

    for one in (train, lambda config, data: (yield data)):
        with pytest.raises(UserError, match=r"^--train: '.*' is a generator or async"):
            Settings(budget="1h", train=given(one, data=3), space={"width": (1, 2)}, metric="loss")


def test_a_function_that_holds_what_cannot_travel_is_refused(tmp_path: Path) -> None:
    file = (tmp_path / "open").open("w")

    def train(config: dict[str, Any]) -> None:
        file.write("")

    settings = Settings(budget="1h", train=train, space={"width": (1, 2)}, metric="loss")
    with pytest.raises(UserError, match=r"^--train: 'train' cannot go to another process \([^\n]*\): keep such things"):
        loop_of(settings)


@pytest.mark.usefixtures("no_hooks_of_ray")
@pytest.mark.parametrize("given", [functools.partial, ray.tune.with_parameters])
def test_a_function_with_some_arguments_given_is_of_its_own_file(
    given: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "given_some.py").write_text("def train(config, data): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    train = functools.partial(given(importlib.import_module("given_some").train, data=3))
    loop = loop_of(Settings(budget="1h", train=train, space={"width": (1, 2)}, metric="loss"))
    assert loop.folder == tmp_path
    del sys.modules["given_some"]
    monkeypatch.undo()  # as in another process
    assert loop.pickled and pickle.loads(loop.pickled)({}) is None


@pytest.mark.usefixtures("no_hooks_of_ray")
def test_a_function_whose_arguments_are_in_a_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process has none."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    train = ray.tune.with_parameters(lambda config, data: None, data=ray.ObjectRef(bytes(28)))
    settings = Settings(budget="1h", train=train, space={"width": (1, 2)}, metric="loss")
    with pytest.raises(UserError, match=r"^--train: what ray\.tune\.with_parameters gave '<lambda>' is in Ray[^\n]*$"):
        loop_of(settings)


def test_a_function_of_a_module_that_is_run_by_its_name_is_of_the_folder_above_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_mine").mkdir()
    (tmp_path / "of_mine" / "__init__.py").touch()
    (file := tmp_path / "of_mine" / "search.py").write_text(
        "from tune.own_loop import loop_of\nfrom tune.settings import Settings\n"
        "def train(config): ...\n"
        "folder = loop_of(Settings(budget='1h', train=train, space={'width': (1, 2)}, metric='loss')).folder\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    named = runpy.run_module("of_mine.search", run_name="__main__", alter_sys=True)
    assert named["folder"] == tmp_path
    assert runpy.run_path(str(file), run_name="__main__")["folder"] == file.parent


def test_a_function_beside_another_tune_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_another.py").write_text("def train(config): ...\n")
    (tmp_path / "tune.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    train = importlib.import_module("beside_another").train
    with pytest.raises(UserError, match=r"^tune: '.*tune\.py' hides the `tune` that is Ration's: rename it"):
        make_loop_context(Settings(budget="1h", train=train, space={"width": (1, 2)}, metric="loss"), CORE)


@pytest.mark.parametrize("space", [{}, {"width": 3}, {1: [2]}, [1, 2], {"width": object()}])
def test_a_space_from_python_that_cannot_be_is_refused(space: Any) -> None:
    with pytest.raises(UserError, match=r"^--space: [^\n]*$"):
        Settings(budget="1h", train=lambda config: None, space=space, metric="loss")


def test_what_is_stored_of_a_loop_gives_the_same_settings_again_once_its_file_is_named(here: Path) -> None:
    for more in ({"metric": "loss"}, {"maximize": "val/accuracy", "life": 5000}):
        original = Settings(budget="1h", train=LOOP["train"], space=LOOP["space"], **more)
        stored = json.loads(json.dumps(original.stored()))
        assert Settings.from_stored(stored, train=original.train) == original
        with pytest.raises(UserError, match=r"^--train: missing: [^\n]*$"):
            Settings.from_stored(stored)


def test_a_study_that_goes_on_in_another_file_says_so(here: Path) -> None:
    original = Settings(budget="1h", **LOOP)
    with Journal(None, new=True) as journal:
        journal.write_facts(settings=original.stored())
        assert not [*loop_change_warnings(original, journal)]
        Path("other.py").write_text("print()")
        (line,) = loop_change_warnings(replace(original, train="other.py"), journal)
    assert str(original.train) in line and line.endswith("other.py")


def test_the_printed_line_to_go_on_names_the_loop_its_mirror_and_its_cluster(here: Path) -> None:
    (here / "mirror").mkdir()
    settings = Settings(budget="1h", **LOOP, mirror=here / "mirror", address="10.0.0.1:6379")
    (here / "study").mkdir()
    (here / "study" / "study.json").write_text(json.dumps({"settings": settings.stored()}))
    _, script, *flags = shlex.split(settings.resume_command(here / "study"))
    assert script.endswith("/tune/run.py") and str(here / "mirror") in flags
    again = cli.parse(Settings, flags)
    assert (again.train, again.mirror, again.space) == (settings.train, here / "mirror", settings.space)
    assert again.address == settings.address
    _, _, *flags = shlex.split(settings.resume_command(here / "study", deadline="3h"))
    assert cli.parse(Settings, flags).deadline == 3 * 3600.0


@pytest.mark.parametrize(
    ("began", "said"),
    [(LOOP, "gone.py' cannot be read"), ({"families": "nanogpt"}, "' is of no training loop of yours: leave it out$")],
)
def test_of_a_loop_that_is_typed_wrongly_beside_resume_no_study_is_called_damaged(
    here: Path, monkeypatch: pytest.MonkeyPatch, began: dict[str, Any], said: str
) -> None:
    (here / "study.json").write_text(json.dumps({"settings": Settings(budget="1h", **began).stored()}))
    with pytest.raises(UserError, match=rf"^--train: '[^\n]*{said}"):
        Settings.of_study(here, train="gone.py" if began is LOOP else LOOP["train"])
    monkeypatch.setattr("tune.settings.load_families", lambda file: None)
    beside = "--load: is not for --train: leave it out$" if began is LOOP else f"--train: '[^\n]*{said}"
    with pytest.raises(UserError, match=f"^{beside}"):
        Settings.of_study(here, train=LOOP["train"], load=here / "mine.py")


def test_what_is_to_change_is_inside_of_the_call_that_goes_on_with_a_function(here: Path) -> None:
    def train(config: dict[str, Any]) -> None: ...

    settings = Settings(budget="1h", train=train, space={"width": [1, 2]}, metric="loss", address="10.0.0.1:6379")
    (here / "study.json").write_text(json.dumps({"settings": settings.stored()}))
    with pytest.raises(UserError, match=r"^--resume: '[^\n]*' is of a training loop of yours: call ") as refused:
        Settings.of_study(here)
    asked = []
    for said in (settings.resume_command(here, deadline="3h"), str(refused.value).partition(": call ")[2]):
        call, _, where = said.rpartition(" in ")
        asked.append(eval(call, {"search": lambda settings: settings, "Settings": Settings, "train": train}))
        assert where == "Python" and asked[-1].train is train
    assert [(each.deadline, each.address) for each in asked] == [(3 * 3600.0, settings.address), (None, None)]
