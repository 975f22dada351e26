"""Entry: rank what a study found."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.rank_command import rank
from analysis.tables import run

if __name__ == "__main__":
    sys.exit(run(rank))
