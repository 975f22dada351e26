"""Export a study for others' tools: `python analysis/export.py runs/STUDY --optuna study.db`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.settings import ExportSettings
from tune.cli import main

if __name__ == "__main__":
    sys.exit(main(ExportSettings))
