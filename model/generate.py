"""Continue a text by a study's winner: `python model/generate.py runs/STUDY/best-nanogpt`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from model.settings import GenerateSettings
from tune.cli import main

if __name__ == "__main__":
    sys.exit(main(GenerateSettings))
