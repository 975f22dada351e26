"""experiment.py with two of the configurations of `curves`, of which one lives on for twice as long."""

import sys
from pathlib import Path


def main() -> int:
    """As of the entry."""
    sys.path[0] = str(Path(__file__).resolve().parents[3])

    from tune import cli
    from tune.experiments import curves
    from tune.settings import ExperimentSettings

    curves.SHAPES, curves.LONG, curves.LONG_LIFE = ((32, 4, 2, 0.0), (32, 4, 3, 0.1)), 1, 2 * curves.LIFE
    curves.LATE_SECONDS = 600.0  # on the busiest machine; what is not used is released
    return cli.main(ExperimentSettings, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
