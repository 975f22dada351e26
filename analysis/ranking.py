"""Rank trials by perplexity per parameter and by what that question means to ask; the ranking as table, JSON, CSV or
Markdown.

What counts of a trial, and which of them compare, tune.store.queries says; here it is done over several studies, and
with what takes a curve fitted to all sizes.
"""

import ast
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from rich.console import Console

from analysis import efficiency as sizes
from analysis import tables
from analysis.confirm import told_apart
from analysis.own_ranking import metric_of, rank_own
from analysis.settings import ORDERS, RankSettings
from analysis.study import EFFICIENCY, LEVEL, POOL, TRIAL, Results, Study, families, open_studies
from tune.errors import UserError
from tune.store.queries import DECAY, SECTIONS, level_text, measured_text

MEASURED = [
    *("perplexity", "bits_per_character", "test_perplexity", "training_seconds", "steps", "tokens"),
    *("final", "rung", "level", "rung_seconds", "on_whole", "subset"),
]
FIRST = [
    *("study", "trial", "family", "corpus", "vocabulary", "smoke_test", "section", "rung", "rung_seconds", "place"),
    "config",
]
COLUMNS = [
    *("perplexity", "subset", "parameters", "perplexity_per_million", "bits_per_character", "test_perplexity"),
    *EFFICIENCY,
    *("efficiency_at", "front", "device_seconds", "training_seconds"),
    *("steps", "tokens", "memory_bytes", "mfu", "state", "reason", "sha256", "final", "on_whole"),
]


def ranking(results: Results, *, by: str = "quotient") -> pd.DataFrame:
    """One row a trial, best first inside each section: its highest rung, or its decay. Columns: FIRST,
    the dimensions of the space, COLUMNS.

    Front and efficiency are those among all trials that completed the same rung, whether or not they went on from it;
    efficiency at the highest rung that a trial shares with enough others for a curve (`efficiency_at`). subset: target
    tokens of the validation subset that was measured; NaN: of the whole split, or not written down (`on_whole`).
    """
    reached = results.reached
    last = reached.drop_duplicates(TRIAL, keep="last")
    curved = reached[reached["efficiency"].notna()].drop_duplicates(TRIAL, keep="last")
    curved = curved.assign(efficiency_at=curved["level"])
    table = results.trials.merge(last[[*TRIAL, *MEASURED, "front"]], on=TRIAL, how="left")
    table = table.merge(curved[[*TRIAL, *EFFICIENCY, "efficiency_at"]], on=TRIAL, how="left")
    table[["front", "final", "on_whole"]] = table[["front", "final", "on_whole"]].eq(True)
    table["perplexity_per_million"] = table["perplexity"] / (table["parameters"] / 1e6)
    return _ordered(table, by)[[*FIRST, *results.dimensions, *COLUMNS, "group"]]


def _levels(table: pd.DataFrame, section: pd.Series) -> pd.DataFrame:
    """What sorts rows by text, section and level, the furthest first, as tune.store.queries does for one study."""
    rung = section == "rung"
    return pd.DataFrame(
        {
            "pool": table.groupby(POOL, sort=False, dropna=False).ngroup(),
            "section": section.map(SECTIONS.index),
            "seconds": -table["rung_seconds"].where(rung),
            "rung": -table["rung"].where(rung),
            "device": table["device"].where(rung),
            "on_whole": ~table["on_whole"],
            "subset": -table["subset"],
        }
    )


def _ordered(table: pd.DataFrame, by: str) -> pd.DataFrame:
    column, low_first = ORDERS[by]
    keys = _levels(table, table["section"])
    groups = keys.groupby(list(keys), sort=False, dropna=False).ngroup()
    keys["by"] = table[column] if low_first else -table[column]
    keys["perplexity"] = table["perplexity"]
    order = keys.sort_values(list(keys), kind="stable", na_position="last").index
    table = table.loc[order].assign(
        place=groups.loc[order].groupby(groups.loc[order]).cumcount() + 1, group=groups.loc[order]
    )
    table.loc[table["section"].isin(("unranked", "failed")), "place"] = float("nan")
    return table.reset_index(drop=True)


def where(row: pd.Series) -> str:
    """at rung 2, on 3,872 validation tokens: of a row of the ranking, or of Results.reached"""
    return ", ".join(filter(None, (level_text(row), measured_text(row))))


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What one family and text has to offer: the winner, and three answers of one level.

    winner: the row of the ranking with the lowest perplexity at the furthest level. quotient, efficiency, perplexity:
    each the best of the `among` trials that completed one level, as a row of Results.reached; that is the furthest
    level with a fitted curve, else the furthest, where efficiency is None.
    """

    winner: pd.Series
    among: int
    quotient: pd.Series
    efficiency: pd.Series | None
    perplexity: pd.Series


def answers(results: Results, pool: pd.DataFrame) -> Answers | None:
    """Of rows of a ranking that compare; None where no trial completed a rung yet."""
    reached = results.reached.merge(pool[TRIAL], on=TRIAL)
    reached = reached[~reached["anew"]]
    if reached.empty:
        return None
    first = pool[pool["group"] == pool["group"].iloc[0]]
    keys = _levels(reached, reached["final"].map({True: "decayed", False: "rung"}))
    furthest_first = reached.loc[keys.sort_values(list(keys), kind="stable", na_position="last").index]
    levels = [rows for _, rows in furthest_first.groupby(LEVEL, sort=False, dropna=False)]
    rows = next((rows for rows in levels if rows["efficiency"].notna().any()), levels[0])
    curved = rows["efficiency"].notna().any()
    return Answers(
        winner=first.loc[first["perplexity"].idxmin()],
        among=len(rows),
        quotient=rows.loc[(rows["perplexity"] / rows["parameters"]).idxmin()],
        efficiency=rows.loc[rows["efficiency"].idxmax()] if curved else None,
        perplexity=rows.loc[rows["perplexity"].idxmin()],
    )


PLAIN = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.cmpop),
    *(ast.Name, ast.Load, ast.Constant, ast.Tuple, ast.List),
)
"""What a condition is made of."""
RULE = "compare columns with numbers or quoted words, as in \"layers<=4 and precision in ('fp32', 'bf16')\""
LONGEST = 200
WORDS = ("study", "trial", "config", "front", "state")
HEADS = {
    **{"quotient": "perplexity /M", "perplexity": "perplexity", "parameters": "parameters"},
    **{"efficiency": "efficiency", "device-seconds": "device-s", "memory": "memory"},
}
"""The column that each order is by, as people read it."""
KEPT, NEXT = ("study", "trial"), ("config", "perplexity", "parameters", "perplexity /M", "#", "state", "test")
"""In a narrow terminal, the columns to keep before and after that one."""
MORE = "a wider terminal, --csv or --json has them"
WHOLE = ["rung", "place", "vocabulary", "subset", "parameters", "steps", "tokens", "memory_bytes"]
REWARDS = {
    "quotient": "perplexity per million parameters, low first: it rewards sheer size",
    "efficiency": "efficiency, high first: how far log perplexity lies below the curve fitted to all sizes at one rung",
}


def rank(settings: RankSettings) -> int:
    """Print the ranking. UserError for studies and conditions that do not serve."""
    studies = open_studies(settings.studies)
    for study in studies:
        if metric := metric_of(study):
            return rank_own(settings, study, metric, select)
    if settings.stability is not None:
        from analysis.stability import show_stability

        return show_stability(studies[0], settings.stability, as_json=settings.json)
    results = Results(studies=studies)
    table = ranking(results, by=settings.by)
    shown = table if settings.family is None else table[table["family"].isin(families(results, settings.family))]
    shown = select(shown, settings.where) if settings.where is not None else shown
    shown = shown[shown["front"]] if settings.front else shown
    if settings.json:
        rows = records(shown).to_json(orient="records", double_precision=15)
        print(json.dumps(json.loads(rows), indent=1, ensure_ascii=False))
    elif settings.csv:
        records(shown).to_csv(sys.stdout, index=False)
    elif settings.markdown:
        print(*(markdown(studies, group) for _, group in shown.groupby("group", sort=False)), sep="\n\n")
    else:
        show(tables.console(), results, table, shown, by=settings.by, top=settings.top or len(table))
    return 0


def select(table: pd.DataFrame, condition: str) -> pd.DataFrame:
    """The rows for which the condition holds, as pandas' query has it. UserError for one that is not understood.

    Names, numbers, quoted words, comparisons, and, or, not and in: nothing that could call or reach anything.
    """
    try:
        parts = ast.walk(ast.parse(condition.strip(), mode="eval"))
        if unknown := [part for part in parts if not isinstance(part, PLAIN)]:
            raise ValueError(f"{type(unknown[0]).__name__} has no place in it")
        holds = table.eval(condition.strip(), engine="python")
        if not isinstance(holds, pd.Series) or holds.dtype != bool:
            raise ValueError("it is neither true nor false of a row")
        return table[holds]
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(f"--where: {condition[:LONGEST]!r} is not a condition ({reason[:LONGEST]}); {RULE}") from None


def records(table: pd.DataFrame) -> pd.DataFrame:
    """The rows as programs read them: whole numbers whole, what is not known empty."""
    return table.drop(columns=["group", "final"]).astype(dict.fromkeys(WHOLE, "Int64"))


def show(console: Console, results: Results, table: pd.DataFrame, shown: pd.DataFrame, *, by: str, top: int) -> None:
    """The sections, then for each family and text the winner and the three answers."""
    for _, group in shown.groupby("group", sort=False):
        rows = columns(results.studies, group.head(top))
        tables.draw(console, section(group), rows, words=WORDS, first=[*KEPT, HEADS[by], *NEXT], more=MORE)
        if left := len(group) - min(top, len(group)):
            console.print(f"and {left:,} more (--top 0 shows all)", style="dim")
        console.print()
    if shown.empty:
        console.print("no trial fits these flags\n")
    console.print(f"Order: {REWARDS.get(by, f'{by}, low first')}.", soft_wrap=True)
    for _, pool in table[table["family"].isin(shown["family"])].groupby(POOL, sort=False, dropna=False):
        for line in answer_lines(results, pool):
            console.print(line, soft_wrap=True)


def section(group: pd.DataFrame) -> str:
    """translation, tatoeba, vocabulary of 4,096: rung 3 (96 s of training), on 3,872 validation tokens"""
    first = group.iloc[0]
    text = (
        ""
        if pd.isna(first["corpus"])
        else f", {first['corpus']}{' (builtin: a smoke test)' if first['smoke_test'] else ''}"
    )
    vocabulary = "" if pd.isna(first["vocabulary"]) else f", vocabulary of {first['vocabulary']:,.0f}"
    seconds = "" if pd.isna(first["rung_seconds"]) else f" ({tables.duration(first['rung_seconds'])} of training)"
    level = {
        "decayed": "after the decay",
        "rung": f"rung {first['rung']:.0f}{seconds}",
        "unranked": "no rung completed yet",
        "failed": "failed or diverged",
    }[first["section"]]
    own = "each with its own context" if "context" in group and group["context"].notna().any() else ""
    measured = ", ".join(filter(None, (level, measured_text(first), own)))
    return f"{first['family']}{text}{vocabulary}: {measured}"


def columns(studies: Sequence[Study], group: pd.DataFrame) -> pd.DataFrame:
    """The rows as people read them; only what this section has. Efficiency at an earlier rung is said to be that."""
    own = group["rung"].map("rung {:.0f}".format).where(group["section"] == "rung", DECAY)
    earlier = [f" ({at})" if at != level else "" for at, level in zip(group["efficiency_at"], own, strict=True)]
    error = (group["efficiency_high"] - group["efficiency_low"]) / 2
    shown = pd.DataFrame(
        {
            "#": group["place"].map(lambda place: tables.number(place, 1) if pd.isna(place) else f"{place:.0f}"),
            "study": group["study"],
            "trial": group["trial"],
            "config": group["config"],
            "perplexity /M": group["perplexity_per_million"].map(tables.number),
            "perplexity": group["perplexity"].map(tables.number),
            "parameters": group["parameters"].map(tables.count),
            "bits/char": group["bits_per_character"].map(tables.number),
            "test": group["test_perplexity"].map(tables.number),
            "efficiency": [
                tables.NOTHING if pd.isna(value) else f"{value:+.3f} ±{half:.3f}{at}"
                for value, half, at in zip(group["efficiency"], error, earlier, strict=True)
            ],
            "front": group["front"].map({True: "yes", False: ""}),
            "device-s": group["device_seconds"].map(lambda seconds: f"{seconds:,.1f}"),
            "memory": group["memory_bytes"].map(tables.memory),
            "state": group["state"] + group["reason"].map(lambda reason: f": {reason}" if reason else ""),
        }
    )
    kind = group["section"].iloc[0]
    hidden = {
        *(["study"] if len(studies) == 1 else []),
        *(["test"] if group["test_perplexity"].isna().all() else []),
        *(
            ["#", "perplexity /M", "perplexity", "bits/char", "test", "efficiency", "front"]
            if kind in ("unranked", "failed")
            else []
        ),
    }
    return shown.drop(columns=list(hidden))


def markdown(studies: Sequence[Study], group: pd.DataFrame) -> str:
    """One section as a Markdown table under its title."""
    rows = columns(studies, group).astype(str).map(lambda cell: cell.replace("|", "\\|"))
    lines = [list(rows), ["---"] * len(rows.columns), *rows.to_numpy().tolist()]
    return "\n".join([f"**{section(group)}**", "", *(f"| {' | '.join(line)} |" for line in lines)])


def answer_lines(results: Results, pool: pd.DataFrame) -> list[str]:
    """Of one family and text the winner, and the three answers, all of one level."""
    found, family = answers(results, pool), pool["family"].iloc[0]
    if found is None:
        return [f"{family}: no trial has completed a rung yet."]

    def name(row: pd.Series) -> str:
        study = f"{row['study']}/" if len(results.studies) > 1 else ""
        return f"{study}{row['trial']} ({row['config']})"

    winner, level = found.winner, found.perplexity
    quotient = found.quotient["perplexity"] / (found.quotient["parameters"] / 1e6)
    efficiency = (
        f"unknown, as its curve takes {sizes.FEWEST} trials" if found.efficiency is None
        else f"{name(found.efficiency)} with {found.efficiency['efficiency']:+.3f}"
    )  # fmt: skip
    among = "the 1 trial" if found.among == 1 else f"the {found.among:,} trials"
    return [
        f"{family}: the winner is {name(winner)}, perplexity {tables.number(winner['perplexity'])} {where(winner)}.",
        f"{family}: three answers, all {where(level).replace('its', 'the')}, of {among} that got there: best by the "
        f"quotient {name(found.quotient)} with {tables.number(quotient)}; best by efficiency {efficiency}; lowest "
        f"perplexity {name(found.perplexity)} with {tables.number(found.perplexity['perplexity'])}.",
        *(f"{family}: {line}" for study in results.studies for line in told_apart(study, family)),
    ]
