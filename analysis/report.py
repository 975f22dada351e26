"""Entry: one self-contained page of a study."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.cli import run
from analysis.report_command import report

if __name__ == "__main__":
    sys.exit(run(report))
