"""Trials of one shape on a GPU that is none: few more kernels than one has, and one graph for all."""

from typing import Any

import pytest

from model.config import Data
from model.training.cohort import Cohort, can_join
from model.training.graph import GraphedLearner
from model.training.learner import Learner
from tests.cuda.fake_cuda import CUDA, fake_cuda
from tests.cuda.test_cuda_graph import assert_one_launch_a_step, both_ways
from tests.cuda.test_cuda_path import BOTH, LAUNCHES, LAYERS, config

MEMBERS, MORE_LAUNCHES = 8, 1.3
"""Of a cohort, and times a learner's kernels that it may have."""


@BOTH
def test_a_cohort_of_equal_rates_waits_for_nothing_and_has_few_more_kernels_than_one(
    family: str, data: dict[str, Data]
) -> None:
    with fake_cuda() as seen:
        cohort = Cohort()
        for place in range(MEMBERS):
            asked = config(family, layers=LAYERS, dropout=0.05 * place, seed=place)
            cohort.join(Learner(asked, data[family], CUDA))
        cohort.step([1.0] * MEMBERS)
        seen.clear()
        cohort.step([1.0] * MEMBERS)
        assert not seen.waits and not seen.copies
        assert seen.launches.total() <= MORE_LAUNCHES * LAUNCHES[family, "muon"], seen.launches


def cohort_of(family: str, data: dict[str, Data], count: int = 3, **changes: object) -> Cohort:
    """Siblings in dropout and seed; the last has a rate of its own."""
    cohort = Cohort()
    for place in range(count):
        own = {"dropout": 0.1 * place, "seed": place, "learning_rate": 1e-2 if place < count - 1 else 3e-3}
        cohort.join(Learner(config(family, **own | changes), data[family], CUDA))
    return cohort


def steps_of(cohort: Cohort) -> list[list[float]]:
    """Losses and last norms of each, of steps at rates that change; some at a time, one member behind the others."""
    factors = [[0.5] * len(cohort.learners), [1.0] * len(cohort.learners)]
    told = [cohort.take_steps(some) for some in (factors, factors[1:] * 2, [[1.0, 0.7, 0.7]])]
    return [
        [x for steps in told for x in (*steps[place].loss.tolist(), steps[place].gradient_norm.item())]
        for place in range(len(cohort.learners))
    ]


@pytest.mark.parametrize(
    ("family", "changes"),
    [("nanogpt", {"precision": "fp32", "optimizer": "adamw"}), ("translation", {"micro_batches": 2})],
    ids=str,
)
def test_a_graph_of_a_cohort_learns_what_is_learned_kernel_by_kernel(
    family: str, changes: dict[str, Any], data: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    eager, graphed = both_ways(lambda: steps_of(cohort_of(family, data, **changes)), monkeypatch)
    assert eager == (graphed[0], 0) and graphed[1] == 3


def test_members_learn_in_a_graph_what_each_learns_alone_until_one_leaves_and_beyond(data: dict[str, Data]) -> None:
    asked: dict[str, Any] = {"precision": "fp32", "dropout": 0.0}
    factors = [0.5, 1.0, 1.0, 0.7, 0.7, 0.2]
    with fake_cuda() as seen:
        cohort = cohort_of("nanogpt", data, **asked)
        configs = [learner.config for learner in cohort.learners]
        found = [list(steps.loss.tolist()) for steps in cohort.take_steps([[each] * 3 for each in factors[:3]])]
        left = cohort.leave(0)
        found[0] += [left.step(factor).loss.item() for factor in factors[3:]]
        for losses, steps in zip(found[1:], cohort.take_steps([[each] * 2 for each in factors[3:]]), strict=True):
            losses += steps.loss.tolist()
        assert seen.launches["graph"] == 4
        for each, losses in zip(configs, found, strict=True):
            alone = Learner(each, data["nanogpt"], CUDA)
            assert losses == pytest.approx([alone.step(factor).loss.item() for factor in factors], rel=1e-2)


def test_where_dropout_begins_for_one_the_graph_of_all_is_made_anew(
    data: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = data["nanogpt"]

    def losses() -> list[list[float]]:
        cohort = cohort_of("nanogpt", data, 2, dropout_after=2 * 128 / text.training_tokens, dropout=0.5)
        cohort.join(Learner(config("nanogpt", dropout=0.0), text, CUDA))
        return [step.loss.tolist() for step in cohort.take_steps([[1.0] * 3] * 6)]

    eager, graphed = both_ways(losses, monkeypatch)
    assert eager == (graphed[0], 0) and graphed[1] == 4


def test_a_replayed_step_of_a_cohort_is_one_launch_without_copy_or_wait(data: dict[str, Data]) -> None:
    with fake_cuda() as seen:
        cohort = cohort_of("nanogpt", data, average=0.0)
        cohort.take_steps([[1.0] * 3])
        assert_one_launch_a_step(seen, lambda steps: cohort.take_steps([[1.0] * 3] * steps))


def test_a_learner_with_a_graph_does_not_join(data: dict[str, Data]) -> None:
    with fake_cuda():
        assert not can_join(GraphedLearner(config("nanogpt"), data["nanogpt"], CUDA))
