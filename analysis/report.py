"""Write a page on a study: `python analysis/report.py`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.settings import ReportSettings
from tune.cli import main

if __name__ == "__main__":
    sys.exit(main(ReportSettings))
