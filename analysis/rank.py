"""Rank the trials of a study: `python analysis/rank.py`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.settings import RankSettings
from tune.cli import main

if __name__ == "__main__":
    sys.exit(main(RankSettings))
