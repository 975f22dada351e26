import random

import pytest

from tune.units import duration_text, energy_text, money_text, parse_duration, parse_price

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


def test_money_is_of_device_hours_and_unknown_things_are_not_told():
    assert money_text(5400, parse_price("2.50")) == ", 3.75 at 2.50 a device-hour"
    assert energy_text(3600.0) == ", 1 Wh of this machine" and energy_text(9e6) == ", 2.5 kWh of this machine"
    assert money_text(5400, None) == energy_text(None) == ""
    for text in ("", "-1", "free", "nan", "inf", "2,50", "1e3", "9" * 400):
        with pytest.raises(ValueError, match=r"is no price: write what an hour of a device costs you, such as 2\.50$"):
            parse_price(text)
