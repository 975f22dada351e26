import pytest

from analysis import tables as formats
from tune.search_space import label

NAN = float("nan")


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (formats.number, 1234567.0, "1,234,567"),
        (formats.number, 0.0123456, "0.01235"),
        (formats.number, 12.3456, "12.35"),
        (formats.number, 0.0, "0"),
        (formats.count, 999.0, "999"),
        (formats.count, 12_345.0, "12.3k"),
        (formats.count, 1_200_000.0, "1.20M"),
        (formats.short_count, 1_200_000.0, "1.2M"),
        (formats.short_count, 100_000.0, "100k"),
        (formats.plain, 20_000.0, "20,000"),
        (formats.plain, 0.25, "0.25"),
        (formats.memory, 2.0**20, "1.00 MiB"),
        (formats.memory, 3 * 2.0**30, "3.00 GiB"),
        (formats.duration, 3.21, "3.2s"),
        (formats.duration, 123.0, "2m03s"),
        (formats.duration, 28_692.4, "7h58m12s"),
        (formats.duration, 59.99, "1m00s"),
        (formats.short_duration, 20.0, "20s"),
        (formats.short_duration, 120.0, "2m"),
        (formats.short_duration, 1200.0, "20m"),
        (formats.short_duration, 5400.0, "1h30m"),
        (formats.short_duration, 36_000.0, "10h"),
        *((write, NAN, "-") for write in (formats.number, formats.count, formats.memory, formats.duration)),
    ],
)
def test_numbers_are_written_as_people_write_them(write, value, text):
    assert write(value) == text


def test_a_config_is_named_as_in_tensorboard() -> None:
    config = {"d_model": 128, "heads": 4, "layers": 2, "dropout": 0.1, "precision": "bf16"}
    assert formats.config(config) == "d128 h4 l2 p.1 bf16"
    more = {"width": 64, "gate": "gelu", "share": 0.25, "learning_rate": 3e-3, "batch_tokens": 512, "dropout": 0.0}
    for each in (config, config | more, more, dict(reversed(config.items()))):
        assert formats.config(each) == label(each)
