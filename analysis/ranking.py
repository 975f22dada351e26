"""Rank trials by perplexity per parameter and by what that is meant to measure, efficiency; the ranking as table, JSON,
CSV, Markdown or LaTeX.

tune.store.queries defines what counts of a trial, and which trials compare; here rankings go over several studies, and
include what a curve fitted to all sizes gives.
"""

import ast
import json
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis import efficiency as sizes
from analysis import tables
from analysis.confirm import last_comparison_lines
from analysis.settings import ORDERS, RankSettings
from analysis.spending import ENDING_TEXTS, ending
from analysis.stability import show_stability
from analysis.study import (
    EFFICIENCY_COLUMNS,
    LEVEL_COLUMNS,
    POOL_COLUMNS,
    TRIAL_COLUMNS,
    Measure,
    Results,
    Study,
    families,
    open_studies,
)
from tune.errors import UserError, script_command
from tune.flags import invalid
from tune.ranking import OWN_COLUMNS
from tune.store.journal import ENDED_BY_CAP
from tune.store.queries import DECAY, SECTIONS, level_text, measured_text
from tune.units import counted

MEASURED = [
    *("loss", "perplexity", "bits_per_character", "test_perplexity", "training_seconds", "steps", "tokens"),
    *("final", "rung", "level", "rung_seconds", "on_whole", "subset"),
]
FIRST = [
    *("study", "trial", "family", "corpus", "vocabulary", "smoke_test", "section", "rung", "rung_seconds", "place"),
    "config",
]
COLUMNS = [
    *("perplexity", "subset", "parameters", "perplexity_per_million", "bits_per_character", "test_perplexity"),
    *EFFICIENCY_COLUMNS,
    *("efficiency_at", "front", "device_seconds", "training_seconds"),
    *("steps", "tokens", "memory_bytes", "mfu", "state", "reason", "sha256", "judged_context", "final", "on_whole"),
    "loss",
]


def ranking(results: Results, *, by: str = "perplexity-per-parameter") -> pd.DataFrame:
    """Return a row for each trial, best first inside each section, at its highest rung or after its decay. Columns:
    FIRST, the dimensions of the space, COLUMNS; for a user's loop instead of these its best metric and what else it
    reported.

    Front and efficiency are those among all trials that completed the same rung, whether or not they went on from it;
    efficiency is that at the highest rung that a trial shares with enough others for a curve (`efficiency_at`), and
    ranked by it, trials come first whose curve is of a further rung. subset:
    target tokens of the validation subset that was measured; NaN: the whole split (`on_whole`), or not written.
    """
    reached, measure = results.reached, results.measure
    last = reached.drop_duplicates(TRIAL_COLUMNS, keep="last")
    reported = [measure.column, *results.last_reported]
    curved = reached[reached["efficiency"].notna()].drop_duplicates(TRIAL_COLUMNS, keep="last")
    keys = _levels(curved, curved["final"].map({True: "decayed", False: "rung"}), measure)
    curve = keys.sort_values(list(keys)).groupby(list(keys), sort=False, dropna=False).ngroup()
    curved = curved.assign(efficiency_at=curved["level"], curve=curve)
    table = results.trials.merge(
        last[[*TRIAL_COLUMNS, *dict.fromkeys([*MEASURED, *reported]), "front"]], on=TRIAL_COLUMNS, how="left"
    )
    table = table.merge(
        curved[[*TRIAL_COLUMNS, *EFFICIENCY_COLUMNS, "efficiency_at", "curve"]], on=TRIAL_COLUMNS, how="left"
    )
    table[["front", "final", "on_whole"]] = table[["front", "final", "on_whole"]].eq(True)
    table["perplexity_per_million"] = table["perplexity"] / (table["parameters"] / 1e6)
    columns = (
        [*reported, *OWN_COLUMNS, "state", "reason", "sha256", "judged_context", "final", "loss"]
        if measure.is_loop_metric
        else COLUMNS
    )
    order = (measure.column, measure.low_first) if measure.is_loop_metric else ORDERS[by]
    return _ordered(table, measure, *order)[[*FIRST, *results.dimensions, *columns, "group"]]


def _levels(table: pd.DataFrame, section: pd.Series, measure: Measure) -> pd.DataFrame:
    """Return keys that sort rows by text, section and level, the furthest first, as tune.store.queries does for one
    study."""
    rung = (section == "rung") & (not measure.is_loop_metric)  # a loop counts by its best, whichever rung it was at
    return pd.DataFrame(
        {
            "pool": table.groupby(POOL_COLUMNS, sort=False, dropna=False).ngroup(),
            "section": section.map(SECTIONS.index),
            "seconds": -table["rung_seconds"].where(rung),
            "rung": -table["rung"].where(rung),
            "device": table["device"].where(rung),
            "on_whole": ~table["on_whole"],
            "subset": -table["subset"],
        }
    )


def _ordered(table: pd.DataFrame, measure: Measure, column: str, low_first: bool) -> pd.DataFrame:
    keys = _levels(table, table["section"], measure)
    groups = keys.groupby(list(keys), sort=False, dropna=False).ngroup()
    if column == "efficiency":  # those of different curves do not compare: the furthest first
        keys["curve"] = table["curve"]
    keys["by"] = table[column] if low_first else -table[column]
    keys["best"] = measure.order(table)
    order = keys.sort_values(list(keys), kind="stable", na_position="last").index
    table = table.loc[order].assign(
        place=groups.loc[order].groupby(groups.loc[order]).cumcount() + 1, group=groups.loc[order]
    )
    table.loc[table["section"].isin(("unranked", "failed")), "place"] = float("nan")
    return table.reset_index(drop=True)


def where_measured_text(row: pd.Series) -> str:
    """Return where a row of the ranking, or of Results.reached, was measured, as text: at rung 2, on 3,872 validation
    tokens; for a user's loop: within 400 steps"""
    if "on_whole" not in row:
        return f"within {row['steps']:,.0f} steps"
    return ", ".join(filter(None, (level_text(row), measured_text(row))))


def winner(results: Results, pool: pd.DataFrame) -> pd.Series | None:
    """Return the best at the furthest level, of rows of a ranking that compare; None where none completed a rung."""
    first = pool[pool["group"] == pool["group"].iloc[0]]
    return None if first[results.measure.column].isna().all() else results.measure.best(first)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Three answers for one family and text: the best by perplexity per parameter, efficiency and perplexity, as rows
    of Results.reached, of the `among` trials that completed one level: the furthest with a fitted curve, else the
    furthest of all, where efficiency is None. Of the trainings of a trial anew, with other seeds, there is none but the
    best of all.
    """

    among: int
    per_parameter: pd.Series
    efficiency: pd.Series | None
    perplexity: pd.Series


def answers(results: Results, pool: pd.DataFrame) -> Answers | None:
    """Return the answers for rows of a ranking that compare; None where no trial completed a rung yet."""
    reached = results.reached.merge(pool[TRIAL_COLUMNS], on=TRIAL_COLUMNS)
    if reached.empty:
        return None
    keys = _levels(reached, reached["final"].map({True: "decayed", False: "rung"}), results.measure)
    furthest_first = reached.loc[keys.sort_values(list(keys), kind="stable", na_position="last").index]
    levels = [rows for _, rows in furthest_first.groupby(LEVEL_COLUMNS, sort=False, dropna=False)]
    rows = next((rows for rows in levels if rows["efficiency"].notna().any()), levels[0])
    curved, best = rows["efficiency"].notna().any(), results.measure.best(rows)
    rows = rows[~rows["anew"] | (rows.index == best.name)]
    return Answers(
        among=len(rows),
        per_parameter=rows.loc[(rows["perplexity"] / rows["parameters"]).idxmin()],
        efficiency=rows.loc[rows["efficiency"].idxmax()] if curved else None,
        perplexity=best,
    )


PLAIN = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.cmpop),
    *(ast.Name, ast.Load, ast.Constant, ast.Tuple, ast.List),
)
"""Syntax that a condition may have."""
RULE = "compare columns with numbers or quoted words, as in \"layers<=4 and precision in ('fp32', 'bf16')\""
LONGEST = 200
HEADS = {
    **{"perplexity-per-parameter": "perplexity /M", "perplexity": "perplexity", "parameters": "parameters"},
    **{"efficiency": "efficiency", "device-seconds": "device-s", "memory": "memory"},
}
"""Heading of the column that each order is by."""
KEPT = ("study", "trial")
NEXT = ("config", "perplexity", "parameters", "perplexity /M", "#", "state", "test", "steps", "device-s")
"""Columns that a narrow terminal keeps, before and after the one of the order."""
MORE = "a wider terminal, --csv or --json has them"
WHOLE = ["rung", "place", "vocabulary", "judged_context", "subset", "parameters", "steps", "tokens", "memory_bytes"]
OF_TEXTS = ["vocabulary", "smoke_test", "rung_seconds", "sha256", "judged_context"]
"""Columns without a meaning for a user's loop."""
OF_FAMILIES = ("by", "front", "stability")
"""Flags that need sizes or perplexities."""
REWARDS = {
    "perplexity-per-parameter": "perplexity per million parameters, low first: it rewards sheer size",
    "efficiency": "efficiency, high first: how far log perplexity lies below the curve fitted to all sizes at one rung",
}


def rank(settings: RankSettings) -> int:
    """Print the ranking. UserError: studies or flags that do not serve."""
    studies = open_studies(settings.studies)
    results = Results(studies=studies)
    check(settings, results.measure)
    if not settings.studies and not (settings.json or settings.format):
        print(f"The newest study: {studies[0].folder}\n")
    if settings.stability is not None:
        return show_stability(studies[0], settings)
    table = ranking(results, by=settings.by)
    shown = table[table["family"].isin(families(results, settings.family))]
    shown = select(shown, settings.where) if settings.where is not None else shown
    shown = shown[shown["front"]] if settings.front else shown
    if settings.json:
        rows = records(shown, results.measure).replace([math.inf, -math.inf], math.nan)
        known = rows.astype(object).where(rows.notna(), None)  # pandas' own JSON cuts a number such as 1.5e-15
        print(json.dumps(known.to_dict("records"), indent=1, ensure_ascii=False))
    elif settings.csv:
        records(shown, results.measure).to_csv(sys.stdout, index=False)
    elif settings.format:
        groups = (group for _, group in shown.groupby("group", sort=False))
        made = (tables.as_text(section_title(each, results), section_table(results, each)) for each in groups)
        print(settings.render(made))
    else:
        show(results, table, shown, by=settings.by, top=settings.top or len(table))
    return 0


def select(table: pd.DataFrame, condition: str) -> pd.DataFrame:
    """Return the rows for which a condition in the syntax of pandas' query holds. UserError: it is not understood.

    It may have names, numbers, quoted words, comparisons, and, or, not and in: nothing that could call anything.
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


def check(settings: RankSettings, measure: Measure) -> None:
    """Check the flags. UserError: one asks for sizes or perplexities, which a user's loop does not have."""
    for name in OF_FAMILIES if measure.is_loop_metric else ():
        if getattr(settings, name) != getattr(RankSettings, name):
            rule = f"applies only to families; a training loop of your own goes by {measure.name}: leave it out"
            raise invalid(name, f"{settings.by!r}: {rule}" if name == "by" else rule)


def records(table: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Return the rows as programs read them: integers as such, unknown values empty."""
    shown = table.drop(columns=["group", "final", "loss", *(OF_TEXTS if measure.is_loop_metric else [])])
    return shown.astype({name: "Int64" for name in WHOLE if name in shown})


def show(results: Results, table: pd.DataFrame, shown: pd.DataFrame, *, by: str, top: int) -> None:
    """Print the sections, then for each family and text the winner and the three answers."""
    for _, group in shown.groupby("group", sort=False):
        rows = section_table(results, group.head(top))
        head = head_of(results.measure) if results.measure.is_loop_metric else HEADS[by]
        shown_rows = tables.as_text(section_title(group, results), rows)
        tables.draw(shown_rows, first=[*KEPT, head, *NEXT], more=MORE)
        if left := len(group) - min(top, len(group)):
            print(f"and {left:,} more (--top 0 shows all)")
        print()
    if shown.empty:
        print("no trial fits these flags\n")
    elif len(shown) < len(table[table["family"].isin(shown["family"])]):
        print("The winner and the answers are of all trials, also of those that the flags leave out.")
    for study in results.studies:
        if (how := ending(study)) != ENDING_TEXTS[ENDED_BY_CAP]:
            print(f"{study.name} {how}.")
    within = f"the furthest level first; in each {REWARDS.get(by, f'{by}, low first')}"
    print(f"Order: {by_metric(results.measure) if results.measure.is_loop_metric else within}.")
    for _, pool in table[table["family"].isin(shown["family"])].groupby(POOL_COLUMNS, sort=False, dropna=False):
        for line in answer_lines(results, pool):
            print(line)


def by_metric(measure: Measure) -> str:
    """Return the order of a measure as text: accuracy, high first"""
    return f"{measure.name}, {'low' if measure.low_first else 'high'} first"


def head_of(measure: Measure) -> str:
    """Return the heading of the column with a trial's best."""
    return f"best {measure.name}" if measure.is_loop_metric else measure.name


def section_title(group: pd.DataFrame, results: Results) -> str:
    """Return the title of a section: translation, tatoeba, vocabulary of 4,096: rung 3 (96 s of training), on 3,872
    validation tokens; for a user's loop: loop, train.py: by accuracy, high first"""
    first, measure = group.iloc[0], results.measure
    smoke_test = " (builtin: a smoke test)" if first["smoke_test"] else ""
    text = "" if pd.isna(first["corpus"]) else f", {first['corpus']}{smoke_test}"
    vocabulary = "" if pd.isna(first["vocabulary"]) else f", vocabulary of {first['vocabulary']:,.0f}"
    several = results.trials.groupby("family")["judged_context"].nunique()[first["family"]] > 1
    window = f", context of {first['judged_context']:,.0f}" if several and not pd.isna(first["judged_context"]) else ""
    seconds = "" if pd.isna(first["rung_seconds"]) else f" ({tables.duration(first['rung_seconds'])} of training)"
    if measure.is_loop_metric and first["section"] == "rung":
        return f"{first['family']}{text}: by {by_metric(measure)}"
    level = {
        "decayed": "after the decay",
        "rung": f"rung {first['rung']:.0f}{seconds}",
        "unranked": "not ranked",
        "failed": "failed or diverged",
    }[first["section"]]
    own = "each with its own context" if "context" in group and group["context"].notna().any() else ""
    measured = ", ".join(filter(None, (level, "" if measure.is_loop_metric else measured_text(first), own)))
    return f"{first['family']}{text}{vocabulary}{window}: {measured}"


Columns = dict[str, Sequence[str] | pd.Series]


def section_table(results: Results, group: pd.DataFrame) -> pd.DataFrame:
    """Return the rows as people read them, with the columns that this section has."""
    own = results.measure.is_loop_metric
    measured = _of_a_loop(results, group) if own else _of_a_family(group)
    memory: Columns = {} if own else {"memory": group["memory_bytes"].map(tables.memory)}
    shown = pd.DataFrame(
        {
            "#": group["place"].map(lambda place: tables.number(place, 1) if pd.isna(place) else f"{place:.0f}"),
            "study": group["study"],
            "trial": group["trial"],
            "config": group["config"],
            **measured,
            "device-s": group["device_seconds"].map(lambda seconds: f"{seconds:,.1f}"),
            **memory,
            "state": group["state"] + group["reason"].map(lambda reason: f": {reason}" if reason else ""),
        }
    )
    unplaced = group["section"].iloc[0] in ("unranked", "failed")
    hidden = [
        *(["study"] if len(results.studies) == 1 else []),
        *(["#", *(name for name in measured if name != "parameters")] if unplaced else []),
    ]
    return shown.drop(columns=hidden)


def _of_a_loop(results: Results, group: pd.DataFrame) -> Columns:
    """Return the columns of a user's loop: the best of each trial, what else it reported last, and its steps."""
    last = {head: group[name].map(tables.reported) for name, head in results.last_reported.items()}
    steps = group["steps"].map(lambda value: tables.EMPTY_CELL if pd.isna(value) else f"{value:,.0f}")
    return {head_of(results.measure): group[results.measure.column].map(tables.number), **last, "steps": steps}


def _of_a_family(group: pd.DataFrame) -> Columns:
    """Return the columns of a family; efficiency at an earlier rung is marked as such."""
    own = group["rung"].map("rung {:.0f}".format).where(group["section"] == "rung", DECAY)
    earlier = [f" ({at})" if at != level else "" for at, level in zip(group["efficiency_at"], own, strict=True)]
    error = (group["efficiency_high"] - group["efficiency_low"]) / 2
    tested = group["test_perplexity"].notna().any()
    test: Columns = {"test": group["test_perplexity"].map(tables.number)} if tested else {}
    return {
        "perplexity /M": group["perplexity_per_million"].map(tables.number),
        "perplexity": group["perplexity"].map(tables.number),
        "parameters": group["parameters"].map(tables.count),
        "bits/char": group["bits_per_character"].map(tables.number),
        **test,
        "efficiency": [
            tables.EMPTY_CELL if pd.isna(value) else f"{value:+.3f} ±{half:.3f}{at}"
            for value, half, at in zip(group["efficiency"], error, earlier, strict=True)
        ],
        "front": group["front"].map({True: "yes", False: ""}),
    }


def studies_of(rows: pd.DataFrame, results: Results) -> list[Study]:
    """Return the studies that rows of a ranking are of."""
    return [study for study in results.studies if study.name in set(rows["study"])]


def unranked_reason(results: Results, pool: pd.DataFrame) -> str:
    """Return why no trial of these has a place: none has completed a rung, or an experiment's figures are elsewhere."""
    for study in studies_of(pool, results):
        if study.work:
            plot, folder = script_command("analysis/plot.py"), shlex.quote(str(study.folder))
            printed = f"{script_command('tune/experiment.py')} --tables {folder} prints its tables"
            found = f"{plot} experiment {folder} draws what it found, and {printed}"
            return f"the experiment {study.work} ranks no trials: {found}."
    return "no trial has completed a rung yet."


def answer_lines(results: Results, pool: pd.DataFrame) -> list[str]:
    """Return lines on one family and text: the winner; the three answers, all at one level, which may be an earlier
    one; and the last comparison."""
    family, measure = pool["family"].iloc[0], results.measure
    found, best = None if measure.is_loop_metric else answers(results, pool), winner(results, pool)
    if best is None:
        return [f"{family}: {unranked_reason(results, pool)}"]

    def name(row: pd.Series) -> str:
        return f"{results.name_of(row)} ({row['config']})"

    value = f"{measure.name} {tables.number(best[measure.column])}"
    lines = [f"{family}: the winner is {name(best)}, {value} {where_measured_text(best)}."]
    if found is None:
        return lines
    level = found.perplexity
    stage = "" if where_measured_text(level) == where_measured_text(best) else " at an earlier level"
    per_million = found.per_parameter["perplexity"] / (found.per_parameter["parameters"] / 1e6)
    efficiency = (
        f"unknown, as its curve takes trials of {sizes.FEWEST} sizes" if found.efficiency is None
        else f"{name(found.efficiency)} with {found.efficiency['efficiency']:+.3f}"
    )  # fmt: skip
    among = f"the {counted(found.among, 'trial')}"
    return [
        *lines,
        f"{family}: three answers{stage}, all {where_measured_text(level).replace('its', 'the')}, of {among} that got "
        f"there: lowest perplexity per million parameters {name(found.per_parameter)} with "
        f"{tables.number(per_million)}; best by efficiency "
        f"{efficiency}; lowest perplexity {name(found.perplexity)} with "
        f"{tables.number(found.perplexity['perplexity'])}.",
        *(
            f"{family}{f' of {study.name}' if len(results.studies) > 1 else ''}: {line}"
            for study in studies_of(pool, results)
            for line in last_comparison_lines(study, family)
        ),
    ]
