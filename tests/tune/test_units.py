import random

import pytest

from tune.units import duration_text, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("8h", 28_800), ("90m", 5_400), ("45s", 45), ("1h30m", 5_400), ("1.5h", 5_400), (".5m", 30)]
)
def test_every_documented_form_is_read(text, seconds):
    assert parse_duration(text) == seconds


NOT_A_TIME = ("", "h", "-1h", "1h1h", "30m1h", "1e3s", "infs", "nanh", "1 h", "8H", "1..5h", "9" * 400 + "h")


@pytest.mark.parametrize("text", NOT_A_TIME)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="write 8h"):
        parse_duration(text)


def test_a_number_alone_lacks_its_unit():
    with pytest.raises(ValueError, match="'8' has no unit"):
        parse_duration("8")


def test_text_and_seconds_are_inverse():
    rng = random.Random(0)
    for _ in range(2_000):
        seconds = parse_duration(f"{rng.random() * 10 ** rng.randint(0, 6):.6f}s")
        assert parse_duration(duration_text(seconds)) == seconds


def test_reading_never_rounds_up():
    assert parse_duration("0.0009s") == 0
    assert parse_duration("0.333333h") <= 0.333333 * 3600


def test_units_come_largest_first_and_none_is_empty():
    assert duration_text(28_692) == "7h58m12s"
    assert duration_text(28_800) == "8h"
    assert duration_text(0) == "0s"
