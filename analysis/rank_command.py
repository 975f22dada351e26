"""The command behind rank.py: its flags, and the ranking as table, JSON, CSV or Markdown."""

import json
import sys

import pandas as pd
from rich.console import Console

from analysis import cli, conditions, formats
from analysis.ranking import ORDERS, answers, ranking
from analysis.results import Results
from analysis.studies import Study, open_studies
from analysis.trials import POOL
from tune.errors import UserError

TOP = 20  # rows a section
WORDS = ("study", "trial", "config", "front", "state")
WHOLE = ["rung", "place", "vocabulary", "parameters", "steps", "tokens", "memory_bytes"]
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
    table = ranking(Results(studies=studies), by=flags.by)
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
        show(console, studies, table, shown, by=flags.by, top=flags.top or len(table))


def records(table: pd.DataFrame) -> pd.DataFrame:
    """The rows as programs read them: whole numbers whole, what is not known empty."""
    return table.drop(columns="group").astype(dict.fromkeys(WHOLE, "Int64"))


def show(
    console: Console, studies: list[Study], table: pd.DataFrame, shown: pd.DataFrame, *, by: str, top: int
) -> None:
    """The sections, then one line a family and text with the three answers."""
    for _, group in shown.groupby("group", sort=False):
        rows = columns(studies, group.head(top))
        left = len(group) - min(top, len(group))
        drawn = cli.table(section(group), caption=f"and {left:,} more (--top 0 shows all)" if left else None)
        for name in rows:
            drawn.add_column(name, justify="left" if name in WORDS else "right", no_wrap=name in ("trial", "config"))
        for row in rows.astype(str).itertuples(index=False):
            drawn.add_row(*row)
        console.print(drawn, "")
    if shown.empty:
        console.print("no trial fits these flags\n")
    console.print(f"Order: {REWARDS.get(by, f'{by}, low first')}.")
    for _, pool in table[table["family"].isin(shown["family"])].groupby(POOL, sort=False, dropna=False):
        names = answer_names(pool, several=len(studies) > 1)
        console.print(f"{pool['family'].iloc[0]}: {names}", soft_wrap=True)


def section(group: pd.DataFrame) -> str:
    """translation, tatoeba, vocabulary of 4,096: rung 3 (96 s of training), or after the decay"""
    first = group.iloc[0]
    text = (
        ""
        if pd.isna(first["corpus"])
        else f", {first['corpus']}{' (builtin: a smoke test)' if first['smoke_test'] else ''}"
    )
    vocabulary = "" if pd.isna(first["vocabulary"]) else f", vocabulary of {first['vocabulary']:,.0f}"
    seconds = "" if pd.isna(first["rung_seconds"]) else f" ({formats.duration(first['rung_seconds'])} of training)"
    where = {
        "decayed": "after the decay",
        "rung": f"rung {first['rung']:.0f}{seconds}",
        "unranked": "no rung completed yet",
        "failed": "failed or diverged",
    }[first["section"]]
    return f"{first['family']}{text}{vocabulary}: {where}"


def columns(studies: list[Study], group: pd.DataFrame) -> pd.DataFrame:
    """The rows as people read them; only what this section has."""
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
                formats.NOTHING if pd.isna(value) else f"{value:+.3f} ±{half:.3f}"
                for value, half in zip(group["efficiency"], error, strict=True)
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


def markdown(studies: list[Study], group: pd.DataFrame) -> str:
    """One section as a Markdown table under its title."""
    rows = columns(studies, group).astype(str).map(lambda cell: cell.replace("|", "\\|"))
    lines = [list(rows), ["---"] * len(rows.columns), *rows.to_numpy().tolist()]
    return "\n".join([f"**{section(group)}**", "", *(f"| {' | '.join(line)} |" for line in lines)])


def answer_names(pool: pd.DataFrame, *, several: bool = False) -> str:
    """The three answers of one family and text, in one line."""
    found = answers(pool)

    def name(row: pd.Series | None) -> str:
        if row is None:
            return "none yet"
        where = "after the decay" if row["section"] == "decayed" else f"rung {row['rung']:.0f}"
        study = f"{row['study']}/" if several else ""
        return f"{study}{row['trial']} ({row['config']}, {where})"

    return (
        f"best by the quotient {name(found.quotient)}; best by --by efficiency {name(found.efficiency)}; "
        f"lowest perplexity {name(found.perplexity)}."
    )
