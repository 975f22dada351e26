"""Settings of the command line of kernels; imports the standard library only."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from tune.errors import UserError
from tune.flags import Command, flag_field, invalid, parse_each
from tune.table_text import TableFlags
from tune.units import DURATIONS, parse_duration

NAMES = (
    *("hypotenuse_scalar", "scalar_add", "empty_launch", "copy", "vector_add", "triad", "hypotenuse"),
    *("grid_stride_add", "grid_stride_sum", "monte_carlo_pi", "softmax", "layer_norm", "cross_entropy", "transfers"),
)
"""Names of the kernels, as kernels.benchmark has them."""
SMALL = (1_000, 1_000_000)
IN_CACHE = 10_000
ARRAYS = 3
"""Most float64 arrays of a kernel: in the larger of the full sizes they are together four times the last caches."""
MEMORY_SHARE = 32
"""An array may take 1 / MEMORY_SHARE of the memory: beside it are the others, the reference and what checks need."""
CPUS = Path("/sys/devices/system/cpu")
CACHE_FILES = "level", "size", "shared_cpu_list"
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
USUAL_LAST_CACHE = 32 << 20


def last_cache_bytes() -> int:
    """Return the bytes of all caches of the last level of the CPUs that this process may use, as the system tells them,
    else 32 MiB: a processor may have several, each shared by some of its cores."""
    levels: dict[int, dict[str, int]] = {}
    for cpu in os.sched_getaffinity(0):
        for folder in (CPUS / f"cpu{cpu}" / "cache").glob("index*"):
            with suppress(OSError, ValueError, LookupError):  # a system that tells only some of it
                level, size, sharers = ((folder / name).read_text().strip() for name in CACHE_FILES)
                levels.setdefault(int(level), {})[sharers] = int(size[:-1]) * UNITS[size[-1]]
    return sum(levels[max(levels)].values() if levels else ()) or USUAL_LAST_CACHE


def memory_bytes() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the numbers of elements that --sizes asks for, each once. UserError: no such numbers, or too large."""
    largest = memory_bytes() // MEMORY_SHARE // 8
    if text == "small":
        return SMALL
    if text == "full":
        return IN_CACHE, min(4 * last_cache_bytes() // ARRAYS // 8, largest)
    remedy = "; write small, full, or --sizes 1000,1000000"
    asked = parse_each(lambda each: parse_whole_number(each, remedy))(text)
    if max(asked) > largest:
        raise UserError(f"{max(asked)}: this machine's memory serves {largest:,} elements at most")
    return asked


def parse_whole_number(text: str, remedy: str = "") -> int:
    """Return a whole number. UserError: it is none of at least 0."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UserError(f"{text!r} is no whole number of at least 0{remedy}")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class Settings(TableFlags):
    """Settings of kernels/run.py: what to measure, and how to show it."""

    command: ClassVar[Command] = Command(
        script="kernels/run.py", entry_point="tune.experiments.kernels:run",
        description="Measure the kernels: every kernel in every implementation.",
    )  # fmt: skip
    kernels: tuple[str, ...] = flag_field(
        f"of {', '.join(NAMES)}",
        default=NAMES, metavar="NAME,...", choices=NAMES, parse=parse_each(str), format=lambda _: "all",
    )  # fmt: skip
    implementations: tuple[str, ...] | None = flag_field(
        "such as python,numpy (default: all)", default=None, metavar="NAME,...", parse=parse_each(str)
    )
    sizes: tuple[int, ...] = flag_field(
        "elements of an array, or samples; full: a size that fits in the caches, and one that does not",
        default=SMALL, metavar="small|full|N,...", parse=parse_sizes, format=lambda _: "small",
    )  # fmt: skip
    local: bool = flag_field("in this process, without Ray", default=False)
    json: bool = flag_field("the rows as JSON instead of the tables", default=False)
    budget: float | None = flag_field(
        f"keep the rows in a study of so many device-hours: {DURATIONS} (default: none)",
        default=None, metavar="TIME", parse=parse_duration,
    )  # fmt: skip
    out: Path = flag_field(
        "the study's folder, made new; with --budget", default=Path("runs/kernels"), metavar="FOLDER", parse=Path
    )
    seed: int = flag_field("of the inputs", default=0, metavar="N", parse=parse_whole_number)

    @classmethod
    def from_flags(cls, typed: Mapping[str, Any]) -> Self:
        """Read the flags as Flags does. UserError also: a budget of zero; a folder exists already, or is named where
        nothing is written; --local with --budget."""
        settings = super().from_flags(typed)
        if settings.budget == 0:
            raise invalid("budget", f"{typed['budget']!r} is not above zero: write {DURATIONS}")
        if settings.budget is None and "out" in typed:
            rule = "without a budget nothing is written: add --budget 10m or leave it out"
            raise invalid("out", f"'{settings.out}': {rule}")
        if settings.budget is not None and settings.local:
            raise invalid("local", "a cap needs tasks that can be ended: leave --local out, or --budget")
        if settings.budget is not None and os.path.lexists(settings.out):
            raise invalid("out", f"'{settings.out}' exists already: a study makes its folder; name another")
        return settings
