"""A study's report: one page that stands alone, plain HTML and CSS, pictures inside, no script and no network; and each
picture as PNG and CSV.
"""

import base64
import shlex
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import tables
from analysis.plots.budget import bills, burn_down, memory, prices, timeline
from analysis.plots.dimensions import effects, precision
from analysis.plots.search import curve, curves, front, outlook, parallel
from analysis.ranking import answer_lines, answers, columns, ranking, section, where
from analysis.settings import ReportSettings
from analysis.spending import WHATS, Spending, spending
from analysis.stability import ABOUT, stability
from analysis.stability import columns as stability_columns
from analysis.study import POOL, RUNS, Results, Study, newest, open_study
from analysis.style import Picture
from tune.errors import UserError, called

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


OF_A_FAMILY = (front, curve, curves, effects, parallel, precision, outlook)
OF_THE_BUDGET = (burn_down, bills, timeline, prices, memory)


def report(settings: ReportSettings) -> int:
    """Write the page and say where. UserError for a study that does not serve or a folder that cannot be written."""
    study = open_study(settings.study or newest(RUNS))
    folder = settings.out or tables.folder_in(study.folder, "report")
    whole = page(f"Ration: {study.name}", parts(study, tables.folder_in(folder, "figures")))
    print(tables.write(folder / "report.html", whole.encode()))
    return 0


def parts(study: Study, figures: Path) -> Iterator[str]:
    """The page from top to bottom; each picture is also saved in `figures`."""

    def drawn(draw: Callable[[], Picture]) -> str:
        try:
            picture = draw()
        except UserError as reason:
            return text(f"Not shown. {reason}", kind="note")
        picture.save(figures)
        return figure(picture)

    results, spent = Results(studies=[study]), spending(study)
    ranked = ranking(results)
    families = list(ranked["family"].unique())
    yield heading(study.name, 1)
    yield head(study, spent)
    yield contents(
        {**{family: family for family in families}, "budget": "budget", "ranking": "ranking", "repeat": "repeat"}
    )
    for _, pool in ranked.groupby(POOL, sort=False, dropna=False):
        yield answer(results, pool)
    for family in families:
        yield heading(family, anchor=family)
        for draw in OF_A_FAMILY:
            yield drawn(partial(draw, results, family))
        yield from samples(study, family)
    yield heading("Where the cap went", anchor="budget")
    yield text(f"{spent.summary[0].upper()}{spent.summary[1:]}. {spent.overhead_text}")
    yield spending_table(spent)
    for draw_budget in OF_THE_BUDGET:
        yield drawn(partial(draw_budget, study))
    yield heading("Ranking", anchor="ranking")
    yield from rankings(study, ranked)
    yield from stability_part(study)
    yield heading("How to repeat it", anchor="repeat")
    yield from repeat(study)


SAMPLES = 6
TOP = 20


def head(study: Study, spent: Spending) -> str:
    """What study this is, and whether it is over."""
    created = study.facts.get("created")
    when = "" if created is None else f"{datetime.fromtimestamp(float(created), UTC):%Y-%m-%d %H:%M} UTC. "
    ended = study.facts.get("ended")
    how = "It has not ended (or was killed). " if ended is None else f"It ended: {ended.get('reason', 'in order')}. "
    devices = study.facts.get("devices", {})
    where = f"{devices.get('slots', '?')} x {study.device}. " if study.device else ""
    return text(f"{when}{where}{how}{spent.summary[0].upper()}{spent.summary[1:]}.", kind="note")


def answer(results: Results, pool: pd.DataFrame) -> str:
    """Which config, why, and what it costs: one family."""
    family = str(pool["family"].iloc[0])
    found = answers(results, pool)
    smoke = [text("Builtin text: a smoke test, not a result.", kind="note")] if pool["smoke_test"].any() else []
    if found is None:
        return box([heading(family, 3), *smoke, text("No trial has completed a rung yet.")])
    best = found.winner
    same = pool[(pool["group"] == best["group"]) & (pool["trial"] != best["trial"])]["perplexity"]
    margin = "" if same.empty else f" the next there is {100 * (same.min() / best['perplexity'] - 1):.1f} % worse;"
    why = (
        f"Lowest validation perplexity {where(best)}, of {len(same) + 1} there and {len(pool)} in all;{margin} "
        f"{'it is' if best['front'] else 'it is not'} on the front of size against perplexity."
    )
    shown = {
        "validation perplexity": tables.number(best["perplexity"]),
        "test perplexity": tables.number(best["test_perplexity"]),
        "bits per character": tables.number(best["bits_per_character"]),
        "parameters": f"{best['parameters']:,.0f}",
        "memory to train": tables.memory(best["memory_bytes"]),
        **({} if pd.isna(best["mfu"]) else {"of the device's peak (MFU)": tables.share(best["mfu"], 1)}),
        "device time": tables.duration(best["device_seconds"]),
        "device time of the family": tables.duration(pool["device_seconds"].sum()),
    }
    title = f"{family}: {best['config']}"
    told = [text(line, kind="note") for line in answer_lines(results, pool)[1:]]
    return box([heading(title, 3), *smoke, text(why), facts(shown), *told])


def rankings(study: Study, ranked: pd.DataFrame) -> list[str]:
    """Each section of the ranking, the first rows of it."""
    parts = []
    for _, group in ranked.groupby("group", sort=False):
        left = len(group) - TOP
        more = [text(f"and {left:,} more: {called('analysis/rank.py')} --top 0", kind="note")] if left > 0 else []
        parts += [heading(section(group), 3), table(columns([study], group.head(TOP))), *more]
    return parts


def stability_part(study: Study) -> list[str]:
    """How well the ranking at half of the spending foretold the end."""
    try:
        rows = stability_columns(stability(study))
    except UserError as reason:
        return [text(f"Not shown. {reason}", kind="note")]
    title = "Kendall's tau between half of the spending and the end"
    return [heading(title, 3), text(ABOUT, kind="note"), table(rows)]


def spending_table(spent: Spending) -> str:
    """The rows of spend.py."""
    rows = [
        {"what": what, **spent.table[what].map("{:,.1f}".format), "device-seconds": f"{spent.by[what]:,.1f}",
         "share": tables.share(spent.by[what], spent.spent)}
        for what in WHATS
    ]  # fmt: skip
    return table(pd.DataFrame(rows).rename(columns={"-": "no trial"}))


def samples(study: Study, family: str) -> list[str]:
    """What the winner makes of some texts, and how well it translates, where the search wrote it down."""
    rows = study.facts.get("samples", {}).get(family, [])[:SAMPLES]
    if not rows:
        return []
    shown = ({name: str(value) for name, value in row.items() if value is not None} for row in rows)
    score = study.facts.get("bleu", {}).get(family)
    scores = [] if score is None else [text(score_text(score))]
    return [heading(f"{family}: what the winner writes", 3), *scores, *map(facts, shown)]


def score_text(score: dict[str, Any]) -> str:
    """t012 translates 128 sentences of the test split with BLEU 21.3 and chrF 45.0 (sacrebleu, nrefs:1|...)."""
    bleu, chrf = (tables.number(score[name], 3) for name in ("bleu", "chrf"))
    return (
        f"{score['trial']} translates {score['sentences']} sentences of the test split with BLEU {bleu} and "
        f"chrF {chrf} (sacrebleu, {score['signature']})."
    )


def repeat(study: Study) -> list[str]:
    """The command, and what it ran on."""
    words = shlex.split(called("tune/run.py"))
    for name, value in study.facts.get("settings", {}).items():
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [] if value is False else [flag, str(value)]
    corpora = {
        f"text of {family}": f"{facts.get('name')}, sha256 {facts.get('sha256')}, vocabulary {facts.get('vocabulary')}"
        for family, facts in study.facts.get("corpora", {}).items()
    }
    versions = ", ".join(f"{name} {version}" for name, version in study.facts.get("versions", {}).items())
    ran = {"commit": str(study.facts.get("commit") or "unknown"), "versions": versions, "device": study.device}
    return [code(shlex.join(words)), facts(ran | corpora)]
