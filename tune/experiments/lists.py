"""Experiments whose points are a list of configurations: the search's own machinery trains each whole, and what the
trials reached is read from the journal."""

import json
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from model.config import Config
from tune.devices import Devices, find_devices
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, make_experiment_context
from tune.experiments.prices import price_lines, step_flops, step_price
from tune.experiments.tables import final_tables, lines_of
from tune.flags import invalid
from tune.recipe import SETTABLE, Recipe
from tune.reports import Report
from tune.search.engine import Engine, Listener
from tune.search.family import FIRST_OVERHEAD_SECONDS, FIRST_START_UP_SECONDS
from tune.search.listed import ListEntry, paid_places
from tune.search_context import ListedStudy, SearchContext, load_stored_recipes, make_memory, memory_limit
from tune.search_space import DIMENSIONS, label, seedless
from tune.store.journal import Journal
from tune.store.queries import ENDED_TRIALS_QUERY
from tune.study import run_study
from tune.units import duration_text, whole_text

WARM_UP_SHARE = 0.1
"""Largest share of the steps in which the learning rate warms up: a short training has a shorter warm-up than the
recipe's."""
EVALUATION_SHARE = 0.01
"""Tokens on which a training is judged, of either split, as a share of those that it is trained on ..."""
FEWEST_TOKENS, MOST_TOKENS = 2_048, 16_384
"""... and the least and the largest number of them."""


def training_points(
    devices: Devices, settings: ExperimentSettings, asked: Sequence[tuple[dict[str, Any], int]], *, first: int = 0
) -> list[Point]:
    """Return a point for each configuration and its steps that --fix leaves in: the `first` of those asked for, then
    the others, the most expensive first, so that all devices end together; then those of the further seeds, the
    cheapest first. The cap must pay for the cheapest of the first; of the others, as many are trained as it pays for.
    UserError: --fix leaves none."""
    found = list[tuple[float, Point]]()
    for place, (config, steps) in enumerate(asked):
        if any(settings.fix.get(name, value) != value for name, value in config.items()):
            continue
        whole = Config(**{**settings.fix, **settings.set, **config}, family=settings.family)
        cost, seconds, given = steps * step_flops(whole), steps * step_price(whole, devices), {"steps": steps}
        for seed in range(settings.seed, settings.seed + settings.seeds):
            turn = 2 if seed > settings.seed else int(place >= first)
            own = {**config, "seed": seed}
            point = Point(devices=1, asked=given, config=own, seconds=seconds, least_seconds=0.0, turn=turn)
            found.append((cost, point))
    if not found:
        raise invalid("fix", "leaves none of the report's configurations: fix less")
    found.sort(key=lambda each: (each[1].turn, each[0] if each[1].turn == 2 else -each[0]))
    _, cheapest = min(found, key=lambda each: (each[1].turn, each[0]))
    return [replace(point, least_seconds=point.seconds) if point == cheapest else point for _, point in found]


def make_list_context(experiment: Experiment, settings: ExperimentSettings, devices: Devices) -> SearchContext:
    """Return the search context of a list's study. UserError: a setting cannot be used."""
    begun, context = time.monotonic(), make_experiment_context(experiment, settings)
    name, config = settings.family, context.config
    fewest = min(point.asked["steps"] for point in context.points)
    seen = min(each.asked["steps"] * each.config.get("batch_tokens", config.batch_tokens) for each in context.points)
    given = {name: getattr(config, name) for name in (*SETTABLE, "betas")}
    if "warm_up_steps" not in settings.set:
        given["warm_up_steps"] = min(config.warm_up_steps, max(1, round(WARM_UP_SHARE * fewest)))
    recipe = Recipe(
        **given, weights=0.0, tokens=0.0, flops=0.0, average=0.0,
        why={each: "given" if each in settings.set else "the family's own" for each in SETTABLE},
    )  # fmt: skip
    if settings.resume is not None:  # whatever the family's own is by now
        recipe = load_stored_recipes(settings.resume, [name])[0][name]
    data = context.data if experiment.text is None else experiment.text(context.data, settings)
    memory = make_memory(name, recipe, data, devices.kind)
    limit, notes = memory_limit(settings, devices)
    memory.limit = memory.limit if limit is None else limit
    own = {each: getattr(config, each) for each in DIMENSIONS}
    listed = [
        ListEntry(config={**own, **each.config}, steps=each.asked["steps"], seconds=each.seconds, turn=each.turn)
        for each in context.points
    ]
    kinds = {(label(seedless(each.config)), each.steps) for each in listed}
    alone = "one configuration, which is compared with none: --fix or this device leaves no other"
    size = f"{seen:,} target tokens or more each, {seen / data.training_tokens:.3g} epochs of this text"
    return SearchContext(
        settings=context.settings, devices=devices, spaces={}, recipes={name: recipe}, data={name: data},
        memories={name: memory}, trial_memory_limit=limit, begun=begun,
        notes=[*context.notes, *notes, f"{len(listed)} trainings, {size}", *([alone] if len(kinds) == 1 else [])],
        listed=ListedStudy(
            experiment=experiment.name, listed=listed, lines=partial(lines, experiment),
            evaluation_tokens=min(max(round(EVALUATION_SHARE * seen), FEWEST_TOKENS), MOST_TOKENS),
        ),
    )  # fmt: skip


class CheckpointCleaner(Listener):
    """Listener that deletes the checkpoints of a trial that came to its end, as nothing needs them any more."""

    def on_report(self, engine: Engine, trial: str, report: Report) -> None:
        """Delete a trial's checkpoints at its end, which is in the journal."""
        if report.ended == "final" and not report.checkpoint:
            shutil.rmtree(engine.accounting.journal.folder / "checkpoints" / trial, ignore_errors=True)


def run_list(experiment: Experiment, settings: ExperimentSettings) -> int:
    """Run the experiment of a list; return the exit code. UserError, with nothing written: a setting cannot be used."""
    return run_study(settings, [CheckpointCleaner()], partial(make_list_context, experiment)).exit_code


def plan_list(experiment: Experiment, settings: ExperimentSettings) -> Iterator[str]:
    """Yield the plan of a list: a line for each training, with its seconds of a slot, and the device-seconds of all."""
    context = make_list_context(experiment, settings, find_devices(settings))
    assert context.listed is not None
    yield f"{experiment.name} on {context.devices.slots} x {context.devices.name}"
    yield from context.notes
    listed, share = context.listed.listed, context.devices.share
    paid = set[int]()
    prices = {place: each.seconds + FIRST_OVERHEAD_SECONDS for place, each in enumerate(listed)}
    for slots in range(context.devices.slots, 0, -1):
        paid = paid_places(listed, prices, settings.budget / share - slots * FIRST_START_UP_SECONDS)
        if len(paid) >= slots:  # no more are opened than have an entry
            break
    for place, each in enumerate(listed):
        left_out = "" if place in paid else ", left out"
        yield f"{label(each.config)}, {each.steps:,} steps: {each.seconds:.0f} s{left_out}"
    yield from price_lines()
    few = f", which does not pay for {len(listed) - len(paid)} of {len(listed)}" if len(paid) < len(listed) else ""
    whole = whole_text(share * (context.devices.slots * FIRST_START_UP_SECONDS + sum(prices.values())))
    yield f"about {whole} in all, of {duration_text(settings.budget)}{few}"


def ended_trial_rows(ends: Iterable[sqlite3.Row], corpora: Mapping[str, Any]) -> list[Row]:
    """Return the row of each trial that was trained whole or diverged. ends: the rows of ENDED; corpora: the study's
    fact of that name."""
    tokens = {name: each["training_tokens"] for name, each in corpora.items()}
    return [
        {**dict(row), "config": json.loads(row["config"]), "epochs": row["tokens"] / tokens[row["family"]]}
        for row in ends
    ]


def lines(experiment: Experiment, journal: Journal) -> Iterator[str]:
    """Yield the lines of the tables of a list's trials so far."""
    corpora: Any = journal.facts()["corpora"]
    yield from lines_of(final_tables(experiment, ended_trial_rows(journal.rows(ENDED_TRIALS_QUERY), corpora)))
