import pytest

from analysis import tables

NAN = float("nan")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"precision": "bf16", "d_model": 96, "heads": 4, "layers": 1, "dropout": 0.0},
            "width 96, 4 heads, 1 layer, no dropout, bf16",
        ),
        ({"batch_tokens": 4096, "weight_decay": 0.0}, "4,096 tokens a step, no weight decay"),
        ({"tied": False, "bias": True, "cell": 2, "learning_rate": 0.01}, "learning rate 0.01, no tied, bias, cell 2"),
        ({}, ""),
    ],
)  # fmt: skip
def test_a_configuration_is_said_as_a_person_says_it(config, words):
    assert tables.in_words(config) == words


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (tables.number, 1234567.0, "1,234,567"),
        (tables.number, 0.0123456, "0.01235"),
        (tables.number, 0.0, "0"),
        (tables.count, 12_345.0, "12.3k"),
        (tables.count, 1_200_000.0, "1.20M"),
        (tables.short_count, 1_200_000.0, "1.2M"),
        (tables.plain, 20_000.0, "20,000"),
        (tables.memory, 3 * 2.0**30, "3.00 GiB"),
        (tables.duration, 3.21, "3.2s"),
        (tables.duration, 28_692.4, "7h58m12s"),
        (tables.duration, 59.99, "1m00s"),
        (tables.short_duration, 1200.0, "20m"),
        (tables.short_duration, 5400.0, "1h30m"),
        *((write, NAN, "-") for write in (tables.number, tables.count, tables.memory, tables.duration)),
    ],
)
def test_numbers_are_written_as_people_write_them(write, value, text):
    assert write(value) == text
