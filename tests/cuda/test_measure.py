"""The parts of `make gpu` go through on a CPU at tiny sizes: what is broken is not found out on a borrowed GPU."""

import json
import multiprocessing
import pickle
import subprocess
from contextlib import suppress
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
import torch

from model.data.dataset import PairData, TextData
from results.make import FIELDS
from tests.cuda import measure


@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_part_writes_rows_as_results_have_them(
    part: int, warm: None, tmp_path: Path, text_data: TextData, pair_data: PairData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_made", {"text": text_data, "pairs": pair_data})
    assert {*measure.COMPILERS} <= {*torch._dynamo.list_backends(None)}
    compiled = mock.create_autospec(torch.compile, side_effect=lambda function, **_: function)
    monkeypatch.setattr(torch, "compile", compiled)  # tests/model/training/test_compiled.py has what it makes
    measure.measure(part, replace(measure.DRY, processes=()), tmp_path)
    file = json.loads((tmp_path / f"gpu-{part}.json").read_text())
    assert len(file["rows"]) >= 2 and file["title"] and file["about"]
    for row in file["rows"]:
        assert set(row) == set(FIELDS) and row["claim"] != measure.FAILED, row


def test_processes_side_by_side_of_which_one_fails_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pickle.loads(pickle.dumps(measure.DRY))  # as it travels to a process that is spawned
    forking = multiprocessing.get_context("fork")
    first = forking.Lock()

    def fails(bench: measure.Bench, ready: Barrier, told: Any) -> None:
        if first.acquire(block=False):
            raise RuntimeError("out of memory")
        ready.wait()

    monkeypatch.setattr(multiprocessing, "get_context", lambda _: forking)
    monkeypatch.setattr(measure, "TOGETHER_SECONDS", 1e6)
    monkeypatch.setattr(measure, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(measure, "_steps", fails)
    with pytest.raises(RuntimeError, match=r"^0 of 2 processes .*, exit codes (1, None|None, 1)$"):
        measure.side_by_side(measure.DRY, 2)


def test_a_command_that_takes_too_long_is_killed_with_all_below_it(tmp_path: Path) -> None:
    below, seconds = tmp_path / "below", 0.25
    while not (below.exists() and below.read_text()):
        seconds *= 2  # on a busy machine
        with pytest.raises(subprocess.TimeoutExpired):
            measure.run_within(seconds, ["sh", "-c", f"sleep 1000 & echo $! > {below}; wait"])
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(below.read_text())).wait(60.0)
    assert measure.run_within(60.0, ["sh", "-c", "echo one; echo two >&2; exit 3"]) == (3, ["one", "two"])


def test_a_part_that_fails_says_so_and_keeps_what_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(bench: measure.Bench):
        """About."""
        yield measure.row("one", "1")
        yield measure.row("one", "2")
        raise RuntimeError("no more")

    monkeypatch.setattr(measure, "PARTS", [breaks, breaks])
    measure.measure(1, measure.DRY, tmp_path)
    rows = json.loads((tmp_path / "gpu-1.json").read_text())["rows"]
    assert [row["claim"] for row in rows] == ["one", measure.FAILED]
    assert rows[0]["measured"] == "1; 2"
