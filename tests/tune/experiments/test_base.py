"""Which points of an experiment a cap pays for, what lowers their price, and what may be fixed; and what a
training will take, by steps of small models.
"""

import json
import math
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import Config
from model.families import FAMILIES
from model.training.learner import Learner
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments import prices
from tune.experiments.base import (
    END_SECONDS,
    START_SECONDS,
    ExperimentSettings,
    Point,
    Trials,
    affordable_points,
    affordable_share,
    check_given,
    make_experiment_context,
    price,
)
from tune.experiments.catalogue import EXPERIMENTS
from tune.experiments.prices import MADE_UP, PROBED, fit_step_speed, step_flops, step_price
from tune.search_space import PRECISIONS
from tune.store.journal import Journal
from tune.units import parse_duration

GROUP = START_SECONDS + END_SECONDS


def fixed(name: str, seconds: float) -> Point:
    return Point(devices=1, asked={"name": name}, seconds=seconds, least_seconds=seconds)


POINTS = [fixed("a", 10.0), fixed("b", 20.0), fixed("c", 40.0)]


PAID = [(0, 0), (GROUP + 9, 0), (GROUP + 10, 1), (GROUP + 69, 2), (GROUP + 70, 3), (1e9, 3)]


@pytest.mark.parametrize(("left", "paid"), PAID)
def test_as_many_of_the_first_points_as_the_cap_pays_for(left, paid):
    assert affordable_points(POINTS, left) == paid
    assert price(POINTS[:paid]) <= left or not paid


def test_where_a_point_is_worth_what_it_must_have_there_is_nothing_to_share_out():
    assert [affordable_share(POINTS, left) for left in (GROUP + 70, 1e9)] == [1.0, 1.0]
    assert affordable_share(POINTS, GROUP + 69) < 0


def test_the_share_spends_what_is_left_and_no_more():
    points = [Point(devices=2, asked={}, seconds=100.0, least_seconds=10.0), fixed("a", 10.0)]
    for left in (price(points, 0.0), 150.0, price(points)):
        assert price(points, affordable_share(points, left)) == pytest.approx(left)
    assert affordable_share(points, 1e9) == 1.0
    assert len({point.key for point in points}) == 2


def test_a_trial_is_finished_once_a_point_of_it_was_measured_and_stopped_where_all_were_skipped(tmp_path):
    points = [Point(devices=1, asked={"rows": rows}, seconds=1.0, least_seconds=1.0) for rows in range(2)]
    with closing(Journal(tmp_path, new=True)) as journal:
        trials = Trials(journal, Config(family="nanogpt"), lambda: 0.0)
        for number, row, state in (
            (0, {"skipped": "too late"}, ("stopped", "too late")), (0, None, ("running", None)),
            (1, {"times": 1.0}, ("finished", None)), (0, {"skipped": "too late"}, ("finished", None)),
        ):  # fmt: skip
            trials.measured(points[number], row) if row else trials.begin(points[number])
            assert [tuple(each) for each in journal.rows("SELECT state, reason FROM trials")] == [state]


def test_points_of_two_configurations_are_two():
    narrow, wide = (Point(devices=1, asked={}, seconds=1.0, least_seconds=1.0, config={"d_model": d}) for d in (16, 32))
    assert narrow.key != wide.key and narrow.text == "d_model 16"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_cap_that_is_too_small_is_told_the_least_one_and_what_lowers_it(
    name: str, monkeypatch: pytest.MonkeyPatch, known_prices: None
) -> None:
    experiment, here = EXPERIMENTS[name], Devices(kind="cpu", count=2, model="", precisions=PRECISIONS, cores=2)
    monkeypatch.setattr("tune.experiments.base.find_devices", lambda _: here)
    monkeypatch.setattr("tune.experiments.base.check_idle", lambda _: None)
    monkeypatch.setattr("model.data.toy_corpus.PAIRS", 6000)  # quick to prepare, and no least cap depends on it
    texts = {"text_corpus": "builtin", "translation_corpus": "builtin"}
    asked = ExperimentSettings(budget="1s", families=experiment.families[0], **texts)

    def refused(**changed: Any) -> tuple[float, str]:
        with pytest.raises(UserError, match=f"^--budget: '.*' does not pay for {name}: write at least ") as error:
            make_experiment_context(experiment, replace(asked, **changed))
        least, *others = str(error.value).split("write at least ")[1].split(", or ")
        return parse_duration(least), " ".join(others)

    least, others = refused()
    refused(budget=least - 2)
    assert make_experiment_context(experiment, replace(asked, budget=least)).points
    lower = {"--scale": {"scale": 0.1}, "--fix": {"fix": {"d_model": 16, "layers": 2}}}
    assert all(refused(**changed)[0] < least for flag, changed in lower.items() if flag in others)
    assert ("--scale" in others) == (not experiment.work or name in ("stages", "large_batch", "curves"))
    assert ("--fix" in others) == (
        name in ("overfitting", "precision", "scaling", "data_parallel", "large_batch", "stages")
    )


@pytest.mark.parametrize("name", ["large_batch", "data_parallel"])
def test_more_devices_than_a_batch_has_rows_are_refused_where_all_share_it(
    name: str, monkeypatch: pytest.MonkeyPatch, known_prices: None
) -> None:
    here = Devices(kind="cpu", count=5, model="", precisions=PRECISIONS, cores=5)
    monkeypatch.setattr("tune.experiments.base.find_devices", lambda _: here)
    asked = ExperimentSettings(budget="99999h", families="nanogpt", text_corpus="builtin", set={"batch_tokens": 320})
    assert make_experiment_context(EXPERIMENTS[name], asked).points
    with pytest.raises(
        UserError, match=r"^--devices: '5' are more than the 4 rows of a batch, .*: write at most 4, or"
    ):
        make_experiment_context(EXPERIMENTS[name], replace(asked, set={"batch_tokens": 256}))


FIXED: dict[str, Any] = {"d_model": 512, "heads": 16, "layers": 16, "dropout": 0.5, "precision": "fp16"}
"""No experiment begins with one of these by itself; the report's configurations have all but the last."""


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_is_fixed_holds_where_an_experiment_begins_or_is_refused(name, known_prices):
    experiment, devices = EXPERIMENTS[name], Devices(kind="cpu", count=2, model="", precisions=PRECISIONS, cores=2)
    for dimension, value in FIXED.items():
        settings = ExperimentSettings(budget="1h", families=experiment.families[0], fix={dimension: value})
        if dimension in experiment.sets:
            with pytest.raises(ValueError, match=f"--fix: '{dimension}=.*' is not for {name}, which sets {dimension}"):
                check_given(experiment, settings)
        else:
            try:
                found = experiment.points(devices, settings)
            except UserError as error:
                assert str(error).startswith("--fix: leaves none of the report's configurations")
            else:
                assert {point.config.get(dimension, value) for point in found} == {value}


@pytest.mark.parametrize("name", ["scaling", "large_batch", "data_parallel", "stages"])
def test_a_price_is_of_what_is_fixed_and_set_and_of_cores_that_are_shared(name: str, known_prices: None) -> None:
    def least(cores: int = 2, **given: Any) -> float:
        devices = Devices(kind="cpu", count=2, model="", precisions=PRECISIONS, cores=cores)
        settings = ExperimentSettings(budget="1h", families="nanogpt", **given)
        return price(EXPERIMENTS[name].points(devices, settings), 0.0)

    large, longer = {"d_model": 512, "layers": 16}, {"context": 1024}
    found = [least(), least(fix=large), least(fix=large, set=longer)]
    assert found == sorted(set(found))
    assert (least(cores=1, fix=large) > least(fix=large)) == (name != "stages"), "which uses one"


@pytest.mark.parametrize("name", ["methods", "stages", "precision", "transfer", "curves", "scaling"])
@pytest.mark.parametrize(("had", "has"), [("fp32 bf16", "fp32"), ("fp32", "fp32 bf16")])
def test_a_study_goes_on_where_its_points_are_the_same(
    name: str, had: str, has: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_prices: None
) -> None:
    """Also on a device with other precisions, where none of them follows from these or one is fixed."""
    facts = {"settings": {}, "devices": {"kind": "cpu", "precisions": had.split()}}
    (tmp_path / "study.json").write_text(json.dumps(facts))
    here = Devices(kind="cpu", count=2, model="", precisions=tuple(has.split()), cores=2)
    monkeypatch.setattr("tune.experiments.base.find_devices", lambda _: here)
    asked = ExperimentSettings(budget="1h", families="nanogpt", text_corpus="builtin", resume=tmp_path)
    if "precision" not in EXPERIMENTS[name].sets:
        assert make_experiment_context(EXPERIMENTS[name], replace(asked, fix={"precision": "fp32"})).points
    if name == "scaling":
        assert make_experiment_context(EXPERIMENTS[name], asked).points
        return
    told = ", and here are ".join(each.replace(" ", ", ") for each in (had, has))
    said = f"^--resume: the study's points follow from the precisions {told}: go on with it where it began"
    with pytest.raises(UserError, match=said):
        make_experiment_context(EXPERIMENTS[name], asked)


@pytest.mark.parametrize("name", ["large_batch", "data_parallel", "loader", "scaling"])
def test_a_study_goes_on_where_points_are_on_as_many_devices_as_its_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_prices: None
) -> None:
    """Of scaling on any number, as it compares these."""
    (tmp_path / "study.json").write_text(json.dumps({"settings": {}, "devices": {"kind": "cpu"}}))
    with closing(Journal(tmp_path, new=True)) as journal:
        several = [{"devices": 3}] * (name == "scaling")
        for row in ({"devices": 2}, {"devices": 3, "skipped": "too late"}, *several):
            value = json.dumps({"key": str(row), **row})
            journal.insert("rows", {"at": 0.0, "experiment": name, "value": value})
    asked = ExperimentSettings(budget="1h", families="nanogpt", text_corpus="builtin", resume=tmp_path)
    for count, goes_on in ((2, True), (4, name == "scaling"), (1, name == "scaling")):
        here = Devices(kind="cpu", count=count, model="", precisions=PRECISIONS, cores=4)
        monkeypatch.setattr("tune.experiments.base.find_devices", lambda _, here=here: here)
        said = "^--resume: the study has rows on 2 devices, and here are .: go on with --devices 2, or begin again$"
        if count > 1 or name != "data_parallel":  # which is of several
            with nullcontext() if goes_on else pytest.raises(UserError, match=said):
                assert make_experiment_context(EXPERIMENTS[name], asked).points


def test_a_plan_says_which_measured_speeds_its_prices_go_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "_measured", {})
    monkeypatch.setattr(prices, "step_seconds", lambda config, *_, **__: 8 * [prices.step_flops(config) / 1e9])
    assert list(prices.price_lines()) == []
    prices.measure_step_speed("nanogpt", "fp32", "cpu")
    (line,) = prices.price_lines()
    assert line.startswith("costs of nanogpt in fp32 follow from steps measured on a CPU core: 1 GFLOP/s, 0.0 ms and")


CORE = Devices(kind="cpu", count=1, model="core", precisions=("fp32", "bf16"), cores=1)


def probed(family: str) -> list[Config]:
    return [Config(family=family, d_model=width, layers=depth) for width, depth in PROBED]


@pytest.mark.parametrize("family", MADE_UP)
@pytest.mark.parametrize(("once", "layer"), [(0.004, 0.003), (0.0, 0.01), (0.02, 0.0)])
def test_what_steps_are_made_of_is_found_again(family: str, once: float, layer: float) -> None:
    flops = [step_flops(config) for config in probed(family)]
    steps = [once + config.layers * layer + each / 2e11 for config, each in zip(probed(family), flops, strict=True)]
    found = fit_step_speed([[9.0, step, step] for step in steps], flops)
    assert found.once == pytest.approx(once, abs=1e-9) and found.layer == pytest.approx(layer, abs=1e-9)
    assert found.flops == pytest.approx(2e11) and found.spread == 0.0


def test_however_steps_were_disturbed_nothing_costs_less_than_nothing() -> None:
    flops = [step_flops(config) for config in probed("nanogpt")]
    for taken in ([0.01, 0.005, 0.02], [0.05, 0.06, 0.01], [0.01, 0.09, 0.011]):
        found = fit_step_speed([[each] for each in taken], flops)
        assert min(found.once, found.layer) >= 0 < found.flops and math.isfinite(found.flops)


@pytest.mark.parametrize("family", MADE_UP)
def test_a_price_grows_with_the_model_and_with_its_batch(family: str, known_prices: None) -> None:
    base = Config(family=family, d_model=64, layers=2)
    larger = [
        Config(family=family, d_model=128, layers=2),
        Config(family=family, d_model=64, layers=4),
        Config(family=family, d_model=64, layers=2, batch_tokens=2 * base.batch_tokens),
    ]
    assert all(step_price(base, CORE) < step_price(config, CORE) for config in larger)


@pytest.mark.parametrize("family", MADE_UP)
def test_a_made_up_text_is_learned_from_as_any(family: str) -> None:
    data = MADE_UP[family]()
    learner = Learner(Config(family=family, d_model=16, layers=1, heads=2, batch_tokens=256), data, torch.device("cpu"))
    assert math.isfinite(learner.step(1.0).loss.item()) and learner.family is FAMILIES[family]


ASKED: dict[str, Any] = {"scale": 0.5, "seeds": 3, "memory_limit": 10**9}


@pytest.mark.parametrize("name", [name for name, each in EXPERIMENTS.items() if each.work])
def test_an_experiment_reads_what_it_goes_by(name: str, known_prices: None) -> None:
    """Its points are others with what it reads, and the same with what it does not."""
    experiment, devices = EXPERIMENTS[name], Devices(kind="cpu", count=2, model="", precisions=PRECISIONS, cores=2)
    settings = ExperimentSettings(budget="1h", families=experiment.families[0])
    plain = experiment.points(devices, settings)
    for asked, value in ASKED.items():
        other = experiment.points(devices, replace(settings, **{asked: value}))
        assert (other != plain) == (asked in experiment.reads), asked
