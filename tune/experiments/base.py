"""Experiments: the points that each measures one by one, what these cost, and the trials that they are charged to."""

import itertools
import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from model.config import OLD_DEFAULTS, Config, Data, family_recipe
from model.data.batches import batch_shape
from model.families import BUILT_IN, FAMILIES
from tune.backend.worker_group import Message, TaskContext, Work
from tune.corpora import SETTINGS as CORPORA
from tune.corpora import load_corpora, setting_of
from tune.devices import Devices, find_devices
from tune.errors import UserError
from tune.experiments.experiment_settings import OWN_MODEL, ExperimentSettings
from tune.flags import BUILTIN, invalid, parse_corpus
from tune.own_space import LOOP
from tune.recipe import SETTABLE, batch_scaled_fields
from tune.rows import Row
from tune.search_context import check_idle
from tune.search_space import DIMENSIONS, SPACES, Space, label
from tune.store.journal import FACTS_QUERY, Journal, connect, facts_in, study_facts
from tune.store.queries import EXPERIMENT_ROWS_QUERY, best_so_far, last_rows
from tune.table_text import Table
from tune.units import counted, duration_text


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measurement. asked: what the work is told, JSON-able; config: values that replace those of the study's
    configuration.

    seconds: what it is worth, on each device: what it gets where the cap suffices; least_seconds: what it needs at
    least; turn: of a list, those of a lower turn are paid for before those of a higher one.
    """

    devices: int
    asked: dict[str, Any]
    seconds: float
    least_seconds: float
    config: Mapping[str, Any] = field(default_factory=dict)
    turn: int = 0

    def seconds_at(self, share: float) -> float:
        """Return the seconds on each device at a share: 0 gives the least that it needs, 1 all that it is worth."""
        return self.least_seconds + share * (self.seconds - self.least_seconds)

    @property
    def text(self) -> str:
        """What is asked for and of which configuration, in words."""
        return ", ".join(f"{name} {value}" for name, value in {**self.asked, **self.config}.items())

    @property
    def key(self) -> str:
        """A text that identifies the point within its experiment."""
        return json.dumps([self.devices, self.asked, *([self.config] if self.config else [])], sort_keys=True)


def by_measure(measures: Mapping[str, Work], context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Run the measure that `asked` names, of work that has several, and yield what it says."""
    return measures[asked["measure"]](context, asked)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A controlled comparison under a cap.

    points: what is to be measured on these devices, the most important first; work: how a point is measured, alike on
    all of its devices; None: the points are a list (lists.py), each a configuration that is trained whole for its
    `steps`, on what `text` makes of the study's data; settings_for: what the work is told of the rows so far, beside
    what is asked; further: points that follow from the rows of the first ones, for which the cap may not suffice.

    line: the result of a row in short; tables: the tables of all rows so far, of a list only of trials that were
    trained to their ends, with `diverging` also of those that diverged, whose valid_loss is None; files: texts to write
    into the study's folder after each row, by file name.

    families: those that it can be run on, the default first; any_family: whether also on a user's own; recipe: what it
    changes of the family's recipe unless --set does; sets: dimensions of the space and parts of the recipe whose values
    the points set, so that --fix and --set cannot; reads: which of `scale`, `seeds` and `memory_limit` it uses; a list
    uses all; fewest: least number of devices; divides: whether the devices of each point share a batch of the recipe.
    """

    name: str
    about: str
    points: Callable[[Devices, ExperimentSettings], list[Point]]
    tables: Callable[[Sequence[Row]], list[Table]]
    work: Work | None = None
    line: Callable[[Row], str] = field(default=lambda row: "")
    text: Callable[[Data, ExperimentSettings], Data] | None = None
    diverging: bool = False
    settings_for: Callable[[Point, Sequence[Row]], dict[str, Any]] = field(default=lambda point, rows: {})
    further: Callable[[Sequence[Row]], list[Point]] | None = None
    files: Callable[[Sequence[Row]], dict[str, str]] = field(default=lambda rows: {})
    families: tuple[str, ...] = ("nanogpt", "translation")
    any_family: bool = False
    recipe: Mapping[str, Any] = field(default_factory=dict)
    sets: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    fewest: int = 1
    divides: bool = False


class Trials:
    """Trials of a study of an experiment: one for each configuration and number of devices."""

    def __init__(self, journal: Journal, config: Config, clock: Callable[[], float]) -> None:
        self._journal, self._config, self._clock = journal, config, clock

    def trial_of(self, point: Point) -> str:
        """Return the name of a point's trial, which its checkpoints bear; a new trial is inserted as running."""
        own = dict(self._config.own) or {name: getattr(self._config, name) for name in DIMENSIONS}
        config = json.dumps({**own, **point.config, "devices": point.devices})
        if known := self._journal.rows("SELECT trial FROM trials WHERE config = ?", config):
            return str(known[0]["trial"])
        trial = f"t{len(self._journal.rows('SELECT trial FROM trials')) + 1:03d}"
        row = {"trial": trial, "family": self._config.family, "config": config, "state": "running"}
        self._journal.insert("trials", row | {"created": self._clock()})
        return trial

    def begin(self, point: Point) -> str:
        """Return the name of a point's trial, which runs from now on if nothing of it was measured before."""
        trial = self.trial_of(point)
        if self._journal.rows("SELECT 1 FROM trials WHERE trial = ? AND state IN ('stopped', 'paused')", trial):
            self._journal.update("trials", trial, {"state": "running", "reason": None})
        return trial

    def pause(self, reason: str) -> None:
        """Let those that run wait: they were ended before their points were measured."""
        for row in self._journal.rows("SELECT trial FROM trials WHERE state = 'running'"):
            self._journal.update("trials", row["trial"], {"state": "paused", "reason": reason})

    def measured(self, point: Point, row: Row) -> None:
        """Mark the trial of a measured point as finished, though later points may go on with it; of one that was
        skipped as stopped, unless another point of that trial was measured."""
        trial = self.trial_of(point)
        if why := row.get("skipped"):
            if self._journal.rows("SELECT 1 FROM trials WHERE trial = ? AND state IN ('running', 'paused')", trial):
                self._journal.update("trials", trial, {"state": "stopped", "reason": why})
            return
        known = {"parameters": row["parameters"]} if "parameters" in row else {}
        self._journal.update("trials", trial, {"state": "finished", "reason": None} | known)


START_SECONDS, END_SECONDS = 15.0, 5.0
"""Seconds on each device of a group that are kept for its processes to start and to end."""


@dataclass(frozen=True, kw_only=True)
class ExperimentContext:
    """What an experiment runs on: one configuration, its text, the devices, and the points to measure. notes: for the
    user."""

    settings: ExperimentSettings
    devices: Devices
    config: Config
    data: Data
    points: Sequence[Point]
    notes: Sequence[str]


def make_experiment_context(experiment: Experiment, settings: ExperimentSettings) -> ExperimentContext:
    """Return the context of an experiment with these settings. UserError: a setting cannot be used."""
    devices, family = find_devices(settings), settings.family
    if family not in experiment.families and (family in BUILT_IN or not experiment.any_family):
        rule = f"{family!r} is not what {experiment.name} is about: write {' or '.join(experiment.families)}"
        raise invalid("families", rule)
    if experiment.work and settings.cores_per_trial > 1:
        lists = "applies only to searches and experiments that train configurations"
        raise invalid("cores_per_trial", f"'{settings.cores_per_trial}' {lists}: leave it out")
    if devices.slots < experiment.fewest:
        rule = f"is too few for {experiment.name}, which compares ways to train on several devices"
        how = "with --oversubscribe to share one" if devices.kind == "cpu" else "on a machine with as many GPUs"
        raise invalid("devices", f"'{devices.slots}' {rule}: write 2 or more, {how}")
    for each in () if settings.resume or not experiment.work else fields(settings):
        ignored = each.name in ("scale", "seeds", "memory_limit") and each.name not in experiment.reads
        if ignored and getattr(settings, each.name) != each.default:
            raise invalid(each.name, f"'{settings.stored()[each.name]}' is not for {experiment.name}: leave it out")
    space = Space(family=family, precisions=devices.precisions, fix=settings.fix)
    if settings.resume is None:
        check_given(experiment, settings)
        check_idle(replace(settings, set={**experiment.recipe, **settings.set}))
    points = experiment.points(devices, settings)
    check_same_points(experiment, settings, devices, points)
    if settings.resume is None and settings.budget < (least := price(points, 0.0)):

        def lowers(**changed: Any) -> bool:
            with suppress(UserError):  # of what leaves no point
                return price(experiment.points(devices, replace(settings, **changed)), 0.0) < least
            return False

        first = {name: values[0] for name, values in space.dimensions.items() if name not in experiment.sets}
        others = ["a smaller --scale"] * lowers(scale=settings.scale / 2)
        others += ["more fixed with --fix"] * lowers(fix=first)
        remedy = ", or ".join([f"at least {duration_text(math.ceil(least))}", *others])
        asked = duration_text(settings.budget)
        raise invalid("budget", f"{asked!r} does not pay for {experiment.name}: write {remedy}")
    given = {**experiment.recipe, **settings.recipe, **settings.set}
    texts, fixed = load_corpora(settings), dict[str, Any]({**settings.fix, **given})
    (data,) = texts.data.values()
    own = {} if family in BUILT_IN else space.default()
    config = Config.at({"average": 0.0, "dropout_after": 0.0, **own, **fixed}, family=family, seed=settings.seed)
    shared = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context) if experiment.divides else None
    if shared and (rows := shared.rows) < devices.slots:
        rule = f"are more than the {rows} rows of a batch, of which {experiment.name} gives each device one or more"
        fewer = [f"at most {rows}"] * (rows >= experiment.fewest)
        larger = ["a larger --set batch_tokens"] * (settings.resume is None)
        raise invalid("devices", f"'{devices.slots}' {rule}: write {', or '.join([*fewer, *larger])}")
    named = {name: getattr(texts.settings, name) for name in CORPORA.values()}
    winner = [f"on the winner of {settings.of}: {family} {label(fixed)}"] if settings.of else []
    return ExperimentContext(
        settings=replace(settings, **named), devices=devices, config=config, data=data, points=points,
        notes=[*winner, *([] if experiment.name in OWN_MODEL else texts.notes)],
    )  # fmt: skip


def winner_of(study: Path, families: Sequence[str]) -> dict[str, Any]:
    """Return the settings of an experiment on the winner of a search's study, in one of these families, or in any if
    none is named.

    UserError: there is no such study, or it has no winner in these families that an experiment can train.
    """
    try:
        with closing(connect(study)) as journal:
            facts: dict[str, Any] = facts_in(journal.execute(FACTS_QUERY))
            best, asked, shares = best_so_far(journal), facts["settings"], facts["families"]
        named = [name for name in shares if name in families or not families]
        found = {name: json.loads(best[name]["config"]) for name in named if name in best}
    except (sqlite3.Error, LookupError, TypeError, ValueError):
        raise invalid("of", f"'{study}' is no study of a search: name one, such as runs/NAME") from None
    if LOOP in shares:
        rule = "is of a training loop of yours, and an experiment is on a family of models"
        raise invalid("of", f"'{study}' {rule}: name another study")
    if not named:
        rule = f"is of {' and '.join(shares)}, not of {' or '.join(families)}"
        raise invalid("of", f"'{study}' {rule}: leave --families out, or name another study")
    if not found and "experiment" in facts:
        raise invalid("of", f"'{study}' is of the experiment {facts['experiment']}: name a study of a search")
    if not found:
        rule = f"has no winner of {' or '.join(named)}, as no trial reached a rung"
        raise invalid("of", f"'{study}' {rule}: go on with it, or name another study")
    family = max(found, key=lambda name: shares[name])
    if family not in FAMILIES:
        raise invalid("of", f"'{study}' has a winner of {family!r}, which is not known here: add --load FILE")
    of_study = facts.get("recipes", {}).get(family, {})
    whole = {**OLD_DEFAULTS, **of_study, **batch_scaled_fields(of_study.get("own", {}), found[family]), **found[family]}
    own = family_recipe(family, whole["architecture"])
    of_recipe = [name for name in SETTABLE if name in whole and name not in SPACES[family]]
    recipe = {k: whole[k] for k in of_recipe if k in found[family] or whole[k] != own[k]}
    own_seed = {"seed": found[family].pop("seed")} if "seed" in found[family] else {}
    fix = {k: v for k, v in found[family].items() if k not in recipe}
    text = setting_of(FAMILIES[family].corpus)
    of_file = isinstance(parse_corpus(asked.get(text, BUILTIN)), Path)
    skips = ["skip_bad_lines"] if text == CORPORA["pairs"] and of_file else []
    of_text = {name: asked[name] for name in (text, "seed", *skips) if name in asked}
    return of_text | own_seed | {"families": family, "fix": fix, "recipe": recipe}


def check_given(experiment: Experiment, settings: ExperimentSettings) -> None:
    """Check that --fix and --set name nothing that the points set themselves. UserError: one does."""
    for flag, given in (("fix", settings.fix), ("set", settings.set)):
        for name in (each for each in experiment.sets if each in given):
            rule = f"is not for {experiment.name}, which sets {name} itself: leave it out"
            raise invalid(flag, f"'{name}={given[name]}' {rule}")


def check_same_points(
    experiment: Experiment, settings: ExperimentSettings, devices: Devices, points: Sequence[Point]
) -> None:
    """Check that a resumed study's devices, of the kind that it began on, leave it its points. UserError: they have
    other precisions, from which some of these follow, or no point is on as many devices as all measured rows."""
    before: Any = study_facts(settings.resume).get("devices", {}) if settings.resume else {}
    if settings.resume is None or before.get("kind") != devices.kind:
        return
    had_rows = measured_on(settings.resume, experiment.name)
    if len(had_rows) == 1 and had_rows.isdisjoint(point.devices for point in points):  # else rows on several compare
        (count,) = had_rows
        what = f"the study has rows on {counted(count, 'device')}, and here are {devices.slots}"
        raise invalid("resume", f"{what}: go on with --devices {count}, or begin again")
    if (had := tuple(before.get("precisions", devices.precisions))) == devices.precisions:
        return
    began_with = experiment.points(replace(devices, precisions=had), settings)
    if {each.key for each in began_with} != {each.key for each in points}:
        what = f"points follow from the precisions {', '.join(had)}, and here are {', '.join(devices.precisions)}"
        raise invalid("resume", f"the study's {what}: go on with it where it began, or begin again")


def measured_on(study: Path, experiment: str) -> set[int]:
    """Return the numbers of devices on which points of a study were measured; none of what cannot be read."""
    with suppress(UserError, sqlite3.Error, ValueError), closing(connect(study, briefly=True)) as journal:
        rows: Sequence[Row] = [*last_rows(journal.execute(EXPERIMENT_ROWS_QUERY, (experiment,))).values()]
        return {row["devices"] for row in rows if "skipped" not in row}
    return set()


def groups(points: Sequence[Point]) -> list[list[Point]]:
    """Return the points grouped by number of devices: the processes of a group stay up from one point to the next."""
    ordered = sorted(points, key=lambda point: point.devices)
    return [list(group) for _, group in itertools.groupby(ordered, key=lambda point: point.devices)]


def price(points: Sequence[Point], share: float = 1.0) -> float:
    """Return the device-seconds of the points and of their processes' start and end: with a share of 1 what they are
    worth, with 0 the least that they need."""
    fixed = sum(group[0].devices * (START_SECONDS + END_SECONDS) for group in groups(points))
    return fixed + sum(point.devices * point.seconds_at(share) for point in points)


def affordable_share(points: Sequence[Point], left: float) -> float:
    """Return the largest share, at most 1, at which the price of the points is within so many device-seconds; below 0:
    even the least is not."""
    least, worth = price(points, 0.0), price(points)
    if left < least or worth == least:
        return 1.0 if left >= least else -1.0
    return min(1.0, (left - least) / (worth - least))


def affordable_points(points: Sequence[Point], left: float) -> int:
    """Return how many of the first points, at their least, so many device-seconds pay for."""
    return next(count for count in range(len(points), -1, -1) if not count or price(points[:count], 0.0) <= left)
