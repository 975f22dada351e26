"""The ablation: what it asks for, the effects that it finds, the report's parameters; and its study in virtual time."""

import json
import math
import shlex
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from model.config import RECIPES, Config
from model.cost.estimates import plain_parameters
from tests.training_rows import ablated, row
from tests.tune.experiments.conftest import studied
from tune.assembly import make_engine, make_trial_environment
from tune.devices import Devices, find_devices
from tune.experiments.ablation import (
    ABLATION,
    EPOCHS,
    OVERFITTING,
    UNITS,
    WORDS,
    Shape,
    ablation,
    agreement,
    common,
    interaction_effects,
    losses,
    main_effects,
    overfitting,
    overfitting_tables,
    published_by_shape,
    shape_of,
    slopes,
    steps_of,
    tables,
)
from tune.experiments.base import ExperimentSettings, Row, price
from tune.experiments.lists import make_list_context, run_list
from tune.reports import Report
from tune.search.engine import Engine
from tune.search.simulator import Clock, Costs, PowerLaw, Simulation
from tune.store.accounting import Assignment
from tune.store.journal import Journal, connect
from tune.study import start_local_ray
from tune.table_text import EMPTY_CELL

CPU = Devices(kind="cpu", count=2, model="core", precisions=("fp32", "bf16"), cores=2)
pytestmark = pytest.mark.usefixtures("known_prices")


def settings(**more: Any) -> ExperimentSettings:
    asked = {"budget": "1h", "families": "translation", "scale": 0.01, "devices": 2, "oversubscribe": True}
    return ExperimentSettings(**(asked | more))


def test_each_configuration_of_the_report_is_asked_for_at_equal_tokens_the_dearest_first():
    asked = ablation(CPU, settings())
    shapes = [shape_of(point.config) for point in asked]
    assert {*published_by_shape()} < {*shapes} and len(shapes) == len({*shapes}) == 33 + 14
    assert shapes[0] == Shape(512, 4, 16, 0.5) and shapes[-1].d_model == 16
    assert {point.asked["steps"] for point in asked} == {steps_of(settings())}
    assert {shape.layers for shape in shapes if shape.dropout == 0} == {2, 4}
    for point in asked:
        Config(family="translation", **point.config)


def test_scale_shortens_seeds_come_after_all_of_the_first_and_fix_leaves_out():
    short, long = steps_of(settings()), steps_of(settings(scale=0.1))
    assert long == pytest.approx(10 * short, rel=1e-3)
    assert steps_of(settings(set={"batch_tokens": 1024})) == pytest.approx(2 * short, rel=0.01)
    once, thrice = ablation(CPU, settings()), ablation(CPU, settings(seeds=3, seed=5))
    first, further = thrice[: len(once)], thrice[len(once) :]
    assert {point.config["seed"] for point in first} == {5} and len(further) == 2 * len(once)
    assert [point.config["seed"] for point in further[:4]] == [6, 7] * 2, "seed by seed of the cheapest"
    sizes = [[(p.config["d_model"], p.config["layers"]) for p in points] for points in (first, further[::2])]
    assert sizes[0] == sizes[1][::-1], "the dearest first, and of further seeds the cheapest"
    assert {point.config["d_model"] for point in ablation(CPU, settings(fix={"d_model": 64}))} == {64}
    assert price(once, 0.0) < 0.01 * price(once), "the cap must pay for the cheapest"
    with pytest.raises(ValueError, match="leaves none of the report's configurations"):
        ablation(CPU, settings(fix={"d_model": 96}))


def test_the_reports_parameters_are_counted():
    for shape, published in published_by_shape().items():
        counted = plain_parameters(d_model=int(shape.d_model), layers=int(shape.layers), vocabulary=WORDS)
        assert counted / 1e6 == pytest.approx(published["parameters_million"], rel=0.01), shape


def additive(d_model: int, heads: int, layers: int, dropout: float, seed: int = 0) -> float:
    """A loss that each dimension changes on its own."""
    return 5 - 0.5 * math.log2(d_model) + 0.01 * math.log2(heads) - 0.1 * math.log2(layers) + dropout + seed


def test_effects_that_add_up_are_found_and_do_not_interact():
    shapes = {shape: additive(*shape) for shape in published_by_shape()}
    for name, effect in zip(UNITS, (-0.5, 0.01, -0.1, 0.1), strict=True):
        assert slopes(shapes, name) and slopes(shapes, name) == pytest.approx([effect] * len(slopes(shapes, name)))
    for pair in (("d_model", "dropout"), ("layers", "dropout"), ("d_model", "layers")):
        found = interaction_effects(shapes, *pair)
        assert found and found == pytest.approx([0] * len(found), abs=1e-9)


def test_an_interaction_is_found_for_each_more_of_both():
    shapes = {
        shape: additive(*shape) + 0.3 * math.log2(shape.layers) * 10 * shape.dropout for shape in published_by_shape()
    }
    assert interaction_effects(shapes, "layers", "dropout") == pytest.approx(
        [0.3] * len(interaction_effects(shapes, "layers", "dropout"))
    )
    assert interaction_effects(shapes, "dropout", "layers") == pytest.approx(
        interaction_effects(shapes, "layers", "dropout")
    )


def test_over_seeds_only_configurations_are_compared_that_each_has():
    rows = ablated(ablation(CPU, settings(seeds=2)), additive)
    last = next(each for each in rows if each["config"]["seed"] == 1)
    found = common(list(losses([each for each in rows if each is not last]).values()))
    assert len(found) == 2 and set(found[0]) == set(found[1]) and shape_of(last["config"]) not in found[0]


def test_effects_have_an_interval_of_several_seeds():
    rows = ablated(ablation(CPU, settings(seeds=2)), additive)
    made = {table.title: table for table in tables(rows)}
    assert len(made) == 6
    assert len(made["What each configuration learned"].rows) == 47
    effect = {cells[0].partition(",")[0]: cells[2] for cells in made["Main effects"].rows}
    assert effect["d_model"] == "-0.500" and set(effect) == set(UNITS)
    few = [each for each in rows if each["config"]["seed"] == 0 or each["config"]["d_model"] <= 64]
    for some in (rows, few):
        (_, pairs, _, over_seeds, *_), *_ = main_effects(some).rows
        assert over_seeds.startswith("-0.500 (-0.500 to -0.500) of ")
        assert (over_seeds.endswith(f" of {pairs}")) == (some is rows), "of those pairs that every seed has"
    assert "of all pairs of the report's stand in its order" in made["What each configuration learned"].note


def test_of_equal_orders_all_pairs_agree_and_of_opposite_ones_none():
    ours = {shape: float(place) for place, shape in enumerate(published_by_shape())}
    assert agreement(ours, ours) == 1 and agreement(ours, {shape: -loss for shape, loss in ours.items()}) == 0


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    text = "".join(f"we count{' one' * (i % 5)} {i}\tcontamos{' uno' * (i % 5)} {i}\n" for i in range(3000))
    (tmp_path / "pairs.txt").write_text(text)
    return tmp_path / "pairs.txt"


def test_a_study_of_a_list_keeps_its_recipe_whatever_the_familys_own_is_by_now(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = settings(translation_corpus=pairs, name="ablation")
    before = make_list_context(ABLATION, asked, CPU)
    (tmp_path / "study.json").write_text(json.dumps(before.facts()))
    monkeypatch.setitem(RECIPES["translation"], "label_smoothing", 0.25)
    again, other = (make_list_context(ABLATION, replace(asked, resume=of), CPU) for of in (tmp_path, None))
    assert again.recipes == before.recipes != other.recipes


@pytest.mark.parametrize("scale", [1e-6, 2e-4])
def test_a_text_is_cut_so_that_it_is_seen_so_often_and_has_some_batches_at_any_scale(pairs: Path, scale: float) -> None:
    asked = settings(scale=scale, translation_corpus=pairs)
    context = make_list_context(OVERFITTING, asked, CPU)
    (data,) = context.data.values()
    batch = context.recipes["translation"].batch_tokens
    (steps,) = {point.asked["steps"] for point in overfitting(CPU, asked)}
    assert steps * batch / data.training_tokens == pytest.approx(EPOCHS, rel=0.05)
    assert data.training_tokens > 2 * batch
    assert {point.config["dropout"] for point in overfitting(CPU, asked)} == {0.0, 0.1, 0.3}
    assert len({pair.tobytes() for pair in data.train.lengths}) > 1, "spread over all of it"


def study(folder: Path, asked: ExperimentSettings) -> tuple[int, list[Row], list[str]]:
    """How long its list is, what was trained, and what is told of it."""
    context = make_list_context(ABLATION, asked, CPU)
    assert context.listed is not None
    rows, told = studied(ABLATION, context, folder, lambda *_: PowerLaw(step_seconds=0.5, parameters=1000))
    return len(context.listed.listed), rows, told


def test_a_study_of_a_list_trains_it_whole_and_goes_on_with_what_the_cap_did_not_pay_for(
    pairs: Path, tmp_path: Path
) -> None:
    asked = settings(fix={"d_model": 64}, translation_corpus=pairs, budget="5m", scale=0.001, seeds=2, name="ablation")
    folder = tmp_path / "a study"
    folder.mkdir()
    most, rows, told = study(folder, asked)
    assert 2 < len(rows) < most and {row["steps"] for row in rows} == {steps_of(asked)}
    assert {row["config"]["seed"] for row in rows} == {0}, "further seeds come after all of the first"
    assert any("What each configuration learned" in line for line in told)
    (left,) = (line for line in told if "left out, as the cap does not pay for them" in line)
    assert left.startswith(f"{most - len(rows)} of {most} ") and "tune/experiment.py ablation --resume" in left
    assert shlex.split(told[-1])[-1] == str(folder), "can be typed though it has a space"
    most, rows, told = study(folder, replace(asked, budget=3600.0))
    assert len(rows) == most == 2 * len({shape_of(row["config"]) for row in rows})
    assert not any("left out" in line for line in told)


def test_words_whose_perplexity_is_no_float_are_in_the_table() -> None:
    config = {"d_model": 32, "heads": 4, "layers": 2, "dropout": 0.1, "seed": 0}
    assert tables([row({"steps": 100}, config, 7.5, nats_per_word=750.0)])


def test_a_gap_that_is_not_known_is_no_number_and_is_of_seeds_that_have_both() -> None:
    shape = {"d_model": 32, "heads": 4, "layers": 2}
    rows = [row({"steps": 100}, {**shape, "dropout": p, "seed": seed}, loss, trained_loss=trained)
            for p, seed, loss, trained in ((0.0, 0, 3.0, None), (0.1, 0, 3.0, 2.5), (0.1, 1, 9.0, None))]  # fmt: skip
    (table,) = overfitting_tables(rows)
    assert [cells[table.columns.index("gap")] for cells in table.rows] == [EMPTY_CELL, "+0.500"]


class Raising(Simulation):
    """Of a study's trials, which leave checkpoints, the first so many raise; each error is told with its trial."""

    def __init__(self, engine: Engine, clock: Clock, most: int) -> None:
        costs, course = Costs(start_up=6.0, overhead=1.0), PowerLaw(step_seconds=0.5, parameters=1000)
        super().__init__(engine, clock, costs, lambda *_: course)
        self.most, self.folder = most, engine.accounting.journal.folder / "checkpoints"

    def segment(self, assignment: Assignment) -> Report:
        report: Any = super().segment(assignment)
        return replace(report, valid=replace(report.valid, bits_per_character=1.0))

    def end(self, assignment: Assignment) -> None:
        (self.folder / assignment.trial / "step-000001").mkdir(parents=True)
        if int(assignment.trial[1:]) <= self.most:
            self.engine.on_error(assignment.trial, "error: ValueError: mine")
        else:
            super().end(assignment)


@pytest.mark.parametrize("raising", [1, 100])
def test_of_a_list_no_checkpoint_of_an_end_is_kept_and_it_is_told_what_came_to_none(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raising: int
) -> None:
    def run_trials(engine: Engine, *_: Any, **more: Any) -> None:
        Raising(engine, clock, raising).run()

    clock, out = Clock(), tmp_path / "study"
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("tune.study.local_ray", lambda cpus, gpus, preload: nullcontext())
    monkeypatch.setattr("tune.study.make_engine", partial(make_engine, now=clock, elapsed=0.0))
    monkeypatch.setattr("tune.study.run_trials", run_trials)
    asked = settings(fix={"d_model": 64}, translation_corpus=pairs, scale=0.001, name="ablation", out=out)
    code = run_list(ABLATION, asked)
    told = (out / "log.txt").read_text()
    with closing(connect(out)) as journal:
        states = dict(journal.execute("SELECT trial, state FROM trials"))
    failed = [trial for trial, state in states.items() if state == "failed"]
    whole = len(ablation(CPU, asked))
    assert {folder.name for folder in (out / "checkpoints").iterdir()} == {*failed}, "of all others none is needed"
    assert f"{len(failed)} failed: " in told and "error: ValueError: mine" in told
    if raising == 1:
        assert (code, failed, len(states)) == (0, ["t001"], whole) and "left out" not in told
    else:
        assert code == 1 and 1 < len(failed) == len(states) < whole
        assert f"{whole - len(failed)} of {whole} left out, as the first failed with one error" in told


def test_a_trial_of_two_cores_has_two_threads_and_two_of_rays_cpus(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("tune.study.local_ray", lambda cpus, gpus, preload: nullcontext((cpus, gpus)))
    asked = settings(devices=5, cores_per_trial=2, translation_corpus=pairs)
    context = make_list_context(ABLATION, asked, find_devices(asked))
    with closing(Journal(tmp_path, new=True)) as journal, start_local_ray(context) as ray:
        place = make_trial_environment(context, make_engine(context, journal, [], now=Clock(), elapsed=0.0))
    assert (place.threads, ray) == (2, (4, 0)), "two trials at once"
