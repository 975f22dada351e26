"""One search on recorded curves, and what it found: what can be asked of it, and our own rules less one of their
ideas.
"""

import argparse
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tune.cli import Parser
from tune.curves.recorded import Curve, Table
from tune.curves.supply import Supply
from tune.curves.world import Machine, Player, World
from tune.errors import UserError, called
from tune.search import successive_halving as ladder
from tune.search import successive_halving as rungs
from tune.search.forecast import Entry, Standings, Trial
from tune.search.successive_halving import Contest, HandBack, Ladder, Left, Move, Wait
from tune.units import parse_bytes, parse_duration

NEXT, FIRST, DEPART, ENTRY = Contest.next, Standings.first, Standings.depart, Standings._entry


def _keep_slots(self: Contest, left: Left) -> Move:
    """A slot is kept as long as anything runs."""
    move = NEXT(self, left)
    return Wait(move.reason) if isinstance(move, HandBack) and left.running else move


def _equal_seconds(self: Ladder, rung: int, trial: Trial | None = None) -> float:
    """Rungs are equal in device-seconds, not in the share of the way to a trial's end."""
    assert self.horizon is not None
    return float(min(self.horizon(trial), self.first * ladder.ETA**rung))


def _depart_for_good(self: Standings, trial: Trial, goal: int | None) -> bool:
    """Once a rung is served, those who wait two rungs below it are left behind."""
    self.behind = max(getattr(self, "behind", 0), (goal or 0) - 1)  # type: ignore[attr-defined]
    return DEPART(self, trial, goal)


def _first_not_behind(self: Standings, rung: int, *, past_best: bool = False) -> Trial | None:
    return FIRST(self, rung, past_best=past_best) if rung >= getattr(self, "behind", 0) else None


def _entry_of_any(self: Standings, trial: Trial) -> Entry:
    """Trials that a rung made worse are as promising as their loss."""
    return False, *ENTRY(self, trial)[1:]


IDEAS: dict[str, list[tuple[Any, str, Any]]] = {
    "equal-tokens": [(Ladder, "rung_seconds", _equal_seconds)],
    "extrapolation": [(ladder, "FALL_TO_COME", 0.0)],
    "thawing": [(Standings, "depart", _depart_for_good), (Standings, "first", _first_not_behind)],
    "gains": [(Standings, "gain", lambda self, rung: 1.0)],
    "past-best": [(Standings, "_entry", _entry_of_any)],
    "revival": [(rungs, "REVIVED_SHARE", 0.0)],
    "kept-money": [(ladder, "TOP_SHARE", 0.0)],
    "tilt": [(ladder, "TILT", 1.0)],
    "eta-2": [(ladder, "ETA", 4.0)],
    "certain-places": [(Standings, "flying", lambda self, rung: 0)],
    "narrowing": [(Contest, "next", _keep_slots)],
    "deadline-rush": [(Contest, "_money_lies_idle", lambda self, left: False)],
}
"""What is changed to do without an idea: places, and what stands there instead."""


@contextmanager
def without(idea: str) -> Iterator[None]:
    """The contest does without an idea."""
    changes = [(place, name, instead, getattr(place, name)) for place, name, instead in IDEAS[idea]]
    for place, name, instead, _ in changes:
        setattr(place, name, instead)
    try:
        yield
    finally:
        for place, name, _, before in changes:
            setattr(place, name, before)


ABOUT = "The search's own scheduler, and its peers, on recorded learning curves, in virtual time."
SCHEDULERS = ("ration", "ray-asha", "ray-hyperband", "optuna-hyperband", "optuna-halving", "random", "oracle")
SUGGESTIONS = ("order", "cheap", "tpe", "size-law")
MOST_WORKERS = 10_000
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Amount:
    """A length of time in seconds, or a multiple of what a table or a cap makes it; `text` is as it was typed."""

    text: str
    seconds: float | None = None
    times: float | None = None

    def of(self, unit: float) -> float:
        """Seconds, where `unit` is what the multiple is of."""
        return self.seconds if self.seconds is not None else unit * (self.times or 0.0)


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """One replay: every scheduler on every table, budget and number of workers, once a seed."""

    tables: tuple[Path, ...]
    budgets: tuple[Amount, ...]
    workers: tuple[int, ...] = (1,)
    deadline: Amount | None = None
    seeds: int = 100
    schedulers: tuple[str, ...] = SCHEDULERS
    ablations: tuple[str, ...] = ()
    suggest: str = "order"
    memory_limit: float = math.inf
    diverge: float = 0.0
    start_up: float = 5.0
    thaw: float = 1.0
    rows: Path | None = None
    json: bool = False


def parse(argv: Sequence[str]) -> ReplaySettings:
    """Settings from flags. UserError: one line that says what is wrong. SystemExit: --help."""
    given = vars(_parser().parse_args(_joined(argv)))
    readers: dict[str, Callable[[str], object]] = {
        "budgets": _many(_budget), "workers": _many(_workers), "deadline": _deadline, "seeds": _seeds,
        "schedulers": _many(_choice(SCHEDULERS)), "suggest": _choice(SUGGESTIONS), "memory_limit": parse_bytes,
        "ablations": _ablations, "diverge": _diverge, "start_up": parse_duration,
        "thaw": parse_duration, "rows": Path,
    }  # fmt: skip
    values: dict[str, object] = {"tables": tuple(Path(path) for path in given.pop("tables")), "json": given.pop("json")}
    for name, text in given.items():
        flag = "--" + {"budgets": "budget"}.get(name, name).replace("_", "-")
        try:
            values[name] = readers[name](text)
        except ValueError as error:
            raise UserError(f"{flag}: {error}") from None
    return ReplaySettings(**values)  # type: ignore[arg-type]


def _joined(argv: Sequence[str]) -> list[str]:
    """`--budget -1h` as `--budget=-1h`: argparse would take the value for a flag."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1].startswith("--") and "=" not in joined[-1] and word[:1] == "-" and word[:2] != "--":
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _parser() -> argparse.ArgumentParser:
    made = Parser(
        prog=called("tune/replay.py"), description=ABOUT, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    add = made.add_argument
    add("tables", nargs="+", metavar="TABLE", help="recorded curves (.jsonl), or a study's journal.db")
    add(
        "--budget",
        dest="budgets",
        required=True,
        metavar="8h|5%,10%",
        help="caps: device time, or shares of what all curves cost",
    )
    add("--workers", metavar="1,2,4,8", help="slots (default: 1)")
    add("--deadline", metavar="3h|2x", help="wall clock: a time, or a multiple of cap / workers (default: none)")
    add("--seeds", metavar="N", help="searches a cell, each in its own order (default: 100)")
    add("--schedulers", metavar=",".join(SCHEDULERS), help="which to compare (default: all)")
    add("--ablations", metavar="all|IDEA,...", help=f"also ration without one of its ideas: {', '.join(IDEAS)}")
    add(
        "--suggest",
        metavar="|".join(SUGGESTIONS),
        help="how configurations are chosen, for all schedulers alike (default: order, a seeded one)",
    )
    add("--memory-limit", metavar="8GB", help="configurations that need more run out of memory (default: none)")
    add("--diverge", metavar="0.25", help="this share of the configurations turns NaN at a random report (default: 0)")
    add("--start-up", metavar="5s", help="device time before a slot trains (default: 5s)")
    add("--thaw", metavar="1s", help="device time to put another trial on a slot (default: 1s)")
    add("--rows", metavar="FILE", help="keep rows there, one a line, and take from there those that it has")
    add("--json", action="store_true", default=False, help="rows as JSON")
    return made


def _many(one: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    def read(text: str) -> tuple[T, ...]:
        return tuple(dict.fromkeys(one(part.strip()) for part in text.split(",")))

    return read


def _choice(choices: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise UserError(f"{text!r} is not known: choose from {', '.join(choices)}")
        return text

    return read


def _ablations(text: str) -> tuple[str, ...]:
    return tuple(IDEAS) if text == "all" else _many(_choice(tuple(IDEAS)))(text)


def _number(text: str, rule: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise UserError(f"{text!r} is not a number: write {rule}") from None
    if not math.isfinite(number):
        raise UserError(f"{text!r} is not finite: write {rule}")
    return number


def _budget(text: str) -> Amount:
    if text.endswith("%"):
        amount = Amount(text=text, times=_number(text[:-1], "a share such as 5%") / 100)
    else:
        amount = Amount(text=text, seconds=parse_duration(text))
    if amount.of(1.0) <= 0:
        raise UserError(f"{text!r} buys nothing: write more than 0, such as 5% or 8h")
    return amount


def _deadline(text: str) -> Amount:
    if text.endswith("x"):
        amount = Amount(text=text, times=_number(text[:-1], "a multiple such as 2x"))
    else:
        amount = Amount(text=text, seconds=parse_duration(text))
    if amount.of(1.0) <= 0:
        raise UserError(f"{text!r} leaves no time: write more than 0, such as 3h or 2x")
    return amount


def _whole(text: str, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise UserError(f"{text!r} is not a whole number from 1 to {most}")
    return int(text)


def _workers(text: str) -> int:
    return _whole(text, MOST_WORKERS)


def _seeds(text: str) -> int:
    return _whole(text, 1_000_000)


def _diverge(text: str) -> float:
    share = _number(text, "a share such as 0.25")
    if not 0 <= share < 1:
        raise UserError(f"{text!r} is not a share: write a number from 0 up to 1, such as 0.25")
    return share


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
        from tune.curves.world import Ration

        return Ration(world)
    from tune.curves import baselines

    makers: dict[str, Callable[[World], Player]] = {
        "ray-asha": baselines.RayAsha,
        "ray-hyperband": baselines.RayHyperBand,
        "optuna-hyperband": baselines.optuna_hyperband,
        "optuna-halving": baselines.optuna_halving,
        "random": baselines.Random,
        "oracle": baselines.Oracle,
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
