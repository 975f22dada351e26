"""Flags: a wrong one is one line and exit code 2; tables and JSON of the same rows."""

import json
import re

import pytest

from kernels import table, timing
from kernels.benchmark import KERNELS
from kernels.settings import NAMES, SMALL, Settings
from kernels.table import report
from tests.conftest import quick_timing
from tune.cli import main, parse
from tune.errors import UserError
from tune.experiments import kernels as tasks
from tune.published import published


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--kernels opera", r"--kernels: 'opera' is not known: choose from .*triad"),
        ("--implementations fortran", r"--implementations: 'fortran' is not known: choose from .*njit"),
        ("--kernels copy --implementations torch", r"--implementations: 'torch' is not known: choose from"),
        ("--sizes big", r"--sizes: 'big' .* small, full"),
        ("--sizes 1000,-1", r"--sizes: '-1'"),
        ("--sizes 1e6", r"--sizes: '1e6'"),
        ("--sizes 100000000000000", r"--sizes: 100000000000000: .* elements at most"),
        ("--seed x", r"--seed: 'x'"),
        ("--budget 10", r"--budget: '10' has no unit: write "),
        ("--budget 0m", r"--budget: '0m' is not above zero: write "),
        ("--budget 1m --local", r"--local: .*leave --local out"),
        ("--budget 1m --out .", r"--out: '.' exists already: .*name another"),
        ("--out new", r"--out: 'new': .*add --budget"),
        ("--colour", r"--colour.*--help"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(flags, said, capsys):
    assert main(Settings, flags.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and re.search(said, err)


def test_a_folder_that_cannot_be_made_is_one_line(monkeypatch):
    monkeypatch.setattr(tasks, "check_first", lambda *_: None)
    settings = parse(Settings, ["--budget", "10m", "--out", f"/proc/no/{'x' * 300}"])
    with pytest.raises(UserError, match=r"^--out: '/proc/no/x+' cannot be made \(.+\): name another place$"):
        next(tasks.in_study(None, settings))


def test_the_kernels_of_the_published_report_are_there():
    assert parse(Settings, []).kernels == tuple(KERNELS) == NAMES
    assert set(KERNELS) >= {row["kernel"] for row in published("kernels")}
    assert parse(Settings, []).sizes == SMALL
    assert parse(Settings, ["--sizes", "1000,01000,10"]).sizes == (1000, 10), "each once"


@pytest.fixture(scope="module")
def rows():
    flags = ["--kernels=scalar_add,grid_stride_sum", "--sizes=1000", "--implementations=python,numpy,c"]
    settings = parse(Settings, ["--local", *flags])
    with pytest.MonkeyPatch.context() as patch:
        quick_timing(patch)
        return settings, [tasks.rows_of(None, settings, name) for name in settings.kernels]


def test_json_is_a_list_of_rows_with_ratios(rows, capsys):
    _, measured = rows
    assert report(parse(Settings, ["--json"]), measured) == 0
    found = {(row["kernel"], row["implementation"]): row for row in json.loads(capsys.readouterr().out)}
    row = found["grid_stride_sum", "numpy"]
    assert row["share_of_peak"] > 0 and row["median_seconds"] > 0
    assert row["size"] == 1000 and len(row["values_seconds"]) >= timing.FEWER_VALUES
    assert row["correct"] == "exact" or row["correct"] < 1e-12
    ratio, low, high = row["ratios"]["python"]
    assert low <= ratio <= high
    assert ratio == found["grid_stride_sum", "python"]["median_seconds"] / row["median_seconds"]
    assert found["scalar_add", "python"]["size"] == 1


def test_the_table_has_a_line_for_each_row_and_the_published_time(rows, capsys):
    settings, measured = rows
    assert report(settings, measured) == 0
    said = capsys.readouterr().out
    assert "scalar_add: 1 float64" in said and "grid_stride_sum: 1,000 float64" in said
    (line,) = [line for line in said.splitlines() if line.startswith("python") and "693 ns" in line]
    assert "exact" in line


def test_the_tables_are_there_in_the_form_that_is_asked_for_and_what_is_wrong_with_the_published(rows, capsys):
    _, measured = rows
    assert report(parse(Settings, ["--latex"]), measured) == 0
    said = capsys.readouterr().out.replace(r"\_", "_")
    titles = "scalar_add: 1 float64", "grid_stride_sum: 1,000 float64", "What the report's figures say"
    assert [title for title in titles if rf"\caption{{{title}" not in said] == []
    assert report(parse(Settings, ["--latex"]), measured[1:]) == 0
    assert titles[-1] not in capsys.readouterr().out, "no row of these stands beside a published one"


@pytest.mark.parametrize(
    ("kernel", "shown"), [("hypotenuse_scalar", True), ("scalar_add", True), ("vector_add", False)]
)
def test_what_is_wrong_with_the_published_is_told_of_the_kernels_that_were_asked_for(rows, capsys, kernel, shown):
    settings, (_, measured) = rows
    report(settings, [[row | {"kernel": kernel, "published_seconds": 1e-6} for row in measured]])
    assert ("What the report's figures say against themselves" in capsys.readouterr().out) == shown


def test_an_unstable_row_is_marked_and_shows_no_ratio(rows, capsys):
    settings, (_, measured) = rows
    report(settings, [[row | {"unstable": True} for row in measured]])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("python", "numpy", "c "))]
    assert len(lines) >= 2 and all("unstable" in line or "skipped" in line for line in lines)
    assert not any("(" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, table.WIDTH])
def test_why_a_row_was_not_timed_is_told_however_long_it_is_and_narrow_the_screen(rows, capsys, monkeypatch, width):
    monkeypatch.setattr(table, "WIDTH", width)
    settings, (_, measured) = rows
    failed = {"median_seconds": None, "correct": "FAIL", "status": "FAIL: a cause of many words" + ", another" * 30}
    timed = [row | {"unstable": False} for row in measured[1:]]
    assert report(settings, [[measured[0] | failed, *timed]]) == 1
    said = capsys.readouterr().out
    assert said.split().count("cause") == 1 and sum("another" in word for word in said.split()) == 30
