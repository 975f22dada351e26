"""Entry: what kernels reach, under the roofs of the machine's bandwidth and products."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.roofline_command import draw_roofline
from analysis.tables import run

if __name__ == "__main__":
    sys.exit(run(draw_roofline))
