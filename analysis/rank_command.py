"""The command behind rank.py: its flags, and the ranking as table, JSON, CSV or Markdown."""

import json
import sys
from collections.abc import Sequence

import pandas as pd
from rich.console import Console

from analysis import conditions
from analysis import efficiency as sizes
from analysis import tables as cli
from analysis import tables as formats
from analysis.ranking import ORDERS, answers, ranking, where
from analysis.study import POOL, Results, Study, open_studies
from tune.errors import UserError
from tune.store.queries import DECAY, measured_text

TOP = 20  # rows a section
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


def rank(arguments: list[str]) -> None:
    """Print the ranking. UserError for flags and studies that do not serve."""
    parser = cli.parser("rank", "Rank the configurations of a study by perplexity per parameter.")
    parser.add_argument(
        "--by", choices=tuple(ORDERS), default="quotient", help="the order inside a section (default: %(default)s)"
    )
    parser.add_argument("--family", help="this family only")
    parser.add_argument(
        "--front", action="store_true", help="only configurations that none is both smaller and better than"
    )
    parser.add_argument("--where", metavar="CONDITION", help="only these, as in \"layers<=4 and precision=='bf16'\"")
    parser.add_argument(
        "--top", type=int, default=TOP, help="rows of a section in the table; 0 for all (default: %(default)s)"
    )
    form = parser.add_mutually_exclusive_group()
    for name in ("json", "csv", "markdown"):
        form.add_argument(f"--{name}", action="store_true", help=f"the rows as {name} instead of the table")
    flags = parser.parse_args(arguments)
    if flags.top < 0:
        raise UserError(f"--top: {flags.top}: at least 0; write 0 for all rows")

    studies = open_studies(flags.studies)
    results = Results(studies=studies)
    table = ranking(results, by=flags.by)
    families = sorted(table["family"].unique())
    if flags.family is not None and flags.family not in families:
        raise UserError(f"--family: {flags.family!r} is not in the study: there are {', '.join(families)}")
    shown = table if flags.family is None else table[table["family"] == flags.family]
    shown = conditions.select(shown, flags.where) if flags.where is not None else shown
    shown = shown[shown["front"]] if flags.front else shown
    if flags.json:
        rows = records(shown).to_json(orient="records", double_precision=15)
        print(json.dumps(json.loads(rows), indent=1, ensure_ascii=False))
    elif flags.csv:
        records(shown).to_csv(sys.stdout, index=False)
    elif flags.markdown:
        print(*(markdown(studies, group) for _, group in shown.groupby("group", sort=False)), sep="\n\n")
    else:
        console = cli.console()
        show(console, results, table, shown, by=flags.by, top=flags.top or len(table))


def records(table: pd.DataFrame) -> pd.DataFrame:
    """The rows as programs read them: whole numbers whole, what is not known empty."""
    return table.drop(columns=["group", "final"]).astype(dict.fromkeys(WHOLE, "Int64"))


def show(
    console: Console, results: Results, table: pd.DataFrame, shown: pd.DataFrame, *, by: str, top: int
) -> None:
    """The sections, then for each family and text the winner and the three answers."""
    for _, group in shown.groupby("group", sort=False):
        rows = columns(results.studies, group.head(top))
        cli.draw(console, section(group), rows, words=WORDS, first=[*KEPT, HEADS[by], *NEXT], more=MORE)
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
    seconds = "" if pd.isna(first["rung_seconds"]) else f" ({formats.duration(first['rung_seconds'])} of training)"
    level = {
        "decayed": "after the decay",
        "rung": f"rung {first['rung']:.0f}{seconds}",
        "unranked": "no rung completed yet",
        "failed": "failed or diverged",
    }[first["section"]]
    measured = ", ".join(filter(None, (level, measured_text(first))))
    return f"{first['family']}{text}{vocabulary}: {measured}"


def columns(studies: Sequence[Study], group: pd.DataFrame) -> pd.DataFrame:
    """The rows as people read them; only what this section has. Efficiency at an earlier rung is said to be that."""
    own = group["rung"].map("rung {:.0f}".format).where(group["section"] == "rung", DECAY)
    earlier = [f" ({at})" if at != level else "" for at, level in zip(group["efficiency_at"], own, strict=True)]
    error = (group["efficiency_high"] - group["efficiency_low"]) / 2
    shown = pd.DataFrame(
        {
            "#": group["place"].map(lambda place: formats.number(place, 1) if pd.isna(place) else f"{place:.0f}"),
            "study": group["study"],
            "trial": group["trial"],
            "config": group["config"],
            "perplexity /M": group["perplexity_per_million"].map(formats.number),
            "perplexity": group["perplexity"].map(formats.number),
            "parameters": group["parameters"].map(formats.count),
            "bits/char": group["bits_per_character"].map(formats.number),
            "test": group["test_perplexity"].map(formats.number),
            "efficiency": [
                formats.NOTHING if pd.isna(value) else f"{value:+.3f} ±{half:.3f}{at}"
                for value, half, at in zip(group["efficiency"], error, earlier, strict=True)
            ],
            "front": group["front"].map({True: "yes", False: ""}),
            "device-s": group["device_seconds"].map(lambda seconds: f"{seconds:,.1f}"),
            "memory": group["memory_bytes"].map(formats.memory),
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
        f"{family}: the winner is {name(winner)}, perplexity {formats.number(winner['perplexity'])} {where(winner)}.",
        f"{family}: three answers, all {where(level).replace('its', 'the')}, of {among} that got there: best by the "
        f"quotient {name(found.quotient)} with {formats.number(quotient)}; best by efficiency {efficiency}; lowest "
        f"perplexity {name(found.perplexity)} with {formats.number(found.perplexity['perplexity'])}.",
    ]
