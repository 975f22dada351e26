"""Replays: thousands of searches on recorded curves in virtual time, and what they found."""

import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from tune import replay_tables
from tune.replay_ablations import without
from tune.replay_settings import Amount, ReplaySettings, parse
from tune.replay_tables import Curve, Table
from tune.replay_world import Machine, Player, World

WITHOUT = "without "
"""Our own scheduler, less the idea that follows."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Searches that differ in their seed only."""

    table: Table
    scheduler: str
    budget: Amount
    workers: int

    @property
    def cap(self) -> float:
        """Device-seconds."""
        return self.budget.of(self.table.exhaustive)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One search. Shares are of the cap; the hypervolume, in (log parameters, loss), is one of the whole table's."""

    regret: float
    unspent: float
    after_divergence: float
    unfit: float
    trials: int
    hypervolume: float


def main(argv: Sequence[str] | None = None) -> int:
    """Replay as the flags say and print what came out; exit code 2 and one line where they are wrong."""
    try:
        settings = parse(sys.argv[1:] if argv is None else argv)
        rows = list(replay(settings))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if settings.json:
        print(json.dumps(rows, indent=1))
    else:
        from tune.replay_report import report

        print(report(rows))
    return 0


def replay(settings: ReplaySettings) -> Iterator[dict[str, Any]]:
    """A row for each table, budget, number of workers and scheduler."""
    tables = [table for path in settings.tables for table in replay_tables.load(path)]
    for table in tables:
        for budget in settings.budgets:
            for workers in settings.workers:
                for scheduler in (*settings.schedulers, *(f"{WITHOUT}{idea}" for idea in settings.without)):
                    cell = Cell(table=table, scheduler=scheduler, budget=budget, workers=workers)
                    yield row(cell, [search(cell, settings, seed) for seed in range(settings.seeds)])


def row(cell: Cell, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What the searches of a cell come to; regrets are 0.05 where the perplexity is 5 % above the best."""
    regrets = [outcome.regret for outcome in outcomes]
    spread = statistics.stdev(regrets) if len(regrets) > 1 else 0.0

    def mean(value: Callable[[Outcome], float]) -> float:
        return statistics.fmean(value(outcome) for outcome in outcomes)

    return {
        "table": cell.table.name,
        "scheduler": cell.scheduler,
        "budget": cell.budget.text,
        "workers": cell.workers,
        "cap_seconds": cell.cap,
        "seeds": len(outcomes),
        "mean_regret": statistics.fmean(regrets),
        "standard_error": spread / math.sqrt(len(regrets)),
        "p90_regret": sorted(regrets)[max(0, math.ceil(0.9 * len(regrets)) - 1)],
        "unspent": mean(lambda outcome: outcome.unspent),
        "after_divergence": mean(lambda outcome: outcome.after_divergence),
        "unfit": mean(lambda outcome: outcome.unfit),
        "trials": mean(lambda outcome: outcome.trials),
        "hypervolume": mean(lambda outcome: outcome.hypervolume),
    }


def search(cell: Cell, settings: ReplaySettings, seed: int) -> Outcome:
    """One search in virtual time."""
    from tune.replay_supply import Supply

    curves = diverging(cell.table.curves, settings.diverge, seed)
    machine = Machine(
        workers=cell.workers,
        start_up=settings.start_up,
        thaw=settings.thaw,
        deadline=settings.deadline.of(cell.cap / cell.workers) if settings.deadline else math.inf,
        memory_limit=settings.memory_limit,
    )
    world = World(curves, cell.cap, machine, Supply(curves, suggest=settings.suggest, seed=seed))
    idea = cell.scheduler.removeprefix(WITHOUT)
    with nullcontext() if idea == cell.scheduler else without(idea):
        world.play(player(cell.scheduler, world))
    return outcome(world)


def outcome(world: World) -> Outcome:
    """What a search found. With nothing in hand it has the worst first report of the table."""
    curves, limit = world.curves, world.machine.memory_limit
    fitting = [curve for curve in curves if curve.sound and (curve.memory_bytes or 0.0) <= limit]
    if not fitting:
        raise ValueError("--memory-limit: no configuration fits and trains; allow more memory")
    found = min(world.best(), max(curve.losses[0] for curve in fitting))
    reached = [(world.curve(trial), world.curve(trial).best[count - 1]) for trial, count in world.reports.items()]
    front = hypervolume([(curve, curve.best[-1]) for curve in curves], curves)
    return Outcome(
        regret=math.expm1(found - min(curve.best[-1] for curve in fitting)),
        unspent=max(0.0, 1 - world.spent / world.cap),
        after_divergence=world.after_divergence / world.cap,
        unfit=world.unfit / world.cap,
        trials=len(world.trials),
        hypervolume=hypervolume(reached, curves) / front if front else 1.0,
    )


def player(scheduler: str, world: World) -> Player:
    """The scheduler of that name. Ray and Optuna come only with those of theirs."""
    if scheduler == "ration" or scheduler.startswith(WITHOUT):
        from tune.replay_ration import Ration

        return Ration(world)
    from tune import replay_peers as peers

    makers: dict[str, Callable[[World], Player]] = {
        "ray-asha": peers.RayAsha,
        "ray-hyperband": peers.RayHyperBand,
        "optuna-hyperband": peers.optuna_hyperband,
        "optuna-halving": peers.optuna_halving,
        "random": peers.Random,
        "oracle": peers.Oracle,
    }
    return makers[scheduler](world)


def diverging(curves: Sequence[Curve], share: float, seed: int) -> tuple[Curve, ...]:
    """The curves, of which a share turns NaN at a random report and stays so."""
    rng = random.Random(f"diverge {seed}")
    chosen = set(rng.sample(range(len(curves)), round(share * len(curves))))

    def broken(curve: Curve) -> Curve:
        sound = rng.randrange(len(curve.losses))
        return replace(curve, losses=curve.losses[:sound] + (math.nan,) * (len(curve.losses) - sound))

    return tuple(broken(curve) if index in chosen else curve for index, curve in enumerate(curves))


def hypervolume(reached: Sequence[tuple[Curve, float]], curves: Sequence[Curve]) -> float:
    """Area in (log parameters, loss) that the points dominate, below the largest model and the worst end of a table."""
    widest = math.log(max(curve.parameters for curve in curves) + 1)
    level = max((curve.best[-1] for curve in curves if curve.sound), default=0.0)
    area = 0.0
    for curve, loss in sorted(reached, key=lambda point: (point[0].parameters, point[1])):
        if loss < level:
            area += (level - loss) * (widest - math.log(curve.parameters + 1))
            level = loss
    return area
