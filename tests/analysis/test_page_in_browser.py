"""A report seen in a real browser: nothing is cut off, on a phone, a large screen or paper; light or dark, it reads."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageColor

from tests.tune.display.browser import Page, browser, program

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
    return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height, scale: 1};
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
def page(reported: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The report of a study of some size, in a browser."""
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.open(f"file://{reported / 'report.html'}")
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_texts_and_pictures_read_in_the_scheme_that_is_asked_for(page: Page, width: int, scheme: str) -> None:
    shown(page, width, scheme=scheme)
    pairs = json.loads(page.wait_for(f"JSON.stringify({COLORS})"))
    colors = [tuple(ImageColor.getrgb(color)[:3] for color in pair) for pair in {tuple(pair) for pair in pairs}]
    assert min(contrast(*pair) for pair in colors) >= READABLE
    paper = ImageColor.getrgb(page.wait_for("getComputedStyle(document.body).backgroundColor"))[:3]
    assert (contrast(paper, (0, 0, 0)) < contrast(paper, (255, 255, 255))) == (scheme == "dark")
    for clip in json.loads(page.wait_for(f"JSON.stringify({PICTURES})")):
        taken = page.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        picture = Image.open(io.BytesIO(base64.b64decode(taken))).convert("RGB")
        counted = sorted(picture.getcolors(picture.width * picture.height) or [])
        assert contrast(counted[-1][1], paper) < 1.1, "a picture's ground is the page's"
        assert max(contrast(color, paper) for _, color in counted) >= READABLE, "and its words stand out"
