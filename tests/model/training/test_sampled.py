"""Epochs in the order of torch's DistributedSampler: one order, or a new one each epoch; equal shares of all ranks."""

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler

from model.data.batches import TrainBatches
from model.training.ddp import SampledBatches, SharedBatches, sampled
from model.training.learner import Learner

BATCHES, ROWS = 6, 8


@pytest.fixture
def whole(text_data):
    return TrainBatches(text_data, batch_tokens=ROWS * 16, context=16, seed=3)


@pytest.mark.parametrize("count", [1, 4])
def test_without_set_epoch_the_order_repeats_and_with_it_does_not(whole, count):
    off, on = (SampledBatches(whole, BATCHES, count, set_epoch=each) for each in (False, True))
    assert len({off.order(epoch).tobytes() for epoch in range(5)}) == 1
    assert len({on.order(epoch).tobytes() for epoch in range(5)}) == 5
    assert on.order(2).tolist() == on.order(2).tolist(), "a checkpoint goes on in the same order"


@pytest.mark.parametrize("count", [1, 4])
def test_an_epoch_has_every_sample_once_in_equal_shares(whole, count):
    made = SampledBatches(whole, BATCHES, count, set_epoch=True)
    expected = np.sort(whole._plan[:BATCHES].ravel()).tolist()
    assert len(made) == BATCHES and all(np.sort(made.order(each).ravel()).tolist() == expected for each in (0, 1))
    shares = [SharedBatches(SampledBatches(whole, BATCHES, count, set_epoch=True), rank, count)
              for rank in range(count)]  # fmt: skip
    for _ in range(BATCHES + 1):
        batch, parts = next(made), [next(share) for share in shares]
        assert {len(part.targets) for part in parts} == {ROWS // count}
        assert torch.equal(torch.cat([part.targets for part in parts]), batch.targets)


def test_each_ranks_share_is_its_samplers(whole):
    samples = whole._plan[:BATCHES].ravel()
    drawn = [DistributedSampler(range(len(samples)), 2, rank, seed=3) for rank in range(2)]
    order = SampledBatches(whole, BATCHES, 2, set_epoch=False).order(4)
    for rank, sampler in enumerate(drawn):
        assert order[:, rank * 4 : (rank + 1) * 4].ravel().tolist() == samples[list(sampler)].tolist()


def test_a_learner_goes_through_the_same_few_batches_again(small_text, text_data):
    learner = Learner(small_text, text_data, torch.device("cpu"))
    sampled(learner, 2, set_epoch=False)
    seen = [next(learner.batches).targets for _ in range(4)]
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3]) and not torch.equal(seen[0], seen[1])


def test_more_batches_than_there_are_is_refused(whole):
    with pytest.raises(ValueError, match=r"^batches: 100000 is more than the \d+ of an epoch: give a longer text$"):
        SampledBatches(whole, 100_000, 1, set_epoch=True)
