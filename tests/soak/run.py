"""The soak: real searches, real Ray, real processes killed. Prints its table and writes it as JSON beside."""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.soak.cap import cap_extended, cap_held, gpu_shared
from tests.soak.corpus import corpus
from tests.soak.faults import faulty_trials, out_of_memory
from tests.soak.kill import driver_killed, trial_killed
from tests.soak.loops import own_loops
from tests.soak.nodes import node_lost
from tests.soak.observer import Observer
from tests.soak.search import Bench, Row
from tests.soak.signals import driver_stopped, signalled

ROWS = {
    "cap": cap_held, "kill": driver_killed, "stops": driver_stopped, "deaths": trial_killed, "signals": signalled,
    "extension": cap_extended, "faults": faulty_trials, "memory": out_of_memory, "nodes": node_lost,
    "sharing": gpu_shared, "corpus": corpus, "loops": own_loops,
}  # fmt: skip
HEAD = "| what | asked | measured | kept |\n|---|---|---|---|"


def measured(names: Iterable[str], folder: Path, *, seed: int = 0, short: bool = False) -> Iterator[Row]:
    """The rows of these names, as they are measured; studies are left in `folder`."""
    observer = Observer()
    observer.start()
    try:
        for name in names:
            chance = random.Random(f"{seed} {name}")
            yield from ROWS[name](Bench(folder=folder, chance=chance, observer=observer, short=short))
    finally:
        observer.end()


def line(row: Row) -> str:
    """A row as the table shows it."""
    return f"| {row.what} | {row.asked} | {row.measured} | {'yes' if row.kept else '**no**'} |"


def main() -> int:
    """0 where every row is as it is asked to be, else 1."""
    parser = argparse.ArgumentParser(prog="python tests/soak/run.py", description=__doc__)
    parser.add_argument("--rows", default=",".join(ROWS), help="which, and in which order (default: %(default)s)")
    parser.add_argument("--short", action="store_true", help="each in its small form")
    parser.add_argument("--seed", type=int, default=0, help="for every random moment (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="where studies and soak.json go (default: a temporary folder)")
    flags = parser.parse_args()
    names = flags.rows.split(",")
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"--rows: {unknown[0]!r} is no row: choose of {', '.join(ROWS)}")
    folder = (flags.out or Path(tempfile.mkdtemp(prefix="soak-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"studies and soak.json: {folder}; seed {flags.seed}\n\n{HEAD}", flush=True)
    begun, found = time.monotonic(), []
    for row in measured(names, folder, seed=flags.seed, short=flags.short):
        print(line(row), flush=True)
        found.append(row)
        (folder / "soak.json").write_text(json.dumps([asdict(each) for each in found], indent=1), encoding="utf-8")
    print(f"\n{sum(row.kept for row in found)} of {len(found)} kept, in {(time.monotonic() - begun) / 60:.0f} min")
    return 0 if all(row.kept for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
