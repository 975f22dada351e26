"""What the batch_size experiment measures: each batch in a process of its own, and the largest that memory holds."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from model.config import Config, Data
from model.experiments.largest_batch import fitted, largest, next_rows
from model.families import FAMILIES
from model.fitting import FIRST_STEPS, FITS, KILLED, RAN_OUT, TOO_LATE, Order, Outcome, try_batch
from model.memory import available_bytes
from tune.distributed import Place, Said
from tune.errors import UserError
from tune.experiments.scaling.work import of_rows
from tune.memory import GPU_OVERHEAD_BYTES, OVERHEAD_BYTES, Memory
from tune.sizes import parse_bytes

BATCHES = (32, 128, 512, 2048, 8192)
"""Rows, as the published report's: four times as many each time."""
SAFE = 0.9
"""The share of a machine's free memory that a limit may have at most."""
MARGIN = 1.5
"""Nothing begins unless so many times what it should take is left."""
END_SECONDS = 2.0
"""Of a task, kept for the end of its last process."""
STEPS = FIRST_STEPS + 1
"""That a batch is tried with."""
FIRST_SECONDS = 15.0
"""That trying a batch should take, before one was tried."""
MOST = 2**24
"""Rows: no batch is foretold to have more."""
FILE = "batches.json"


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Do what was asked for and say what came of it."""
    return measure_batch(place, asked) if "rows" in asked else measure_largest(place, asked)


@dataclass(frozen=True)
class Trials:
    """Batches to be tried on a task's place, in processes of their own; what came of each is kept in its folder."""

    place: Place
    asked: dict[str, Any]

    @property
    def limit(self) -> int | None:
        """Bytes that a batch may take; None: all that a GPU has."""
        if "limit" not in self.asked:
            return None
        return min(parse_bytes(self.asked["limit"]), int(SAFE * available_bytes(self.place.device)))

    def known(self) -> dict[int, Outcome]:
        """What came of each batch, by its rows."""
        file = self.place.folder / FILE
        return {int(rows): each for rows, each in json.loads(file.read_text()).items()} if file.exists() else {}

    def run(self, rows: int, *, share: float) -> Outcome:
        """Try a batch, and train for a share of two epochs. UserError: it fails whatever memory there is."""
        order = Order(
            config=of_rows(self.place.config, self.place.data, rows), device=self.place.device, limit=self.limit,
            share=share, seconds=self.place.left() - END_SECONDS,
        )  # fmt: skip
        found = try_batch(order, self.place.data)
        if found["ended"] != TOO_LATE and rows not in self.known():    # at the edge a second time may end otherwise
            keep(self.place.folder / FILE, self.known() | {rows: found})
        return found

    def seconds(self, rows: int) -> float:
        """That trying a batch should take: as long as another one took, and longer by the rows that it has more."""
        known = {count: each for count, each in self.known().items() if each["ended"] == FITS}
        taken = (each["ready_seconds"] + STEPS * each["step_seconds"] * max(0.0, rows / count - 1)
                 for count, each in known.items())  # fmt: skip
        return max(taken, default=FIRST_SECONDS)


def keep(file: Path, known: dict[int, Outcome]) -> None:
    """Write it whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(known))
    new.replace(file)


def epoch_rows(config: Config, data: Data) -> int:
    """Rows of an epoch, which are the most that a batch can have."""
    single = FAMILIES[config.family].training_batches(of_rows(config, data, 1), data, torch.device("cpu"))
    return len(single)


def paper(place: Place) -> Callable[[int], float]:
    """Bytes on paper of a step with so many rows."""
    family, data, device = FAMILIES[place.config.family], place.data, place.device
    return lambda rows: family.footprint(of_rows(place.config, data, rows), data, micro_batches=1, device=device)


def measure_batch(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """A second epoch, or so much of it as there is time for. UserError: the text or the time are too short."""
    trials, rows, there = Trials(place, asked), asked["rows"], epoch_rows(place.config, place.data)
    if rows > there:
        raise UserError(f"batch: {rows} rows are more than the {there} of an epoch: give a longer text")
    found = trials.run(rows, share=asked["share"])
    if found["ended"] == TOO_LATE:
        raise UserError("batch: the time for it was too short: give a larger --budget with --resume")
    yield Said(what="steps", row=found | {"paper_bytes": paper(place)(rows), "limit_bytes": trials.limit})


def measure_largest(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Four times as large as the last that fits until one does not, then the middle of the two until it is found."""
    trials, most = Trials(place, asked), epoch_rows(place.config, place.data)
    while (rows := next_rows(*bounds(trials.known()), most, BATCHES[0])) is not None:
        if place.left() - END_SECONDS < MARGIN * trials.seconds(rows):
            break
        if trials.run(rows, share=0.0)["ended"] == TOO_LATE:
            break
        yield Said(what="steps")
    fits, fails = bounds(trials.known())
    row = {"largest": fits, "fails": fails, "epoch_rows": most, "resolved": rows is None} | foretold(place, trials)
    if fits and fits not in BATCHES and place.left() - END_SECONDS > MARGIN * trials.seconds(fits):
        row["timed"] = trials.run(fits, share=asked["share"]) | {"paper_bytes": paper(place)(fits)}
    tried = [[count, each["ended"], each.get("memory_bytes")] for count, each in sorted(trials.known().items())]
    yield Said(what="steps", row=row | {"tried": tried})


def bounds(known: dict[int, Outcome]) -> tuple[int, int | None]:
    """The largest batch that fits, 0 for none, and the smallest beyond it that does not."""
    fits = max((rows for rows, each in known.items() if each["ended"] == FITS), default=0)
    fails = (rows for rows, each in known.items() if each["ended"] in (RAN_OUT, KILLED) and rows > fits)
    return fits, min(fails, default=None)


def foretold(place: Place, trials: Trials) -> dict[str, Any]:
    """The largest batch by the search's rule for memory, which knows no run; and by what small batches took."""
    known, on_paper = trials.known(), paper(place)
    small = {rows: known[rows]["memory_bytes"] for rows in BATCHES if known.get(rows, {}).get("ended") == FITS}
    free = [each["free_bytes"] for each in known.values() if each.get("free_bytes")]
    limit = min([*free, *([trials.limit] if trials.limit is not None else [])], default=math.inf)
    on_gpu = place.device.type == "cuda"
    overhead = GPU_OVERHEAD_BYTES if on_gpu else OVERHEAD_BYTES[place.config.family]
    rule = Memory(overhead=overhead, paper=lambda config, parts: on_paper(config["rows"]))
    found = {"limit_bytes": limit, "by_rule": largest(lambda rows: rule.predicted({"rows": rows}, 1), limit, MOST)}
    if small:
        found["foretold"] = largest(fitted(small, on_paper), limit, MOST)
        found["foretold_from"] = list(small)
    return found
