"""The batch script for Slurm under bash: the driver is told of the end and waited for, and the next job goes on."""

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "slurm.sbatch"
PATIENCE = 600.0
"""Seconds that a driver may be silent."""
# It writes down its flags; told to end, it keeps what it has once it is let.
DRIVER = f"""#!{sys.executable}
import signal, sys
from pathlib import Path
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
Path("flags").write_text(" ".join(sys.argv[1:]))
Path("told").write_text("started\\n")
signal.sigwait([signal.SIGTERM])
Path("told").write_text("TERM\\n")
Path("go").open().readline()
Path("kept").touch()
sys.exit(143)
"""
DONE = '#!/bin/bash\necho "$*" >flags\necho started >told\nexit 3\n'
RAY = """#!/bin/bash
case $1 in
    health-check) grep -q head nodes ;;
    start) echo "$RAY_AUTH_TOKEN $*" >>nodes ;;
    status) sed 's/.*/ 1 node_/' nodes ;;
esac
"""
SRUN = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n'
QUEUE = '#!/bin/bash\necho "$*" >>queued\n'


@dataclass(frozen=True)
class Job:
    """A folder from which a job is submitted, with stand-ins for what the script calls, and pipes to and from these."""

    folder: Path
    told: int
    go: int
    begun: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def starts(self, *flags: str, nodes: int = 1) -> subprocess.Popen[bytes]:
        """The job, its driver at work."""
        slurm = {"SUBMIT_DIR": self.folder, "JOB_NAME": "one", "JOB_ID": 7, "JOB_NUM_NODES": nodes, "CPUS_PER_TASK": 8}
        environment = os.environ | {f"SLURM_{name}": str(value) for name, value in slurm.items()}
        environment |= {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "SLURMD_NODENAME": "first"}
        words = ["bash", str(SCRIPT), *flags]
        self.begun.append(subprocess.Popen(words, env=environment, cwd="/", start_new_session=True))
        assert self.hears() == "started"
        return self.begun[-1]

    def hears(self) -> str:
        """What the driver says next; waited for."""
        assert select.select([self.told], [], [], PATIENCE)[0], "the driver says nothing"
        return os.read(self.told, 99).decode().strip()

    def lets(self) -> None:
        """The driver may end."""
        os.write(self.go, b"\n")

    def read(self, name: str) -> str:
        return (self.folder / name).read_text().strip()

    def stands_in(self, name: str, script: str) -> None:
        (self.folder / "bin" / name).write_text(script)
        (self.folder / "bin" / name).chmod(0o755)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    (tmp_path / "bin").mkdir()
    for name in ("told", "go"):
        os.mkfifo(tmp_path / name)
    made = Job(tmp_path, *(os.open(tmp_path / name, os.O_RDWR) for name in ("told", "go")))
    for name, script in {"python": DRIVER, "ray": RAY, "srun": SRUN, "scontrol": QUEUE}.items():
        made.stands_in(name, script)
    yield made
    for batch in made.begun:
        with suppress(ProcessLookupError):
            os.killpg(batch.pid, signal.SIGKILL)
        batch.wait()
    os.close(made.told)
    os.close(made.go)


def test_the_driver_is_told_of_the_end_and_waited_for_and_the_job_is_queued_again(job: Job) -> None:
    batch = job.starts("--budget", "8h")
    assert job.read("flags") == "tune/run.py --budget 8h --out runs/one"
    batch.send_signal(signal.SIGTERM)
    assert job.hears() == "TERM"
    batch.send_signal(signal.SIGTERM)  # Slurm may say it twice; the driver is waited for all the same
    job.lets()
    assert batch.wait() == 143
    assert (job.folder / "kept").exists()
    assert job.read("queued") == "requeue 7"


def test_the_next_job_of_that_name_goes_on(job: Job) -> None:
    (job.folder / "runs" / "one").mkdir(parents=True)
    (job.folder / "runs" / "one" / "journal.db").touch()
    job.stands_in("python", DONE)
    batch = job.starts("--budget", "8h")
    assert batch.wait() == 3
    assert job.read("flags") == "tune/run.py --budget 8h --resume runs/one"
    assert not (job.folder / "queued").exists()


def test_several_nodes_are_joined_under_one_token_before_the_search_begins(job: Job) -> None:
    job.stands_in("python", DONE)
    job.starts("--budget", "8h", nodes=2).wait()
    tokens, started = zip(*(line.split(maxsplit=1) for line in job.read("nodes").splitlines()), strict=True)
    assert len(started) == 2 and len(set(tokens)) == 1 and len(tokens[0]) == 64
    assert started[0].startswith("start --head")
    address = job.read("flags").split()[-1]
    assert f"--address={address}" in started[1] and address.endswith(":20007")
    assert all(re.search(r" --num-cpus=8\b.* --block$", each) for each in started), "the job's, not all of a machine"
