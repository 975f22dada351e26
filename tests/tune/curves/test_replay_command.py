"""The command: rows come out, and what is wrong with flags and tables is one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tune.curves.made import settings, table, write
from tune.cli import main
from tune.curves.replay_command import report
from tune.curves.replay_settings import ReplaySettings
from tune.errors import UserError
from tune.store.journal import JOURNAL_FILE, Journal


def test_rows_are_json_and_one_a_cell(tmp_path, capsys):
    path = write(tmp_path / "made.jsonl", table())
    flags = f"{path} --budget 10%,400s --workers 1,2 --seeds 1 --schedulers ration,random --json".split()
    assert main(ReplaySettings, flags) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 8
    names = "table scheduler budget workers mean_regret standard_error p90_regret unspent wall_seconds"
    assert set(names.split()) <= set(rows[0])
    assert all(row["mean_regret"] >= 0 and 0 <= row["unspent"] <= 1 for row in rows)
    assert main(ReplaySettings, flags[:-1]) == 0
    assert "regret by budget" in capsys.readouterr().out


def test_a_replay_goes_on_from_the_rows_it_kept(tmp_path, capsys):
    path, rows = write(tmp_path / "made.jsonl", table()), tmp_path / "rows"
    flags = f"{path} --budget 10% --workers 1,2 --seeds 2 --schedulers ration,random --json --rows {rows}".split()
    assert main(ReplaySettings, flags) == 0
    whole, kept = json.loads(capsys.readouterr().out), rows.read_text().splitlines()
    assert [json.loads(line) for line in kept] == whole
    altered = kept[0].replace('"mean_regret": ', '"mean_regret": 7')
    rows.write_text("\n".join([altered, *kept[1:-1], kept[-1][:30]]))
    assert main(ReplaySettings, flags) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert resumed[0]["mean_regret"] >= 7 and resumed[1:] == whole[1:]
    flags[flags.index("2")] = "3"
    assert main(ReplaySettings, flags) == 0
    assert json.loads(capsys.readouterr().out)[0]["mean_regret"] < 7


def test_a_replay_of_a_table_is_of_its_content_whatever_others_are_called(tmp_path, capsys):
    paths = [tmp_path / name / "curves.jsonl" for name in ("a", "b")]
    for seed, path in enumerate(paths):
        path.parent.mkdir()
        write(path, table(seed=seed))

    def regrets(*tables: Path, more: str = "") -> list[float]:
        flags = f"--budget 10% --seeds 2 --schedulers random --json {more}".split()
        assert main(ReplaySettings, [*map(str, tables), *flags]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert len({row["table"] for row in rows}) == len(rows), "each has a column of its own"
        return [row["mean_regret"] for row in rows]

    alone = [regret for path in paths for regret in regrets(path)]
    assert alone[0] != alone[1]
    assert regrets(*paths) == alone and regrets(*reversed(paths)) == alone[::-1]
    kept = f"--rows {tmp_path / 'rows'}"
    assert regrets(paths[0], more=kept) == alone[:1]
    write(paths[0], table(seed=1))
    assert regrets(paths[0], more=kept) == alone[1:], "the table was written anew"


def test_kept_rows_of_an_earlier_version_are_no_fault(tmp_path):
    path, rows = write(tmp_path / "made.jsonl", table()), tmp_path / "rows"
    flags = f"{path} --budget 10% --seeds 1 --schedulers random --rows {rows}".split()
    assert main(ReplaySettings, flags) == 0
    (row,) = map(json.loads, rows.read_text().splitlines())
    rows.write_text(json.dumps({name: value for name, value in row.items() if name != "content"}) + "\n")
    assert main(ReplaySettings, flags) == 0 and len(rows.read_text().splitlines()) == 2


CODES = """
import sys
from pathlib import Path
from tune.curves.replay_command import code
ours = [module.__file__ for name, module in sorted(sys.modules.items()) if name.partition(".")[0] == "tune"]
found = [code()]
for file in map(Path, ours):
    file.write_text(file.read_text() + "# another")
    code.cache_clear()
    found.append(code())
print(len(found), len(set(found)))
"""


def test_rows_are_of_other_code_whatever_module_changes_that_a_replay_imports(tmp_path, repository):
    shutil.copytree(repository / "tune", tmp_path / "tune", ignore=shutil.ignore_patterns("__pycache__", "*.jsonl"))
    words, there = [sys.executable, "-c", CODES], os.environ | {"PYTHONPATH": str(tmp_path)}
    said = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=there, check=True).stdout.split()
    assert said[0] == said[1] and int(said[0]) > 20


FOREIGN = ["notes of mine", '{"lr": 0.1}', '{"table": ["t1", "t2"]}', '[1]\n{"lr"', "{}\nnotes"]


@pytest.mark.parametrize("text", FOREIGN)
def test_a_file_that_holds_something_else_than_rows_is_left_as_it_is(tmp_path, capsys, text):
    path, rows = write(tmp_path / "made.jsonl", table()), tmp_path / "mine"
    flags = f"{path} --budget 10% --seeds 1 --schedulers random --rows {rows}".split()
    rows.write_text(text)
    assert main(ReplaySettings, flags) == 2 and "holds something else than rows" in capsys.readouterr().err
    assert rows.read_text() == text


@pytest.mark.parametrize("kept", [3, 30])
def test_a_first_row_that_was_cut_off_as_it_was_written_is_measured_again(tmp_path, kept):
    path, rows = write(tmp_path / "made.jsonl", table()), tmp_path / "rows"
    flags = f"{path} --budget 10% --seeds 1 --schedulers random --rows {rows}".split()
    assert main(ReplaySettings, flags) == 0
    whole = rows.read_text()
    rows.write_text(whole[:kept])
    assert main(ReplaySettings, flags) == 0 and rows.read_text() == whole


BAD_FLAGS = [
    ("--budget 0%", "--budget: '0%' buys nothing"),
    ("--budget 0.001% --seeds 1 --schedulers random", "--budget: '0.001%' pays for no report of any curve: write more"),
    ("--workers 1", "--budget: missing: write --budget 8h|5%,10%"),
    ("--budget 5% --workers 0", "--workers: '0'"),
    ("--budget 5% --seeds 0", "--seeds: '0'"),
    ("--budget 5% --schedulers asha", "--schedulers: 'asha' is not known: choose from ration"),
    ("--budget 5% --diverge 1.5", "--diverge: '1.5'"),
    ("--budget 5% --start-up 5", "--start-up: '5' has no unit"),
    ("--budget 5% --deadline 0x", "--deadline: '0x'"),
    ("--budget 5% --ablations luck", "--ablations: 'luck' is not known: choose from resource"),
    ("--budget 5% --suggest best", "--suggest: 'best'"),
    ("--budget 5% --rows /dev/null/rows", "--rows: '/dev/null/rows' cannot be used"),
    ("--budget 5% --rows {path}", "holds something else than rows"),
]


@pytest.mark.parametrize(("flags", "line"), BAD_FLAGS)
def test_a_bad_flag_ends_with_one_line(tmp_path, capsys, flags, line):
    path = write(tmp_path / "made.jsonl", table(3))
    assert main(ReplaySettings, [str(path), *flags.format(path=path).split()]) == 2
    out, error = capsys.readouterr()
    assert out == "" and line in error and error.count("\n") == 1


BAD_TABLES = [
    (None, "cannot be read"),
    ("", "is empty"),
    ("{", "line 1 is not JSON"),
    ('{"config": {}}', "line 1 has no parameters"),
    ("[1]", "line 1 has no config"),
    ('{"config": {}, "parameters": 1, "seconds_per_report": 0, "valid_loss": [1]}', "line 1 needs"),
    ('{"config": {}, "parameters": 1, "seconds_per_report": 1, "valid_loss": []}', "line 1 needs"),
    ('{"config": {}, "parameters": 1, "seconds_per_report": 1, "valid_loss": ["x"]}', "line 1 holds"),
    ('{"config": {}, "parameters": 1, "seconds_per_report": 1, "valid_loss": [null]}', "finite loss"),
    ('{"config": {}, "parameters": 1, "seconds_per_report": 1, "valid_loss": [5e3, 2e2]}', "lie 4800 apart"),
    ('{"config": {"a": "\u2028"}, "parameters": 1, "seconds_per_report": 1}', "line 1 has no valid_loss"),
    (b"\xff\xfe\xfd", "not UTF-8"),
]


@pytest.mark.parametrize(("content", "line"), BAD_TABLES)
def test_a_bad_table_ends_with_one_line(tmp_path, capsys, content, line):
    path = tmp_path / "bad.jsonl"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(ReplaySettings, [str(path), "--budget", "5%"]) == 2
    out, error = capsys.readouterr()
    assert out == "" and line in error and error.count("\n") == 1


def test_a_study_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its trials are nearly all cut short, by the search whose decisions a replay would measure."""
    Journal(tmp_path, new=True).close()
    for path in (tmp_path, tmp_path / JOURNAL_FILE):
        assert main(ReplaySettings, [str(path), "--budget", "5%"]) == 2
        out, error = capsys.readouterr()
        assert out == "" and error.count("\n") == 1
        assert f"table: '{path}'" in error and "name a .jsonl table, or one of nanogpt-shakespeare" in error


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (["--learn-from", "nanogpt-shakespeare"], "add --suggest prior"),
        (["--learn-from", "translation-tatoeba", "--suggest", "prior"], "of the family of those that are searched"),
    ],
)
def test_an_earlier_search_that_tells_nothing_is_one_line(
    flags: list[str], rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ReplaySettings, ["nanogpt-shakespeare-half", "--budget", "60s", *flags]) == 2
    out, error = capsys.readouterr()
    assert out == "" and "--learn-from" in error and rule in error and error.count("\n") == 1


@pytest.mark.parametrize("flag", [{"patient": True}, {"learn_from": Path("nanogpt-shakespeare")}])
def test_what_is_of_our_own_scheduler_is_refused_without_it(flag: dict[str, Any]) -> None:
    for served in ({"schedulers": ("random", "ration-front")}, {"schedulers": ("random",), "ablations": ("law",)}):
        settings(**flag, **served)
    with pytest.raises(UserError, match=r"^--(patient|learn-from): applies only to ration, .*: add ration to it"):
        settings(**flag, schedulers=("random", "oracle"))


def test_a_table_that_cannot_be_looked_for_is_one_line(capsys):
    assert main(ReplaySettings, ["x" * 300, "--budget", "5%"]) == 2
    assert "cannot be read (File name too long); name a .jsonl table" in capsys.readouterr().err


def test_on_a_terminal_no_row_is_wider_than_it_and_elsewhere_no_column_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "made.jsonl", table())
    flags = f"{path} --budget 10%,11%,12%,13%,14%,15%,16%,17% --seeds 1 --schedulers random".split()
    monkeypatch.setenv("COLUMNS", "60")
    assert main(ReplaySettings, flags) == 0
    assert "no room" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(ReplaySettings, flags) == 0
    wide = [line for line in capsys.readouterr().out.splitlines() if len(line) > 60]
    assert wide and all(line.startswith("no room in 60 columns for: ") for line in wide)


# --- the report: ratios are of means over the same cells


def row(scheduler: str, budget: str, cap: float, regret: float, table: str = "t") -> dict:
    found = dict.fromkeys(
        (
            *("unspent", "after_divergence", "unfit", "trials", "hypervolume", "hypervolume_error", "standard_error"),
            *("wall_seconds", "bound"),
        ),
        0.0,
    )
    asked = {"table": table, "workers": 1, "seeds": 3, "scheduler": scheduler, "budget": budget, "cap_seconds": cap}
    return asked | found | {"mean_regret": regret, "p90_regret": regret}


def cells(rows: list[dict], title: str) -> dict[str, list[str]]:
    """The columns of each line of the table whose title begins so."""
    (told,) = (each for each in report(rows) if each.title.startswith(title))
    return {name: list(found) for name, *found in told.rows}


def test_ratios_to_each_baseline_and_to_the_best_of_each_column():
    rows = [row("ration", "1h", 10, 0.02), row("a", "1h", 10, 0.04), row("b", "1h", 10, 0.08)]
    rows += [row("ration", "2h", 20, 0.01), row("a", "2h", 20, 0.08), row("b", "2h", 20, 0.005)]
    oracles = [row("oracle", "1h", 10, 0.0), row("oracle", "2h", 20, 0.0)]
    found = cells([*rows, *oracles], "ration's regret over each baseline's, by budget")
    assert found["a"] == ["0.50", "0.12", "0.25"]
    assert found["best baseline"] == ["0.50", "2.00", "0.35"]
    assert "oracle" not in found


def test_budgets_that_come_to_one_cap_are_compared_with_half_of_it_each():
    caps = {"1h": 10, "2h": 20, "50%": 20}
    rows = [row(name, *of, regret) for of in caps.items() for name, regret in (("ration", 0.02), ("a", 0.04))]
    found = cells(rows, "ration's regret with half the budget")
    assert found["a"] == ["0.50", "0.50", "0.50"], "of each and of all"


def test_a_replay_has_the_same_tables_in_the_form_that_is_asked_for(tmp_path, capsys):
    path = write(tmp_path / "made.jsonl", table())
    flags = f"{path} --budget 10%,20% --seeds 1 --schedulers ration,random --rows {tmp_path / 'rows'}".split()
    assert main(ReplaySettings, [*flags, "--json"]) == 0
    told = report(json.loads(capsys.readouterr().out))
    assert main(ReplaySettings, [*flags, "--latex"]) == 0
    written = capsys.readouterr().out
    assert len(told) > 6 and all(rf"\caption{{{each.title}" in written for each in told)
    assert main(ReplaySettings, [*flags, "--latex", "--json"]) == 2
