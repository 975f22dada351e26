"""Translate with a study's winner: `python model/translate.py runs/STUDY/best-translation "How are you?"`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from model.settings import TranslateSettings
from tune.cli import main

if __name__ == "__main__":
    sys.exit(main(TranslateSettings))
