"""Measure every kernel in every implementation, as Ray tasks: `python kernels/run.py`; `--local` without Ray."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from kernels.settings import Settings
from tune.cli import main

if __name__ == "__main__":
    sys.exit(main(Settings))
