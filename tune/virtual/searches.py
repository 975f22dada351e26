"""One search in virtual time, and what it found."""

import math
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from tune.errors import UserError
from tune.virtual.ablations import without
from tune.virtual.curves import Curve, Table
from tune.virtual.settings import Amount, ReplaySettings
from tune.virtual.supply import Supply
from tune.virtual.world import Machine, Player, World

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


def search(cell: Cell, settings: ReplaySettings, seed: int) -> Outcome:
    """One search in virtual time."""
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
        raise UserError("--memory-limit: no configuration fits and trains; allow more memory")
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
        from tune.virtual.ration import Ration

        return Ration(world)
    from tune.virtual import peers

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
