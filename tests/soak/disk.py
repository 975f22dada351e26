"""Faults of the disk and of the clock, injected: the laws that `make test` has of them, counted."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.soak.bench import Bench, Row

REPOSITORY = Path(__file__).resolve().parents[2]
LAWS = (
    *("tests/tune/store/test_disk_faults.py", "tests/tune/store/test_journal.py"),
    "tests/model/training/test_checkpoint.py",
)


def measure(bench: Bench) -> Iterator[Row]:
    """One row."""
    words = [sys.executable, "-m", "pytest", "-q", *LAWS]
    ran = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    passed = re.search(r"(\d+) passed", ran.stdout)
    yield Row(
        what="disk full, read-only folder, damaged checkpoint, locked journal, clock set back",
        asked="one clear line; nothing lost or corrupted; monotonic clock; the checkpoint before serves",
        measured=f"{passed[1] if passed else 0} laws hold under injected faults",
        kept=ran.returncode == 0 and passed is not None,
        details=[{"printed": ran.stdout}],
    )
