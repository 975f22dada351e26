"""What a replay can be asked: flags, their defaults, and what is wrong with them; standard library only."""

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tune.cli import Parser
from tune.duration import parse_duration
from tune.errors import UserError, called
from tune.sizes import parse_bytes
from tune.virtual.ablations import IDEAS

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
