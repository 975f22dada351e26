"""A search on a Ray cluster of two real nodes on this machine, and what is asked of each node before."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.soak.table import line, measured
from tune.backend import session
from tune.settings import Settings


def test_a_search_runs_on_both_nodes_of_a_cluster_and_goes_on_where_one_is_lost(tmp_path: Path) -> None:
    for row in measured(["nodes"], tmp_path, short=True):
        assert row.kept, f"{line(row)}\n{row.details}"


def test_a_place_that_a_node_does_not_see_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_each(nodes: Any, function: Any, path: str) -> dict[str, str | None]:
        return {"here (10.0.0.1:1)": function(path), "there (10.0.0.2:1)": None}

    monkeypatch.setattr(session, "nodes", list)
    monkeypatch.setattr(session, "on_each", on_each)
    with pytest.raises(ValueError, match=r"^--out: .*study' is not seen from there \(10\.0\.0\.2:1\)[^\n]*$"):
        session.check_folder(tmp_path / "runs" / "study")
    assert os.listdir(tmp_path) == []


def test_devices_are_those_of_all_nodes_and_precisions_what_all_do(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "a": {"name": "A", "precisions": ("fp32", "bf16"), "memory_bytes": None},
        "b": {"name": "B", "precisions": ("fp32",), "memory_bytes": None},
    }
    living = [{"Resources": {"CPU": 3.0}}, {"Resources": {"CPU": 1.0}}, {"Resources": {}}]
    monkeypatch.setattr(session, "nodes", lambda: living)
    monkeypatch.setattr(session, "on_each", lambda nodes, function, kind: told)
    found = session.cluster_devices(Settings(budget=600))
    assert (found.slots, found.precisions, found.name) == (4, ("fp32",), "A or B")
    with pytest.raises(ValueError, match=r"--devices: '5'"):
        session.cluster_devices(Settings(budget=600, devices=5))
