"""rank.py in terminals of any width: a number is there whole, or its column is not there and is named."""

import csv
import io
import re
from collections.abc import Callable
from random import Random

import pandas as pd
import pytest
from rich.console import Console

from analysis import ranking as ranks
from analysis import tables
from analysis.ranking import columns, ranking, show
from analysis.settings import RankSettings
from analysis.study import Results, open_studies
from tests.analysis.conftest import Printed, Written

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


def hour(write: Callable[..., Written], **varied: float) -> Written:
    """As an hour leaves it: 70 trials on four rungs, two decays, and some that failed with long reasons."""
    written, chance = write("large", rung_seconds={"nanogpt": [96.0, 384.0, 1536.0, 6144.0]}), Random(0)
    with written.journal.transaction():
        for number in range(70):
            trial, lost = f"t{number:03d}", number % 29 == 28
            state = "failed" if lost else "stopped" if number % 3 else "paused"
            written.trial(
                trial, parameters=chance.randrange(10**4, 10**8), created=number, d_model=chance.choice([16, 64, 512]),
                heads=chance.choice([4, 16]), layers=chance.choice([2, 16]), dropout=0.1, precision="bf16",
                state=state, reason=LONG if lost else "price", **varied,
            )  # fmt: skip
            written.charge("steps", chance.uniform(100, 20_000), trial=trial, at=1.0)
            reached = sum(number % fourth == 0 for fourth in (1, 4, 16, 64))
            for rung in range(reached):
                perplexity = chance.uniform(2, 40) * 100 ** (rung == 0)
                written.report(trial, perplexity, rung=rung, memory_bytes=chance.randrange(10**7, 10**11),
                               bits_per_character=chance.uniform(1, 9), valid_subset=65_536)  # fmt: skip
            if reached == 4:
                written.report(trial, 1.143 + number, rung=None, final=1, test_perplexity=1.151, bits_per_character=1.0)
    return written


@pytest.mark.parametrize(
    ("by", "varied"), [("efficiency", {}), ("memory", {"learning_rate": 0.00125, "batch_tokens": 16384})]
)
def test_each_number_is_whole_or_its_column_is_named(
    write: Callable[..., Written], by: str, varied: dict[str, float], printed: Printed
) -> None:
    study = hour(write, **varied)
    results = Results(studies=open_studies([study.folder]))
    table = ranking(results, by=by)
    text = printed(RankSettings, study.folder, "--csv", "--by", by)
    rows = {row["trial"]: row for row in csv.DictReader(io.StringIO(text))}
    for width in (60, 100, 160):
        check(results, table, rows, by=by, width=width)


def check(results: Results, table: pd.DataFrame, rows: dict[str, dict[str, str]], *, by: str, width: int) -> None:
    """The table in a terminal of this width against the rows of the --csv."""
    out = io.StringIO()
    show(Console(file=out, width=width), results, table, table, by=by, top=len(table))
    assert "\N{HORIZONTAL ELLIPSIS}" not in out.getvalue()
    parts = out.getvalue().split("\n\n")
    groups = [group for _, group in table.groupby("group", sort=False)]
    for group, part in zip(groups, parts, strict=False):
        said, (head, *lines) = part.splitlines()[-1], part.splitlines()[1:]
        hidden = said.partition("for: ")[2].rpartition(" (")[0].split(", ") if "no room in" in said else []
        there = re.split(" {2,}", head.strip())
        assert {*there, *hidden} == {*columns(results, group)} and not {*there} & {*hidden}
        assert ranks.HEADS[by] not in hidden
        for trial in group["trial"]:
            (line,) = (line for line in lines if trial in line.split())
            for column, (name, write) in HEADS.items():
                if name in there and rows[trial][column]:
                    assert f" {write(float(rows[trial][column]))} " in f" {line} ", (trial, name)
