"""Made-up tables for the tests of the replay."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tune.curves import benchmark
from tune.curves.benchmark import Cell, Outcome
from tune.curves.recorded import Curve, Table
from tune.curves.replay_settings import Amount, ReplaySettings
from tune.search.engine import Engine


def curve(number: int, *, reports: int = 8, seed: int = 0, memory: float = 0.0) -> Curve:
    rng = random.Random(f"{seed} {number}")
    low, height, power = rng.uniform(2, 3), rng.uniform(1, 2), rng.uniform(0.3, 0.8)
    losses = tuple(low + height * (report + 1) ** -power for report in range(reports))
    return Curve(
        config={"width": number % 5, "depth": number // 5}, parameters=1000 * (number + 1), losses=losses,
        seconds_per_report=rng.uniform(20, 200), report_every=100.0, memory_bytes=memory,
    )  # fmt: skip


def table(configs: int = 20, **options: Any) -> Table:
    return Table(name="made", curves=tuple(curve(number, **options) for number in range(configs)))


def write(path: Path, made: Table) -> Path:
    rows = (
        {
            "config": each.config, "parameters": each.parameters, "memory_mb": None,
            "seconds_per_report": each.seconds_per_report, "valid_loss": list(each.losses),
        }
        for each in made.curves
    )  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def settings(**changes: Any) -> ReplaySettings:
    return ReplaySettings(**{"tables": (), "budget": (Amount(text="20%", times=0.2),), "seeds": 3} | changes)


def search(
    made: Table, scheduler: str, *, share: float = 0.3, seed: int = 0, workers: int = 1, earlier: Table | None = None,
    max_t: float = 1.0, **changes: Any,
) -> Outcome:  # fmt: skip
    budget = Amount(text="", times=share)
    cell = Cell(table=made, scheduler=scheduler, budget=budget, workers=workers, earlier=earlier, max_t=max_t)
    return benchmark.search(cell, settings(**changes), seed)


def played(made: Table, scheduler: str, **about: Any) -> Engine:
    """The engine after a search."""
    engines: list[Engine] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "outcome", lambda cell, settings, curves, engine, clock: engines.append(engine))
        search(made, scheduler, **about)
    return engines[0]
