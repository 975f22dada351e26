"""Made-up tables for the tests of the replay."""

import json
import random
from pathlib import Path

from tune.curves.world import Machine, World

from tune.curves.asked import Amount, ReplaySettings
from tune.curves.benchmark import player
from tune.curves.recorded import Curve, Table
from tune.curves.supply import Supply


def curve(number: int, *, reports: int = 8, seed: int = 0, memory: float | None = None) -> Curve:
    rng = random.Random(f"{seed} {number}")
    low, height, power = rng.uniform(2, 3), rng.uniform(1, 2), rng.uniform(0.3, 0.8)
    losses = tuple(low + height * (report + 1) ** -power for report in range(reports))
    config = {"width": number % 5, "depth": number // 5}
    return Curve(
        config=config, parameters=1000 * (number + 1), seconds_per_report=rng.uniform(2, 20), losses=losses,
        memory_bytes=memory,
    )  # fmt: skip


def table(configs: int = 20, **options) -> Table:
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


def settings(**changes) -> ReplaySettings:
    return ReplaySettings(**{"tables": (), "budget": (Amount(text="20%", times=0.2),), "seeds": 3} | changes)


def play(made: Table, scheduler: str, *, share: float = 0.3, seed: int = 0, **machine) -> World:
    world = World(
        made.curves, share * made.exhaustive, Machine(**machine), Supply(made.curves, suggest="order", seed=seed)
    )
    world.play(player(scheduler, world))
    return world
