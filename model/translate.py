"""Entry: translate with a study's winner."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from model.inference import run, translate

if __name__ == "__main__":
    sys.exit(run(translate))
