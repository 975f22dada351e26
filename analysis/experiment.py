"""Entry: the pictures of an experiment."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.experiment_command import draw_experiment
from analysis.tables import run

if __name__ == "__main__":
    sys.exit(run(draw_experiment))
