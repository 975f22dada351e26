"""Entry: the learning curves, by rung."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.figure_command import draw_curves
from analysis.tables import run

if __name__ == "__main__":
    sys.exit(run(draw_curves))
