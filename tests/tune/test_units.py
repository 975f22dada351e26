import random

import pytest

from tune.units import duration_text, parse_duration

DOCUMENTED = {"8h": 28_800, "90m": 5_400, "45s": 45, "1h30m": 5_400, "1.5h": 5_400, ".5m": 30}
NOT_A_TIME = ("", "h", "-1h", "1h1h", "30m1h", "1e3s", "infs", "nanh", "1 h", "8H", "1..5h", "9" * 400 + "h")


def test_every_documented_form_is_read_and_anything_else_is_refused():
    assert {text: parse_duration(text) for text in DOCUMENTED} == DOCUMENTED
    for text in NOT_A_TIME:
        with pytest.raises(ValueError, match="write 8h"):
            parse_duration(text)
    with pytest.raises(ValueError, match="'8' has no unit"):
        parse_duration("8")


def test_text_and_seconds_are_inverse_and_reading_never_rounds_up():
    rng = random.Random(0)
    for _ in range(500):
        seconds = parse_duration(f"{rng.random() * 10 ** rng.randint(0, 6):.6f}s")
        assert parse_duration(duration_text(seconds)) == seconds
    assert parse_duration("0.0009s") == 0 and parse_duration("0.333333h") <= 0.333333 * 3600


def test_units_come_largest_first_and_none_is_empty():
    assert [duration_text(seconds) for seconds in (28_692, 28_800, 0)] == ["7h58m12s", "8h", "0s"]
