"""Print where each device-second of a study went: `python analysis/spend.py`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.settings import SpendSettings
from tune.cli import main

if __name__ == "__main__":
    sys.exit(main(SpendSettings))
