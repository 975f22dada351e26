"""Lengths of time as a user types and reads them: `8h`, `90m`, `45s`, `1h30m`, `1.5h`; standard library only."""

import math
import re

from tune.errors import UserError

NUMBER = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
DURATION = re.compile(f"(?:{NUMBER}h)?(?:{NUMBER}m)?(?:{NUMBER}s)?")
FORMS = "8h, 90m, 45s, 1h30m or 1.5h"
LONGEST = 100 * 365 * 86_400.0


def parse_duration(text: str) -> float:
    """`1h30m` -> 5400.0 seconds, rounded down to a millisecond. UserError: no unit, or not a length of time."""
    if re.fullmatch(NUMBER, text):
        raise UserError(f"{text!r} has no unit: write {FORMS}")
    matched = DURATION.fullmatch(text)
    if not text or not matched:
        raise UserError(f"{text!r} is not a length of time: write {FORMS}")
    hours, minutes, seconds = (float(part or 0) for part in matched.groups())
    total = 3600 * hours + 60 * minutes + seconds
    if total > LONGEST:
        raise UserError(f"{text!r} is more than a hundred years: write {FORMS}")
    return math.floor(1000 * total + 1e-3) / 1000


def duration_text(seconds: float) -> str:
    """5400.0 -> `1h30m`, the inverse of parse_duration."""
    thousandths = round(1000 * seconds)
    hours, minutes, rest = thousandths // 3_600_000, thousandths // 60_000 % 60, thousandths % 60_000 / 1000
    parts = (f"{hours}h" if hours else "", f"{minutes}m" if minutes else "", f"{rest:g}s" if rest else "")
    return "".join(parts) or "0s"
