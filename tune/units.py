"""Text forms of lengths of time, amounts of memory and money, and numbers of weights, as a user types and reads them;
standard library only.
"""

import math
import re

from tune.errors import UserError

NUMBER = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
DURATION = re.compile(f"(?:{NUMBER}h)?(?:{NUMBER}m)?(?:{NUMBER}s)?")
DURATIONS = "8h, 90m, 45s, 1h30m or 1.5h"
LONGEST = 100 * 365 * 86_400.0


def parse_duration(text: str) -> float:
    """`1h30m` -> 5400.0 seconds, rounded down to a millisecond. UserError: no unit, or not a length of time."""
    if re.fullmatch(NUMBER, text):
        raise UserError(f"{text!r} has no unit: write {DURATIONS}")
    matched = DURATION.fullmatch(text)
    if not text or not matched:
        raise UserError(f"{text!r} is not a length of time: write {DURATIONS}")
    hours, minutes, seconds = (float(part or 0) for part in matched.groups())
    total = 3600 * hours + 60 * minutes + seconds
    if total > LONGEST:
        raise UserError(f"{text!r} is more than a hundred years: write {DURATIONS}")
    return math.floor(1000 * total + 1e-3) / 1000


def duration_text(seconds: float) -> str:
    """5400.0 -> `1h30m`, the inverse of parse_duration; below zero `-90s`, which parse_duration refuses."""
    if seconds < 0:
        return f"{seconds:g}s"
    thousandths = round(1000 * seconds)
    hours, minutes, rest = thousandths // 3_600_000, thousandths // 60_000 % 60, thousandths % 60_000 / 1000
    parts = (f"{hours}h" if hours else "", f"{minutes}m" if minutes else "", f"{rest:g}s" if rest else "")
    return "".join(parts) or "0s"


def whole_text(seconds: float) -> str:
    """Return duration_text of whole seconds."""
    return duration_text(round(seconds))


def parse_price(text: str) -> float:
    """`2.50` -> 2.5. UserError: not a sum of money."""
    if not re.fullmatch(NUMBER, text) or not math.isfinite(float(text)):
        raise UserError(f"{text[:9]!r} is no price: write what an hour of a device costs you, such as 2.50")
    return float(text)


def money_text(device_seconds: float, price: float | None) -> str:
    """Return the text `, 20.00 at 2.50 a device-hour`, in any currency; '' where there is no price."""
    return "" if price is None else f", {device_seconds / 3600 * price:,.2f} at {price:,.2f} a device-hour"


def energy_text(joules: float | None) -> str:
    """Return the text `, 1.25 kWh of this machine`; '' where that is not known."""
    if joules is None:
        return ""
    hours = joules / 3600
    return f", {hours / 1000:,.3g} kWh of this machine" if hours >= 1000 else f", {hours:.3g} Wh of this machine"


BYTES = {"GB": 10**9, "MB": 10**6}
MEMORY_FORMS = "2GB, 1.5GB or 512MB"


def parse_bytes(text: str) -> int:
    """`1.5GB` -> 1500000000, rounded to a megabyte. UserError: no unit, or not an amount of memory."""
    matched = re.fullmatch(rf"{NUMBER}(GB|MB)", text)
    if not matched:
        rule = "has no unit" if re.fullmatch(r"[0-9.]+", text) else "is not an amount of memory"
        raise UserError(f"{text!r} {rule}: write {MEMORY_FORMS}")
    megabytes = float(matched[1]) * BYTES[matched[2]] / BYTES["MB"]
    if math.isinf(megabytes):
        raise UserError(f"{text[:9]!r}... is more memory than there is anywhere: write {MEMORY_FORMS}")
    return round(megabytes) * BYTES["MB"]


def bytes_text(size: float) -> str:
    """1500000000 -> `1.5GB`, the inverse of parse_bytes."""
    megabytes = round(size / BYTES["MB"])
    return f"{megabytes / 1000:.15g}GB" if megabytes >= 1000 else f"{megabytes}MB"


THOUSANDS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 trial`, `1,200 trials`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def parse_at_most(text: str) -> int:
    """`parameters=5M` -> 5000000, in small letters too. UserError: not a number of weights above zero."""
    matched = re.fullmatch(rf"parameters={NUMBER}([KMBkmb]?)", text)
    count = float(matched[1]) * THOUSANDS[matched[2].upper()] if matched else 0.0
    if not 1 <= count < math.inf:
        raise UserError(f"{text!r:.60} is no bound: write parameters=5M, or another number of weights (K, M, B)")
    return int(count)


def at_most_text(count: int) -> str:
    """Return the inverse of parse_at_most."""
    unit = next(unit for unit in ("B", "M", "K", "") if count % THOUSANDS[unit] == 0)
    return f"parameters={count // THOUSANDS[unit]}{unit}"
