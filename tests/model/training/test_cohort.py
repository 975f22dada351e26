"""Trials that step together learn what each learns alone, bit by bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import Config, Data
from model.data.dataset import PairData, TextData
from model.training import checkpoint as checkpoints
from model.training.cohort import Cohort, can_join
from model.training.learner import Learner

CPU = torch.device("cpu")
STEPS = 9
"""With an average after the eighth."""
CHANGES: tuple[dict[str, Any], ...] = (
    {"seed": 0, "dropout": 0.1, "learning_rate": 1e-2}, {"seed": 1, "dropout": 0.0, "learning_rate": 3e-3},
    {"seed": 0, "dropout": 0.3, "learning_rate": 1e-2, "clip": 0.3, "weight_decay": 0.3, "betas": (0.8, 0.95)},
)  # fmt: skip
"""Of members: siblings in dropout, and in what else each has of its own."""
Small = tuple[Config, Data]
Known = list[tuple[list[float], Learner]]
TWO = pytest.mark.parametrize("small", ["nanogpt bf16", "translation fp32"], indirect=True)
"""Each family and each precision once: of laws that are of neither."""


@pytest.fixture(scope="module", params=["nanogpt fp32", "nanogpt bf16", "translation fp32", "translation bf16"])
def small(
    request: pytest.FixtureRequest, small_text: Config, small_pairs: Config, text_data: TextData, pair_data: PairData
) -> Small:
    family, precision = request.param.split()
    if family == "nanogpt":
        return replace(small_text, precision=precision, taps=2, average=0.1), text_data
    return replace(small_pairs, precision=precision, average=0.1), pair_data


def factor(step: int) -> float:
    return min(1.0, (step + 1) / 3)


def alone(config: Config, data: Data, steps: int = STEPS) -> tuple[list[float], Learner]:
    learner = Learner(config, data, CPU)
    return [learner.step(factor(step)).loss.item() for step in range(steps)], learner


@pytest.fixture(scope="module")
def configs(small: Small) -> list[Config]:
    """Of the members."""
    return [replace(small[0], **change) for change in CHANGES]


@pytest.fixture(scope="module")
def known(configs: list[Config], small: Small) -> Known:
    """What each member learns alone."""
    return [alone(config, small[1]) for config in configs]


def together(cohort: Cohort, steps: range) -> list[list[float]]:
    """Losses of each member."""
    taken = [cohort.step([factor(step)] * len(cohort.learners)) for step in steps]
    return [[step[place].loss.item() for step in taken] for place in range(len(cohort.learners))]


def cohort_of(configs: list[Config], data: Data) -> Cohort:
    cohort = Cohort()
    for config in configs:
        cohort.join(Learner(config, data, CPU))
    return cohort


def same(one: Learner, other: Learner) -> bool:
    """Whether they have the same weights, moments, averages and place in the text."""
    mine, theirs = one.tensors(), other.tensors()
    del mine["random.cpu"], theirs["random.cpu"]
    weights = all(torch.equal(*pair) for pair in zip(one.parameter_names, other.parameter_names, strict=True))
    kept = mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    return weights and kept and one.state() == other.state()


def assert_each_as_alone(configs: list[Config], data: Data, known: Known) -> None:
    cohort = cohort_of(configs, data)
    assert together(cohort, range(STEPS)) == [losses for losses, _ in known]
    assert all(same(*both) for both in zip(cohort.learners, (learner for _, learner in known), strict=True))


@pytest.mark.parametrize(
    ("small", "changed"),
    [("nanogpt fp32", {"optimizer": "adamw"}), ("translation fp32", {"micro_batches": 2})],
    ids=str, indirect=["small"],
)  # fmt: skip
def test_members_learn_what_each_learns_alone_by_other_arithmetic(small: Small, changed: dict[str, Any]) -> None:
    config, data = small
    configs = [replace(config, **changed, **change) for change in CHANGES]
    assert_each_as_alone(configs, data, [alone(each, data) for each in configs])


def test_members_learn_what_each_learns_alone(small: Small, configs: list[Config], known: Known) -> None:
    assert_each_as_alone(configs, small[1], known)


@pytest.mark.parametrize("small", ["nanogpt bf16"], indirect=True)
def test_many_steps_at_once_are_those_taken_one_by_one(small: Small, configs: list[Config], known: Known) -> None:
    cohort = cohort_of(configs, small[1])
    at_once = cohort.take_steps([[factor(step)] * len(CHANGES) for step in range(STEPS)])
    assert [step.loss.tolist() for step in at_once] == [losses for losses, _ in known]


@TWO
def test_each_has_its_dropout_from_where_its_own_text_is_no_longer_new(small: Small) -> None:
    config, data = small
    begins = [(step + 0.5) * config.batch_tokens / data.training_tokens for step in (2, 5, 5)]
    configs = [replace(config, **change, dropout_after=at) for change, at in zip(CHANGES, begins, strict=True)]
    assert_each_as_alone(configs, data, [alone(each, data) for each in configs])


@TWO
def test_who_leaves_goes_on_as_alone_and_so_do_those_that_stay(
    small: Small, configs: list[Config], known: Known
) -> None:
    cohort = cohort_of(configs, small[1])
    losses = together(cohort, range(3))
    left = cohort.leave(0)
    losses[0] += [left.step(factor(step)).loss.item() for step in range(3, STEPS)]
    for place, more in enumerate(together(cohort, range(3, STEPS)), 1):
        losses[place] += more
    assert losses == [each for each, _ in known]
    assert all(same(*both) for both in zip([left, *cohort.learners], (learner for _, learner in known), strict=True))


@TWO
def test_who_joins_late_from_a_checkpoint_of_another_cohort_goes_on_as_alone(
    small: Small, configs: list[Config], known: Known, tmp_path: Path
) -> None:
    data = small[1]
    cohort = cohort_of(configs, data)
    losses = together(cohort, range(3))
    saved = cohort.save(2, tmp_path, {})
    other = cohort_of(configs[:1], data)
    together(other, range(1))
    learner = Learner(configs[2], data, CPU)
    learner.restore(checkpoints.load(saved))
    other.join(learner)
    for step in range(3, STEPS):
        losses[2].append(other.step([1.0, factor(step)])[1].loss.item())
    assert losses[2] == known[2][0] and same(other.learners[1], known[2][1])


@TWO
def test_what_a_member_does_is_nothing_to_the_others(small: Small, configs: list[Config], known: Known) -> None:
    wild = [configs[0], replace(configs[1], learning_rate=1e6), configs[2]]
    calm, beside = [losses for losses, _ in known], together(cohort_of(wild, small[1]), range(STEPS))
    assert calm[1] != beside[1] and [calm[0], calm[2]] == [beside[0], beside[2]]


@TWO
def test_epochs_end_for_each_at_its_own_time_and_one_alone_is_a_cohort_too(small: Small, configs: list[Config]) -> None:
    cohorts = cohort_of(configs, small[1]), cohort_of(configs[2:], small[1])
    for cohort in cohorts:
        late = cohort.learners[-1].batches
        late.load_state(late.state() | {"batch": len(late) - 4})
    losses = [together(cohort, range(STEPS))[-1] for cohort in cohorts]
    assert losses[0] == losses[1] and same(cohorts[0].learners[2], cohorts[1].learners[0])
    assert [learner.batches.state()["epoch"] for learner in cohorts[0].learners] == [0, 0, 1]


@pytest.mark.parametrize("small", ["nanogpt fp32"], indirect=True)
def test_who_differs_in_what_all_have_in_common_cannot_join(small: Small) -> None:
    config, data = small
    for changes in ({"layers": 1}, {"scaling_rules": False}, {"micro_batches": 2}):
        cohort = cohort_of([config], data)
        with pytest.raises(AssertionError, match="members have"):
            cohort.join(Learner(replace(config, **changes), data, CPU))


def test_upstreams_model_and_sgd_stay_alone(small_text: Config, text_data: TextData) -> None:
    kinds: list[dict[str, Any]] = [{"architecture": "nanogpt"}, {"optimizer": "sgd"}, {"checkpointing": True}]
    for changes in kinds:
        assert not can_join(Learner(replace(small_text, **changes), text_data, CPU))
    assert can_join(Learner(small_text, text_data, CPU))
