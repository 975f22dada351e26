"""Signs of life of trials: what a trial used since its last report, for when nobody is there to hear of it."""

import json
import os
from pathlib import Path
from typing import Any

FOLDER = "heartbeats"


def beat(folder: Path, trial: str, lease: int, at: float) -> None:
    """Write down that `trial` used its lease until `at`, on the study's clock."""
    path = folder / FOLDER / trial
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"lease": lease, "at": at, "pid": os.getpid(), "started": started(os.getpid())}))
    new.replace(path)


def last_beat(folder: Path, trial: str) -> dict[str, Any] | None:
    """The last sign of life of a trial; None where there is none that can be read."""
    try:
        found = json.loads((folder / FOLDER / trial).read_text())
        return {"at": float(found["at"])} | {name: int(found[name]) for name in ("lease", "pid", "started")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def started(pid: int) -> int | None:
    """When a process of this machine was started, in clock ticks since boot; None where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def still_there(found: dict[str, Any]) -> bool:
    """Whether the very process that gave this sign of life lives, and is a worker of Ray's."""
    if started(found["pid"]) != found["started"]:
        return False
    return b"ray::" in Path(f"/proc/{found['pid']}/cmdline").read_bytes()
