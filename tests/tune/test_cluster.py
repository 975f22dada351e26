"""A search on a Ray cluster of two real nodes on this machine, and what is asked of each node before."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.soak.accounts import adds_up, rows, spent
from tests.soak.observer import Observer
from tests.soak.search import Search
from tune import cluster
from tune.settings import Settings

CAP = 90.0
TWO_NODES = """
import sys
import tune
from ray.cluster_utils import Cluster

nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes.add_node(num_cpus=1)
print(nodes.address, flush=True)
sys.stdin.read()
nodes.shutdown()
"""


@pytest.fixture
def address(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """That of a head and a worker of one CPU each, in a process of their own; gone afterwards."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    words = [sys.executable, "-c", TWO_NODES]
    with subprocess.Popen(words, cwd=repository, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as nodes:
        assert nodes.stdout is not None and nodes.stdin is not None
        try:
            yield next(line.strip() for line in nodes.stdout if ":" in line)
        finally:
            nodes.stdin.close()


def test_a_search_runs_on_both_nodes_of_a_cluster_and_the_account_holds(address: str, tmp_path: Path) -> None:
    study = tmp_path / "study"
    search = Search(Observer(), "--address", address, "--budget", f"{CAP:.0f}s", "--report-every", "1s", "--out", study)
    assert search.finish() == 0, search.printed
    assert "2 x CPU core" in search.lines[0]
    at_once = "SELECT 1 FROM leases AS one JOIN leases AS two ON one.lease < two.lease WHERE two.opened < one.closed"
    assert rows(study, at_once), search.printed
    assert adds_up(study) and 0.8 * CAP <= spent(study) <= CAP
    assert len(rows(study, "SELECT 1 FROM reports WHERE final")) == 2


def test_a_place_that_a_node_does_not_see_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_each(nodes: Any, function: Any, path: str) -> dict[str, str | None]:
        return {"here (10.0.0.1:1)": function(path), "there (10.0.0.2:1)": None}

    monkeypatch.setattr(cluster, "nodes", list)
    monkeypatch.setattr(cluster, "on_each", on_each)
    with pytest.raises(ValueError, match=r"^--out: .*study' is not seen from there \(10\.0\.0\.2:1\)[^\n]*$"):
        cluster.check_folder(tmp_path / "runs" / "study")
    assert os.listdir(tmp_path) == []


def test_devices_are_those_of_all_nodes_and_precisions_what_all_do(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "a": {"name": "A", "precisions": ("fp32", "bf16"), "memory_bytes": None},
        "b": {"name": "B", "precisions": ("fp32",), "memory_bytes": None},
    }
    living = [{"Resources": {"CPU": 3.0}}, {"Resources": {"CPU": 1.0}}, {"Resources": {}}]
    monkeypatch.setattr(cluster, "nodes", lambda: living)
    monkeypatch.setattr(cluster, "on_each", lambda nodes, function, kind: told)
    found = cluster.cluster_devices(Settings(budget=600))
    assert (found.slots, found.precisions, found.name) == (4, ("fp32",), "A or B")
    with pytest.raises(ValueError, match=r"--devices: '5'"):
        cluster.cluster_devices(Settings(budget=600, devices=5))
