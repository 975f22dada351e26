"""Entry: what each dimension did, and how much it matters."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.figure_command import draw_effects
from analysis.tables import run

if __name__ == "__main__":
    sys.exit(run(draw_effects))
