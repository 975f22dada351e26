"""Entry: `python tests/bench/run.py --data $DATA`, the figures of the models; `--only kernels,ray` of the kernels."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.bench.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
