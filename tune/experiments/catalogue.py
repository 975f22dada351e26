"""All experiments, what each would do and cost here, and the command behind experiment.py."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from model.config import Config
from tune.corpora import SETTINGS as CORPORA
from tune.devices import find_devices
from tune.experiments.ablation import ABLATION, OVERFITTING
from tune.experiments.base import (
    END_SECONDS,
    START_SECONDS,
    Experiment,
    affordable_share,
    groups,
    make_experiment_context,
    price,
    winner_of,
)
from tune.experiments.batch_size import BATCH_SIZE
from tune.experiments.curves import CURVES
from tune.experiments.data_parallel import DATA_PARALLEL
from tune.experiments.estimates import ESTIMATES
from tune.experiments.experiment_settings import ExperimentSettings
from tune.experiments.large_batch import LARGE_BATCH
from tune.experiments.lists import ended_trial_rows, plan_list
from tune.experiments.loader import LOADER
from tune.experiments.methods import METHODS
from tune.experiments.precision import PRECISION
from tune.experiments.prices import price_lines
from tune.experiments.runner import run_experiment
from tune.experiments.scaling import SCALING
from tune.experiments.stages import STAGES_OF_A_TRAINING
from tune.experiments.tables import final_tables, lines_of
from tune.experiments.transfer import TRANSFER
from tune.flags import invalid, parse_families, parse_path, under_flag
from tune.load import load_families
from tune.store.journal import FACTS_QUERY, connect, facts_in
from tune.store.queries import ENDED_TRIALS_QUERY, EXPERIMENT_ROWS_QUERY, last_rows
from tune.table_text import Table
from tune.units import duration_text, whole_text

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for each in (
        ABLATION, OVERFITTING, METHODS, BATCH_SIZE, ESTIMATES, LOADER, STAGES_OF_A_TRAINING, PRECISION, TRANSFER,
        SCALING, LARGE_BATCH, DATA_PARALLEL, CURVES,
    )
}  # fmt: skip


def list_lines(experiments: Iterable[Experiment]) -> Iterator[str]:
    """Yield a line for each experiment, with the device time that it needs at least and that it is worth here, or that
    it needs more devices."""
    for each in experiments:
        settings = ExperimentSettings(budget=1.0, families={each.families[0]: 1.0})
        devices = find_devices(settings)
        if each.divides:  # a batch of the recipe, which has so many rows
            recipe = Config(family=each.families[0])
            devices = replace(devices, count=min(devices.count, recipe.batch_tokens // recipe.context))
        if devices.slots < each.fewest:
            yield f"{each.name:14} {each.about}; needs {each.fewest} devices, more than there are here"
            continue
        points = each.points(devices, settings)
        least, worth = (whole_text(price(points, some)) for some in (0.0, 1.0))
        yield f"{each.name:14} {each.about}; {least} to {worth} here"


def plan_lines(experiment: Experiment, settings: ExperimentSettings) -> Iterator[str]:
    """Yield the plan of an experiment: a line for each point, with its seconds on each device, and the total."""
    context = make_experiment_context(experiment, settings)
    share = affordable_share(context.points, settings.budget)
    yield f"{experiment.name} on {context.devices.slots} x {context.devices.name}"
    yield from context.notes
    for group in groups(context.points):
        for point in group:
            yield f"{point.devices} x {point.text}: {point.seconds_at(share):.0f} s"
        yield f"{group[0].devices} x start and end of the processes: {START_SECONDS + END_SECONDS:.0f} s"
    yield from price_lines()
    yield f"about {whole_text(price(context.points, share))} of {duration_text(settings.budget)}"


def of_study(study: Path) -> list[Table]:
    """Return the tables of the rows that a study has, even while it still runs. UserError: it has none, or is no study
    of an experiment."""
    try:
        with closing(connect(study)) as journal:
            known: dict[str, Any] = facts_in(journal.execute(FACTS_QUERY))
            experiment = EXPERIMENTS[known["experiment"]]
            if experiment.work is None:
                rows = ended_trial_rows(journal.execute(ENDED_TRIALS_QUERY), known["corpora"])
            else:
                rows = list(last_rows(journal.execute(EXPERIMENT_ROWS_QUERY, (experiment.name,))).values())
    except (sqlite3.Error, LookupError, TypeError, ValueError):
        rule = "is no study of an experiment: name one, such as runs/NAME"
        raise invalid("tables", f"'{study}' {rule}; {', '.join(EXPERIMENTS)} make them") from None
    if not (made := final_tables(experiment, rows)):
        raise invalid("tables", f"'{study}' has no row of {experiment.name} yet that makes a table: go on with it")
    return made


def of_winner(name: str, typed: dict[str, Any]) -> dict[str, Any]:
    """Return what was typed, completed from the winner of the study that --of names. UserError: --of cannot be used
    here, or there is no such winner."""
    if name != SCALING.name:
        raise invalid("of", f"{typed['of']!r} is for {SCALING.name}: leave it out of {name}")
    if "fix" in typed:
        raise invalid("fix", f"{typed['fix']!r} is not for --of, whose winner has its configuration: leave one out")
    if "load" in typed:
        load_families(parse_path(typed["load"]))
    families = parse_families(typed["families"]) if "families" in typed else {}
    with under_flag("of"):
        study = parse_path(typed["of"])
    winner = winner_of(study, tuple(families))
    if CORPORA["pairs"] in typed:  # in place of the file whose bad lines the search left out
        winner.pop("skip_bad_lines", None)
    return winner | typed | {"families": winner["families"]}


def run(settings: ExperimentSettings) -> int:
    """Run the command; return its exit code. UserError: something that was asked for cannot be done."""
    if settings.list:
        print(*list_lines(EXPERIMENTS.values()), sep="\n")
    elif settings.tables:
        tables = of_study(settings.tables)
        print(settings.render(tables) if settings.format else "\n".join(lines_of(tables)))
    elif settings.plan:
        experiment = EXPERIMENTS[settings.name]
        print(*(plan_lines if experiment.work else plan_list)(experiment, settings), sep="\n")
    else:
        return run_experiment(EXPERIMENTS[settings.name], settings)
    return 0
