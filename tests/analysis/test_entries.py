"""The commands as a user runs them."""

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.settings import WHATS, ExportSettings, PlotSettings, RankSettings, ReportSettings, SpendSettings
from tests.analysis.conftest import Printed, Written, do
from tune.errors import UserError
from tune.flags import Flags

ANALYSIS = Path(__file__).parents[2] / "analysis"


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
        *((PlotSettings, [what, *(["nowhere"] if what == "compare" else [])]) for what in WHATS),
    ],
)
def test_a_wrong_folder_is_one_line(kind: type[Flags], words: list[str]) -> None:
    with pytest.raises(UserError, match="'nowhere'") as error:
        do(kind, [*words, "nowhere"])
    assert "\n" not in str(error.value)


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
    for form in ((), ("--json",), ("--csv",), ("--markdown",)):
        text = printed(RankSettings, study.folder, *form)
        assert "DROP TABLE" in text
        assert not set(text) & {"\x1b", "\x07"}
    assert study.journal.rows("SELECT COUNT(*) FROM trials")[0][0] == 2


def test_the_table_says_what_the_order_rewards_and_three_answers(six: Written, printed: Printed) -> None:
    lines = printed(RankSettings, six.folder).splitlines()
    assert "rewards sheer size" in lines[-3] and "the winner is t2" in lines[-2]
    answers = "all at rung 0, of the 5 trials", "the quotient t5", "efficiency t", "perplexity t5"
    assert all(answer in lines[-1] for answer in answers)


def test_selected_rows_keep_their_places(six: Written, printed: Printed) -> None:
    rows = json.loads(printed(RankSettings, six.folder, "--json", "--front"))
    assert [(row["trial"], row["place"]) for row in rows] == [("t2", 2), ("t4", 2)]
    where = "parameters < 2e6 and section == 'rung'"
    rows = json.loads(printed(RankSettings, six.folder, "--json", "--where", where))
    assert [row["trial"] for row in rows] == ["t1", "t4"]


def test_a_long_section_is_cut_and_says_so(six: Written, printed: Printed) -> None:
    for top, said in ("1", True), ("0", False):
        assert ("and 1 more (--top 0 shows all)" in printed(RankSettings, six.folder, "--top", top)) == said


def test_markdown_rows_have_as_many_cells_as_their_head(six: Written, printed: Printed) -> None:
    for section in printed(RankSettings, six.folder, "--markdown").split("**\n\n")[1:]:
        lines = [line for line in section.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1 and len(lines) > 2


NO_FLAGS = (
    *(f"six {words}" for words in ("--family none", "--top -1", "--where 1", "--json --csv")),
    *(
        "six --stability 0",
        "six --stability 1",
        "plot art",
        "plot front six --family x",
        "plot compare six",
        "plot experiment six six",
    ),
)


@pytest.mark.parametrize("line", NO_FLAGS)
def test_flags_that_do_not_serve(six: Written, line: str) -> None:
    words = line.replace("six", str(six.folder)).split()
    with pytest.raises(UserError, match=r"^(--\w+|WHAT|study): ") as error:
        do(PlotSettings, words[1:]) if words[0] == "plot" else do(RankSettings, words)
    assert "\n" not in str(error.value)


def test_spend_adds_up_and_tells_what_the_records_took(six: Written, printed: Printed) -> None:
    figures = json.loads(printed(SpendSettings, six.folder, "--json"))
    assert figures["spent"] == sum(figures["by"].values()) == 100
    assert (figures["cap"], figures["in_steps"], figures["idle"]) == (1000, 75, 25)
    said = printed(SpendSettings, six.folder)
    assert "spent 1m40s of 16m40s (10.0 %), 75.0 % of it in optimizer steps" in said
    assert "is known of searches that ended in order" in said
    six.journal.note(overhead={"search": 50.0, "journal": 0.1, "tensorboard": 0.4})
    assert "the journal took 0.1s (0.2 %), TensorBoard 0.4s (0.8 %)" in printed(SpendSettings, six.folder)


def test_a_reader_that_has_enough_is_no_error(six: Written) -> None:
    command = f"'{sys.executable}' '{ANALYSIS / 'rank.py'}' '{six.folder}' --json | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 128 + signal.SIGPIPE) and done.stderr == ""
