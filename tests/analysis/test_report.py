import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from analysis import page
from analysis.settings import PlotSettings, ReportSettings
from tests.analysis.conftest import Written, do
from tune.errors import UserError

VOID = {"meta", "img"}


class Balance(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def written(study: Written) -> str:
    do(ReportSettings, [str(study.folder)])
    return (study.folder / "report" / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def html(reported: Path) -> str:
    return (reported / "report.html").read_text(encoding="utf-8")


def test_the_page_stands_alone_and_is_whole(html: str) -> None:
    parser = Balance()
    parser.feed(html)
    assert parser.open == []
    assert all(link.startswith(("data:", "#")) for link in parser.links)
    anchors = {link[1:] for link in parser.links if link.startswith("#")}
    assert anchors <= set(re.findall(r'id="([^"]*)"', html))
    assert "<script" not in html and "url(" not in html
    assert "Not shown" not in html


def test_the_answer_comes_first(html: str) -> None:
    assert html.index("Lowest validation perplexity after its decay, of 2 there and 24 in all") < html.index("<figure>")
    assert "python tune/run.py --budget 1000s --seed 3 --oversubscribe" in html


def test_each_figure_is_also_a_png_and_a_table(reported: Path, html: str) -> None:
    files = sorted(path.name for path in (reported / "figures").iterdir())
    stems = {name.rpartition(".")[0] for name in files}
    assert len(files) == 2 * len(stems) and len(stems) == html.count("<figure>") == 12


def test_a_young_study_has_a_page_that_says_what_is_missing(write: Callable[..., Written]) -> None:
    study = write("young")
    study.trial("t1", state="running")
    html = written(study)
    assert "No trial has completed a rung yet" in html and "has not ended" in html and "Not shown" in html


def test_builtin_text_is_marked(write: Callable[..., Written]) -> None:
    study = write("smoke", corpora={"nanogpt": {"name": "builtin", "sha256": "0", "builtin": True, "vocabulary": 3}})
    study.trial("t1")
    study.report("t1", 5.0, training_seconds=1.0)
    assert "a smoke test, not a result" in written(study)


def test_samples_of_the_winner_are_shown(write: Callable[..., Written]) -> None:
    score = {"trial": "t1", "bleu": 21.34, "chrf": 45.01, "sentences": 128, "signature": "<nrefs:1>"}
    sample = {"input": "ROMEO:", "output": "O <b>!", "reference": None}
    study = write(samples={"nanogpt": [sample]}, bleu={"nanogpt": score})
    study.trial("t1")
    html = written(study)
    assert "<dd>O &lt;b&gt;!</dd>" in html and "reference" not in html
    assert "t1 translates 128 sentences of the test split with BLEU 21.3 and chrF 45.0" in html


def test_nothing_of_a_journal_is_taken_for_html(write: Callable[..., Written]) -> None:
    hostile = "<script>alert(1)</script>\"'&"
    study = write(corpora={"nanogpt": {"name": hostile, "sha256": hostile, "vocabulary": 3}}, commit=hostile)
    study.trial(hostile, reason=hostile)
    study.report(hostile, 5.0, training_seconds=1.0)
    assert "<script" not in written(study)
    assert page.table(pd.DataFrame({"<i>": ["<b>"]})).count("&lt;") == 4


def test_a_folder_that_cannot_be_written_is_one_line(searched: Written, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^--out: "):
        do(ReportSettings, [str(searched.folder), "--out", str(tmp_path / "file" / "folder")])


def test_single_figures_are_saved_where_asked(searched: Written, tmp_path: Path) -> None:
    do(PlotSettings, ["front", str(searched.folder), "--out", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.glob("front*")) == ["front-nanogpt.csv", "front-nanogpt.png"]
    with pytest.raises(ValueError, match=r"^--family: "):
        do(PlotSettings, ["front", str(searched.folder), "--family", "x"])


@pytest.fixture
def small(write: Callable[..., Written]) -> Written:
    """A study of one trial, of which few figures can be drawn."""
    study = write("small")
    study.trial("t1")
    study.report("t1", 5.0, training_seconds=1.0, valid_loss=1.6)
    return study


@pytest.mark.parametrize(
    "link", ["report", "report/figures", "report/report.html", "report/figures/curves-nanogpt.csv"]
)
def test_nothing_is_written_through_a_link_in_a_strangers_study(small: Written, tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    if is_file := "." in link:
        outside.write_text("mine")
    else:
        outside.mkdir()
    (small.folder / link).parent.mkdir(parents=True, exist_ok=True)
    (small.folder / link).symlink_to(outside)
    with pytest.raises(UserError, match=f"^--out: .*{link}' is a link") as error:
        do(ReportSettings, [str(small.folder)])
    assert "\n" not in str(error.value)
    assert outside.read_text() == "mine" if is_file else not any(outside.iterdir())


def test_a_strangers_study_with_links_is_reported_elsewhere(small: Written, tmp_path: Path) -> None:
    (small.folder / "report").symlink_to(tmp_path)
    do(ReportSettings, [str(small.folder), "--out", str(tmp_path / "elsewhere")])
    assert (tmp_path / "elsewhere" / "report.html").exists()


def test_a_file_that_is_elsewhere_too_keeps_what_it_says_there(small: Written, tmp_path: Path) -> None:
    (small.folder / "report").mkdir()
    (tmp_path / "outside").write_text("mine")
    (small.folder / "report" / "report.html").hardlink_to(tmp_path / "outside")
    assert "<html" in written(small)
    assert (tmp_path / "outside").read_text() == "mine"


def test_a_strangers_name_of_a_family_is_no_path(write: Callable[..., Written], tmp_path: Path) -> None:
    family = "x/../../../../outside"
    study = write("stranger", families={family: 1.0})
    study.trial("t1", family=family)
    study.report("t1", 5.0, training_seconds=1.0)
    (study.folder / "report" / "figures" / "curves-x").mkdir(parents=True)
    written(study)
    assert not list(tmp_path.glob("**/outside*"))
    assert len(list(study.folder.glob("report/figures/*outside*"))) > 2
