"""Batches by a DataLoader: what comes does not depend on who makes it, and what a loop waits for adds up."""

import time

import numpy as np
import pytest
import torch

from model.data.batches import IGNORED, Batch, batch_shape
from model.training.learner import Learner
from tune.experiments import loading
from tune.experiments.loading import Fed, Items, Supply, check_shared_memory, read_through, rows_of

CPU = torch.device("cpu")


def loader_of(items, rows, workers):
    """Of so many rows a batch."""
    supply = Supply(items=items, rows=rows, batch_bytes=1, use=print, own=iter(()), seed=2)
    return supply.loader(workers=workers)


class Squares:
    """Of which each is drawn from a seed and its number, as a process that decodes would."""

    def __getitem__(self, number):
        drawn = np.random.default_rng([1, number]).random((1, 2))
        return Batch((torch.from_numpy(drawn),), torch.tensor([number]), 1)


def seen(workers):
    """The batches of two epochs, of a class that the processes cannot import."""
    Squares.__module__ = "loaded_squares"
    loader = loader_of(Items(12, Squares().__getitem__), 4, workers)
    return [(*batch.inputs, batch.targets) for _ in range(2) for batch in loader]


def test_the_same_batches_come_however_many_processes_make_them(monkeypatch):
    monkeypatch.setattr(loading, "BATCHES", 3)
    alone, shared = seen(0), seen(2)
    assert len(alone) == len(shared) == 6
    for one, other in zip(alone, shared, strict=True):
        assert all(map(torch.equal, one, other))
    assert not torch.equal(alone[0][0], alone[3][0]), "each epoch is drawn anew"


def shaped(config, data):
    shape = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context)
    return rows_of(data, shape), shape


@pytest.mark.parametrize(("config", "data"), [("small_text", "text_data"), ("small_pairs", "pair_data")])
def test_rows_come_together_to_batches_like_our_own(config, data, request):
    config, data = request.getfixturevalue(config), request.getfixturevalue(data)
    rows, shape = shaped(config, data)
    batch = next(iter(loader_of(rows, shape.rows, 0)))
    learner = Learner(config, data, CPU)
    own = next(learner.batches)
    assert [x.shape for x in (*batch.inputs, batch.targets)] == [x.shape for x in (*own.inputs, own.targets)]
    assert batch.tokens == (batch.targets != IGNORED).sum()
    Fed(learner).step(batch)
    assert learner.tokens == batch.tokens


def test_every_window_of_the_text_is_there_once(small_text, text_data):
    rows, shape = shaped(small_text, text_data)
    read = torch.cat([rows[number].inputs[0][0] for number in range(len(rows))])
    assert np.array_equal(read.numpy(), text_data.train[: len(read)])
    assert len(text_data.train) - len(read) <= shape.target
    assert torch.equal(rows[3].targets[0, :-1], rows[3].inputs[0][0, 1:])


def test_waits_and_uses_add_up_to_the_loop(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def spent(seconds):
        now[0] += seconds

    def batches():
        for seconds in (5.0, 1.0, 3.0):
            spent(seconds)
            yield None

    found = read_through("x", batches, lambda _: spent(2.0))
    assert found == {"x first": 5.0, "x wait": 3.0, "x whole": 5.0}


def test_what_does_not_fit_into_shared_memory_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "SHARED_MEMORY", tmp_path)
    check_shared_memory(1)
    with pytest.raises(ValueError, match=r"bytes are free, and batches under way need 1,000,000,000,000,000,000; enl"):
        check_shared_memory(10**18)
