"""A page that stands alone: plain HTML and CSS, pictures inside, no script and no network."""

import base64
from collections.abc import Iterable
from html import escape

import pandas as pd

from analysis.style import Picture

WORDS = ("#", "trial", "config", "state", "what", "family", "measure")
STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #555; --paper: #fff; --shade: #f5f5f5; --line: #e2e2e2; --mark: #0072b2; --link: #00e; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --soft: #adadad; --paper: #161616; --shade: #242424; --line: #3a3a3a; --mark: #56b4e9; --link: #8cc8ff; }
  figure img { filter: invert(.913) hue-rotate(180deg); }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 70rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
a { color: var(--link); }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.3rem; border-bottom: 2px solid var(--mark); margin-top: 2.2rem; }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .3rem; }
.answer { border: 1px solid var(--line); border-left: .4rem solid var(--mark); border-radius: .3rem; padding: .4rem 1rem; margin: 1rem 0; }
.answer h3 { margin-top: .3rem; font-size: 1.2rem; }
p, figure, .answer, dl, pre { max-width: 46rem; }
.note, dt { color: var(--soft); } .note, figcaption { font-size: .9rem; }
.wide { overflow-x: auto; }
figure { margin: 1rem 0; }
figure img { width: 100%; height: auto; display: block; }
table { border-collapse: collapse; font-size: .85rem; white-space: nowrap; }
th, td { padding: .2rem .55rem; border-bottom: 1px solid var(--line); text-align: right; }
.words { text-align: left; } td.words:last-child { white-space: normal; }
dl { display: grid; grid-template-columns: fit-content(60%) 1fr; gap: .1rem 1rem; margin: .5rem 0; }
dd { margin: 0; white-space: pre-wrap; font-variant-numeric: tabular-nums; }
pre { background: var(--shade); padding: .7rem; overflow-x: auto; white-space: pre-wrap; font-size: .85rem; }
nav a { margin-right: .8rem; }
@media screen and (max-width: 40rem) {
  thead { display: none; } tr { display: flex; flex-wrap: wrap; gap: 0 .9rem; padding: .4rem 0; border-bottom: 1px solid var(--line); }
  td { padding: 0; border: 0; } td:empty { display: none; } td::before { content: attr(data-name) " "; color: var(--soft); } td:first-child { font-weight: bold; }
  table { white-space: normal; } dl { column-gap: .7rem; }
}
@page { size: A4; margin: 16mm; }
@media print {
  body { font-size: 10.5pt; max-width: none; padding: 0; }
  nav { display: none; }
  figure, .answer, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  figure img { max-width: 15cm; min-width: 0; margin: 0 auto; }
  .wide { overflow: visible; } table { font-size: 7pt; white-space: normal; } th, td { padding: .1rem .25rem; }
}
"""  # noqa: E501


def page(title: str, parts: Iterable[str]) -> str:
    """The whole document."""
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def text(words: str, *, kind: str = "") -> str:
    """A paragraph; `kind` is a class of STYLE."""
    return f'<p class="{kind}">{escape(words)}</p>' if kind else f"<p>{escape(words)}</p>"


def heading(words: str, level: int = 2, *, anchor: str = "") -> str:
    return (
        f'<h{level} id="{escape(anchor)}">{escape(words)}</h{level}>'
        if anchor
        else f"<h{level}>{escape(words)}</h{level}>"
    )


def contents(anchors: dict[str, str]) -> str:
    """Links to headings: anchor -> words"""
    links = (f'<a href="#{escape(anchor)}">{escape(words)}</a>' for anchor, words in anchors.items())
    return f"<nav>{' '.join(links)}</nav>"


def facts(pairs: dict[str, str]) -> str:
    """Names and values in two columns."""
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in pairs.items())}</dl>"


def code(words: str) -> str:
    return f"<pre>{escape(words)}</pre>"


def box(parts: Iterable[str]) -> str:
    return f'<section class="answer">{"".join(parts)}</section>'


def table(rows: pd.DataFrame) -> str:
    """Columns in WORDS are set to the left. On a narrow screen each row is a paragraph that names its cells."""

    def cell(tag: str, name: str, value: object) -> str:
        kind = ' class="words"' if name in WORDS else ""
        return f'<{tag}{kind} data-name="{escape(name)}">{escape(str(value))}</{tag}>'

    head = "".join(cell("th", name, name) for name in rows)
    lines = "".join(
        f"<tr>{''.join(cell('td', name, value) for name, value in zip(rows, values, strict=True))}</tr>\n"
        for values in rows.itertuples(index=False)
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{lines}</tbody></table></div>'


def figure(picture: Picture) -> str:
    """The picture with its title and what it says, for those too who cannot see it."""
    data = base64.b64encode(picture.svg().encode()).decode()
    alt = escape(f"{picture.title}. {picture.text}")
    image = f'<div class="wide"><img alt="{alt}" src="data:image/svg+xml;base64,{data}"></div>'
    return f"<figure>{heading(picture.title, 3)}{image}<figcaption>{escape(picture.text)}</figcaption></figure>"
