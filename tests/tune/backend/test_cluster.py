"""A search on a Ray cluster of two real nodes on this machine, and what is asked of each node before."""

import itertools
import os
import re
import secrets
import signal
import subprocess
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import ray

from tests.searches import LONG
from tests.soak.accounts import adds_up, number, rows
from tests.soak.nodes import two_nodes
from tests.soak.observer import Observer
from tests.soak.search import Search
from tests.tune.test_own_search import TRAIN
from tune.backend import session
from tune.flags import AUTO
from tune.search.engine import MACHINE_GONE
from tune.settings import Settings
from tune.study import run_study, slots_there

TRAINS = "SELECT COUNT(*) FROM leases WHERE closed IS NULL AND trial IN (SELECT trial FROM reports)"
GPU_NODE = {"model": "GPU", "processor": "GPU", "precisions": ("fp32",), "memory_bytes": 80_000_000_000, "mps": True}
"""What a node says of its GPUs."""


def test_a_search_runs_on_both_nodes_of_a_cluster_and_goes_on_where_one_is_lost(
    observer: Observer, tmp_path: Path
) -> None:
    """The trial that was on it is not blamed, and has another lease on the other. A loop that sleeps trains as well as
    any.
    """
    (train := tmp_path / "train.py").write_text(TRAIN.replace("from model import GAIN", "GAIN = 1"))
    (space := tmp_path / "space.toml").write_text("how = ['saves']\nrate = { low = 1e-3, high = 1e-1, log = true }\n")
    study, gone = tmp_path / "study", f"FROM decisions WHERE reason = '{MACHINE_GONE}'"
    later = f"SELECT COUNT(*) FROM leases WHERE trial IN (SELECT trial {gone}) AND opened > (SELECT MIN(at) {gone})"
    with two_nodes() as nodes:
        flags = ("--train", f"{train}:train", "--space", space, "--metric", "error", "--budget", LONG, "--out", study)
        search = Search(observer, "--address", nodes.address, *flags)
        assert search.wait_for(f"{study}: "), search.printed
        search.until(lambda: number(study, TRAINS) >= 2)
        assert "2 x CPU core" in search.lines[0]
        nodes.lose_the_worker()
        search.until(lambda: number(study, later))
        search.tell(signal.SIGTERM)
        assert search.finish() == 128 + signal.SIGTERM, search.printed
    paused = {row["trial"] for row in rows(study, f"SELECT trial {gone} AND action = 'pause'")}
    assert len(paused) == 1 and number(study, later) == 1
    assert not rows(study, "SELECT trial FROM trials WHERE state IN ('running', 'failed')") and adds_up(study)


MISMATCH = "The cluster was started with:\n    Python: 3.12.1\nThis process was started with:\n    Python: 3.11.9\n"


@pytest.mark.parametrize("error", [RuntimeError(f"Version mismatch: {MISMATCH}"), ConnectionError("No node is here")])
def test_a_driver_that_ray_does_not_let_in_is_told_why_in_a_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "check_answers", lambda address: None)
    monkeypatch.setattr(ray, "init", mock.Mock(side_effect=error))
    why = re.escape(" ".join(str(error).split()))
    with (
        pytest.raises(
            ValueError, match=rf"^--address: 'first:1': start [^\n]* on a node of that cluster, .*\({why}\)$"
        ),
        session.join_cluster("first:1"),
    ):
        pass


def test_a_cluster_that_does_not_answer_as_its_ray_is_another_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said = b"Traceback (most recent call last):\nRuntimeError: Ray version mismatch: cluster has Ray version 2.9\n"
    refusal = subprocess.CalledProcessError(1, "health-check", stderr=said)
    monkeypatch.setattr(session.socket, "create_connection", mock.Mock())
    monkeypatch.setattr(session.subprocess, "run", mock.Mock(side_effect=refusal))
    with pytest.raises(ValueError, match=r"^--address: 'first:1': [^\n]* \(RuntimeError: .* has Ray version 2\.9\)$"):
        session.check_answers("first:1")


@pytest.mark.parametrize("how", ["it has none", "a disk of its own", "it may not"])
def test_a_place_that_a_node_does_not_write_to_is_refused_and_nothing_is_left(
    how: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_each(nodes: Any, function: Any, path: str) -> dict[str, str | None]:
        its_own = tmp_path_factory.mktemp("own") / ("none" if how == "it has none" else "")
        with monkeypatch.context() as there:
            if how == "it may not":
                there.setattr(session.tempfile, "NamedTemporaryFile", mock.Mock(side_effect=PermissionError()))
            told = function(str(its_own))
        return {"here (10.0.0.1:1)": function(path), "there (10.0.0.2:1)": told}

    monkeypatch.setattr(session, "nodes", list)
    monkeypatch.setattr(session, "run_on_nodes", on_each)
    with pytest.raises(ValueError, match=r"^--out: .*study' cannot be written from there \(10\.0\.0\.2:1\)[^\n]*$"):
        session.check_folder(tmp_path / "runs" / "study")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("there", [b"import older_copy", False])
@pytest.mark.parametrize("of_session", [True, False])
def test_a_loop_that_a_node_does_not_have_or_has_otherwise_is_refused_before_anything_is_written(
    there: bytes | bool, of_session: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of this session starts in a folder that all have."""
    (file := tmp_path / "train.py").write_text(TRAIN)
    loop = str(Path(__file__).parents[3] if of_session else file)

    def on_each(nodes: Any, function: Any, *arguments: Any) -> dict[str, Any]:
        here = function(*arguments)
        return {"here (10.0.0.1:1)": here, "there (10.0.0.2:1)": there if arguments[0] == loop else here}

    monkeypatch.setattr(session, "nodes", list)
    monkeypatch.setattr(session, "run_on_nodes", on_each)
    monkeypatch.setattr("tune.study.join_cluster", lambda address: nullcontext())
    train: Any = trains if of_session else f"{file}:train"
    space: Any = {"width": [4, 8]}
    asked = Settings(budget=LONG, train=train, space=space, metric="loss", address="first:1", out=tmp_path / "study")
    with pytest.raises(ValueError, match=rf"^--train: '{re.escape(loop)}' is missing or differs on there \(10"):
        run_study(asked)
    assert os.listdir(tmp_path) == ["train.py"]


def trains(config: Any) -> None:
    """A loop, as far as it is asked for."""


def living_node(**resources: float) -> dict[str, Any]:
    return {"NodeID": secrets.token_hex(8), "Resources": resources}


def test_nodes_are_asked_all_at_once_whether_they_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here none answers before all are asked. One after another, those that keep silent would hold up the driver."""
    all_asked = threading.Barrier(9)

    def reached(node: dict[str, Any]) -> bool:
        all_asked.wait(timeout=60)
        return bool(node["Reached"])

    there = [living_node() | {"Alive": number < 9, "Reached": number % 2} for number in range(10)]
    monkeypatch.setattr(ray, "nodes", lambda: there)
    monkeypatch.setattr(session, "is_reachable", reached)
    assert session.nodes() == [there[number] for number in (1, 3, 5, 7)]


def test_devices_are_those_of_all_nodes_and_precisions_what_all_do(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "a": {"model": "core", "processor": "A", "precisions": ("fp32", "bf16"), "memory_bytes": None, "mps": False},
        "b": {"model": "core", "processor": "B", "precisions": ("fp32",), "memory_bytes": None, "mps": False},
    }
    living = [living_node(CPU=3.0), living_node(CPU=1.0), living_node()]
    monkeypatch.setattr(session, "nodes", lambda: living)
    monkeypatch.setattr(session, "run_on_nodes", lambda nodes, function, kind: told)
    found = session.cluster_devices(Settings(budget=600))
    assert (found.slots, found.precisions, found.name, found.processor) == (4, ("fp32",), "core", "A or B")
    with pytest.raises(ValueError, match=r"--devices: '5'"):
        session.cluster_devices(Settings(budget=600, devices=5))
    found = session.cluster_devices(Settings(budget=600, cores_per_trial=2))
    assert (found.slots, len(slots_there(found)), found.name) == (1, 1, "2 cores"), "both cores on one node"
    with pytest.raises(ValueError, match=r"^--cores-per-trial: '4' is more than any node has: write at most 3"):
        session.cluster_devices(Settings(budget=600, cores_per_trial=4))
    del living[:2]
    told.clear()
    with pytest.raises(ValueError, match=r"^--address: '[^\n]*': no node of that cluster has a GPU or a CPU core"):
        session.cluster_devices(Settings(budget=600, address="10.0.0.1:6379"))


def test_a_gpu_is_a_slot_only_with_a_core_of_its_node_and_is_shared_by_no_more_than_that_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A trial that Ray has no place for would wait for one to the end of its lease, and the search would end."""
    living = [living_node(GPU=1.0, CPU=0.0), living_node(GPU=1.0)]
    monkeypatch.setattr(session, "nodes", lambda: living)
    monkeypatch.setattr(session, "run_on_nodes", lambda nodes, *_: {str(node): GPU_NODE for node in nodes})
    with pytest.raises(ValueError, match=r"^--address: '[^\n]*': no node of that cluster has a GPU with a CPU core"):
        session.cluster_devices(Settings(budget=600, address="10.0.0.1:6379"))
    living.append(living_node(GPU=1.0, CPU=8.0))
    found = session.cluster_devices(Settings(budget=600))
    assert (found.kind, found.slots, len(slots_there(found))) == ("cuda", 1, 1)
    living.append(living_node(GPU=2.0, CPU=64.0))
    shared = Settings(budget=600, trials_per_gpu=16)
    with pytest.raises(ValueError, match=r"^--trials-per-gpu: '16' is more than the 8 CPU cores"):
        session.cluster_devices(shared).with_sharing(shared, 1e9)
    forced = replace(shared, oversubscribe=True)
    found = session.cluster_devices(forced).with_sharing(forced, 1e9)
    assert (found.slots, len(slots_there(found))) == (3 * 16, 8 + 2 * 16)


def test_auto_shares_a_clusters_gpus_where_mps_runs_on_each_of_its_nodes_and_on_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver's own machine may have none."""
    asked = Settings(budget=600, trials_per_gpu=AUTO)
    monkeypatch.setattr(session, "nodes", lambda: [living_node(GPU=1.0, CPU=8.0)] * 2)
    for runs in itertools.product((True, False), repeat=2):
        told = [GPU_NODE | {"mps": each} for each in runs]
        monkeypatch.setattr(session, "run_on_nodes", lambda *_, told=told: dict(enumerate(told)))
        found = session.cluster_devices(asked).with_sharing(asked, 1e9)
        assert (found.trials_each > 1) == all(runs)
