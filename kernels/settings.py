"""What can be asked for on the command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from kernels.machine import last_cache_bytes, memory_bytes
from kernels.registry import KERNELS

SMALL = (1_000, 1_000_000)
IN_CACHE = 10_000
ARRAYS = 3
"""Of float64, of a kernel of three: together they are four times the last cache in the large one of the full sizes."""
MEMORY_SHARE = 32
"""An array may take one part in so many of the memory: beside it lie the others, the reference, and its own checks."""


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


class Parser(argparse.ArgumentParser):
    """argparse, with errors that the caller turns into one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message.removeprefix('argument ')}; --help lists the flags")


def parse(argv: Sequence[str]) -> Settings:
    """ValueError: one line. SystemExit: --help."""
    parser = Parser(prog="python kernels/run.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--kernels", metavar="NAME,...", help=f"of {', '.join(KERNELS)} (default: all)")
    parser.add_argument("--implementations", metavar="NAME,...", help="as the table names them (default: all)")
    parser.add_argument(
        "--sizes", metavar="small|full|N,...", default="small",
        help="elements of an array, or samples; full: in the caches, and too large for them (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--local", action="store_true", help="in this process, without Ray")
    parser.add_argument("--json", action="store_true", help="the rows as JSON instead of the tables")
    parser.add_argument("--seed", metavar="N", default="0", help="of the inputs (default: %(default)s)")
    flags = parser.parse_args(argv)
    kernels = chosen("--kernels", flags.kernels, tuple(KERNELS)) or tuple(KERNELS)
    known = dict.fromkeys(each.name for name in kernels for each in KERNELS[name].implementations)
    return Settings(
        kernels=kernels,
        implementations=chosen("--implementations", flags.implementations, tuple(known)),
        sizes=sizes(flags.sizes),
        local=flags.local,
        as_json=flags.json,
        seed=whole("--seed", flags.seed),
    )


def chosen(flag: str, text: str | None, known: Sequence[str]) -> tuple[str, ...] | None:
    """Names by comma, each once; None where the flag was not given."""
    if text is None:
        return None
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            raise ValueError(f"{flag}: {name!r} is not one of {', '.join(known)}")
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
        raise ValueError(f"--sizes: {max(asked)}: this machine's memory serves {largest:,} elements at most")
    return asked


def whole(flag: str, text: str, remedy: str = "") -> int:
    """A whole number, at least 0."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError(f"{flag}: {text!r} is no whole number of at least 0{remedy}")
    return int(text)
