"""Memory of training: the state at least, more with larger batches, and the same however often it is measured."""

from dataclasses import replace

import torch

from model.account import most_bytes
from model.config import Config
from model.estimates import STATE_BYTES
from model.learner import Learner
from model.prepared import PairData
from model.step_memory import step_bytes

CPU = torch.device("cpu")


def test_only_what_is_alive_at_once_counts() -> None:
    def one_after_the_other() -> None:
        for _ in range(3):
            torch.ones(250_000)

    def together() -> list[torch.Tensor]:
        return [torch.ones(250_000) for _ in range(3)]

    assert 1_000_000 <= most_bytes(one_after_the_other, CPU) < 1_100_000
    assert 3_000_000 <= most_bytes(together, CPU) < 3_100_000


def test_a_step_holds_the_state_at_least_and_the_same_each_time(small_pairs: Config, pair_data: PairData) -> None:
    parameters = Learner(small_pairs, pair_data, CPU).parameters
    first, again = (step_bytes(small_pairs, pair_data, CPU) for _ in range(2))
    assert STATE_BYTES * parameters < first == again
    larger = step_bytes(replace(small_pairs, batch_tokens=4 * small_pairs.batch_tokens), pair_data, CPU)
    assert larger > 1.5 * first
