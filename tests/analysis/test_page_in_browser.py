"""A report seen in a real browser: nothing is cut off, on a phone, on a large screen or on paper."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.report_command import report
from tests.analysis.conftest import SEARCHED, Written, search
from tests.tune.board.browser import Page, browser, program

pytestmark = pytest.mark.skipif(program() is None, reason="no Chromium is installed, and a page is looked at with one")

PAPER = 673
"""CSS pixels between the margins of an A4 page, 96 an inch."""
WIDTH = "document.documentElement.clientWidth"
BEYOND = f"""
[...document.querySelectorAll('td, th, img, dd, pre, h1, h2, h3, p, a')].filter((each) => {{
    const box = each.getBoundingClientRect();
    return box.width && (box.left < -1 || box.right > {WIDTH} + 1);
}}).map((each) => each.tagName + ' ' + (each.textContent || each.alt).slice(0, 40))
"""
"""What reaches out of the page."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The report of a study of some size, in a browser."""
    folder = tmp_path_factory.mktemp("seen")
    study = Written(folder / "runs" / "searched", **SEARCHED)
    search(study)
    study.journal.update("trials", "t000", {"reason": "decayed, and it is told at such length that it takes two lines"})
    study.journal.close()
    report([str(study.folder)])
    with browser(folder / "profile") as opened:
        opened.open(f"file://{study.folder / 'report' / 'report.html'}")
        opened.wait_for("[...document.images].length && [...document.images].every((each) => each.naturalWidth)")
        yield opened


@pytest.mark.parametrize(("width", "media"), [(390, "screen"), (1280, "screen"), (PAPER, "print")])
def test_nothing_is_cut_off(page: Page, width: int, media: str, tmp_path: Path) -> None:
    page.call("Emulation.setEmulatedMedia", media=media)
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    beyond = page.wait_for(f"{WIDTH} == {width} && JSON.stringify({BEYOND})")
    page.picture(tmp_path / f"{media}-{width}.png")
    assert json.loads(beyond) == []
