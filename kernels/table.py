"""What the command prints: a table for each kernel and size with a row an implementation, or JSON; and the exit
code."""

import json
from collections.abc import Iterable, Iterator
from itertools import groupby

from kernels.benchmark import BASELINES, Row
from kernels.settings import Settings
from tune.published import contradiction_tables
from tune.table_text import EMPTY_CELL, Table, screen_lines, screen_width

WIDTH = 190
"""Characters of a line where the output is not a terminal."""
CONTRADICTED = ("hypotenuse_scalar", "scalar_add")
"""Kernels whose published figures contradict each other."""
COLUMNS = ("threads", "correct", "compile", "median", "spread", "end to end", "rate", "of peak")
STATUS = ""
"""Head of the column that says why a row has no figures, or is unstable: it is kept on any screen."""
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
PREFIXES = ((1e9, "G "), (1e6, "M "), (1e3, "k "), (1.0, ""))


def tables(rows: list[Row]) -> Iterator[Table]:
    """Yield the tables of a kernel's rows, one for each size. An unstable row says so, and shows no ratio."""
    columns = ("implementation", *COLUMNS, *(f"x {name}" for name in BASELINES), "published", STATUS)
    for (kernel, size), group in groupby(rows, key=lambda row: (row["kernel"], row["size"])):
        members = list(group)
        first = members[0]
        what = " ".join([f"{size:,}", first["dtype"], *("x".join(map(str, shape)) for shape in first["shape"][:1])])
        found = [[row["implementation"], *cells(row)] for row in members]
        yield Table(title=f"{kernel}: {what}", columns=columns, rows=found)


def show(table: Table) -> None:
    """Print a table in the width of the screen."""
    print(*screen_lines(table, screen_width(WIDTH), first=(table.columns[0], STATUS)), "", sep="\n")


def cells(row: Row) -> list[str]:
    """Return what stands in a row after the implementation's name."""
    published = published_text(row)
    if row["median_seconds"] is None:
        return [EMPTY_CELL] * (len(COLUMNS) + len(BASELINES)) + [published, row["status"]]
    correct, share = row["correct"], row["share_of_peak"]
    return [
        "gpu" if row["threads"] is None else str(row["threads"]),
        correct if isinstance(correct, str) else f"{correct:.1e}",
        seconds(row["compile_milliseconds"] / 1e3),
        seconds(row["median_seconds"]),
        f"{row['spread']:.1%}",
        seconds(row["end_to_end_seconds"]),
        rate(row),
        EMPTY_CELL if share is None else f"{share:.0%}",
        *(ratio(row, name) for name in BASELINES),
        published,
        row.get("why_unstable", "unstable") if row["unstable"] else "",
    ]


def published_text(row: Row) -> str:
    """Return the published times as text: 455 us; 567 us end to end"""
    times = {"": row["published_seconds"], " end to end": row["published_end_to_end_seconds"]}
    return "; ".join(seconds(time) + what for what, time in times.items() if time is not None) or EMPTY_CELL


def ratio(row: Row, baseline: str) -> str:
    """Return how many times as fast as a baseline a row is, with the interval, as text; the baseline may be its GPU or
    parallel form."""
    found = next((row["ratios"][name] for name in (f"{baseline}-cuda", f"{baseline}-parallel", baseline)
                  if name in row["ratios"]), None)  # fmt: skip
    if found is None or row["unstable"]:
        return EMPTY_CELL
    return f"{found[0]:.3g} ({found[1]:.3g}-{found[2]:.3g})"


def rate(row: Row) -> str:
    """Return the rate as text: 41.2 GB/s, or 4.52 G samples/s where a kernel is not bound by memory."""
    if row["gigabytes_per_second"] is not None:
        return f"{row['gigabytes_per_second']:.1f} GB/s"
    scale, prefix = next((each for each in PREFIXES if row["per_second"] >= each[0]), PREFIXES[-1])
    return f"{row['per_second'] / scale:.3g} {prefix}{row['unit']}/s"


def seconds(value: float | None) -> str:
    """Return seconds as text: 1.03 us"""
    if value is None:
        return EMPTY_CELL
    scale, unit = next((each for each in UNITS if value >= each[0]), UNITS[-1])
    return f"{value / scale:.3g} {unit}"


def report(settings: Settings, measured: Iterable[list[Row]]) -> int:
    """Print what was measured; return the exit code, 1 where an implementation is wrong or nothing was, else 0."""
    kept: list[Row] = []
    made: list[Table] = []
    for rows in measured:
        kept += rows
        of_kernel = list(tables(rows))
        made += of_kernel
        if not (settings.json or settings.format):
            for table in of_kernel:
                show(table)
    compared = any(row["kernel"] in CONTRADICTED and published_text(row) != EMPTY_CELL for row in kept)
    found = contradiction_tables("kernels") if compared else []
    if settings.json:
        print(json.dumps(kept, indent=1))
    elif settings.format:
        print(settings.render([*made, *found]))
    else:
        for table in found:
            show(table)
    return int(not kept or any(row["correct"] == "FAIL" for row in kept))
