"""Find where a table of figures contradicts itself: `python analysis/check_table.py TABLE.csv`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.settings import CheckSettings
from tune.cli import main

if __name__ == "__main__":
    sys.exit(main(CheckSettings))
