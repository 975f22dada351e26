"""Entry: two studies side by side."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.compare_command import compare
from analysis.tables import run

if __name__ == "__main__":
    sys.exit(run(compare))
