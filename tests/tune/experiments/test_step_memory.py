"""Memory of training: the state at least, more with larger batches, and the same however often it is measured."""

import gc
from dataclasses import replace

import torch

from model.config import Config
from model.cost.estimates import STATE_BYTES
from model.cost.memory_estimate import most_bytes
from model.data.dataset import PairData
from model.training.learner import Learner
from tune.experiments.lives import step_bytes

CPU = torch.device("cpu")


def test_only_what_is_alive_at_once_counts() -> None:
    def one_after_the_other() -> None:
        for _ in range(3):
            torch.ones(250_000)

    def together() -> list[torch.Tensor]:
        return [torch.ones(250_000) for _ in range(3)]

    assert 1_000_000 <= most_bytes(one_after_the_other, CPU) < 1_100_000
    assert 3_000_000 <= most_bytes(together, CPU) < 3_100_000


def test_what_another_training_left_to_be_freed_takes_nothing_off() -> None:
    left: list[object] = [torch.ones(1_000_000)]
    left.append(left)
    del left

    def run() -> torch.Tensor:
        gc.collect()
        return torch.ones(250_000)

    assert 1_000_000 <= most_bytes(run, CPU) < 1_100_000


def test_a_step_holds_the_state_at_least_and_the_same_each_time(small_pairs: Config, pair_data: PairData) -> None:
    parameters = Learner(small_pairs, pair_data, CPU).parameters
    dropped = replace(small_pairs, dropout=0.37)
    first, again = (step_bytes(dropped, pair_data, CPU) for _ in range(2))
    assert STATE_BYTES * parameters < first == again, "a mask that is made once counts as the first training's"
    larger = step_bytes(replace(small_pairs, batch_tokens=4 * small_pairs.batch_tokens), pair_data, CPU)
    assert larger > 1.5 * first
