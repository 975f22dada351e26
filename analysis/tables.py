"""Numbers as people read them; tables that commands print, and files that they write."""

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from tune.errors import UserError
from tune.table_text import EMPTY_CELL, Table, screen_lines, screen_width

MIB, GIB = 2**20, 2**30
UNITS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def number(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits, without an exponent from 1e-9 to 1e9; `-` for NaN."""
    if pd.isna(value):
        return EMPTY_CELL
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(places, 0)}f}" if 1e-9 <= abs(value) < 1e9 else f"{value:.{digits - 1}e}"


def reported(value: float) -> str:
    """Return a number of a user's loop, of whatever kind: 640, 0.8373"""
    whole = math.isfinite(value) and value == round(value) and abs(value) < 1e9
    return f"{value:,.0f}" if whole else number(value)


def count(value: float) -> str:
    """Return a count: 123 or 12.3k or 1.23M"""
    if pd.isna(value):
        return EMPTY_CELL
    value = float(f"{value:.3g}")
    for unit, size in UNITS:
        if value >= size:
            return f"{number(value / size, 3)}{unit}"
    return f"{value:.0f}"


WORDED = {
    "d_model": "width {}", "heads": "{} heads", "layers": "{} layers", "dropout": "dropout {}", "precision": "{}",
    "learning_rate": "learning rate {}", "batch_tokens": "{} tokens a step", "weight_decay": "weight decay {}",
    "context": "context {}",
}  # fmt: skip
NONE_OF = {"dropout", "weight_decay"}
"""Dimensions whose value 0 is said as `no`."""


def in_words(config: Mapping[str, object]) -> str:
    """Return a configuration in words: width 96, 4 heads, 2 layers, no dropout, bf16; then its other dimensions."""

    def said(name: str, value: object) -> str:
        if isinstance(value, bool):
            return name if value else f"no {name}"
        if name in NONE_OF and value == 0:
            return f"no {name.replace('_', ' ')}"
        shown = f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else str(value)
        worded = WORDED.get(name, f"{name.replace('_', ' ')} {{}}").format(shown)
        return worded.removesuffix("s") if value == 1 and name in ("heads", "layers") else worded

    return ", ".join(said(name, config[name]) for name in dict.fromkeys([*WORDED, *config]) if name in config)


def short_number(value: float) -> str:
    """Return a number for an axis: 1,200 or 0.25"""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def short_count(value: float) -> str:
    """Return a count for an axis: 300k, 1M"""
    value = float(f"{value:.3g}")
    for unit, size in UNITS:
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def memory(value: float) -> str:
    """Return bytes in MiB or GiB."""
    if pd.isna(value):
        return EMPTY_CELL
    return f"{number(value / GIB, 3)} GiB" if value >= GIB else f"{number(value / MIB, 3)} MiB"


def short_memory(value: float) -> str:
    """Return bytes for an axis: 512 MiB, 1.5 GiB"""
    return f"{value / GIB:,g} GiB" if value >= GIB else f"{value / MIB:,g} MiB"


def duration(seconds: float) -> str:
    """Return a duration: 1h02m03s, 2m03s or 3.2s"""
    if pd.isna(seconds):
        return EMPTY_CELL
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02d}m{rest:02d}s" if minutes >= 60 else f"{minutes}m{rest:02d}s"


def share(part: float, whole: float) -> str:
    return EMPTY_CELL if pd.isna(part) or whole <= 0 else f"{100 * part / whole:.1f} %"


WIDTH = 160
"""Characters of a line where the output is not a terminal."""


def draw(table: Table, **options: Any) -> None:
    """Print a table by screen_lines(), with its options."""
    print(*screen_lines(table, screen_width(WIDTH), **options), sep="\n")


def as_text(title: str, rows: pd.DataFrame, note: str = "") -> Table:
    """Return a table of text, to be written in the format that is asked for."""
    return Table(title=title, columns=list(rows), rows=rows.astype(str).to_numpy().tolist(), note=note)


REMEDY = "name another folder with --out"


def unlinked(path: Path) -> Path:
    """Return a path. UserError: it is a link: a study may come from a stranger, so nothing is written through one."""
    if path.is_symlink():
        raise UserError(f"--out: {str(path)!r} is a link, and what it points to is not written: remove it, or {REMEDY}")
    return path


def folder_in(folder: Path, name: str) -> Path:
    """Return a folder inside another, made if it is not there. UserError: it is a link, or cannot be made."""
    inside = unlinked(folder / name)
    try:
        inside.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(inside, error) from None
    return inside


def refused(path: Path, error: OSError) -> UserError:
    return UserError(f"--out: {str(path)!r} cannot be written ({error.strerror}); {REMEDY}")


def write_file(file: Path, content: bytes) -> Path:
    """Write a file anew, and make its folder if need be. UserError: it is a link, or cannot be written."""
    unfinished = unlinked(file).with_name(f"{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.unlink(missing_ok=True)
        with unfinished.open("xb") as opened:
            opened.write(content)
        unfinished.replace(file)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise refused(file, error) from None
    return file
