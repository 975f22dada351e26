"""Amounts of memory as a user types and reads them: `2GB`, `512MB`, `1.5GB`; standard library only."""

import math
import re

from tune.errors import UserError

UNITS = {"GB": 10**9, "MB": 10**6}
FORMS = "2GB, 1.5GB or 512MB"


def parse_bytes(text: str) -> int:
    """`1.5GB` -> 1500000000, rounded to a megabyte. UserError: no unit, or not an amount of memory."""
    matched = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(GB|MB)", text)
    if not matched:
        rule = "has no unit" if re.fullmatch(r"[0-9.]+", text) else "is not an amount of memory"
        raise UserError(f"{text!r} {rule}: write {FORMS}")
    megabytes = float(matched[1]) * UNITS[matched[2]] / UNITS["MB"]
    if math.isinf(megabytes):
        raise UserError(f"{text[:9]!r}... is more memory than there is anywhere: write {FORMS}")
    return round(megabytes) * UNITS["MB"]


def bytes_text(size: float) -> str:
    """1500000000 -> `1.5GB`, the inverse of parse_bytes."""
    megabytes = round(size / UNITS["MB"])
    return f"{megabytes / 1000:.15g}GB" if megabytes >= 1000 else f"{megabytes}MB"
