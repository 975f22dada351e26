"""A study's report: one self-contained page with pictures, made by page.html; each picture also as PNG and CSV."""

import base64
import json
import math
import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis import tables
from analysis.figures import PICTURES
from analysis.plots.budget import bills, burn_down, memory, prices, timeline
from analysis.plots.dimensions import effects, precision
from analysis.plots.search import curves, front, parallel_coordinates, size_curve
from analysis.ranking import (
    answer_lines,
    head_of,
    ranking,
    section_table,
    section_title,
    unranked_reason,
    where_measured_text,
    winner,
)
from analysis.settings import ReportSettings
from analysis.spending import ending, rows_of, spending
from analysis.stability import ABOUT, TOO_FEW, stability
from analysis.stability import stability_table as stability_columns
from analysis.study import POOL_COLUMNS, RUNS, Results, Study, is_driver_alive, last_write_ns, newest_study, open_study
from analysis.style import Picture
from tune.errors import UserError, script_command
from tune.experiments.experiment_settings import typed_again
from tune.flags import flag_words
from tune.reports import LARGEST_LOG
from tune.units import counted

WORDS = ("#", "trial", "config", "state", "what", "family", "measure")
"""Columns that are aligned to the left."""
FAMILY_PICTURES = (front, size_curve, curves, effects, parallel_coordinates, precision)
LOOP_PICTURES = (curves, effects, parallel_coordinates)
BUDGET_PICTURES = (burn_down, bills, timeline, prices, memory)
"""Pictures of a family, of a user's loop, and of the budget; the first of each stands beside the answer."""
NOT_FOR_LOOPS, NOT_FOR_EXPERIMENTS = (memory,), (timeline, prices, memory)
"""Pictures that a user's loop lacks; pictures that an experiment without configurations to train lacks."""
SAMPLES = 6
TOP = 200
WATCH_SECONDS, WATCH_SHARE, NICENESS = 5.0, 0.2, 10
"""Least seconds between two pages of a running study; share of a core that drawing may take; what is added to the
process's niceness."""
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip


def report(settings: ReportSettings) -> int:
    """Write the page and print where. UserError: the study does not serve, or the folder cannot be written."""
    study = settings.study or newest_study(RUNS)
    if settings.watch:
        os.nice(NICENESS)
        watch(study, partial(draw, settings.out))
    print(draw(settings.out, open_study(study)))
    return 0


def watch(folder: Path, draw: Callable[[Study, float], Path], wait: Callable[[float], None] = sleep) -> None:
    """Draw a study whenever its journal has changed, as long as its driver gives signs of life; print once where.

    draw: takes the study, and for how many seconds the page is valid; at most WATCH_SHARE of the time is spent on it.
    """
    drawn, pause = 0, WATCH_SECONDS
    while is_driver_alive(folder):
        began, changed = monotonic(), last_write_ns(folder)
        if changed != drawn and (study := try_open_study(folder)):
            page = draw(study, pause)
            if not drawn:
                print(f"{page}: kept fresh until {study.name} has ended", flush=True)
            drawn, pause = changed, max(WATCH_SECONDS, (monotonic() - began) / WATCH_SHARE)
        wait(pause)


def try_open_study(folder: Path) -> Study | None:
    """Open a study; None before its first trial."""
    with suppress(UserError):
        return open_study(folder)
    return None


def draw(out: Path | None, study: Study, good_for: float = 0.0) -> Path:
    """Write the page; unless it is the last one (`good_for` 0), without the pictures beside it."""
    folder = out or tables.folder_in(study.folder, "report")
    shown = contents(study, None if good_for else tables.folder_in(folder, "figures"))
    page = TEMPLATES.get_template("page.html").render(shown, watched=good_for)
    return tables.write_file(folder / "report.html", page.encode())


def contents(study: Study, figures: Path | None) -> dict[str, Any]:
    """Return what page.html shows, by the names used there; each picture is also saved in `figures`, unless None."""

    def drawn(draw: Callable[..., Picture], *of: object) -> Picture | UserError:
        try:
            picture = draw(*of)
        except UserError as reason:
            return reason
        if figures is not None:
            picture.save(figures)
        return picture

    results, spent, measure = Results(studies=[study]), spending(study), study.measure
    heads = {"": "what", "device-s": "device-seconds", "of spent": "share"}
    ranked = ranking(results)
    names = ranked["family"].unique()
    left_out = NOT_FOR_EXPERIMENTS if study.work else NOT_FOR_LOOPS if measure.is_loop_metric else ()
    budget = [drawn(draw, study) for draw in BUDGET_PICTURES if draw not in left_out]
    of_each = LOOP_PICTURES if measure.is_loop_metric else FAMILY_PICTURES
    of_work = [drawn(draw, study) for draw in PICTURES.get(study.work, ())]
    pictures = {family: of_work or [drawn(draw, results, family) for draw in of_each] for family in names}
    return {
        "study": study, "head": head(study), "summary": f"{spent.summary[0].upper()}{spent.summary[1:]}.",
        "overhead": spent.overhead_text, "spending": rows_of(spent).drop("all").rename(columns=heads), "words": WORDS,
        "answers": [
            {**answer(results, pool), "picture": pictures[pool["family"].iloc[0]][0]}
            for _, pool in ranked.groupby(POOL_COLUMNS, sort=False, dropna=False)
        ],
        "families": {
            family: {
                "pictures": sorted(pictures[family][1:], key=lambda drawn: isinstance(drawn, UserError)),
                **samples(study, family), **prospects(study, results, family),
            }
            for family in names
        },
        "burn_down": budget[0], "budget": budget[1:], "json": json.dumps,
        "rankings": [
            {
                "title": section_title(group, results), "rows": section_table(results, group.head(TOP)),
                "left": len(group) - TOP,
            }
            for _, group in ranked.groupby("group", sort=False)
        ],
        "rank": f"{script_command('analysis/rank.py')} {shlex.quote(str(study.folder))}",
        "stability": None if measure.is_loop_metric or "experiment" in study.facts else stability_rows(study),
        "about_stability": ABOUT,
        "command": command(study), "ran_on": ran_on(study),
        "base64": lambda text: base64.b64encode(text.encode()).decode(),
    }  # fmt: skip


def head(study: Study) -> str:
    """Return when and on what the study ran, and whether it has ended."""
    created = study.facts.get("created")
    when = "" if created is None else f"{datetime.fromtimestamp(float(created), UTC):%Y-%m-%d %H:%M} UTC. "
    devices = study.facts.get("devices", {})
    where = f"{devices.get('slots', '?')} x {study.device}. " if study.device else ""
    return f"{when}{where}It {ending(study)}."


def answer(results: Results, pool: pd.DataFrame) -> dict[str, Any]:
    """Return the answer for one family: which configuration, why, and what it costs."""
    family, best, measure = str(pool["family"].iloc[0]), winner(results, pool), results.measure
    smoke_test = bool(pool["smoke_test"].any())
    if best is None:
        lead = unranked_reason(results, pool)
        lead = f"{lead[0].upper()}{lead[1:]}"
        return {"family": family, "smoke_test": smoke_test, "lead": lead, "why": "", "facts": {}, "told": ()}
    words = results.trials.set_index("trial")["words"][best["trial"]]
    anew = results.trials.loc[results.trials["anew"] & (results.trials["trial"] != best["trial"]), "trial"]
    once = pool[~pool["trial"].isin(anew)]
    others = once[(once["group"] == best["group"]) & (once["trial"] != best["trial"])]
    lead, why, shown = (_of_a_loop if measure.is_loop_metric else _of_a_family)(results, pool, best, others, len(once))
    again = len(pool) - len(once)
    why += f" Left out: {counted(again, 'retraining')} with other seeds." if again else ""
    comparisons = answer_lines(results, pool)[1:]
    lead = f"{words[0].upper()}{words[1:]}: {lead}."
    return {"family": family, "smoke_test": smoke_test, "lead": lead, "why": why, "facts": shown, "told": comparisons}


BestTrialText = tuple[str, str, dict[str, str]]


def _of_a_loop(
    results: Results, pool: pd.DataFrame, best: pd.Series, others: pd.DataFrame, count: int
) -> BestTrialText:
    """Return what the best trial of a loop reached, why it is the best of so many, and further facts."""
    measure = results.measure
    value = tables.number(best[measure.column])
    low = "lowest" if measure.low_first else "highest"
    why = f"The {low} of {len(others) + 1} trials that compare, of {count} in all"
    if len(others):
        second = measure.best(others)
        why = f"{why}; the next, {second['trial']}, has {tables.number(second[measure.column])}"
    shown = {
        head_of(measure): value,
        **{head: tables.reported(best[name]) for name, head in results.last_reported.items()},
        "steps": f"{best['steps']:,.0f}",
        "training time": tables.duration(best["training_seconds"]),
        "device time": tables.duration(best["device_seconds"]),
        "device time of all trials": tables.duration(pool["device_seconds"].sum()),
    }
    return f"{measure.name} {value} {where_measured_text(best)} ({best['trial']})", f"{why}.", shown


def _of_a_family(
    results: Results, pool: pd.DataFrame, best: pd.Series, others: pd.DataFrame, count: int
) -> BestTrialText:
    """Return the same for the best trial of a family."""
    same, bits = others["perplexity"], best["bits_per_character"]
    margin = "" if same.empty else f"; the next there is {100 * (same.min() / best['perplexity'] - 1):.1f} % worse"
    where = where_measured_text(best)
    why = f"Lowest validation perplexity {where}, of {len(same) + 1} there and {count} in all{margin}."
    shown = {
        "validation perplexity": tables.number(best["perplexity"]),
        "test perplexity": tables.number(best["test_perplexity"]),
        **({} if pd.isna(bits) else {"bits per character": tables.number(bits)}),
        "parameters": f"{best['parameters']:,.0f}",
        "memory to train": tables.memory(best["memory_bytes"]),
        **({} if pd.isna(best["mfu"]) else {"of the device's peak (MFU)": tables.share(best["mfu"], 1)}),
        "device time": tables.duration(best["device_seconds"]),
        "device time of the family": tables.duration(pool["device_seconds"].sum()),
    }
    reached = f"validation perplexity {tables.number(best['perplexity'])}"
    return f"{reached} with {best['parameters']:,.0f} parameters ({best['trial']})", why, shown


def stability_rows(study: Study) -> pd.DataFrame | UserError:
    """Return how well the ranking at half of the spending predicted the end, or why that is not known."""
    try:
        found = stability(study)
    except UserError as reason:
        return reason
    return stability_columns(found) if found["trials"].any() else UserError(TOO_FEW)


def prospects(study: Study, results: Results, family: str) -> dict[str, Any]:
    """Return what other caps are expected to buy, as the search wrote it at its end, or why that is not known."""
    if study.measure.is_loop_metric or "experiment" in study.facts:
        return {"prospects": None, "at_a_constant_rate": False}
    stored = study.facts.get("prospects", {}).get(family)
    if stored is None or stored["why"]:
        asked = f"{script_command('tune/run.py')} --plan --resume {shlex.quote(str(study.folder))} tells what it can"
        why = asked if stored is None else stored["why"]
        return {"prospects": f"No forecast: {why}.", "at_a_constant_rate": False}
    configs = results.trials.set_index("trial")["config"]
    rows = [
        {
            "cap": tables.duration(row["cap"]), "how": row["how"], "loss": f"{row['loss']:.3f}",
            "80 % interval": "" if row["low"] == row["high"] else f"{row['low']:.3f} to {row['high']:.3f}",
            "perplexity": tables.number(math.exp(min(row["loss"], LARGEST_LOG))), "trial": row["trial"],
            "config": configs.get(row["trial"], ""),
        }
        for row in stored["rows"]
    ]  # fmt: skip
    return {"prospects": pd.DataFrame(rows), "at_a_constant_rate": not stored["decayed"]}


def samples(study: Study, family: str) -> dict[str, Any]:
    """Return what the winner of the last end makes of some texts, and how well it translates, where the search wrote
    that; writer: its trial, or "the winner" where it is not known."""
    rows, told = study.facts.get("samples", {}).get(family, [])[:SAMPLES], None
    report = study.facts.get("decoded", {}).get(family)
    writer = [*study.read("SELECT trial FROM reports WHERE report = ?", report)["trial"], "the winner"][0]
    if score := study.facts.get("bleu", {}).get(family):
        bleu, chrf = (tables.number(score[name], 3) for name in ("bleu", "chrf"))
        many = f"{score['trial']} translates {score['sentences']} sentences of the test split"
        told = f"{many} with BLEU {bleu} and chrF {chrf} (sacrebleu, {score['signature']})."
    texts = [{name: each for name, each in row.items() if each is not None} for row in rows]
    return {"samples": texts, "score": told, "writer": writer}


def command(study: Study) -> str:
    """Return the command that makes such a study again."""
    of, settings = study.facts.get("experiment"), study.facts.get("settings", {})
    if of:
        return shlex.join([*shlex.split(script_command("tune/experiment.py")), str(of), *typed_again(settings, of)])
    own = {name: value for name, value in settings.items() if not study.measure.is_loop_metric or name != "families"}
    return shlex.join([*shlex.split(script_command("tune/run.py")), *flag_words(own)])


def ran_on(study: Study) -> dict[str, str]:
    """Return the code, the device and the texts of a study, each under a heading."""
    corpora = {
        f"text of {family}": f"{facts.get('name')}, sha256 {facts.get('sha256')}, vocabulary {facts.get('vocabulary')}"
        for family, facts in study.facts.get("corpora", {}).items()
    }
    versions = ", ".join(f"{name} {version}" for name, version in study.facts.get("versions", {}).items())
    return {
        "commit": str(study.facts.get("commit") or "unknown"),
        "versions": versions,
        "device": study.device,
    } | corpora
