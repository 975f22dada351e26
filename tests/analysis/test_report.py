"""A study's report: what is on the page, its pictures, and the page seen in a real browser."""

import base64
import io
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from matplotlib.legend import Legend
from PIL import Image, ImageColor

from analysis.page import BUDGET_PICTURES, FAMILY_PICTURES, command, draw, watch
from analysis.plots.dimensions import effects
from analysis.settings import RankSettings, ReportSettings
from analysis.study import Results, Study, open_study
from analysis.style import CHARGE_COLORS, MANY, Picture, new_figure
from analysis.tables import write_file
from tests import scaling_rows
from tests.analysis.conftest import Printed, Written, do, one_line, search, study_of_rows
from tests.conftest import small_files
from tests.tune.display.browser import Page, browser
from tune.cli import parse
from tune.errors import UserError
from tune.experiments.experiment_settings import ExperimentSettings
from tune.store.heartbeat import DRIVER, HEARTBEAT_FOLDER, write_heartbeat

UNBROKEN = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
"""How sacrebleu signs: wider than a phone."""


def written(study: Written, *flags: str) -> str:
    do(ReportSettings, [str(study.folder), *flags])
    return (study.folder / "report" / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Picture]]:
    """Of a study of some size, with seconds of each kind, and texts as long as they come; and its pictures."""
    study = search(tmp_path_factory.mktemp("runs") / "searched")
    for what in CHARGE_COLORS:
        study.charge(what, 5.0, slot=0, trial="t003", at=100.0)
    study.journal.update("trials", "t000", {"reason": "decayed, and it is told at such length that it takes two lines"})
    score = {"trial": "t001", "bleu": 21.34, "chrf": 45.01, "sentences": 128, "signature": UNBROKEN}
    rows = [
        {"cap": 500.0, "how": "new search", "trial": "t003", "loss": 1.75, "low": 1.7, "high": 1.8},
        {"cap": 1000.0, "how": "this search", "trial": "t001", "loss": 1.5, "low": 1.5, "high": 1.5},
        {"cap": 2000.0, "how": "continued", "trial": "t001", "loss": 1.25, "low": 1.125, "high": 1.375},
    ]  # fmt: skip
    study.journal.write_facts(prospects={"nanogpt": {"rows": rows, "decayed": True, "why": None}})
    samples = {"nanogpt": [{"input": "ROMEO:", "output": 60 * "a", "reference": None}]}
    (row,) = study.journal.rows("SELECT MAX(report) AS last FROM reports WHERE trial = 't001'")
    decoded = {"nanogpt": row["last"]}
    study.journal.write_facts(bleu={"nanogpt": score}, samples=samples, decoded=decoded, commit=40 * "c")
    study.journal.close()
    svg, drawn = Picture.svg, list[Picture]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Picture, "svg", lambda self: drawn.append(self) or svg(self))
        do(ReportSettings, [str(study.folder)])
    return study.folder / "report", drawn


@pytest.fixture(scope="module")
def report(reported: tuple[Path, list[Picture]]) -> Path:
    return reported[0]


@pytest.fixture
def html(report: Path) -> str:
    return (report / "report.html").read_text(encoding="utf-8")


def test_the_page_stands_alone_and_is_whole(html: str) -> None:
    parts = list(ElementTree.fromstring(html).iter())  # every tag that is opened is closed, in order
    links = [link for part in parts if (link := part.get("src") or part.get("href"))]
    assert links and all(link.startswith(("data:", "#")) for link in links)
    assert {link[1:] for link in links if link.startswith("#")} <= {part.get("id") for part in parts}
    assert html.count("<script") == 1 and not re.search(r"url\(|https?:|fetch\(|import\(|XMLHttp", html)
    assert "Not shown" not in html
    assert len(re.findall(r"[Ss]pent \S+ of 16m40s", html)) == 1 and "It ended by itself" in html


def test_the_answer_comes_first_then_samples_and_how_to_repeat_it(html: str) -> None:
    answer = re.search(r"Width \d+, 4 heads, 4 layers, (no )?dropout.*, (fp32|bf16): validation perplexity ", html)
    assert answer and answer.start() < html.index("<figure>") < html.index(
        "Lowest validation perplexity after its decay, of 2 there and"
    )
    assert html.index("size against perplexity") < html.index("The cap, burning down") < html.index("learning curves")
    assert "python tune/run.py --budget 1000s --seed 3 --oversubscribe" in html
    assert html.index("nanogpt: what t001 writes") < html.index(f"<dd>{60 * 'a'}</dd>") and "<dt>reference" not in html
    assert "t001 translates 128 sentences of the test split with BLEU 21.3 and chrF 45.0" in html


def test_the_command_of_an_experiment_is_one_that_it_takes(tmp_path: Path) -> None:
    """What --of gave is there without it, as its winner may be another by then."""
    fix, of = {"layers": 2, "precision": "bf16"}, {"recipe": "context=128,taps=0", "of": tmp_path}
    own_model = ExperimentSettings.from_flags({"name": "estimates", "budget": "2m"})
    facts = {"settings": own_model.stored(), "experiment": "estimates"}
    words = shlex.split(command(Study(folder=tmp_path, name="x", facts=facts)))
    assert parse(ExperimentSettings, words[words.index("estimates") :]) == replace(own_model, out=None)
    for name, more in (("ablation", {"memory_limit": "1GB"}), ("scaling", of), ("scaling", {**of, "set": "taps=3"})):
        asked = ExperimentSettings(budget="2m", families="nanogpt", fix=fix, skip_bad_lines=True, name=name, **more)
        facts = {"settings": asked.stored(), "experiment": name}
        words = shlex.split(command(Study(folder=tmp_path, name="x", facts=facts)))
        again = parse(ExperimentSettings, words[words.index(name) :])
        given = {**asked.recipe, **asked.set}
        assert again == replace(asked, of=None, recipe={}, set=given, out=again.out), name
        assert parse(ExperimentSettings, shlex.split(asked.first_line() or "")) == again, "and the first line too"


def test_an_experiment_without_a_ranking_has_its_own_pictures_in_its_place(tmp_path: Path, printed: Printed) -> None:
    """There is no rung to wait for, and no lease of a search."""
    study = study_of_rows(tmp_path / "x", "scaling", scaling_rows.all_rows())
    html = draw(None, study).read_text(encoding="utf-8")
    assert html.index("<h3>What more devices gain") < html.index("<h3>What of a step is communication")
    for text in (html, printed(RankSettings, study.folder)):
        assert "he experiment scaling ranks no trials: " in text and f"experiment {study.folder} draws" in text
        assert f"--tables {study.folder} prints" in text and "not ranked" in text
        assert not re.search("rung completed|completed a rung|predicted yet|Half of the spending", text)


def test_what_shows_the_trials_left_out_is_of_this_study(
    bare: None, write: Callable[..., Written], printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analysis.page.TOP", 2)
    study, trials = write("of two words"), ["t1", "t2", "t3"]
    for trial in trials:
        study.trial(trial)
        study.report(trial, 5.0)
    (told,) = re.findall(r"and 1 more: .*rank\.py (.* --top 0)", unescape(written(study)))
    ranked = printed(RankSettings, *shlex.split(told))
    assert [trial for trial in trials if trial not in ranked] == []


def test_each_figure_is_also_a_png_and_a_table(report: Path, html: str) -> None:
    images, data = ({path.stem: path for path in report.glob(f"figures/*.{kind}")} for kind in ("png", "csv"))
    assert images.keys() == data.keys() and html.count("<figure>") == len(FAMILY_PICTURES + BUDGET_PICTURES) == len(
        data
    )
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in images.values())


def test_what_other_caps_would_buy_is_told_as_it_was_written_down(html: str) -> None:
    told = html[html.index("nanogpt: what another cap would buy") :]
    cells = re.findall(r">([^<>]*)</td>", told)[:21]
    assert cells[1:6] == ["new search", "1.750", "1.700 to 1.800", "5.755", "t003"]
    assert cells[8:11] == ["this search", "1.500", ""], "what was found has no interval"
    assert "At a constant learning rate" not in told


def test_a_loss_may_be_predicted_that_has_no_perplexity(bare: None, write: Callable[..., Written]) -> None:
    row = {"cap": 100.0, "how": "this search", "trial": "t1", "loss": 800.0, "low": 800.0, "high": 800.0}
    study = write(prospects={"nanogpt": {"rows": [row], "decayed": False, "why": None}})
    study.trial("t1")
    study.report("t1", 5.0)
    assert "800.000" in written(study)


def test_why_nothing_is_predicted_is_told(bare: None, write: Callable[..., Written]) -> None:
    """By the search; of a study that has not ended, or that an earlier version wrote, by what can be asked."""
    for name, told in (("ended", {"nanogpt": {"rows": [], "decayed": False, "why": "too few sizes"}}), ("runs", {})):
        study = write(name, prospects=told)
        study.trial("t1")
        study.report("t1", 5.0)
        assert ("No forecast: too few sizes." if told else "tune/run.py --plan --resume ") in written(study)


@pytest.mark.parametrize("facts", [{}, {"experiment": "ablation"}])
def test_half_of_the_spending_is_told_of_searches_alone(
    bare: None, write: Callable[..., Written], facts: dict[str, str]
) -> None:
    """A list has no rungs."""
    study = write(**facts)
    study.trial("t1")
    study.report("t1", 5.0)
    study.charge("steps", 1.0, trial="t1")
    assert ("Half of the spending against the end: too few trials: " in written(study)) == (not facts)


@pytest.mark.parametrize("drawn", [FAMILY_PICTURES[0], effects, BUDGET_PICTURES[0]])
def test_a_picture_is_equal_for_equal_data(report: Path, html: str, drawn: Callable[..., Picture]) -> None:
    """That of effects is of random draws."""
    study = open_study(report.parent)
    picture = drawn(*((Results(studies=[study]), "nanogpt") if drawn in FAMILY_PICTURES else (study,)))
    assert base64.b64encode(picture.svg().encode()).decode() in html


def test_a_picture_has_its_data_and_its_legend_inside_of_it(reported: tuple[Path, list[Picture]]) -> None:
    report, pictures = reported
    assert len(pictures) == len(FAMILY_PICTURES + BUDGET_PICTURES)
    for picture in pictures:
        assert len(pd.read_csv(report / "figures" / f"{picture.name}.csv")) == len(picture.data) > 0
        assert picture.text.endswith(".")
        right = picture.figure.bbox.x1
        for legend in picture.figure.findobj(Legend):
            extent = legend.get_window_extent()
            assert extent.x0 >= 0 and extent.x1 <= right, picture.name
        assert max(plot.bbox.x1 for plot in picture.figure.axes) > 0.95 * right, f"{picture.name} takes no width of it"


@pytest.fixture
def young(write: Callable[..., Written]) -> Written:
    """A study of which nothing can be drawn yet."""
    study = write("young")
    study.trial("t1", state="running")
    return study


def test_a_young_study_has_a_page_that_says_what_is_missing(young: Written) -> None:
    html = written(young)
    assert "No trial has completed a rung yet" in html and "has not ended" in html and "Not shown" in html


def test_a_strangers_names_are_neither_html_nor_paths(write: Callable[..., Written], tmp_path: Path) -> None:
    """And of one trial, on builtin text, there are pictures, and a warning."""
    hostile, family = "<script>alert(1)</script>\"'&", "x/../../../../outside<script>"
    text = {"name": hostile, "sha256": hostile, "builtin": True, "vocabulary": 3}
    facts = {"corpora": {family: text}, "families": {family: 1.0}, "samples": {family: [{hostile: hostile}]}}
    study = write("stranger", **facts, commit=hostile, settings={hostile: hostile})
    study.trial(hostile, family=family, reason=hostile)
    study.report(hostile, 5.0, training_seconds=1.0)
    (study.folder / "report" / "figures" / "curves-x").mkdir(parents=True)
    html = written(study)
    assert html.count("<script") == 1 and "&lt;script&gt;alert" in html
    assert "a smoke test, not a result" in html
    assert html.index("all configurations at once") < html.index("Not shown. family"), "below what is shown"
    assert not list(tmp_path.glob("**/outside*"))
    drawn = {path.name.partition("-")[0] for path in study.folder.glob("report/figures/*outside*.csv")}
    assert {"front", "curves", "parallel"} <= drawn


def test_a_folder_that_cannot_be_written_is_one_line(bare: None, young: Written, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^--out: "):
        written(young, "--out", str(tmp_path / "file" / "folder"))


def test_a_file_that_a_disk_does_not_take_leaves_nothing_behind(tmp_path: Path) -> None:
    with small_files(), one_line(r"^--out: '.*new' cannot be written \(File too large\); "):
        write_file(tmp_path / "new", bytes(8192))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("link", ["report", "report/figures", "report/report.html", "report/figures/front-nanogpt.csv"])
def test_nothing_is_written_through_a_link_in_a_strangers_study(
    bare: None, young: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    if "front" in link:
        monkeypatch.setattr("analysis.page.FAMILY_PICTURES", FAMILY_PICTURES[:1])
        young.report("t1", 5.0)
    outside = tmp_path / "outside"
    if is_file := "." in link:
        outside.write_text("mine")
    else:
        outside.mkdir()
    (young.folder / link).parent.mkdir(parents=True, exist_ok=True)
    (young.folder / link).symlink_to(outside)
    with one_line(f"^--out: .*{link}' is a link"):
        written(young)
    assert outside.read_text() == "mine" if is_file else not any(outside.iterdir())


def test_a_strangers_study_with_links_is_reported_elsewhere(bare: None, young: Written, tmp_path: Path) -> None:
    (young.folder / "report").symlink_to(tmp_path)
    do(ReportSettings, [str(young.folder), "--out", str(tmp_path / "elsewhere")])
    assert (tmp_path / "elsewhere" / "report.html").exists()


def test_a_file_that_is_elsewhere_too_keeps_what_it_says_there(bare: None, young: Written, tmp_path: Path) -> None:
    (young.folder / "report").mkdir()
    (tmp_path / "outside").write_text("mine")
    (young.folder / "report" / "report.html").hardlink_to(tmp_path / "outside")
    assert "<html" in written(young)
    assert (tmp_path / "outside").read_text() == "mine"


def test_a_page_is_drawn_anew_when_the_journal_has_changed_until_the_study_is_over(bare: None, young: Written) -> None:
    """The driver's signs of life say whether it goes on; before its first trial there is nothing to draw."""
    events, drawn = ["", "trial", "", "over"], []
    early = Written(young.folder.parent / "early")

    def draw(study: Study, good_for: float) -> Path:
        drawn.append((study.name, good_for > 0, len(events)))
        return study.folder

    def wait(_: float) -> None:
        if (event := events.pop(0)) == "trial":
            early.trial("t1")
        elif event == "over":
            os.utime(early.folder / HEARTBEAT_FOLDER / DRIVER, (0, 0))

    (early.folder / HEARTBEAT_FOLDER).mkdir()
    write_heartbeat(early.folder, DRIVER, 0, 0.0)
    watch(early.folder, draw, wait)
    early.journal.close()
    assert drawn == [("early", True, 2)] and not events


def test_a_page_that_is_kept_fresh_reads_itself_again(bare: None, young: Written) -> None:
    page = draw(None, open_study(young.folder), 7.0).read_text(encoding="utf-8")
    assert "location.reload(), 7000" in page and "location.reload" not in written(young)
    (young.folder / HEARTBEAT_FOLDER).mkdir()
    write_heartbeat(young.folder, DRIVER, 0, 0.0)
    assert "It runs." in written(young) and "It runs." not in page


def test_points_are_told_where_they_are_drawn() -> None:
    """At shares of the picture from its upper left corner; of very many, some."""
    figure, (plot,) = new_figure()
    plot.set(xlim=(0, 1), ylim=(0, 1), position=(0, 0, 1, 1))
    figure.set_layout_engine("none")
    shares = [0.0, 0.25, 1.0]
    told = {"name": "", "title": "", "text": "", "figure": figure, "data": pd.DataFrame()}
    picture = Picture(**told, hover=(plot, shares, shares, ["low", "middle", "high"]))
    assert picture.points() == [(0.0, 1.0, "low"), (0.25, 0.75, "middle"), (1.0, 0.0, "high")]
    crowd = Picture(**told, hover=(plot, [0.0] * 9999, [0.0] * 9999, [*map(str, range(9999))])).points()
    assert len(crowd) <= MANY and crowd[0][2] == "0"


PAPER = 673
"""CSS pixels between the margins of an A4 page, 96 an inch."""
WIDTH = "document.documentElement.clientWidth"
BEYOND = f"""
[...document.querySelectorAll('td, th, img, dd, pre, h1, h2, h3, p, a')].filter((each) => {{
    const box = each.getBoundingClientRect(), wide = each.closest('.wide');
    const end = Math.min({WIDTH}, wide ? wide.getBoundingClientRect().right : {WIDTH});
    return box.width && (box.left < -1 || box.right > end + 1);
}}).map((each) => each.tagName + ' ' + (each.textContent || each.alt).slice(0, 40))
"""
"""What reaches out of the page, or is to be scrolled to."""


COLORS = """
[...document.querySelectorAll('h1, h2, h3, p, a, dt, dd, th, td, pre, figcaption')].map((each) => {
    let behind = each;
    while (getComputedStyle(behind).backgroundColor == 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
    return [getComputedStyle(each).color, getComputedStyle(behind).backgroundColor];
})
"""
"""Of each text and of what is behind it."""
PICTURES = """
[...document.images].map((each) => {
    const box = each.getBoundingClientRect();
    return [box.left + scrollX, box.top + scrollY, box.right + scrollX, box.bottom + scrollY];
})
"""
READABLE = 4.5
"""The least contrast of a text, of WCAG 2.2."""
Rgb = tuple[int, int, int]


def contrast(first: Rgb, second: Rgb) -> float:
    """Of two colours, as WCAG 2.2 defines it: 1 to 21."""

    def light(color: Rgb) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in color)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, bright = sorted((light(first), light(second)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.fixture(scope="module")
def page(report: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The report in a browser: nothing is cut off, on a phone, a large screen or paper; light or dark, it reads."""
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.open(f"file://{report / 'report.html'}")
        opened.wait_for("[...document.images].length && [...document.images].every((each) => each.naturalWidth)")
        yield opened


def shown(page: Page, width: int, *, media: str = "screen", scheme: str = "light") -> None:
    """The page as it is there."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.call("Emulation.setEmulatedMedia", media=media, features=features)
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    page.wait_for(f"{WIDTH} == {width} && matchMedia('{media} and (prefers-color-scheme: {scheme})').matches")


@pytest.mark.parametrize(("width", "media"), [(390, "screen"), (1400, "screen"), (PAPER, "print")])
def test_nothing_is_cut_off(page: Page, width: int, media: str) -> None:
    shown(page, width, media=media)
    assert json.loads(page.wait_for(f"JSON.stringify({BEYOND})")) == []
    assert page.wait_for("document.scrollingElement.scrollWidth") <= width


def test_families_and_the_cap_stand_side_by_side_where_there_is_room(page: Page) -> None:
    places = "JSON.stringify([...document.querySelectorAll('.answer')].map((each) => each.getBoundingClientRect()))"
    shown(page, 1400)
    first, second = json.loads(page.wait_for(places))
    assert first["y"] == second["y"] and first["right"] <= second["x"]
    pictures = page.wait_for("[...document.querySelectorAll('.answer .plot')].map((each) => each.offsetTop).join()")
    assert all(0 < float(top) < 900 for top in pictures.split(",")), "on the first screen"
    shown(page, 390)
    first, second = json.loads(page.wait_for(places))
    assert first["x"] == second["x"] and first["bottom"] <= second["y"]


def test_trials_are_sorted_by_the_column_that_is_pressed(page: Page) -> None:
    """Once upwards, twice downwards; by what a number is, not by how it is written."""
    shown(page, 1400)
    table = "[...document.querySelectorAll('#ranking ~ .wide table')].find((each) => each.tBodies[0].rows.length > 5)"
    cells = f"[...{table}.tBodies[0].rows].map((row) => row.querySelector('[data-name=parameters]').textContent).join()"
    press = f"({table}.querySelector('th[data-name=parameters] button').click(), true)"
    sizes = {"k": 1e3, "M": 1e6}
    for descending in (False, True):
        assert page.wait_for(press)
        found = [float(text[:-1]) * sizes[text[-1]] for text in page.wait_for(cells).split(",")]
        assert len(set(found)) > 1 and found == sorted(found, reverse=descending)


def test_a_table_that_was_sorted_is_sorted_again_though_others_came(
    bare: None, write: Callable[..., Written], page: Page
) -> None:
    """On a page that is kept fresh: a further rung stands above."""
    study = write("watched")

    def completed(rung: int) -> str:
        for number in range(2):
            study.trial(f"t{rung}{number}")
            study.report(f"t{rung}{number}", 5.0, rung=rung)
        return f"file://{draw(None, open_study(study.folder), 1e6)}"

    heads = "[...document.querySelectorAll('#ranking ~ .wide th[data-name=parameters]')]"
    with page.new_tab():
        page.open(completed(0))
        assert page.wait_for(f"{heads}.length == 1 && {heads}.every((each) => !each.firstChild.click())")
        page.open(completed(1))
        is_read = "document.readyState == 'complete'"
        found = page.wait_for(f"{is_read} && JSON.stringify({heads}.map((each) => each.ariaSort))")
    assert json.loads(found) == [None, "ascending"]


@pytest.mark.parametrize(("kind", "then", "stays"), [
    ("mouse", "move", False), ("mouse", "leave", False), ("touch", "leave", True), ("touch", "cancel", False)
])  # fmt: skip
def test_a_point_of_a_picture_says_which_trial_it_is(page: Page, kind: str, then: str, stays: bool) -> None:
    """Also once the finger is lifted, with which it leaves, unless it was there to scroll."""
    shown(page, 1400)
    moved = f"""(() => {{
        const plot = document.querySelector('.answer .plot'), box = plot.getBoundingClientRect();
        const at = (what, x, y) => plot.dispatchEvent(new PointerEvent(`pointer${{what}}`, {{
            pointerType: '{kind}', clientX: box.left + x * box.width, clientY: box.top + y * box.height}}));
        const [x, y, text] = JSON.parse(plot.dataset.points)[0];
        at('down', x, y);
        const told = plot.querySelector('output').textContent;
        at('{then}', 0, 0);
        return JSON.stringify([text, told, plot.querySelectorAll('output').length]);
    }})()"""
    text, told, left = json.loads(page.wait_for(moved))
    assert told == text and re.match(r"t\d+: width \d+, 4 heads", text) and left == stays


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_pictures_read_in_the_scheme_that_is_asked_for(page: Page, scheme: str) -> None:
    shown(page, 1400, scheme=scheme)
    pairs = json.loads(page.wait_for(f"JSON.stringify({COLORS})"))
    colors = [tuple(ImageColor.getrgb(color)[:3] for color in pair) for pair in {tuple(pair) for pair in pairs}]
    assert min(contrast(*pair) for pair in colors) >= READABLE
    paper = ImageColor.getrgb(page.wait_for("getComputedStyle(document.body).backgroundColor"))[:3]
    assert (contrast(paper, (0, 0, 0)) < contrast(paper, (255, 255, 255))) == (scheme == "dark")
    taken = page.call("Page.captureScreenshot", captureBeyondViewport=True, optimizeForSpeed=True)["data"]
    whole = Image.open(io.BytesIO(base64.b64decode(taken))).convert("RGB")
    for box in json.loads(page.wait_for(f"JSON.stringify({PICTURES})")):
        picture = whole.crop(box)
        counted = sorted(picture.getcolors(picture.width * picture.height) or [])
        assert contrast(counted[-1][1], paper) < 1.1, "a picture's ground is the page's"
        assert max(contrast(color, paper) for _, color in counted) >= READABLE, "and its words stand out"
