"""Large batches: equal samples in every training, and what tables make of rows; rules for the rate, LARS, and the noise
scale of gradients.
"""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.legend import Legend

from analysis.experiments.scaling import losses, losses_table
from model.config import RECIPES, Config
from model.data.dataset import TextData
from model.training import checkpoint as checkpoints
from model.training.learner import Learner
from tests.analysis.conftest import study_of_rows
from tests.tune.experiments.this_process import place_of
from tune.arithmetic import mean_interval
from tune.devices import Devices
from tune.experiments import large_batch as its_work
from tune.experiments.base import ExperimentSettings
from tune.experiments.large_batch import (
    BASE_RATE,
    GRADUAL_SHARE,
    LARGE_BATCH,
    PARTS,
    RULES,
    TIMES,
    WatchedLearner,
    line,
    measure_noise,
    noise_scale,
    points,
    take_lars,
    unbiased,
    watched_learner,
    work,
)
from tune.experiments.tables import with_interval
from tune.experiments.training import train_with_checkpoints

SMALL: dict[str, Any] = {"d_model": 16, "heads": 4, "layers": 2, "context": 16, "warm_up_steps": 4}
TOKENS, STEPS = 128, 40
LATE = 1e9
CPU = torch.device("cpu")


def asked_points(**settings: Any) -> list[Any]:
    devices = Devices(kind="cpu", count=2, model="core", precisions=("fp32",), cores=2)
    return points(devices, ExperimentSettings(budget="1h", families="nanogpt", **settings))


def trainings(found: list[Any]) -> list[Any]:
    return [point for point in found if point.asked["measure"] == "training"]


@pytest.mark.parametrize("scale", [0.3, 0.001])
def test_every_training_is_asked_for_equal_samples(scale):
    found = trainings(asked_points(scale=scale))
    assert len({point.asked["steps"] * point.config["batch_tokens"] for point in found}) == 1
    asked = {(point.asked["times"], point.asked["rule"]) for point in found}
    every = set(itertools.product(TIMES[1:], ("unchanged", "linear", "square root", "LARS")))
    assert asked == every | {(1, "unchanged"), (1, "LARS")}, "with the recipe's batch no rule changes AdamW's rate"


def test_only_batch_rate_and_seed_change_beside_adamw_and_each_seed_repeats_all():
    found = asked_points(seeds=3, seed=5)
    assert {name for point in found for name in point.config} == {"batch_tokens", "learning_rate", "optimizer", "seed"}
    assert [point.config["seed"] for point in found] == [seed for seed in (5, 6, 7) for _ in range(len(found) // 3)]
    assert len({point.key for point in found}) == len(found) and {point.devices for point in found} == {2}


@pytest.mark.parametrize("architecture", ["modern", "nanogpt"])
def test_the_recipe_is_that_of_the_architecture(architecture: str) -> None:
    base = next(point.config for point in trainings(asked_points(set={"architecture": architecture})))
    own = Config(family="nanogpt", architecture=architecture)
    assert (base["batch_tokens"], base["learning_rate"]) == (own.batch_tokens, own.learning_rate)


def test_the_batch_is_the_recipes_or_the_one_that_is_set_and_the_rate_follows_it():
    own = {point.asked["times"]: point.config for point in trainings(asked_points()) if point.asked["rule"] == "linear"}
    given = asked_points(set={"batch_tokens": 4 * RECIPES["nanogpt"]["batch_tokens"]})
    base = next(point.config for point in trainings(given) if point.asked["times"] == 1)
    assert base["batch_tokens"] == own[4]["batch_tokens"]
    assert base["learning_rate"] == pytest.approx(2 * RECIPES["nanogpt"]["learning_rate"])
    assert {point.config["batch_tokens"] for point in given if "batch_tokens" in point.config} == {
        times * base["batch_tokens"] for times in TIMES
    }
    set_too = asked_points(set={"batch_tokens": 6144, "learning_rate": 0.001})
    assert next(point.config["learning_rate"] for point in trainings(set_too)) == 0.001


def worked(data: TextData, folder: Path, asked: dict[str, Any], seconds: float = LATE, **config: Any) -> dict[str, Any]:
    """The row of one point, in this process."""
    made = Config(family="nanogpt", **SMALL, **config)
    *before, last = work(place_of(made, data, folder, seconds), asked)
    assert [said.kind for said in before] == ["start", *["steps"] * (len(before) - 1)] and last.kind == "evaluation"
    return {"key": json.dumps(asked), "devices": 1, "asked": asked, "config": config} | json.loads(json.dumps(last.row))


@pytest.fixture(scope="module")
def rows(text_data: TextData, warm: None, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Two batches, each rule, and both orders; what no time was for."""
    folder, found = tmp_path_factory.mktemp("trials"), []
    for times, rule in ((1, "unchanged"), (1, "LARS"), *((4, name) for name in RULES)):
        asked = {"measure": "training", "rule": rule, "times": times, "steps": STEPS // times}
        rate = RULES[rule].rate(BASE_RATE if rule == "LARS" else 1e-2, times)
        found.append(
            worked(text_data, folder / f"{times} {rule}", asked, batch_tokens=times * TOKENS, learning_rate=rate)
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(its_work, "EPOCH_BATCHES", 4)
        for on in (True, False):
            asked = {"measure": "epochs", "set_epoch": on, "epochs": 3, "steps": 3 * 4}
            found.append(worked(text_data, folder / "epochs", asked, batch_tokens=TOKENS))
    return [*found, {"key": "late", "asked": {"measure": "training", "rule": "linear", "times": 16}, "skipped": "why"}]


def test_every_training_saw_equal_samples_and_learned(rows):
    found = [row for row in rows if row["asked"]["measure"] == "training" and "skipped" not in row]
    assert {row["samples"] for row in found} == {STEPS * 8} and {row["tokens"] for row in found} == {STEPS * TOKENS}
    assert {row["batch_tokens"] for row in found} == {TOKENS, 4 * TOKENS}
    assert all(row["valid_loss"] < 0.97 * math.log(16) for row in found), [row["valid_loss"] for row in found]
    assert len({row["valid_loss"] for row in found}) == len(found), "each rule is a training of its own"
    assert all(len(row["noise_course"]) == 5 for row in found)


def test_set_epoch_is_a_new_order_each_epoch(rows):
    on, off = (row for row in rows if row["asked"]["measure"] == "epochs")
    assert (on["orders"], off["orders"]) == (3, 1) and on["samples"] == off["samples"] == 3 * on["epoch_samples"]
    assert on["valid_loss"] != off["valid_loss"]


def test_too_little_time_is_no_row_and_the_next_goes_on_from_there(text_data, tmp_path):
    asked = {"measure": "training", "rule": "unchanged", "times": 1, "steps": 8}
    with pytest.raises(ValueError, match=r"^steps: there was time for \d+ of 8: go on with --resume"):
        worked(text_data, tmp_path, asked, seconds=0.0, batch_tokens=TOKENS)
    assert worked(text_data, tmp_path, asked, batch_tokens=TOKENS)["steps"] == 8


def until(data: TextData, folder: Path, at: int | None) -> dict[str, Any]:
    """The row of a training of 16 steps that goes on from where it was; nothing where it is killed at a step."""
    learner = watched_learner(Config(family="nanogpt", **SMALL, batch_tokens=TOKENS), data, CPU)
    training = train_with_checkpoints(learner, lambda: LATE, steps=16, every=4, factor=lambda step: 1.0, folder=folder)
    try:
        while True:
            next(training)
            if learner.steps == at:
                return {}
    except StopIteration as over:
        return over.value | measure_noise(learner)


def test_what_a_training_took_and_saw_before_it_was_killed_counts(text_data, tmp_path):
    """Also where all of its steps were made already, and only its evaluation was missing."""
    whole = until(text_data, tmp_path / "whole", None)
    assert not until(text_data, tmp_path / "killed", 8) and not until(text_data, tmp_path / "killed", 16)
    row = until(text_data, tmp_path / "killed", None)
    assert row.pop("training_seconds") > 0 < whole.pop("training_seconds") and row == whole
    assert row["train_loss"] is not None and row["noise_scale"] is not None


def test_batches_are_multiples_in_rows_also_where_the_context_does_not_divide_the_recipes(text_data, tmp_path):
    asked = {"measure": "training", "rule": "unchanged"}
    found = [
        worked(text_data, tmp_path / str(times), {**asked, "times": times, "steps": 4 // times},
               batch_tokens=times * (SMALL["context"] * 5 // 2))["samples"]
        for times in (1, 2, 4)
    ]  # fmt: skip
    assert len(set(found)) == 1


def test_the_noise_of_a_part_in_which_one_seed_saw_nothing_has_no_figure(rows):
    first = next(row for row in rows if row["asked"].get("rule") == "unchanged")
    seeds = [first | {"noise_scale": None, "noise_course": [None, 1.0, 1.0, 1.0, 1.0]}, first]
    assert LARGE_BATCH.tables(seeds)[1].rows[0][4] == "-"


def test_a_training_that_diverges_has_no_loss(text_data, tmp_path):
    asked = {"measure": "training", "rule": "unchanged", "times": 1, "steps": 8}
    row = worked(text_data, tmp_path, asked, batch_tokens=TOKENS, learning_rate=1e30)
    assert [row[name] for name in ("train_loss", "valid_loss", "accuracy")] == [None] * 3 and row["steps"] == 8


def test_published_figures_stand_beside(rows):
    assert all(line(row) for row in rows if "skipped" not in row) and line({"valid_loss": None}) == "diverged"
    made = LARGE_BATCH.tables(rows)
    assert len(made) == 3 and all(table.rows for table in made)
    beside = {cells[1]: cells[-2:] for cells in made[0].rows if cells[2] == "unchanged"}
    assert beside["x1"] == ["0.05", "61.9%"] and beside["x4"] == ["-", "-"]


def lost(rows: list[dict[str, Any]], **losses: float | None) -> list[dict[str, Any]]:
    """The rows with these losses of the larger batch, and 1.0 of the recipe's."""
    named = {"square root": "root"}
    return [row | {"valid_loss": losses.get(named.get(row["asked"]["rule"], row["asked"]["rule"]), 1.0)
                   if row["asked"]["times"] > 1 else 1.0}
            for row in rows if row["asked"]["measure"] == "training" and "skipped" not in row]  # fmt: skip


def test_of_several_seeds_the_mean_and_its_interval(rows):
    first, second = lost(rows), lost(rows, unchanged=2.0)
    (table, *_) = LARGE_BATCH.tables([*first, *second])
    cells = {(cells[1], cells[2]): cells for cells in table.rows}
    assert cells["x4", "unchanged"][7] == with_interval(mean_interval([1.0, 2.0]), "{:.4f}")
    assert cells["x4", "linear"][7] == "1.0000 (1.0000-1.0000)"
    (table, *_) = LARGE_BATCH.tables(lost(rows, linear=None))
    assert [cells[7] for cells in table.rows if cells[2] == "linear"] == ["diverged"]


def test_the_picture_is_of_the_rows(rows, tmp_path):
    found = lost(rows, unchanged=1.5, linear=None, root=1.25, LARS=1.375)
    study = study_of_rows(tmp_path / "study", "large_batch", found)
    table = losses_table(study).set_index(["rule", "times"])
    assert math.isnan(table.loc["linear", 4]["loss"]) and table.loc["square root", 4]["loss"] == 1.25
    (legend,) = losses(study).figure.axes[0].findobj(Legend)
    assert {each.get_text() for each in legend.get_texts()} & {*RULES} == {*RULES} - {"linear"}


LARS_RATE = 0.01
BATCHES = (1, 4, 16)
RULED_STEPS, WARM_UP = 1440, 160


@pytest.fixture
def upstream(small_text):
    """An architecture with gains, without dropout."""
    return replace(small_text, architecture="nanogpt", dropout=0.0)


def factors(name: str, times: int) -> list[float]:
    asked = {"steps": RULED_STEPS // times, "times": times, "warm_up_steps": WARM_UP, "decay_share": 0.4}
    return [RULES[name].factor(step, **asked) for step in range(RULED_STEPS // times)]


def test_peak_rates():
    grown = {name: [rule.rate(1e-3, times) / 1e-3 for times in BATCHES] for name, rule in RULES.items()}
    assert grown["unchanged"] == pytest.approx([1, 1, 1]) and grown["linear"] == pytest.approx([1, 4, 16])
    assert grown["square root"] == grown["LARS"] == pytest.approx([1, 2, 4])


@pytest.mark.parametrize(("name", "times"), [*((name, 4) for name in RULES), ("linear", 16), ("unchanged", 1)])
def test_every_rule_warms_up_peaks_and_falls_at_equal_samples(name, times):
    found, steps = factors(name, times), RULED_STEPS // times
    assert max(found) == 1 and 0 < found[-1] == pytest.approx(1 / (0.4 * steps))
    assert found.index(1) * times <= WARM_UP + GRADUAL_SHARE * RULED_STEPS + times
    rest = found[found.index(1) :]
    assert rest == sorted(rest, reverse=True) and found[int(0.59 * steps)] == 1


@pytest.mark.parametrize("times", BATCHES[1:])
def test_linear_scaling_comes_to_its_rate_from_the_small_batchs(times):
    rates = [times * factor for factor in factors("linear", times)]
    warm, grown = WARM_UP // times, GRADUAL_SHARE * RULED_STEPS / times
    assert all(rate <= 1 for rate in rates[:warm]) and rates[warm - 1] == pytest.approx(1)
    assert rates[warm] > 1 and rates[warm + int(grown) - 1] == pytest.approx(times)
    ramp = rates[warm : warm + int(grown)]
    assert ramp == sorted(ramp)


def test_with_the_small_batch_all_rules_are_one():
    assert factors("linear", 1) == factors("unchanged", 1) == factors("square root", 1)


def test_a_short_training_has_a_short_warm_up():
    asked = {"steps": 10, "times": 1, "warm_up_steps": WARM_UP, "decay_share": 0.4}
    assert RULES["unchanged"].factor(1, **asked) == 1


@pytest.fixture
def made(upstream, text_data):
    def new() -> Learner:
        learner = Learner(upstream, text_data, CPU)
        take_lars(learner, LARS_RATE)
        return learner

    return new


@pytest.mark.parametrize(("weight", "gradient"), [(0.1, 1000.0), (10.0, 0.1)])
def test_a_matrix_moves_by_its_rate_whatever_its_gradient(made, weight, gradient):
    learner, generator = made(), torch.Generator().manual_seed(0)
    for parameter in learner.parameter_names:
        parameter.data = weight * torch.randn(parameter.shape, generator=generator)
        parameter.grad = gradient * torch.randn(parameter.shape, generator=generator)
    before = [(parameter.detach().clone(), parameter.grad.clone()) for parameter in learner.parameter_names]
    learner.optimizer.step()
    ranks = set()
    for new, (old, grad) in zip(learner.parameter_names, before, strict=True):
        ranks.add(new.ndim)
        if new.ndim > 1:
            moved = (new.detach() - old).norm() / old.norm()
            assert moved.item() == pytest.approx(LARS_RATE, rel=0.06), "but for the little that decay takes"
        else:
            assert torch.allclose(new.detach(), old - LARS_RATE * grad, rtol=1e-4, atol=1e-5), (
                "plain, and without decay"
            )
    assert ranks == {1, 2}


def test_a_learner_goes_on_exactly_with_the_momentum_of_its_checkpoint(made, tmp_path):
    once, first, second = made(), made(), made()
    losses = [once.step(1.0).loss.item() for _ in range(4)]
    for _ in range(2):
        first.step(1.0)
    second.restore(checkpoints.load(checkpoints.save(tmp_path, first.model, first.tensors(), first.state())))
    assert [second.step(1.0).loss.item() for _ in range(2)] == losses[2:]
    assert losses[-1] < losses[0]


def test_gains_and_biases_do_not_decay_with_the_recipes_optimizer_either(upstream, text_data):
    """As Goyal et al. 2017 have it."""
    groups = Learner(upstream, text_data, CPU).optimizer.param_groups
    decays = {parameter.ndim < 2: group["weight_decay"] for group in groups for parameter in group["params"]}
    assert decays[True] == 0 and decays[False] > 0


def squares(gradient: np.ndarray, covariance: np.ndarray, tokens: int, steps: int, seed: int) -> np.ndarray:
    """Squared norms (3, steps): of the mean gradients of two parts of so many tokens, and of both together."""
    drawn = np.random.default_rng(seed).multivariate_normal(gradient, covariance / tokens, size=(2, steps))
    return np.stack([*np.square(drawn).sum(-1), np.square(drawn.mean(0)).sum(-1)])


@pytest.mark.parametrize("tokens", [8, 64])
def test_a_known_gradient_and_its_noise_are_found_again(tokens):
    gradient = np.linspace(-1, 1, 12)
    mixing = np.random.default_rng(0).normal(size=(12, 12))
    covariance = mixing @ mixing.T
    *parts, whole = squares(gradient, covariance, tokens, 20_000, seed=1)
    signal, noise = unbiased(np.mean(parts, 0), 1 / tokens, whole, 1 / (2 * tokens))
    assert noise.mean() == pytest.approx(np.trace(covariance), rel=0.03)
    assert signal.mean() == pytest.approx(gradient @ gradient, rel=0.1)


def test_the_known_scale_lies_in_nearly_all_intervals():
    gradient, covariance, held = np.linspace(-1, 1, 12), np.diag(np.linspace(1, 20, 12)), 0
    for seed in range(40):
        *parts, whole = squares(gradient, covariance, 8, 400, seed)
        scale, low, high = noise_scale(*unbiased(np.mean(parts, 0), 1 / 8, whole, 1 / 16))
        assert low <= scale <= high
        held += low <= np.trace(covariance) / (gradient @ gradient) <= high
    assert 34 <= held < 40, "95 % of them"


def test_where_noise_hides_the_gradient_there_is_no_scale():
    assert noise_scale(np.array([-1.0, -2.0]), np.array([1.0, 1.0])) is None
    assert noise_scale(np.empty(0), np.empty(0)) is None
    unsure = noise_scale(np.array([-1.0, 1.1]), np.array([1.0, 1.0]))
    assert unsure is not None and unsure[2] == np.inf


def norms(learner: Learner, parts: int) -> list[float]:
    """Of the first batch's parts, each by itself, and of all of it: squared norms of the mean gradients."""
    found = []
    whole = next(learner.batches)
    for batch in (*(part for part, _ in whole.parts(parts)), whole):
        learner.model.zero_grad()
        learner._loss_of(batch.inputs, batch.targets)[0].backward()
        found.append(sum(float(each.grad.square().sum()) for each in learner.parameter_names if each.grad is not None))
    return found


@pytest.mark.parametrize("family", ["text", "pairs"])
def test_what_is_seen_are_the_gradients_of_the_parts_which_count_with_their_tokens(small, family):
    config, data = small[family]
    config = replace(config, dropout=0.0, label_smoothing=0.0)
    first = next(Learner(config, data, CPU).batches)
    fewness = np.mean([1 / (part.targets >= 0).sum().item() for part, _ in first.parts(PARTS)])
    *parts, whole = norms(Learner(config, data, CPU), PARTS)
    watched = WatchedLearner(config, data, CPU)
    watched.step(1.0)
    expected = unbiased(np.mean(parts), fewness, whole, 1 / first.tokens)
    assert [float(each[0]) for each in watched.estimates()] == pytest.approx(expected, rel=1e-3)


def test_being_watched_changes_no_bit(upstream, text_data):
    learners = Learner(upstream, text_data, CPU, PARTS), WatchedLearner(upstream, text_data, CPU)
    for learner in learners:
        for _ in range(3):
            learner.step(1.0)
    one, other = (list(learner.parameter_names) for learner in learners)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
