"""The laws of training together, in two processes: the same gradients on all ranks, and those of one process; epochs in
the order of torch's DistributedSampler.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler

from model.data.batches import TrainBatches
from model.training.ddp import ParallelLearner, SampledBatches, share_of, train_on_sampled
from model.training.learner import Learner
from tests.model import ranks as rank
from tests.model.ranks import CPU, Ranks
from tune.errors import UserError
from tune.experiments.large_batch import WatchedLearner

FAMILIES = ("text", "pairs")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    made = Ranks(2, tmp_path_factory.mktemp("ranks") / "store")
    yield made
    made.close()


@pytest.fixture(scope="module")
def of(small):
    """Config, without dropout, and data of each family. Muon makes much of what rounding changes in gradients."""
    return {family: (replace(config, dropout=0.0, optimizer="adamw"), data) for family, (config, data) in small.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_one_process_and_bit_equal_on_all_ranks(two, of, family):
    for found in two(rank.agreements, *of[family]):
        assert found["bit_equal"]
        assert found["against_whole_batch"] < 1e-6
        assert all(distance < 1e-6 for _, distance in found["accumulated"]) and len(found["accumulated"]) == 3


@pytest.mark.parametrize(("family", "micro_batches"), [("text", 3), ("pairs", 1)])
def test_training_together_is_training_alone(two, of, family, micro_batches):
    config, data = of[family]
    expected, _ = rank.trained(Learner(config, data, CPU), 3)
    (losses, weights), (others_losses, others) = two(rank.after_steps, config, data, 3, micro_batches)
    assert losses == others_losses and all(torch.equal(weights[name], others[name]) for name in weights)
    assert losses == pytest.approx(expected, rel=1e-5)


def test_a_checkpoint_keeps_the_dropout_of_each_rank(two, of, tmp_path: Path):
    config = replace(of["text"][0], dropout=0.3)
    for (losses, weights), (after, resumed) in two(rank.in_two_lives, config, of["text"][1], tmp_path):
        assert after == losses[2:]
        assert all(torch.equal(weights[name], resumed[name]) for name in weights)


def test_without_synchronization_each_rank_has_gradients_of_its_own_and_drops_out_differently(two, of):
    for asked in (rank.unsynced_gradient, rank.random_numbers):
        one, other = two(asked, *of["text"])
        assert not torch.equal(one, other)


def test_parts_of_a_batch_are_communicated_together(two, of):
    once, cut = (two(rank.communications, *of["text"], parts) for parts in (1, 3))
    assert once == cut and once[0] > 0


def test_the_noise_of_gradients_is_the_same_from_two_ranks_as_from_two_halves(two, of):
    config, data = of["text"]
    alone = WatchedLearner(config, data, CPU)
    alone.step(1.0)
    expected = [each.item() for each in alone.estimates()]
    one, other = two(rank.noise, config, data)
    assert one == other == pytest.approx(expected, rel=1e-4)


def test_options_change_no_gradient_and_compression_little(two, of):
    exact = [{"bucket_megabytes": 0.01}, {"gradient_as_bucket_view": True}, {"static_graph": True}]
    compressed = [{"compression": "fp16"}, {"compression": "bf16"}]
    found, others = two(rank.distances, *of["text"], [*exact, *compressed])
    assert found == others
    assert all(distance < 1e-6 for distance in found[: len(exact)])
    for asked, distance in zip(compressed, found[len(exact) :], strict=True):
        refused = str(distance).startswith(f"compression {asked['compression']}: gloo refuses it: ")
        assert refused or 1e-6 < distance < 1e-2
    assert isinstance(found[len(exact)], float), "gloo has fp16"


def test_what_only_the_first_rank_does_the_others_wait_for(two, of):
    assert two(rank.first_rank_steps, *of["text"]) == [3, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_shares_are_the_batch(of, family):
    (config, data), count = of[family], 3
    asked = {"batch_tokens": config.batch_tokens, "context": config.context, "seed": 1}
    whole = TrainBatches(data, **asked)
    for _ in range(len(whole) + 1):
        batch = next(whole)
        shares = [share_of(batch, each, count) for each in range(count)]
        assert {share.tokens for share in shares} == {batch.tokens}
        assert torch.equal(torch.cat([share.targets for share in shares]), batch.targets)
        for place, x in enumerate(batch.inputs):
            assert torch.equal(torch.cat([share.inputs[place] for share in shares]), x)
        assert np.ptp([len(share.targets) for share in shares]) <= 1


def test_a_batch_of_fewer_rows_than_ranks_is_refused(of):
    with pytest.raises(ValueError, match=r"^batch_tokens: 128 are 8 rows, too few for 9 devices; take at least 144$"):
        share_of(TrainBatches(of["text"][1], batch_tokens=128, context=16, seed=0).any_batch(), 0, 9)


def test_a_rank_with_too_few_rows_is_refused_when_it_is_made(of, monkeypatch):
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 999)
    with pytest.raises(UserError, match="too few for 999 devices"):
        ParallelLearner(*of["text"], CPU)


BATCHES, ROWS = 6, 8
"""Of the few that epochs go through again and again."""


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
    for _ in range(BATCHES + 1):
        batch = next(made)
        parts = [share_of(batch, rank, count) for rank in range(count)]
        assert {len(part.targets) for part in parts} == {ROWS // count}
        assert torch.equal(torch.cat([part.targets for part in parts]), batch.targets)


def test_each_ranks_share_is_its_samplers(whole):
    samples = whole._plan[:BATCHES].ravel()
    drawn = [DistributedSampler(range(len(samples)), 2, share, seed=3) for share in range(2)]
    order = SampledBatches(whole, BATCHES, 2, set_epoch=False).order(4)
    for share, sampler in enumerate(drawn):
        assert order[:, share * 4 : (share + 1) * 4].ravel().tolist() == samples[list(sampler)].tolist()


def test_a_learner_goes_through_the_same_few_batches_again(small_text, text_data):
    learner = Learner(small_text, text_data, CPU)
    train_on_sampled(learner, 2, set_epoch=False)
    seen = [next(learner.batches).targets for _ in range(4)]
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3]) and not torch.equal(seen[0], seen[1])


def test_more_batches_than_there_are_is_refused(whole):
    with pytest.raises(ValueError, match=r"^batches: 100000 is more than the \d+ of an epoch: give a longer text$"):
        SampledBatches(whole, 100_000, 1, set_epoch=True)
