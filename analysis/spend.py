"""Entry: where each device-second went."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.spending import spend
from analysis.tables import run

if __name__ == "__main__":
    sys.exit(run(spend))
