"""Numbers and configs as people read them."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

NOTHING = "-"
SHORT = {
    **{"d_model": "d", "heads": "h", "layers": "l", "dropout": "p", "precision": ""},
    **{"learning_rate": "lr", "batch_tokens": "b", "weight_decay": "wd"},
}
"""How a dimension is named in a config."""
MIB, GIB = 2**20, 2**30
UNITS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def config(point: Mapping[str, Any]) -> str:
    """A config in one word group, as in the names of TensorBoard's runs: d128 h4 l4 p.1 bf16"""
    names = [*(name for name in SHORT if name in point), *(name for name in point if name not in SHORT)]
    return " ".join(SHORT.get(name, name) + _short(point[name]) for name in names)


def _short(value: Any) -> str:
    text = f"{value:.15g}" if isinstance(value, float) else str(value)
    return "." + text.removeprefix("0.") if text.startswith("0.") else text


def number(value: float, digits: int = 4) -> str:
    """Significant digits, without an exponent where a person would write none; `-` for what is not known."""
    if pd.isna(value):
        return NOTHING
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(places, 0)}f}" if abs(value) < 1e9 else f"{value:.{digits - 1}e}"


def count(value: float) -> str:
    """1,234 or 12.3k or 1.23M"""
    if pd.isna(value):
        return NOTHING
    for unit, size in UNITS:
        if value >= size:
            return f"{number(value / size, 3)}{unit}"
    return f"{value:.0f}"


def plain(value: float) -> str:
    """As on an axis: 1,200 or 0.25"""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def short_count(value: float) -> str:
    """As on an axis: 300k, 1M"""
    for unit, size in UNITS:
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def short_duration(seconds: float) -> str:
    """As on an axis: 20s, 2m, 1h30m"""
    text = duration(seconds).replace(".0s", "s")
    for nothing in ("m00s", "h00m"):
        text = text.replace(nothing, nothing[0])
    return text


def memory(value: float) -> str:
    """bytes -> MiB or GiB"""
    if pd.isna(value):
        return NOTHING
    return f"{number(value / GIB, 3)} GiB" if value >= GIB else f"{number(value / MIB, 3)} MiB"


def short_memory(value: float) -> str:
    """As on an axis: 512 MiB, 1.5 GiB"""
    return f"{value / GIB:,g} GiB" if value >= GIB else f"{value / MIB:,g} MiB"


def duration(seconds: float) -> str:
    """1h02m03s, 2m03s or 3.2s"""
    if pd.isna(seconds):
        return NOTHING
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02d}m{rest:02d}s" if minutes >= 60 else f"{minutes}m{rest:02d}s"


def share(part: float, whole: float) -> str:
    return NOTHING if pd.isna(part) or whole <= 0 else f"{100 * part / whole:.1f} %"
