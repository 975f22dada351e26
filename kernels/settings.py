"""What can be asked for on the command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kernels.kernel import Implementation
from kernels.machine import last_cache_bytes, memory_bytes
from kernels.registry import KERNELS
from tune.errors import UserError, called
from tune.units import DURATIONS, parse_duration

SMALL = (1_000, 1_000_000)
IN_CACHE = 10_000
ARRAYS = 3
"""Of float64, of a kernel of three: together they are four times the last cache in the large one of the full sizes."""
MEMORY_SHARE = 32
"""An array may take one part in so many of the memory: beside it lie the others, the reference, and its own checks."""


class UnaffordableError(UserError):
    """A budget does not pay for the first kernel; the text is one line for the user."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure, and how to show it."""

    kernels: tuple[str, ...]
    sizes: tuple[int, ...]
    implementations: tuple[str, ...] | None = None
    """None: all."""
    local: bool = False
    as_json: bool = False
    seed: int = 0
    budget: float | None = None
    """Device-seconds of a study that keeps the rows; None: nothing is written."""
    out: Path = Path("runs/kernels")
    """The study's folder."""

    def asked(self, name: str) -> list[Implementation]:
        """The implementations of a kernel that are asked for."""
        known = KERNELS[name].implementations
        return [each for each in known if self.implementations is None or each.name in self.implementations]


class Parser(argparse.ArgumentParser):
    """argparse, with errors that the caller turns into one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; --help lists the flags")


def parse(argv: Sequence[str]) -> Settings:
    """UserError: one line. SystemExit: --help."""
    parser = Parser(prog=called("kernels/run.py"), description=__doc__, allow_abbrev=False)
    parser.add_argument("--kernels", metavar="NAME,...", help=f"of {', '.join(KERNELS)} (default: all)")
    parser.add_argument("--implementations", metavar="NAME,...", help="as the table names them (default: all)")
    parser.add_argument(
        "--sizes", metavar="small|full|N,...", default="small",
        help="elements of an array, or samples; full: in the caches, and too large for them (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--local", action="store_true", help="in this process, without Ray")
    parser.add_argument("--json", action="store_true", help="the rows as JSON instead of the tables")
    parser.add_argument(
        "--budget",
        metavar="TIME",
        help=f"keep the rows in a study of so many device-hours: {DURATIONS} (default: none)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help=f"the study's, made new; with --budget (default: {Settings.out})"
    )
    parser.add_argument("--seed", metavar="N", default="0", help="of the inputs (default: %(default)s)")
    flags = parser.parse_args(argv)
    kernels = chosen("--kernels", flags.kernels, tuple(KERNELS)) or tuple(KERNELS)
    known = dict.fromkeys(each.name for name in kernels for each in KERNELS[name].implementations)
    if flags.budget is None and flags.out is not None:
        raise UserError(f"--out: '{flags.out}': without a budget nothing is written: add --budget 10m or leave it out")
    return Settings(
        kernels=kernels,
        implementations=chosen("--implementations", flags.implementations, tuple(known)),
        sizes=sizes(flags.sizes),
        local=flags.local,
        as_json=flags.json,
        seed=whole("--seed", flags.seed),
        budget=None if flags.budget is None else budget(flags.budget, local=flags.local),
        out=Settings.out if flags.budget is None else free(flags.out or Settings.out),
    )


def budget(text: str, *, local: bool) -> float:
    """Device-seconds."""
    try:
        seconds = parse_duration(text)
    except UserError as error:
        raise UserError(f"--budget: {error}") from None
    if seconds <= 0:
        raise UserError(f"--budget: {text!r} is not above zero: write {DURATIONS}")
    if local:
        raise UserError("--local: a cap needs tasks that can be ended: leave --local out, or --budget")
    return seconds


def free(folder: Path) -> Path:
    """The folder, which must not be there yet."""
    if folder.exists() or folder.is_symlink():
        raise UserError(f"--out: '{folder}' exists already: a study makes its folder; name another")
    return folder.absolute()


def chosen(flag: str, text: str | None, known: Sequence[str]) -> tuple[str, ...] | None:
    """Names by comma, each once; None where the flag was not given."""
    if text is None:
        return None
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            raise UserError(f"{flag}: {name!r} is not one of {', '.join(known)}")
    return names


def sizes(text: str) -> tuple[int, ...]:
    """Numbers of elements."""
    largest = memory_bytes() // MEMORY_SHARE // 8
    if text == "small":
        return SMALL
    if text == "full":
        return IN_CACHE, min(4 * last_cache_bytes() // ARRAYS // 8, largest)
    asked = tuple(dict.fromkeys(whole("--sizes", each, "; write small, full, or --sizes 1000,1000000")
                                for each in text.split(",")))  # fmt: skip
    if max(asked) > largest:
        raise UserError(f"--sizes: {max(asked)}: this machine's memory serves {largest:,} elements at most")
    return asked


def whole(flag: str, text: str, remedy: str = "") -> int:
    """A whole number, at least 0."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UserError(f"{flag}: {text!r} is no whole number of at least 0{remedy}")
    return int(text)
