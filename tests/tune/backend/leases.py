"""What a trial's process is told by its driver, for tests of one without a Ray around it."""

import time
from pathlib import Path
from typing import Any

from tune.backend.leased import TrialEnvironment
from tune.store.accounting import Assignment
from tune.store.heartbeat import Process, machine_boot_id

POINT = {"d_model": 16, "heads": 4, "layers": 2, "dropout": 0.0, "precision": "fp32"}


def told(peak_flops: float | None = 1e9, **more: Any) -> dict[str, Any]:
    """Of a lease that begins now; more: of its assignment."""
    lease = {
        "trial": "t001", "family": "nanogpt", "config": POINT, "slot": 0, "lease": 1, "rung": 0, "opened": 0.0,
        "seconds": 3600.0, "steps": None, "training_seconds": None, "checkpoint": None, "micro_batches": 1,
    }  # fmt: skip
    opened = {"boot": machine_boot_id(), "monotonic": time.monotonic()}
    return {"assignment": vars(Assignment(**lease | more)), "opened": opened, "peak_flops": peak_flops}


def place(folder: Path, **more: Any) -> TrialEnvironment:
    """On one thread, under this process's eyes."""
    known = {
        "folder": folder, "device": "cpu", "threads": 1, "seed": 0, "recipes": {}, "evaluation_tokens": {},
        "report_every": 3600.0, "driver": Process.this_process(), "memory_limit": None,
    }  # fmt: skip
    return TrialEnvironment(**known | more)
