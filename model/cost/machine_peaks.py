"""What a machine does at most, kept in ~/.cache/ration/peaks.json: measured by kernels/run.py, used by the search.

RATION_CACHE names another folder. Standard library only.
"""

import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tune.errors import UserError

FILE = "peaks.json"


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Of one device, by threads of the process that drives it: a GPU does with one.

    bytes_per_second: read and written by a copy; flops_per_second: of products of matrices, by precision.
    """

    bytes_per_second: Mapping[int, float]
    flops_per_second: Mapping[str, Mapping[int, float]]


def cpu_name() -> str:
    """Its model, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def folder() -> Path:
    """Where they are kept."""
    return Path(os.environ.get("RATION_CACHE") or "~/.cache/ration").expanduser()


def kept(device: str) -> Peaks | None:
    """Of this host's device of that name; None where none were kept, or what was is damaged."""
    try:
        return _peaks(_read()[_key(device)])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def keep(found: Mapping[str, Peaks]) -> Path:
    """Keep peaks by the name of their device, beside those of other machines; the file is written whole or not at all.

    OSError where it cannot be written.
    """
    known = _read() | {_key(device): asdict(peaks) for device, peaks in found.items()}
    folder().mkdir(parents=True, exist_ok=True)
    new = folder() / f"{FILE}.{os.getpid()}"
    new.write_text(json.dumps(known, indent=1), encoding="utf-8")
    return new.replace(folder() / FILE)


def _key(device: str) -> str:
    return f"{platform.node()}: {device}"


def _read() -> dict[str, Any]:
    """By key; nothing of a file that is not there or damaged."""
    try:
        found = json.loads((folder() / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _peaks(entry: Mapping[str, Any]) -> Peaks:
    return Peaks(
        bytes_per_second=_by_threads(entry["bytes_per_second"]),
        flops_per_second={name: _by_threads(rates) for name, rates in entry["flops_per_second"].items()},
    )


def _by_threads(rates: Mapping[str, float]) -> dict[int, float]:
    """JSON has text for the threads. UserError for a rate that is none."""
    if not all(type(rate) in (int, float) and 0 < rate < math.inf for rate in rates.values()):
        raise UserError(f"{rates} are no rates")
    return {int(threads): float(rate) for threads, rate in rates.items()}
