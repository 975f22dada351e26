"""The parts of a report that are words and tables: the answer, the ranking, the samples, how to repeat it."""

import shlex
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from analysis import early, page, stability_command, tables
from analysis.rank_command import answer_lines, columns, section
from analysis.ranking import answers, where
from analysis.spending import WHATS, Spending
from analysis.study import Results, Study
from tune.errors import UserError, called

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
    return page.text(f"{when}{where}{how}{spent.summary[0].upper()}{spent.summary[1:]}.", kind="note")


def answer(results: Results, pool: pd.DataFrame) -> str:
    """Which config, why, and what it costs: one family."""
    family = str(pool["family"].iloc[0])
    found = answers(results, pool)
    smoke = [page.text("Builtin text: a smoke test, not a result.", kind="note")] if pool["smoke_test"].any() else []
    if found is None:
        return page.box([page.heading(family, 3), *smoke, page.text("No trial has completed a rung yet.")])
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
    told = [page.text(line, kind="note") for line in answer_lines(results, pool)[1:]]
    return page.box(
        [page.heading(title, 3), *smoke, page.text(why), page.facts(shown), *told]
    )


def rankings(study: Study, table: pd.DataFrame) -> list[str]:
    """Each section of the ranking, the first rows of it."""
    parts = []
    for _, group in table.groupby("group", sort=False):
        left = len(group) - TOP
        more = [page.text(f"and {left:,} more: {called('analysis/rank.py')} --top 0", kind="note")] if left > 0 else []
        parts += [page.heading(section(group), 3), page.table(columns([study], group.head(TOP))), *more]
    return parts


def stability(study: Study) -> list[str]:
    """How well the ranking at half of the spending foretold the end."""
    try:
        rows = stability_command.columns(early.stability(study))
    except UserError as reason:
        return [page.text(f"Not shown. {reason}", kind="note")]
    title = "Kendall's tau between half of the spending and the end"
    return [page.heading(title, 3), page.text(stability_command.ABOUT, kind="note"), page.table(rows)]


def spending_table(spent: Spending) -> str:
    """The rows of spend.py."""
    rows = [
        {"what": what, **spent.table[what].map("{:,.1f}".format), "device-seconds": f"{spent.by[what]:,.1f}",
         "share": tables.share(spent.by[what], spent.spent)}
        for what in WHATS
    ]  # fmt: skip
    return page.table(pd.DataFrame(rows).rename(columns={"-": "no trial"}))


def samples(study: Study, family: str) -> list[str]:
    """What the winner makes of some texts, and how well it translates, where the search wrote it down."""
    rows = study.facts.get("samples", {}).get(family, [])[:SAMPLES]
    if not rows:
        return []
    shown = ({name: str(value) for name, value in row.items() if value is not None} for row in rows)
    score = study.facts.get("bleu", {}).get(family)
    scores = [] if score is None else [page.text(score_text(score))]
    return [page.heading(f"{family}: what the winner writes", 3), *scores, *map(page.facts, shown)]


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
    facts = {"commit": str(study.facts.get("commit") or "unknown"), "versions": versions, "device": study.device}
    return [page.code(shlex.join(words)), page.facts(facts | corpora)]
