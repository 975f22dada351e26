"""The settings of a replay; standard library only."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tune.errors import UserError
from tune.flags import Command, flag_field, flag_name, invalid, parse_each
from tune.table_text import TableFlags
from tune.units import duration_text, parse_bytes, parse_duration

SCHEDULERS = (
    *("ration", "ration-front", "ray-asha", "ray-hyperband", "optuna-hyperband", "optuna-halving"),
    *("promotion-asha", "one-report", "random", "oracle"),
)
SUGGESTIONS = ("order", "prior")
ALL = "all"
"""Value of --ablations for all ideas that our own scheduler may do without."""
MOST_WORKERS, MOST_SEEDS = 10_000, 1_000_000


@dataclass(frozen=True, kw_only=True)
class Amount:
    """Length of time in seconds, or as a multiple of one that follows from a table or a cap. text: as it was typed."""

    text: str
    seconds: float | None = None
    times: float | None = None

    def of(self, unit: float) -> float:
        """Return the seconds. unit: the length that a multiple is of."""
        return self.seconds if self.seconds is not None else unit * (self.times or 0.0)


def _number(text: str, rule: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise UserError(f"{text!r} is not a number: write {rule}") from None
    if not math.isfinite(number):
        raise UserError(f"{text!r} is not finite: write {rule}")
    return number


def _amount(sign: str, units: int, rule: str, nothing: str) -> Callable[[str], Amount]:
    """Return a parser of a time, or of a multiple: a number before `sign`, divided by `units`."""

    def read(text: str) -> Amount:
        if text.endswith(sign):
            amount = Amount(text=text, times=_number(text[:-1], rule) / units)
        else:
            amount = Amount(text=text, seconds=parse_duration(text))
        if amount.of(1.0) <= 0:
            raise UserError(f"{text!r} {nothing}")
        return amount

    return read


_budget = _amount("%", 100, "a share such as 5%", "buys nothing: write more than 0, such as 5% or 8h")
_deadline = _amount("x", 1, "a multiple such as 2x", "leaves no time: write more than 0, such as 3h or 2x")


def _whole(text: str, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise UserError(f"{text!r} is not a whole number from 1 to {most}")
    return int(text)


def _diverge(text: str) -> float:
    share = _number(text, "a share such as 0.25")
    if not 0 <= share < 1:
        raise UserError(f"{text!r} is not a share: write a number from 0 up to 1, such as 0.25")
    return share


@dataclass(frozen=True, kw_only=True)
class ReplaySettings(TableFlags):
    """Settings of one replay: every scheduler on every table, budget and number of workers, once for each seed. Times
    are seconds. UserError: one is of our own scheduler, which is not among those to compare."""

    command: ClassVar[Command] = Command(
        script="tune/replay.py", entry_point="tune.curves.replay_command:run",
        description=(
            "The search's own scheduler, ration, and its baselines, on recorded learning curves, in virtual time."
        ),
    )  # fmt: skip
    tables: tuple[Path, ...] = flag_field(
        "recorded curves (.jsonl), or a published table's name",
        metavar="TABLE", nargs="+", parse=Path,
    )  # fmt: skip
    budget: tuple[Amount, ...] = flag_field(
        "caps: device time, or shares of what all curves cost", metavar="8h|5%,10%", parse=parse_each(_budget)
    )
    workers: tuple[int, ...] = flag_field(
        "slots, as --devices of a search",
        default=(1,), metavar="1,2,4,8", parse=parse_each(lambda text: _whole(text, MOST_WORKERS)),
        format=lambda _: "1",
    )  # fmt: skip
    deadline: Amount | None = flag_field(
        "wall clock: a time, or a multiple of cap / workers (default: none)",
        default=None, metavar="3h|2x", parse=_deadline,
    )  # fmt: skip
    patient: bool = flag_field(
        "let ration use few slots for long (default: it ends in about twice cap / workers, or cap / workers and one "
        "trial's whole life, as a search does)",
        default=False,
    )
    seeds: int = flag_field(
        "searches a cell, each in its own order", default=100, metavar="N", parse=lambda text: _whole(text, MOST_SEEDS)
    )
    schedulers: tuple[str, ...] = flag_field(
        "what to compare; ration is the search's own",
        default=SCHEDULERS, metavar=",".join(SCHEDULERS), choices=SCHEDULERS, parse=parse_each(str),
        format=lambda _: "all",
    )  # fmt: skip
    ablations: tuple[str, ...] = flag_field(
        "also ration without these ideas, one at a time", default=(), metavar=f"{ALL}|IDEA,...", parse=parse_each(str)
    )
    suggest: str = flag_field(
        "how configurations are chosen, for all schedulers alike; order: in a seeded order; prior: as a search does, "
        "by its prior, whose centre each seed moves within its own uncertainty, and for ration by its law",
        default="order", choices=SUGGESTIONS,
    )  # fmt: skip
    learn_from: Path | None = flag_field(
        "a table of other trainings of the same family: ration is told what a search there found, with as much cap and "
        "as many slots, as --learn-from of a search tells it; with --suggest prior",
        default=None, metavar="TABLE", parse=Path,
    )  # fmt: skip
    memory_limit: float = flag_field(
        "configurations that need more run out of memory",
        default=math.inf, metavar="8GB", parse=parse_bytes, format=lambda _: "none",
    )  # fmt: skip
    diverge: float = flag_field(
        "this share of the configurations turns NaN at a random report",
        default=0.0, metavar="0.25", parse=_diverge, format=lambda _: "0",
    )  # fmt: skip
    start_up: float = flag_field(
        "device time before a slot trains", default=5.0, metavar="5s", parse=parse_duration, format=duration_text
    )
    thaw: float = flag_field(
        "device time to put another trial on a slot",
        default=1.0,
        metavar="1s",
        parse=parse_duration,
        format=duration_text,
    )
    rows: Path | None = flag_field(
        "keep rows in this file, one a line; what it has is not played again", default=None, metavar="FILE", parse=Path
    )
    json: bool = flag_field("rows as JSON", default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        ours = self.ablations or any(name.startswith("ration") for name in self.schedulers)
        for name in ("patient", "learn_from"):
            if getattr(self, name) and not ours:
                rule = "applies only to ration, which --schedulers leaves out"
                raise invalid(name, f"{rule}: add ration to it, or leave {flag_name(name)} out")
