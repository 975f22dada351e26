"""Entry: what more devices gain, and what of a step is communication."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.speedup_command import draw_speed_up
from analysis.tables import run

if __name__ == "__main__":
    sys.exit(run(draw_speed_up))
