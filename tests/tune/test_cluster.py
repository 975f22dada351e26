"""A search on a Ray cluster of two real nodes, one of which is lost while trials run on both."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.soak.accounts import adds_up, number, rows, spent
from tests.soak.observer import Observer
from tests.soak.search import Search
from tune import cluster
from tune.settings import Settings

CAP = 80.0


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head and a worker of one CPU each; gone afterwards."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        yield started
    finally:
        started.shutdown()


def test_when_a_node_is_lost_its_trials_go_on_elsewhere_and_the_account_holds(two_nodes: Any, tmp_path: Path) -> None:
    lost, study, observer = two_nodes.add_node(num_cpus=1), tmp_path / "study", Observer()
    flags = ("--budget", f"{CAP:.0f}s", "--families", "nanogpt", "--report-every", "1s", "--out", study)
    search = Search(observer, "--address", two_nodes.address, *flags)
    assert search.wait_for("at rung 0"), search.printed
    assert "2 x CPU core" in search.lines[0]
    while number(study, "SELECT COUNT(*) FROM leases WHERE closed IS NULL") < 2:
        assert not search.ends_within(0.05), search.printed
    two_nodes.remove_node(lost, allow_graceful=False)
    assert search.finish() == 0, search.printed

    died = rows(study, "SELECT at, trial FROM decisions WHERE action = 'pause' AND reason LIKE '%node%'")
    assert len(died) == 1 and not rows(study, "SELECT 1 FROM trials WHERE state = 'failed'"), search.printed
    later = rows(study, "SELECT 1 FROM reports WHERE trial = ? AND at > ?", died[0]["trial"], died[0]["at"])
    assert later, f"{died[0]['trial']} did not go on\n{search.printed}"
    at_once = """
        SELECT COUNT(*) FROM leases AS one JOIN leases AS two ON one.lease < two.lease
        WHERE two.opened < one.closed - 0.01 AND two.opened > ?"""
    assert number(study, at_once, died[0]["at"]) == 0
    assert adds_up(study) and 0.8 * CAP <= spent(study) <= CAP
    assert rows(study, "SELECT 1 FROM reports WHERE final")


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
