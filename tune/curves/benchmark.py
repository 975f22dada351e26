"""One search on recorded curves, and what it found: what can be asked of it, and our own rules less one of their
ideas.
"""

import argparse
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tune.cli import Parser
from tune.curves.recorded import Curve, Table
from tune.curves.supply import Supply
from tune.errors import UserError, called
from tune.search.cost_model import Prices
from tune.search.engine import Planner
from tune.search.family import Family, Policy
from tune.search.simulator import Clock, Costs, Simulation
from tune.search.successive_halving import Frame, Rules, SuccessiveHalving
from tune.store.accounting import Books
from tune.store.journal import Journal
from tune.store.ledger import Ledger
from tune.units import parse_bytes, parse_duration

EQUAL_TOKENS = "equal-tokens"
IDEAS: dict[str, dict[str, Any]] = {
    EQUAL_TOKENS: {},
    "extrapolation": {"fall_kept": 0.0},
    "gains": {"gains": False},
    "past-best": {"past_best": False},
    "kept-money": {"last_share": 0.0},
    "eta-2": {"eta": 4.0},
    "narrowing": {"narrow": False},
    "deadline-rush": {"rush": False},
}
"""Which rule of the policy is another to do without an idea; without the first rungs are equal in device-seconds."""

ABOUT = "The search's own scheduler, and its peers, on recorded learning curves, in virtual time."
SCHEDULERS = (
    *("ration", "ray-asha", "ray-hyperband", "optuna-hyperband", "optuna-halving"),
    *("promotion-asha", "one-report", "random", "oracle"),
)
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
    """One search. Shares are of the cap; the hypervolume, in (log parameters, loss), is one of the whole table's.

    wall: seconds from its start to its end.
    """

    regret: float
    unspent: float
    after_divergence: float
    unfit: float
    trials: int
    hypervolume: float
    wall: float


def search(cell: Cell, settings: ReplaySettings, seed: int) -> Outcome:
    """One search: the engine in virtual time, with its own policy or with a baseline's rule in its place."""
    curves, cap, clock = diverging(cell.table.curves, settings.diverge, seed), cell.cap, Clock()
    deadline = settings.deadline.of(cap / cell.workers) if settings.deadline else math.inf
    best = min(range(len(curves)), key=lambda index: _alone(curves[index], cell, settings))
    supply = Supply(
        curves, suggest=settings.suggest, seed=seed, only=[best] if cell.scheduler == "oracle" else None
    )
    with Journal(None, new=True) as journal:
        books = Books(journal, Ledger(cap=cap, clock=clock), clock)
        families: dict[str, Family] = {}
        planner = Planner(
            books=books, families=families, slots=cell.workers,
            wall_left=lambda: None if math.isinf(deadline) else deadline - clock.now,
        )  # fmt: skip
        families["replay"] = _family(cell, settings, curves, supply, planner, deadline)
        costs = Costs(start_up=settings.start_up, overhead=0.0, thaw=settings.thaw, memory_limit=settings.memory_limit)
        Simulation(planner, clock, costs, lambda trial, family, config: curves[config["curve"]]).run()
        return outcome(cell, settings, curves, planner, clock)


def _family(
    cell: Cell, settings: ReplaySettings, curves: Sequence[Curve], supply: Supply, planner: Planner, deadline: float
) -> Family:  # fmt: skip
    """As a search has it. What a step takes of the configuration that comes first is known, of no other."""
    steps, unit = max(curve.most for curve in curves), max(curve.report_every for curve in curves)
    step_seconds, life = supply.first().step_seconds, math.inf if cell.table.own_mode else steps
    policy: Policy
    idea, price = cell.scheduler.removeprefix(WITHOUT), planner.price_of("replay")
    if cell.scheduler == "ration" or idea != cell.scheduler:
        first = unit * step_seconds if math.isfinite(life) else None    # reports are as close as they are
        frame = Frame(
            slots=cell.workers, shortest=unit * step_seconds, overhead=settings.thaw, start_up=settings.start_up,
            life=life * step_seconds, rules=Rules(**IDEAS.get(idea, {})),
        )  # fmt: skip
        policy = SuccessiveHalving(frame, frame.fit(cell.cap, deadline, first), price)
        supply.steps_at = lambda rung: policy.rung_seconds(rung) / step_seconds
    else:
        from tune.curves.baselines import made  # Ray and Optuna come only with those of theirs

        policy = made(cell.scheduler, supply=supply, price=price, unit=unit, steps=steps, step_seconds=step_seconds)
        supply.steps_at = lambda rung: policy.rung_seconds(rung) / step_seconds
    return Family(
        seconds=cell.cap, policy=policy, prices=Prices(), suggestions=supply, equal_tokens=idea != EQUAL_TOKENS,
        step_seconds=step_seconds, life_steps=life,
    )  # fmt: skip


def _alone(curve: Curve, cell: Cell, settings: ReplaySettings) -> float:
    """The loss of a configuration that is all that is trained: to its end, in own mode for the whole cap."""
    if not curve.sound or curve.memory_bytes > settings.memory_limit:
        return math.inf
    return curve.final(cell.cap / curve.step_seconds) if curve.decayed else curve.best[-1]


def outcome(cell: Cell, settings: ReplaySettings, curves: Sequence[Curve], planner: Planner, clock: Clock) -> Outcome:
    """What a search found, of all losses that its trials passed. With nothing in hand it has the worst first one."""
    fitting = [curve for curve in curves if math.isfinite(_alone(curve, cell, settings))]
    if not fitting:
        raise UserError("--memory-limit: no configuration fits and trains; allow more memory")
    steps = {trial: (curves[record.config["curve"]], record.steps) for trial, record in planner.trials.items()}
    reached = [(curve, curve.lowest(count)) for curve, count in steps.values()]
    query = "SELECT trial, steps, valid_loss FROM reports WHERE final AND valid_loss IS NOT NULL"
    reached += [(steps[row["trial"]][0], row["valid_loss"]) for row in planner.books.journal.rows(query)]
    found = min(min((loss for _, loss in reached), default=math.inf), max(curve.losses[0] for curve in fitting))
    diverged = [curve.seconds_per_report for curve, count in steps.values() if count >= curve.diverges]
    (lost,) = planner.books.journal.rows("SELECT TOTAL(seconds) FROM charges WHERE what = 'lost'")
    front = hypervolume([(curve, curve.best[-1]) for curve in curves], curves)
    return Outcome(
        regret=math.expm1(found - min(_alone(curve, cell, settings) for curve in fitting)),
        unspent=max(0.0, 1 - planner.books.ledger.spent / cell.cap),
        after_divergence=sum(diverged) / cell.cap,
        unfit=lost[0] / cell.cap,
        trials=len(steps),
        hypervolume=hypervolume(reached, curves) / front if front else 1.0,
        wall=clock.now,
    )


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
