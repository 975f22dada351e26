"""Entry: `make gpu PART=1..4`, on a machine with a GPU."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.cuda.measure import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
