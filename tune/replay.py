"""Replay: the search engine and baselines on recorded curves: `python tune/replay.py TABLE... --budget 5%,10%`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from tune.cli import main
from tune.curves.replay_settings import ReplaySettings

if __name__ == "__main__":
    sys.exit(main(ReplaySettings))
