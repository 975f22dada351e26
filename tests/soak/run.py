"""The soak: real searches, real Ray, real processes killed. Prints its table and writes it as JSON beside."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.soak.table import main

if __name__ == "__main__":
    sys.exit(main())
