"""Entry: one self-contained page of a study."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.report_command import report
from analysis.tables import run

if __name__ == "__main__":
    sys.exit(run(report))
