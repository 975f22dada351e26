"""Entry: `python tests/bench/kernels.py`, the kernels' figures; `--short` to see that it works."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.bench.kernel_command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
