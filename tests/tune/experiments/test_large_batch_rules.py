"""Large batches: rules for the rate at equal samples, LARS, and the noise scale of gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from model.training import checkpoint as checkpoints
from model.training.learner import Learner
from tune.experiments.large_batch import (
    GRADUAL_SHARE,
    PARTS,
    RULES,
    WatchedLearner,
    noise_scale,
    take_lars,
    unbiased,
)

CPU = torch.device("cpu")
LARS_RATE = 0.01
BATCHES = (1, 4, 16)
STEPS, WARM_UP = 1440, 160


@pytest.fixture
def upstream(small_text):
    """An architecture with gains, without dropout."""
    return replace(small_text, architecture="nanogpt", dropout=0.0)


def factors(name: str, times: int) -> list[float]:
    asked = {"steps": STEPS // times, "times": times, "warm_up_steps": WARM_UP, "decay_share": 0.4}
    return [RULES[name].factor(step, **asked) for step in range(STEPS // times)]


def test_peak_rates():
    grown = {name: [rule.rate(1e-3, times) / 1e-3 for times in BATCHES] for name, rule in RULES.items()}
    assert grown["unchanged"] == pytest.approx([1, 1, 1]) and grown["linear"] == pytest.approx([1, 4, 16])
    assert grown["square root"] == grown["LARS"] == pytest.approx([1, 2, 4])


@pytest.mark.parametrize(("name", "times"), [*((name, 4) for name in RULES), ("linear", 16), ("unchanged", 1)])
def test_every_rule_warms_up_peaks_and_falls_at_equal_samples(name, times):
    found, steps = factors(name, times), STEPS // times
    assert max(found) == 1 and 0 < found[-1] == pytest.approx(1 / (0.4 * steps))
    assert found.index(1) * times <= WARM_UP + GRADUAL_SHARE * STEPS + times
    rest = found[found.index(1) :]
    assert rest == sorted(rest, reverse=True) and found[int(0.59 * steps)] == 1


@pytest.mark.parametrize("times", BATCHES[1:])
def test_linear_scaling_comes_to_its_rate_from_the_small_batchs(times):
    rates = [times * factor for factor in factors("linear", times)]
    warm, grown = WARM_UP // times, GRADUAL_SHARE * STEPS / times
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
    for parameter in learner.names:
        parameter.data = weight * torch.randn(parameter.shape, generator=generator)
        parameter.grad = gradient * torch.randn(parameter.shape, generator=generator)
    before = [(parameter.detach().clone(), parameter.grad.clone()) for parameter in learner.names]
    learner.optimizer.step()
    ranks = set()
    for new, (old, grad) in zip(learner.names, before, strict=True):
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
        found.append(sum(float(each.grad.square().sum()) for each in learner.names if each.grad is not None))
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
    one, other = (list(learner.names) for learner in learners)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
