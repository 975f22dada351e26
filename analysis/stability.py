"""Entry: whether the ranking at half of a study's spending is that at its end."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.stability_command import stability
from analysis.tables import run

if __name__ == "__main__":
    sys.exit(run(stability))
