"""The laws of the recipe: it grows with the cap, what is set wins, a study keeps its own, and ten minutes of a core get
what was tuned there.
"""

import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from model.config import OF_ARCHITECTURE, RECIPES, Config, model_config
from model.cost.estimates import flops_per_token
from model.families import FAMILIES
from model.training.learner import missing_for_compiling
from tests.tune.test_registry import CORE
from tune.assembly import frame_of, make_engine, shortest_rung
from tune.dry_run import make_plan, plan_lines
from tune.errors import UserError
from tune.recipe import (
    LEAST_STEPS,
    NOMINAL,
    ROWS,
    SETTABLE,
    STEPS_AT_FIRST,
    WINDOWS,
    Recipe,
    StepPrices,
    evaluation_tokens,
    first_steps,
    life_share,
    most_weights,
    parse_set,
    recipe,
    set_text,
)
from tune.reports import EPOCHS_AS_NEW
from tune.search.earlier import WarmStart
from tune.search.engine import Engine
from tune.search.forecast import Progress
from tune.search.policy import BudgetLeft, Finish, Promote
from tune.search.successive_halving import SuccessiveHalving
from tune.search_context import DEAREST_SHARE, make_search_context, measured_prices
from tune.search_context import LEAST_STEPS as LEAST_TIMED
from tune.search_space import CENTRE, PER_LAYER, layer_weights
from tune.settings import Settings
from tune.store.journal import Journal

CORE_PRICES, GPU_PRICES = StepPrices(flops=2e11), StepPrices(flops=1e13, launch_seconds=1e-6)
DAY = 86_400.0
CAPS = [2.0**power for power in range(4, 22)]
"""16 seconds to 24 days."""


def made(family: str = "nanogpt", **changes: Any) -> Recipe:
    """Of a core and a text of a megabyte."""
    base = RECIPES.get(family, RECIPES["nanogpt"])
    ends = [{"d_model": 16, "layers": 2}, {"d_model": 512, "layers": 16}]
    sizes = tuple(layer_weights(family, each) if family in PER_LAYER else 0.0 for each in ends)
    given = {
        "base": base, "given": {}, "family": family, "kind": "cpu", "seconds": 300.0, "prices": CORE_PRICES,
        "text_tokens": 10**6, "windowed_tokens": 55_000 if family == "nanogpt" else None, "sizes": sizes,
    }  # fmt: skip
    return recipe(**{**given, **changes})


@pytest.mark.parametrize("family", PER_LAYER)
@pytest.mark.parametrize(("kind", "prices", "text"), [("cpu", CORE_PRICES, 10**6), ("cuda", GPU_PRICES, 10**9)])
def test_a_larger_cap_never_makes_it_smaller(family: str, kind: str, prices: StepPrices, text: int) -> None:
    many = {"kind": kind, "text_tokens": text, "windowed_tokens": text // 20 if family == "nanogpt" else None}
    found = [made(family, seconds=seconds, prices=prices, **many) for seconds in CAPS]
    for name in ("context", "batch_tokens", "weights", "tokens"):
        values = [getattr(each, name) for each in found]
        assert values == sorted(values), name
    assert found[0].weights < found[-1].weights and found[0].tokens < found[-1].tokens
    for each in found:
        assert each.learning_rate >= RECIPES[family]["learning_rate"] and each.betas[1] <= RECIPES[family]["betas"][1]


@pytest.mark.parametrize(
    ("family", "search", "beside"), [("nanogpt", "tpe", 0.8), ("translation", "tpe", 0.7), ("nanogpt", "random", 0.7)]
)
def test_a_leader_has_so_much_of_a_wall_clock_in_which_others_run_beside_it(
    family: str, search: str, beside: float
) -> None:
    settings = Settings(budget="1h", families=family, search=search)
    frame = frame_of(settings, family, WarmStart(), slots=4, share=1.0, shortest=5.0)
    assert frame.fit(600.0, 300.0).kept == pytest.approx(beside * 300)
    alone = replace(frame, slots=1)
    for ladder in (frame.fit(600.0), alone.fit(1200.0, deadline=600.0)):
        assert ladder.kept == pytest.approx(life_share(family, suggested=search != "random") * 600)


def test_a_gpu_with_hours_is_given_longer_contexts_and_larger_steps_than_a_core_with_minutes() -> None:
    core = made()
    gpu = made(kind="cuda", prices=GPU_PRICES, seconds=DAY / 6, text_tokens=10**8, windowed_tokens=10**7)
    assert gpu.context >= 256 > 64 <= core.context
    assert gpu.batch_tokens >= 8 * core.batch_tokens and gpu.learning_rate > core.learning_rate
    assert gpu.tokens / gpu.batch_tokens >= LEAST_STEPS
    half_life = [math.log(0.5) / math.log(each.betas[1]) * each.batch_tokens for each in (core, gpu)]
    assert half_life[1] >= half_life[0]
    assert 5 <= gpu.tokens / gpu.weights <= 100


@pytest.mark.parametrize("family", PER_LAYER)
def test_ten_minutes_of_a_core_have_the_familys_own_recipe_but_for_the_context(family: str) -> None:
    found, own = made(family), RECIPES[family]
    assert {name: value for name, value in found.config.items() if own[name] != value}.keys() <= {"context"}
    assert own["context"] <= found.context <= 256
    assert 1 / 2 < made(family, seconds=600.0).weights / layer_weights(family, CENTRE) < 2


@pytest.mark.parametrize("family", PER_LAYER)
def test_what_suits_a_text_that_is_seen_again_and_again_grows_with_the_text_not_with_the_cap(family: str) -> None:
    def weights(seconds: float, text_tokens: int) -> float:
        return made(family, seconds=seconds, text_tokens=text_tokens).weights

    assert weights(300.0, 10**6) == weights(300.0, 10**9)
    assert weights(30 * DAY, 10**6) == weights(60 * DAY, 10**6) < weights(30 * DAY, 10**9)
    assert weights(60 * DAY, 2 * 10**6) == pytest.approx(2 * weights(60 * DAY, 10**6))
    assert weights(60 * DAY, 50_000) == layer_weights(family, CENTRE)  # of a small text the default's at least
    small, large = (made(family, seconds=60 * DAY, text_tokens=text) for text in (10**6, 10**9))
    assert (small.context, small.batch_tokens) == (large.context, large.batch_tokens) and small.tokens > large.tokens
    if family == "nanogpt":  # which its reason tells, of the size that suits the compute, whatever the text
        tokens = f"{life_share(family) * large.tokens / 1e6:.3g}M tokens"
        assert small.why["context"] == f"of the size that suits the cap a last trial has {tokens}"


def test_a_small_text_or_a_small_step_has_no_long_context() -> None:
    for changes in ({"windowed_tokens": 10_000}, {"given": {"batch_tokens": 600}}):
        found = made(seconds=DAY, **changes)
        assert found.context < made(seconds=DAY).context
        assert found.context * ROWS <= found.batch_tokens
    assert made(seconds=DAY, windowed_tokens=10_000).context * WINDOWS <= 10_000
    assert made(seconds=DAY, windowed_tokens=100).context == RECIPES["nanogpt"]["context"]


@pytest.mark.parametrize("family", [*PER_LAYER, "own"])
def test_what_is_set_wins_and_the_rest_follows(family: str) -> None:
    given = {"context": 32, "batch_tokens": 4096, "learning_rate": 1e-4, "warm_up_steps": 7, "weight_decay": 0.5}
    found = made(family, given=given)
    if family == "translation":
        assert found.context == RECIPES[family]["context"]  # its rows are sentences
        del given["context"]
    assert found.config.items() >= given.items() and {found.why[name] for name in given} == {"given"}
    for name, value in given.items():
        alone = made(given={name: value})
        assert alone.config[name] == value
    batch = made(given={"batch_tokens": 4 * RECIPES["nanogpt"]["batch_tokens"]})
    assert batch.learning_rate == 2 * RECIPES["nanogpt"]["learning_rate"] and batch.betas[1] < 0.99
    assert made(given={"context": 1024}).batch_tokens >= ROWS * 1024


@pytest.mark.parametrize("family", PER_LAYER)
@pytest.mark.parametrize("seconds", [30.0, DAY])
def test_a_trial_whose_batch_is_its_own_has_the_rate_and_warm_up_and_beta2_that_a_study_of_that_batch_has(
    family: str, seconds: float
) -> None:
    given = {"context": 64, "weight_decay": 0.5}
    study = Recipe.from_stored(json.loads(json.dumps(asdict(made(family, seconds=seconds, given=given)))))
    for batch in (192, 384, 768, 1024, 3072, 16_384):
        whole = made(family, seconds=seconds, given={**given, "batch_tokens": batch}).config
        assert study.at({"batch_tokens": batch, "layers": 2}) == {**whole, "layers": 2}
        assert study.around(10 * study.weights).at({"batch_tokens": batch}) == whole
        assert study.at({"batch_tokens": batch, "learning_rate": 0.5}) == {**whole, "learning_rate": 0.5}
        set_too = {**given, "learning_rate": 1e-4, "warm_up_steps": 7}
        assert made(family, seconds=seconds, given=set_too).at({"batch_tokens": batch}).items() >= {
            "learning_rate": 1e-4, "warm_up_steps": 7, "betas": whole["betas"]
        }.items()  # fmt: skip
    assert study.at({"layers": 2}) == {**study.config, "layers": 2}
    own = made("own", given={"learning_rate": 0.5})
    assert own.at({"batch_tokens": 9}) == {**own.config, "batch_tokens": 9}


def test_a_family_of_ones_own_keeps_its_own_whatever_the_cap() -> None:
    own = {**RECIPES["nanogpt"], "learning_rate": 0.3, "batch_tokens": 5}
    for seconds in (1.0, 30 * DAY):
        found = made("own", base=own, seconds=seconds, prices=GPU_PRICES)
        assert found.config.items() <= {**own, "betas": found.betas}.items()


def test_stored_and_typed_forms_are_read_back_and_strangers_are_refused() -> None:
    given = {"context": 256, "learning_rate": 0.0012345678901, "weight_decay": 1e-05}
    assert parse_set(set_text(given)) == given
    stored = json.loads(json.dumps(asdict(made())))
    assert Recipe.from_stored(stored) == made()
    for window in (made().context, 2**20):
        assert Recipe.from_stored({**stored, "evaluation_window": window}).evaluation_window == window
    for change in (
        {"context": 10**9}, {"context": "x"}, {"context": 64.5}, {"betas": [0.9]}, {"betas": [0.9, 2]}, {"why": [1]},
        {"own": [1]}, {"own": {"life": 1.0}}, {"own": {"batch_tokens": 0, "life": 1}}, {"evaluation_window": 0.5},
        {"evaluation_window": "x"},
        {"evaluation_window": made().context + 1},
        {"weights": math.inf}, {"tokens": None}, {"why": {"context": 3}}, {"learning_rate": [1]}, {"more": 1},
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError, AttributeError)):
            Recipe.from_stored({**stored, **change})
    for lacking in SETTABLE:
        with pytest.raises(KeyError):
            Recipe.from_stored({name: value for name, value in stored.items() if name != lacking})


@pytest.mark.parametrize(("budget", "d_model", "measured"), [(600.0, 128, 128), (3600.0, 256, 256), (20.0, 1024, 64)])
def test_to_measure_prices_takes_little_of_the_cap_however_large_models_are(
    text: Path, monkeypatch: pytest.MonkeyPatch, budget: float, d_model: int, measured: int
) -> None:
    """By nominal prices, the steps that are measured at least: narrower models have about the same ones."""
    timed: list[Config] = []
    monkeypatch.setattr("tune.search_context.step_seconds", lambda config, *_, **__: timed.append(config) or [1.0])
    settings = Settings(budget=budget, families="nanogpt", text_corpus=text, range={"d_model": str(d_model)})
    context = make_search_context(settings, CORE)
    (config,) = timed
    assert config.d_model == measured and context.probed == 1.0
    seconds = FAMILIES["nanogpt"].step_flops(config, context.data["nanogpt"]) / NOMINAL["cpu"].flops
    assert LEAST_TIMED * seconds <= DEAREST_SHARE * budget
    with pytest.raises(UserError, match=r"^--families: 'nanogpt' with d_model \d+, 4 layers: .* smaller ones$"):
        monkeypatch.setattr("tune.search_context.dry_batch", lambda *_: (_ for _ in ()).throw(MemoryError()))
        make_search_context(settings, CORE)


@pytest.mark.parametrize("d_model", [256, 1024, 4096])
def test_nor_does_it_on_a_gpu_where_small_steps_and_full_ones_are_measured(
    text: Path, monkeypatch: pytest.MonkeyPatch, d_model: int
) -> None:
    timed: list[Config] = []
    monkeypatch.setattr("tune.search_context.step_seconds", lambda config, *_, **__: timed.append(config) or [1.0])
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    settings = Settings(budget=20.0, families="nanogpt", text_corpus=text)
    data = make_search_context(settings, CORE).data["nanogpt"]
    settings = replace(settings, range={"d_model": str(d_model)})
    space = settings.space_of("nanogpt", CORE.precisions)
    timed.clear()
    measured_prices(settings, replace(CORE, kind="cuda"), space, data)
    assert len(timed) == 2
    for config in timed:
        assert LEAST_TIMED * FAMILIES["nanogpt"].step_flops(config, data) <= DEAREST_SHARE * 20 * NOMINAL["cuda"].flops


@pytest.fixture
def asked(text: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """For a search on a short text, on a machine whose prices are known after a second."""
    monkeypatch.setattr("tune.search_context.measured_prices", lambda *_: (StepPrices(flops=2e10), 1.0))
    return Settings(budget=600.0, families="nanogpt", text_corpus=text)


def started(settings: Settings, folder: Path) -> tuple[Engine, Journal]:
    """The engine of a search on a core, and its journal, with its facts written down."""
    context = make_search_context(settings, CORE)
    folder.mkdir(exist_ok=True)
    (folder / "study.json").write_text(json.dumps(context.facts()))
    journal = Journal(folder, new=settings.resume is None)
    return make_engine(context, journal, []), journal


@pytest.mark.parametrize(("search", "leader"), [("tpe", "default"), ("prior", "default"), ("random", "odd")])
def test_of_a_search_that_suggests_who_leads_is_the_priors_too(
    asked: Settings, tmp_path: Path, search: str, leader: str
) -> None:
    engine, journal = started(replace(asked, search=search), tmp_path / "study")
    family = engine.families["nanogpt"]
    assert isinstance(family.policy, SuccessiveHalving)
    default = {**CENTRE, "precision": "fp32"}
    configs = {"default": default, "odd": default | {"d_model": 512}, "small": default | {"d_model": 64}}
    for trial, config in configs.items():
        family.suggestions.note_tried(trial, config)
    for rung in (0, 1):
        for trial, above in {"default": 0.0, "odd": -0.001, "small": 0.4}.items():
            family.policy.on_promoted(trial, rung, 1.0)
            at = Progress(size=1e5 if trial == "small" else 2e5, tokens=1e6 * 2**rung, seconds=10.0 * 2**rung)
            family.policy.on_reported(trial, rung, 3.0 + above - 0.5 * rung, progress=at)
    family.policy.has_more = False
    move = family.policy.decide(BudgetLeft(seconds=500.0, slots=1, running=0))
    assert isinstance(move, Promote | Finish) and move.trial == leader
    journal.close()


@pytest.mark.parametrize("compiler", ["no-such-compiler", ""])
@pytest.mark.parametrize(("address", "said"), [(None, True), ("auto", False)])
def test_a_search_says_what_is_missing_to_compile_steps_on_this_machine(
    asked: Settings, monkeypatch: pytest.MonkeyPatch, address: str | None, said: bool, compiler: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    notes = make_search_context(replace(asked, address=address), CORE).notes
    assert any(note.startswith(f"no {compiler or 'CXX'}: ") for note in notes) is said


def test_a_search_says_where_no_compiled_code_may_be_run_and_that_another_folder_serves(
    asked: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if missing_for_compiling():
        pytest.skip("nothing is compiled here")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    (note,) = (each for each in make_search_context(asked, CORE).notes if "not compiled" in each)
    assert note.startswith(f"no code may be run in '{tmp_path}' (noexec): ")
    assert note.endswith("; name another folder by TORCHINDUCTOR_CACHE_DIR")


def test_a_study_keeps_its_recipe_on_whatever_machine_and_under_whatever_cap(
    asked: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tmp_path / "study"
    _, journal = started(replace(asked, set={"weight_decay": 0.25}, vary=("learning_rate",)), study)
    journal.close()
    before = json.loads((study / "study.json").read_text())
    monkeypatch.setattr("tune.search_context.measured_prices", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr("tune.recipe.CONTEXTS", {512: 1.0})
    context = make_search_context(Settings.of_study(study, budget="9h"), CORE)
    assert json.loads(json.dumps(context.facts()["recipes"])) == before["recipes"] and context.probed == 0
    config = context.config("nanogpt", {"d_model": 64, "learning_rate": 0.001})
    assert (config.weight_decay, config.learning_rate) == (0.25, 0.001) and config.context < 512
    for damage in ({"nanogpt": {}}, {"nanogpt": 3}, [], None):
        (study / "study.json").write_text(json.dumps({**before, "recipes": damage}))
        with pytest.raises(ValueError, match=r"^--resume: [^\n]*damaged[^\n]*$"):
            make_search_context(Settings.of_study(study), CORE)


def test_before_a_deadline_the_recipe_is_that_of_what_a_trial_can_have_until_then(asked: Settings) -> None:
    late, early, small = (
        make_search_context(replace(asked, budget=budget, deadline=deadline), CORE).recipes["nanogpt"]
        for budget, deadline in ((28_800.0, None), (28_800.0, 1200.0), (1200.0, None))
    )
    assert early == small != late


def test_what_earlier_studies_suggest_is_no_larger_than_the_text_allows(
    asked: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tune.search_context.suggested_model_size", lambda *_: 1e12)
    context = make_search_context(asked, CORE)
    tokens = context.data["nanogpt"].training_tokens
    assert context.recipes["nanogpt"].weights == most_weights("nanogpt", tokens)


def test_the_default_is_past_its_warm_up_after_rung_0_by_what_was_measured_where_the_recipe_goes_by_powers_of_two(
    asked: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = []
    for flops in (0.75 * 2.0**34, 1.4 * 2.0**34):
        monkeypatch.setattr("tune.search_context.measured_prices", lambda *_, of=flops: (StepPrices(flops=of), 1.0))
        context = make_search_context(asked, CORE)
        default = context.config("nanogpt", context.spaces["nanogpt"].default())
        step = FAMILIES["nanogpt"].step_flops(default, context.data["nanogpt"]) / flops
        assert shortest_rung(context, "nanogpt") == pytest.approx(first_steps(default.warm_up_steps) * step)
        recipes.append(context.recipes)
    assert recipes[0] == recipes[1]


@pytest.mark.parametrize("warm_up_steps", [1, 20, 50, 100, 20_000])
def test_a_longer_warm_up_makes_rung_0_no_longer_than_it_takes(warm_up_steps: int) -> None:
    steps = first_steps(warm_up_steps)
    assert warm_up_steps <= steps <= max(warm_up_steps, STEPS_AT_FIRST)


@pytest.mark.parametrize("given", ["", "context=16,32,64", "context=32..128", "batch_tokens=192,384"])
def test_contexts_that_vary_divide_the_window_on_which_all_are_judged(asked: Settings, given: str) -> None:
    """As do batches and rates beside them; what memory and prices ask of a point is of its own context."""
    context = make_search_context(
        replace(asked, vary=("context", "batch_tokens"), set={"context": 64}, range=given or {}), CORE
    )
    space, data = context.spaces["nanogpt"], context.data["nanogpt"]
    points = {space.default()["context"]: space.default()}
    for point in space.configs():
        points.setdefault(point["context"], point)
    configs = {length: context.config("nanogpt", point) for length, point in points.items()}
    assert len(configs) > 2 and {config.context for config in configs.values()} == set(configs)
    assert {config.evaluation_window for config in configs.values()} == {max(configs)}
    judged = {
        split: {FAMILIES["nanogpt"].span(config, data, split, 4096) for config in configs.values()}
        for split in ("valid", "test")
    }
    assert all(len(each) == 1 for each in judged.values())
    lengths = sorted(configs)
    flops = [context.memories["nanogpt"].predicted({**points[lengths[0]], "context": length}, 1) for length in lengths]
    assert flops == sorted(set(flops))
    plain = make_search_context(asked, CORE)
    assert plain.config("nanogpt", plain.spaces["nanogpt"].default()).evaluation_window is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("context=64,96", "'context=96' is no power of two times the recipe's 64, so that"),
        ("context=48", "'context=48' is no power"), ("context=64,192", "'context=192' is no power"),
        ("context=64,1024", "'context=1024' leaves fewer than 3 rows of a batch of 1,536 tokens"),
        ("context=64,512", "'context=512' leaves fewer than 64 windows of the validation split"),
    ],
)  # fmt: skip
def test_contexts_that_were_asked_for_and_cannot_be_judged_alike_are_refused(
    asked: Settings, given: str, said: str
) -> None:
    with pytest.raises(ValueError, match=rf"^--range: {said}[^\n]*: write context=16,32,64,128$"):
        make_search_context(replace(asked, vary=("context",), set={"context": 64}, range=given), CORE)


def test_measuring_is_charged_to_the_cap_before_anything_else_runs(asked: Settings, tmp_path: Path) -> None:
    engine, journal = started(asked, tmp_path / "study")
    spent = engine.accounting.ledger.spent
    assert 0 < spent == journal.rows("SELECT SUM(seconds) AS sum FROM charges")[0]["sum"] < asked.budget
    assert engine.next_assignment() is not None
    journal.close()
    with Journal(tmp_path / "study", new=False) as journal:
        assert journal.rows("SELECT opened FROM slots ORDER BY slot")[1]["opened"] >= spent


def test_a_plan_tells_it_with_its_reasons(asked: Settings) -> None:
    plan = make_plan(replace(asked, set={"context": 128}))
    lines = [line.split() for line in plan_lines(plan)]
    assert ["context", "128", "given"] in lines
    assert plan.families["nanogpt"].recipe.context == 128


@pytest.mark.parametrize("shape", [{"d_model": 128, "layers": 4}, {"d_model": 384, "layers": 2}])
def test_a_look_takes_as_much_of_a_rung_in_either_family(shape: dict[str, int]) -> None:
    """By the FLOPs of it, to a quarter: a target token of a pair has a source beside it."""
    costs = []
    for family, source, vocabulary in (("nanogpt", 0, 65), ("translation", 64, 2_048)):
        made = model_config(Config(family=family, **shape), vocabulary=vocabulary, pad=0)
        costs.append(evaluation_tokens("cpu", family, 30.0) * flops_per_token(made, target=64, source=source))
    assert max(costs) < 1.25 * min(costs)


def test_dropout_waits_while_the_text_is_new_but_for_upstream_and_for_whom_it_is_set() -> None:
    for family in ("nanogpt", "translation"):
        assert made(family).config["dropout_after"] == EPOCHS_AS_NEW
        assert made(family, given={"dropout_after": 0.0}).config["dropout_after"] == 0
    assert Config(family="nanogpt", architecture="nanogpt").dropout_after == 0


def test_upstreams_architecture_has_upstreams_optimizer_and_its_own_batch(asked: Settings) -> None:
    plan = make_plan(replace(asked, set={"architecture": "nanogpt"}))
    found = plan.families["nanogpt"].recipe.config
    assert found.items() >= {"architecture": "nanogpt", **OF_ARCHITECTURE["nanogpt"]}.items()
    assert made("translation", given={"architecture": "nanogpt", "taps": 2}) == made("translation")
