"""A node lost: two of Ray's nodes on this machine, one killed in the middle of a search that runs on both."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.soak.accounts import adds_up, number, rows, spent
from tests.soak.search import Bench, Row, Search
from tune.errors import ROOT
from tune.search.engine import MACHINE_GONE

CAP_SECONDS, SHORT_CAP_SECONDS = 180, 80
TWO_NODES = """
import os
import signal
import sys
from pathlib import Path

import tune
from ray.cluster_utils import Cluster

nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
worker = nodes.add_node(num_cpus=1)
print(nodes.address, flush=True)
if sys.stdin.readline():
    raylet = worker.all_processes["raylet"][0].process.pid
    workers = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    for process in (raylet, *map(int, workers)):
        os.kill(process, signal.SIGKILL)
    sys.stdin.read()
nodes.shutdown()
"""


RUNNING = "SELECT COUNT(*) FROM leases WHERE closed IS NULL"


class TwoNodes:
    """A cluster of a head and a worker of one CPU each, in a process of its own: its address, and how to lose one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None and process.stdin is not None
        self._stdin = process.stdin
        self.address = next(line.strip() for line in process.stdout if ":" in line)

    def lose_the_worker(self) -> None:
        """All of its processes are gone at once, as with its machine."""
        self._stdin.write("lose\n")
        self._stdin.flush()


@contextmanager
def two_nodes() -> Iterator[TwoNodes]:
    """Two nodes, gone afterwards. Their token is in the environment, for searches that join them, and stays there: a
    process in which Ray was up before knows no other.
    """
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    words = [sys.executable, "-c", TWO_NODES]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        try:
            yield TwoNodes(process)
        finally:
            process.stdin.close()


def node_lost(bench: Bench) -> Iterator[Row]:
    """One row."""
    cap = SHORT_CAP_SECONDS if bench.short else CAP_SECONDS
    study = bench.folder / "node-lost"
    with two_nodes() as nodes:
        search = Search(
            bench.observer, "--address", nodes.address, "--budget", f"{cap}s", "--report-every", "1s", "--out", study
        )
        search.wait_for("at rung 0")
        search.until(lambda: number(study, RUNNING) >= 2)
        on_both = "2 x CPU core" in search.lines[0] and search.ended is None
        nodes.lose_the_worker()
        code = search.finish()
    gone = rows(study, "SELECT trial, action FROM decisions WHERE reason = ? ORDER BY decision", MACHINE_GONE)
    paused = {row["trial"] for row in gone if row["action"] == "pause"}
    lost = rows(study, "SELECT trial FROM trials WHERE state IN ('running', 'failed') OR reason LIKE 'error%'")
    later = """
        SELECT COUNT(*) FROM leases JOIN decisions USING (trial) WHERE reason = ? AND opened > at"""
    leases, finals = number(study, later, MACHINE_GONE), number(study, "SELECT COUNT(*) FROM reports WHERE final")
    yield Row(
        what="node lost",
        asked="a search on two nodes of which one is killed: its trials go on elsewhere; the account holds",
        measured=f"{'on both' if on_both else 'NOT on both'} until then; {len(paused)} trial was on it, which then "
        f"had {leases:.0f} leases more; {len(lost)} lost; {finals:.0f} winners decayed; "
        f"spent {spent(study):.1f} of {cap} s",
        kept=code == 0 and on_both and len(paused) == 1 and leases > 0 and not lost and finals > 0
        and adds_up(study) and spent(study) <= cap,
        details=[*gone, {"exit": code, "printed": search.printed}],
    )  # fmt: skip
