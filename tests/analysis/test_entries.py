"""The commands as a user runs them."""

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.settings import (
    PICTURE_KINDS,
    CheckSettings,
    ExportSettings,
    PlotSettings,
    RankSettings,
    ReportSettings,
    SpendSettings,
)
from model.settings import TranslateSettings
from tests.analysis.conftest import Printed, Written, do, one_line, study_of_loop
from tune.errors import UserError
from tune.flags import Flags


def test_rank_takes_the_newest_study_from_anywhere(
    six: Written, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(six.folder.parents[1])
    rows = json.loads(printed(RankSettings, "--json"))
    assert [row["trial"] for row in rows] == ["t3", "t2", "t5", "t1", "t4", "t6"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        *((kind, []) for kind in (RankSettings, SpendSettings, ReportSettings)),
        *((ExportSettings, [flag, "new"]) for flag in ("--optuna", "--nanogpt")),
        (RankSettings, ["--stability", "0.5"]),
        *((PlotSettings, [what, *(["nowhere"] if what == "compare" else [])]) for what in PICTURE_KINDS),
    ],
)
def test_a_wrong_folder_is_one_line(kind: type[Flags], words: list[str]) -> None:
    with one_line("'nowhere'"):
        do(kind, [*words, "nowhere"])


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100, b"SQLite format 3\0" + bytes(9000)])
@pytest.mark.parametrize("kind", [RankSettings, SpendSettings, ReportSettings])
def test_a_damaged_journal_is_one_line_with_a_remedy(tmp_path: Path, kind: type[Flags], content: bytes) -> None:
    (tmp_path / "journal.db").write_bytes(content)
    with one_line(r"^study: .*: its journal.db cannot be read \((?!.*SELECT).*\); name another study"):
        do(kind, [str(tmp_path)])


@pytest.mark.parametrize(("kind", "lacks"), [(PlotSettings, "WHAT"), (TranslateSettings, "runs/STUDY/best-FAMILY")])
def test_only_what_has_to_be_there_is_called_required(kind: type[Flags], lacks: str) -> None:
    with pytest.raises(UserError, match=f"required: {lacks}; --help"):
        do(kind, [])


def test_json_is_strict_and_csv_has_its_rows(six: Written, printed: Printed) -> None:
    text = printed(RankSettings, six.folder, "--json")
    rows = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert all(type(row["parameters"]) is int for row in rows)
    assert rows[-1]["perplexity"] is None
    same = csv.DictReader(printed(RankSettings, six.folder, "--csv").splitlines())
    assert [row["trial"] for row in same] == [row["trial"] for row in rows]


def test_a_strangers_names_are_data_and_steer_no_terminal(write: Callable[..., Written], printed: Printed) -> None:
    study = write("stranger", devices={"kind": "cpu", "slots": 1, "name": "\x1b]0;owned\x07"})
    study.trial("t1\x1b[2J", state="failed", reason="\x1b[31m", precision="\x1b[5m")
    study.trial("t2'; DROP TABLE trials; --", family="[/red]nanogpt[red]")
    study.report("t2'; DROP TABLE trials; --", 2.0, checkpoint="../../../etc/passwd")
    for flag in ((), ("--json",), ("--csv",), ("--markdown",)):
        text = printed(RankSettings, study.folder, *flag)
        assert "DROP TABLE" in text
        assert not set(text) & {"\x1b", "\x07"}
    assert study.journal.rows("SELECT COUNT(*) FROM trials")[0][0] == 2


def test_the_table_says_what_the_order_rewards_and_three_answers(six: Written, printed: Printed) -> None:
    lines = printed(RankSettings, six.folder).splitlines()
    assert "rewards sheer size" in lines[-3] and "the winner is t2" in lines[-2]
    answers = "all at rung 0, of the 5 trials", "per million parameters t5", "efficiency t", "perplexity t5"
    assert all(answer in lines[-1] for answer in answers)


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ({"reason": "cap"}, None), ({"reason": "SIGINT"}, "six was cut short (SIGINT) before it was done"),
        ({"reason": "deadline"}, "six ended at its deadline"), (None, "six has not ended: it was killed"),
        ({"reason": "cap", "near_deadline": True, "cap": 1000.0, "spent": 500.0}, "six ended at its deadline"),
        ({"reason": "cap", "near_deadline": True, "cap": 1000.0, "spent": 999.0}, None),
    ],
)  # fmt: skip
def test_of_a_study_that_was_cut_short_the_table_says_so(
    six: Written, printed: Printed, ended: dict[str, Any] | None, said: str | None
) -> None:
    six.journal.update("slots", 0, {"closed": 100.0})
    if ended is not None:
        six.journal.write_facts(ended=ended)
    text = printed(RankSettings, six.folder)
    assert text.count("\nsix ") == (said is not None) and (said or "") in text
    assert "the furthest level first" in text and "three answers at an earlier level, all at rung 0" in text


def test_selected_rows_keep_their_places(six: Written, printed: Printed) -> None:
    rows = json.loads(printed(RankSettings, six.folder, "--json", "--front"))
    assert [(row["trial"], row["place"]) for row in rows] == [("t2", 2), ("t4", 2)]
    where = "parameters < 2e6 and section == 'rung'"
    rows = json.loads(printed(RankSettings, six.folder, "--json", "--where", where))
    assert [row["trial"] for row in rows] == ["t1", "t4"]


@pytest.mark.parametrize("value", [1.5e-15, 1.2345678901234567e-10, 1 / 3, sys.float_info.max])
def test_a_number_in_json_is_the_one_that_was_reported(tmp_path: Path, printed: Printed, value: float) -> None:
    study = study_of_loop(tmp_path / "loop", "maximize", "accuracy", [value])
    (row,) = json.loads(printed(RankSettings, study.folder, "--json"))
    assert row["best_accuracy"] == value


def test_a_long_section_is_cut_and_says_so(six: Written, printed: Printed) -> None:
    for top, said in ("1", True), ("0", False):
        assert ("and 1 more (--top 0 shows all)" in printed(RankSettings, six.folder, "--top", top)) == said


FORMATS = {"--markdown": r"\|( --- \|)+", "--latex": r"\\begin\{tabular\}"}


def test_every_command_prints_its_tables_in_the_form_that_is_asked_for(
    six: Written, searched: Written, printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[tuple[type[Flags], list[Path | str], str]] = [
        (RankSettings, [six.folder], "--markdown"), (SpendSettings, [six.folder], "--latex"),
        (CheckSettings, ["ablation", "scaling"], "--markdown"),
        (RankSettings, [searched.folder, "--stability", "0.5"], "--latex"),
        (PlotSettings, ["compare", six.folder, searched.folder], "--latex"),
    ]  # fmt: skip
    for kind, words, flag in asked:
        lines = printed(kind, *words, flag).splitlines()
        assert any(re.match(FORMATS[flag], line) for line in lines), (kind, flag)


def test_a_table_of_a_users_own_is_checked_as_the_published_are(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = tmp_path / "ablation.csv"
    table.write_text("GPUs,Epoch seconds,Speed-up,Colour\n1,10.0,1,red\n2,6.0,1.4,blue\n")
    (found,) = json.loads(printed(CheckSettings, table, "--json"))
    assert (found["row"], found["column"], found["recomputed"]) == ("2: gpus 2", "speed_up", "1.67")
    table.write_text("GPUs,Epoch seconds,Speed-up\n1,10.0,1\n2,6.0,1.67\n")
    assert json.loads(printed(CheckSettings, "ablation.csv", "--json")) == [], "a file comes before a published name"
    assert "no rule finds anything" in printed(CheckSettings, table)
    told = ("--formulas", "speed_up=10/epoch_seconds;gpus=3", "--order", "-gpus")
    assert {each["column"] for each in json.loads(printed(CheckSettings, table, "--json", *told))} == {"gpus", "rank"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"), (b"", "is empty"), (b"a,b\n", "has no rows"), (b"a,A\n1,2\n", "two columns"),
        (b"a,b\n1\n", "has 1 cells in row 1"), (b"a\n\xff\n", "is no CSV file"), (b'a\n"1\n', "is no CSV file"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_one_line(tmp_path: Path, content: bytes | None, said: str) -> None:
    table = tmp_path / "table.csv"
    if content is not None:
        table.write_bytes(content)
    with one_line(f"^TABLE: .*{said}"):
        do(CheckSettings, [str(table)])


def test_a_table_that_cannot_be_looked_for_is_one_line() -> None:
    with one_line(r"^TABLE: .* cannot be read \(File name too long\)"):
        do(CheckSettings, ["x" * 300])


NO_FLAGS = (
    *(f"six {words}" for words in ("--family none", "--top -1", "--where 1", "--json --csv")),
    *(f"six --top 1 {flag}" for flag in ("--json", "--csv", "--markdown", "--latex")),
    *(
        "six --stability 0",
        "six --stability 1",
        *(f"six --stability .5 {words}" for words in ("--by memory", "--front", "--where layers>2", "--top 3")),
        "plot art",
        "plot front six --family x",
        "plot compare six",
        "plot experiment six six",
        "plot front six --latex",
        *(f"check {words}" for words in ("--vocabulary 1", "--hours 0", "--hours x", "--order 1+", "--formulas x")),
    ),
)


@pytest.mark.parametrize("line", NO_FLAGS)
def test_flags_that_do_not_serve(six: Written, line: str) -> None:
    words = line.replace("six", str(six.folder)).split()
    with one_line(r"^(--\w+|WHAT|study): "):
        kind = {"plot": PlotSettings, "check": CheckSettings}.get(words[0], RankSettings)
        do(kind, words if kind is RankSettings else words[1:])


@pytest.mark.parametrize("what", ["compare", "experiment", "roofline"])
def test_a_picture_that_is_of_no_family_takes_none(six: Written, what: str) -> None:
    with one_line("^--family: 'nanogpt' applies only to front, curves and effects: leave it out"):
        do(PlotSettings, [what, str(six.folder), *[str(six.folder)] * (what == "compare"), "--family", "nanogpt"])


@pytest.mark.parametrize("flag", ["csv", "markdown", "latex"])
def test_a_comparison_in_a_format_is_printed_and_takes_no_folder(flag: str) -> None:
    with one_line(f"^--out: 'here' beside --{flag}, which .*: leave it out"):
        do(PlotSettings, ["compare", "one", "other", f"--{flag}", "--out", "here"])


def test_spend_adds_up_and_tells_what_the_records_took(six: Written, printed: Printed) -> None:
    figures = json.loads(printed(SpendSettings, six.folder, "--json"))
    assert figures["spent"] == sum(figures["by"].values()) == 100
    assert (figures["cap"], figures["in_steps"], figures["idle"]) == (1000, 75, 25)
    said = printed(SpendSettings, six.folder)
    assert "spent 1m40s of 16m40s (10.0 %), 75.0 % of it in optimizer steps" in said
    assert "is known of searches that ended in order" in said
    six.journal.write_facts(overhead={"search": 50.0, "journal": 0.1, "tensorboard": 0.4})
    assert "the journal took 0.1s (0.2 %), TensorBoard 0.4s (0.8 %)" in printed(SpendSettings, six.folder)
