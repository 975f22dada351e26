"""Numbers as people write them; rank.py in terminals of any width: a number is there whole, or its column is named."""

import csv
import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stdout

import pandas as pd
import pytest

from analysis import ranking as ranks
from analysis import tables
from analysis.ranking import ranking, section_table, show
from analysis.settings import RankSettings
from analysis.study import Results
from tests.analysis.conftest import Printed, Written, results_of

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
        (tables.number, 5e-324, "4.941e-324"),
        (tables.count, 12_345.0, "12.3k"),
        (tables.count, 1_200_000.0, "1.20M"),
        (tables.count, 999_700.0, "1.00M"),
        (tables.short_count, 1_200_000.0, "1.2M"),
        (tables.short_count, 999_700.0, "1M"),
        (tables.short_number, 20_000.0, "20,000"),
        (tables.memory, 3 * 2.0**30, "3.00 GiB"),
        (tables.duration, 3.21, "3.2s"),
        (tables.duration, 28_692.4, "7h58m12s"),
        (tables.duration, 59.99, "1m00s"),
        *((write, NAN, "-") for write in (tables.number, tables.count, tables.memory, tables.duration)),
    ],
)
def test_numbers_are_written_as_people_write_them(write, value, text):
    assert write(value) == text


HEADS: dict[str, tuple[str, Callable[[float], str]]] = {
    "place": ("#", "{:.0f}".format),
    "perplexity": ("perplexity", tables.number),
    "perplexity_per_million": ("perplexity /M", tables.number),
    "bits_per_character": ("bits/char", tables.number),
    "test_perplexity": ("test", tables.number),
    "parameters": ("parameters", tables.count),
    "efficiency": ("efficiency", "{:+.3f}".format),
    "device_seconds": ("device-s", "{:,.1f}".format),
    "memory_bytes": ("memory", tables.memory),
}
"""Of the --csv, each number with the head of its column in the table and how it is written there."""

LONG = "error: RuntimeError: CUDA error: device-side assert triggered at 1,234,567 of 8,388,608"


@pytest.mark.parametrize(
    ("by", "varied"), [("efficiency", {}), ("memory", {"learning_rate": 0.00125, "batch_tokens": 16384})]
)
def test_each_number_is_whole_or_its_column_is_named(
    searched: Written, by: str, varied: dict[str, float], printed: Printed
) -> None:
    searched.journal.rows("UPDATE trials SET config = json_patch(config, ?)", json.dumps(varied))
    searched.journal.update("trials", "t023", {"state": "failed", "reason": LONG})
    results = results_of(searched)
    table = ranking(results, by=by)
    text = printed(RankSettings, searched.folder, "--csv", "--by", by)
    rows = {row["trial"]: row for row in csv.DictReader(io.StringIO(text))}
    for width in (60, 100, 160):
        check(results, table, rows, by=by, width=width)


def check(results: Results, table: pd.DataFrame, rows: dict[str, dict[str, str]], *, by: str, width: int) -> None:
    """The table in a terminal of this width against the rows of the --csv."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        patch.setattr(tables, "WIDTH", width)
        show(results, table, table, by=by, top=len(table))
    assert "\N{HORIZONTAL ELLIPSIS}" not in out.getvalue()
    parts = out.getvalue().split("\n\n")
    groups = [group for _, group in table.groupby("group", sort=False)]
    for group, part in zip(groups, parts, strict=False):
        said, (head, *lines) = part.splitlines()[-1], part.splitlines()[1:]
        hidden = said.partition("for: ")[2].rpartition(" (")[0].split(", ") if "no room in" in said else []
        there = re.split(" {2,}", head.strip())
        assert {*there, *hidden} == {*section_table(results, group)} and not {*there} & {*hidden}
        assert ranks.HEADS[by] not in hidden
        for trial in group["trial"]:
            (line,) = (line for line in lines if trial in line.split())
            for column, (name, write) in HEADS.items():
                if name in there and rows[trial][column]:
                    assert f" {write(float(rows[trial][column]))} " in f" {line} ", (trial, name)
