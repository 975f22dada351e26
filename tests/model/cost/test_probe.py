"""A batch in a process of its own: fitting, running out of memory, being killed, and an error are told apart."""

import multiprocessing
import os
import signal
import time
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
import torch

from model.config import Config
from model.cost import probe as fitting
from model.cost.probe import FITS, KILLED, RAN_OUT, TOO_LATE, Probe, try_batch

CONFIG = Config(family="nanogpt", d_model=16, heads=4, layers=2, context=16, batch_tokens=64)


def order(rows: int, **changes: Any) -> Probe:
    config = Config(**{**vars(CONFIG), "batch_tokens": rows * CONFIG.context})
    return Probe(**({"config": config, "device": torch.device("cpu"), "limit": 300_000_000, "share": 0.0,
                     "seconds": 600.0} | changes))  # fmt: skip


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that need no new Python, where their memory is not what counts."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)


def test_a_batch_that_fits_tells_its_epoch_and_its_memory(text_data):
    found = try_batch(order(32, share=0.5), text_data)
    assert found["ended"] == FITS and found["share"] == pytest.approx(0.5, abs=0.05)
    assert 0 < found["tensor_bytes"] < found["memory_bytes"] < 300_000_000


def test_memory_that_runs_out_is_no_error(text_data, forked):
    config = replace(CONFIG, d_model=256, layers=8, batch_tokens=1500 * CONFIG.context)  # gigabytes
    assert try_batch(order(1500, config=config, limit=100_000_000), text_data)["ended"] == RAN_OUT


def test_an_error_of_another_kind_is_told(text_data, forked):
    with pytest.raises(ValueError, match=r"failed: UserError: .*fewer than a batch"):
        try_batch(order(100_000), text_data)


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_was_killed_is_told_apart(text_data, forked, monkeypatch):
    monkeypatch.setattr(fitting, "_life", die)
    assert try_batch(order(4), text_data) == {"ended": KILLED, "why": "SIGKILL", "seconds": ANY}


def test_no_process_outlives_its_time(text_data, forked, monkeypatch):
    monkeypatch.setattr(fitting, "_life", lambda *_: time.sleep(600))
    before = multiprocessing.active_children()
    found = try_batch(order(4, seconds=0.2), text_data)
    assert found["ended"] == TOO_LATE and {*multiprocessing.active_children()} <= {*before}
