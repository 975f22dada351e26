"""One experiment of the published reports, under a cap: `python tune/experiment.py scaling --budget 2h`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from tune.cli import main
from tune.experiments.experiment_settings import ExperimentSettings

if __name__ == "__main__":
    sys.exit(main(ExperimentSettings))
