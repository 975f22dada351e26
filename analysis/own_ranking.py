"""The ranking of a study of a training loop of a user's own: by its metric, with what else it reported."""

import sys
from collections.abc import Callable

import pandas as pd

from analysis import tables
from analysis.settings import RankSettings
from analysis.study import Study
from tune.errors import UserError, called
from tune.flags import flag_name, invalid
from tune.ranking import OWN_COLUMNS, ranking
from tune.reports import Metric
from tune.search_space import label

OF_FAMILIES = ("family", "front", "stability")
"""Of the flags of a ranking, those that ask for sizes or perplexities."""
WORDS = ("trial", "config", "state")


def metric_of(study: Study) -> Metric | None:
    """By which its trials are judged; None: by perplexity."""
    asked = study.facts.get("settings", {})
    name = asked.get("maximize") or asked.get("metric")
    return Metric(name=str(name), maximize="maximize" in asked) if name else None


def check_perplexities(study: Study, flag: str) -> None:
    """UserError: a study has none."""
    if metric := metric_of(study):
        what = f"{study.name!r} is of a training loop of your own, by {metric.name}: it has no perplexity"
        raise UserError(f"{flag}: {what}; {called('analysis/rank.py')} ranks it, TensorBoard draws it")


def rank_own(
    settings: RankSettings, study: Study, metric: Metric, select: Callable[[pd.DataFrame, str], pd.DataFrame]
) -> int:
    """Print the ranking. UserError: a flag that asks for what such a study has not."""
    default = RankSettings()
    for name in OF_FAMILIES:
        if getattr(settings, name) != getattr(default, name):
            rule = f"is of sizes and perplexities, and {study.name!r} goes by {metric.name}: leave it out"
            raise invalid(name, rule)
    if len(settings.studies) > 1:
        raise UserError(f"study: {study.name!r} is of a training loop of your own: name it alone")
    if settings.by != default.by:
        raise invalid("by", f"{settings.by!r}: {study.name!r} goes by {metric.name}: leave {flag_name('by')} out")
    table = ranking(study.folder, metric).drop(columns=["family"])
    table = table if settings.where is None else select(table, settings.where)
    if settings.json:
        print(table.to_json(orient="records", double_precision=15, indent=1))
    elif settings.csv:
        table.to_csv(sys.stdout, index=False)
    else:
        _show(table.head(settings.top or len(table)), study, metric, as_markdown=settings.markdown)
    return 0


def _show(table: pd.DataFrame, study: Study, metric: Metric, *, as_markdown: bool) -> None:
    names = list(table)
    first, last = names.index("trial") + 1, names.index(f"best_{metric.name}")
    told = names[last : names.index(OWN_COLUMNS[0])]
    configs = [
        label({name: value for name, value in row.items() if not pd.isna(value)})
        for row in table[names[first:last]].to_dict("records")
    ]
    state = table["state"] + table["reason"].map(lambda reason: f": {reason}" if reason else "")
    columns = {name: table[name].map(tables.number) for name in told}
    seconds = table["device_seconds"].map(lambda each: f"{each:,.1f}")
    steps = table["steps"].map(tables.plain)
    shown = pd.DataFrame({"trial": table["trial"], "config": configs, **columns, "steps": steps, "device-s": seconds})
    shown["state"] = state
    title = f"{study.name}: by {metric.name}, {'high' if metric.maximize else 'low'} first"
    if as_markdown:
        lines = [list(shown), ["---"] * len(shown.columns), *shown.astype(str).to_numpy().tolist()]
        cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
        print("\n".join([f"**{title}**", "", *(f"| {' | '.join(line)} |" for line in cells)]))
    else:
        kept = ("trial", f"best_{metric.name}", "config", "steps", "state")
        tables.draw(tables.console(), title, shown, words=WORDS, first=kept, more="a wider terminal, --csv has them")
