"""The search: `python tune/run.py --budget 8h`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from tune.cli import main
from tune.settings import Settings

if __name__ == "__main__":
    sys.exit(main(Settings))
