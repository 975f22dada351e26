"""The noise scale: found again where it is known, from gradients that are those of the parts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from model.training.learner import Learner
from tune.experiments.large_batch_rules import PARTS, WatchedLearner, noise_scale, unbiased

CPU = torch.device("cpu")


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


@pytest.fixture
def plain(small_text):
    return replace(small_text, dropout=0.0)


def norms(learner: Learner, parts: int) -> list[float]:
    """Of the first batch's parts, each by itself, and of all of it: squared norms of the mean gradients."""
    found = []
    whole = next(learner.batches)
    for batch in (*(part for part, _ in whole.parts(parts)), whole):
        learner.model.zero_grad()
        learner._loss_of(batch.inputs, batch.targets)[0].backward()
        found.append(sum(float(each.grad.square().sum()) for each in learner.names if each.grad is not None))
    return found


def test_what_is_seen_are_the_gradients_of_the_parts(plain, text_data):
    *parts, whole = norms(Learner(plain, text_data, CPU), PARTS)
    watched = WatchedLearner(plain, text_data, CPU)
    watched.step(1.0)
    tokens = plain.batch_tokens
    expected = unbiased(np.mean(parts), PARTS / tokens, whole, 1 / tokens)
    assert [float(each[0]) for each in watched.estimates()] == pytest.approx(expected, rel=1e-4)


def test_of_pairs_each_part_counts_with_its_own_tokens(small_pairs, pair_data):
    config = replace(small_pairs, dropout=0.0, label_smoothing=0.0)
    first = next(Learner(config, pair_data, CPU).batches)
    fewness = np.mean([1 / (part.targets >= 0).sum().item() for part, _ in first.parts(PARTS)])
    *parts, whole = norms(Learner(config, pair_data, CPU), PARTS)
    watched = WatchedLearner(config, pair_data, CPU)
    watched.step(1.0)
    expected = unbiased(np.mean(parts), fewness, whole, 1 / first.tokens)
    assert [float(each[0]) for each in watched.estimates()] == pytest.approx(expected, rel=1e-3)


def test_being_watched_changes_no_bit(plain, text_data):
    learners = Learner(plain, text_data, CPU, PARTS), WatchedLearner(plain, text_data, CPU)
    for learner in learners:
        for _ in range(3):
            learner.step(1.0)
    one, other = (list(learner.names) for learner in learners)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
