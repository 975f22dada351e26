"""Studies as read from their journals, also running or killed ones: trials, measurements that compare, and rows of
experiments.
"""

import json
import math
import shlex
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import time
from typing import Any

import numpy as np
import pandas as pd

from analysis import efficiency as sizes
from analysis import tables
from tune.arithmetic import mean_interval
from tune.errors import UserError, script_command
from tune.own_space import LOOP, parse_space
from tune.published import PUBLISHED
from tune.ranking import RESERVED_NAMES, comparison_column, config_columns, reported_columns
from tune.reports import Metric
from tune.search_space import DIMENSIONS, label
from tune.store.heartbeat import DRIVER, HEARTBEAT_FOLDER, SILENCE_SECONDS
from tune.store.journal import FACTS_QUERY, JOURNAL_FILE, connect, facts_in
from tune.store.mirror import MIRROR_EVERY_SECONDS, is_copy
from tune.store.queries import (
    ENDED_TRIALS_QUERY,
    EXPERIMENT_ROWS_QUERY,
    IS_CONFIRM_TRIAL_SQL,
    PLACES_QUERY,
    TRAINED_TRIALS_QUERY,
    last_rows,
    lasting_reports_query,
    ranking_query,
)
from tune.units import counted

RUNS = Path("runs")
KERNELS = "kernels"
"""Name of the fact that only a study of kernels has: their names."""
CONTROL = r"[\x00-\x1f\x7f-\x9f]|(?<!\\)((?:\\\\)*)\\u00(?:[01][0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])"
"""Control characters of a terminal, also as escaped in JSON (where the backslash is not itself escaped): `?`
stands for them in a stranger's names."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What trials are compared by: perplexity, or the metric of a user's loop, as it was reported."""

    metric: Metric | None

    @property
    def is_loop_metric(self) -> bool:
        """Whether it is the metric of a user's loop, of which no sizes are known."""
        return self.metric is not None

    @property
    def name(self) -> str:
        return "perplexity" if self.metric is None else self.metric.name

    @property
    def label(self) -> str:
        """Label of an axis."""
        return "validation perplexity" if self.metric is None else self.metric.name

    @property
    def column(self) -> str:
        """Column that trials are compared by."""
        return comparison_column(self.metric)

    @property
    def curve(self) -> tuple[str, str]:
        """Columns of a learning curve: along which it goes, and its values."""
        return ("training_seconds", "perplexity") if self.metric is None else ("steps", f"reported_{self.name}")

    @property
    def low_first(self) -> bool:
        return self.metric is None or not self.metric.maximize

    def scaled(self, values: pd.Series) -> pd.Series:
        """Return values of which differences and means make sense: log perplexity, or a metric as it is."""
        return np.log(values) if self.metric is None else values

    def as_losses(self, values: pd.Series) -> pd.Series:
        """Return the scaled values with low as good."""
        return self.scaled(values) if self.low_first else -values

    def order(self, table: pd.DataFrame) -> pd.Series:
        """Return what orders rows, low as good: the loss, as perplexity is cut off where it is no float."""
        worth = self.as_losses(table[self.column])
        return table["loss"].fillna(worth) if self.metric is None else worth

    def best(self, table: pd.DataFrame) -> pd.Series:
        """Return the best row."""
        return table.loc[self.order(table).idxmin()]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study's folder and its facts, what the journal says of it as a whole (the table `study`).

    until: only measurements up to this moment of the study's clock count.
    """

    folder: Path
    name: str
    facts: dict[str, Any]
    until: float = math.inf

    def read(self, sql: str, *values: str | float) -> pd.DataFrame:
        return read(self.folder, sql, *values)

    @property
    def measure(self) -> Measure:
        """What its trials are compared by."""
        asked = self.facts.get("settings", {})
        name = asked.get("maximize") or asked.get("metric")
        return Measure(metric=Metric(name=str(name), maximize="maximize" in asked) if name else None)

    @property
    def work(self) -> str:
        """Name of its experiment, where that measured other things than trainings to rank; else ''."""
        name = str(self.facts.get("experiment", ""))
        with suppress(UserError):
            return name if name and experiment_rows(self, name) else ""
        return ""

    def corpus(self, family: str) -> dict[str, Any]:
        """Return name, sha256, builtin and vocabulary of a family's text, as far as they were written; for a user's
        loop name and sha256 are the name of its file."""
        if self.measure.is_loop_metric and family == LOOP:
            name = Path(str(self.facts["settings"].get("train", ""))).name
            return {"name": name, "sha256": name}
        return self.facts.get("corpora", {}).get(family, {})

    def judged_context(self, family: str) -> int | None:
        """Return the tokens of context at most that evaluations of a language model give, where its recipe was written;
        None for a family whose rows are sentences."""
        recipe = {} if family == "translation" else self.facts.get("recipes", {}).get(family) or {}
        return recipe.get("evaluation_window") or recipe.get("context")

    @property
    def device(self) -> str:
        """Name of the device that its device-seconds are of."""
        return str(self.facts.get("devices", {}).get("name", ""))

    @property
    def has_rungs_of_tokens(self) -> bool:
        """Whether its rungs are equal in tokens: as many as followed from the step times that it measured."""
        return bool(self.facts.get("settings", {}).get("rungs") == "tokens")

    def rung_seconds(self, family: str, rung: int) -> float:
        """Return the seconds of training of a rung; NaN where it is of none, or the journal has none."""
        ladder = [] if self.has_rungs_of_tokens else self.facts.get("rung_seconds", {}).get(family, [])
        return float(ladder[rung]) if rung < len(ladder) else float("nan")


def read(folder: Path, sql: str, *values: str | float) -> pd.DataFrame:
    """Return the rows of a query; values: for its question marks. UserError: the journal cannot be read."""
    connection = connect(folder)
    connection.row_factory = None
    try:
        table = pd.read_sql_query(sql, connection, params=values)
        return table.replace(CONTROL, r"\1?", regex=True)
    except (pd.errors.DatabaseError, sqlite3.Error) as error:
        remedy = "name another study, or bring back a copy of it"
        raise UserError(
            f"study: {str(folder)!r}: its {JOURNAL_FILE} cannot be read ({error.__cause__ or error}); {remedy}"
        ) from error
    finally:
        connection.close()


def open_study(folder: Path) -> Study:
    """Open a study of trials. UserError: no journal, a damaged one, or a study in which no model was trained."""
    study = _opened(folder)
    if KERNELS in study.facts:
        draw = f"{script_command('analysis/plot.py')} roofline {shlex.quote(str(folder))}"
        raise UserError(f"study: {str(folder)!r} is a study of kernels; draw it: {draw}")
    if study.read("SELECT COUNT(*) AS trials FROM trials")["trials"].item() == 0:
        raise UserError(f"study: {str(folder)!r} has no trial yet; wait for its first, or name another study")
    return study


def open_kernels(folder: Path) -> Study:
    """Open a study of kernels. UserError: no journal, a damaged one, or another study."""
    study = _opened(folder)
    if KERNELS not in study.facts:
        raise UserError(
            f"study: {str(folder)!r} is none of kernels; make one: {script_command('kernels/run.py')} --budget 10m"
        )
    return study


def _opened(folder: Path) -> Study:
    facts = facts_in(read(folder, FACTS_QUERY).itertuples(index=False))
    return Study(folder=folder, name=folder.resolve().name, facts=facts)


def newest_study(runs: Path, *, kernels: bool = False) -> Path:
    """Return the study in `runs` whose journal was written last, of trials or of kernels. UserError: there is none."""
    at = {path.parent: last_write_ns(path.parent) for path in runs.glob(f"*/{JOURNAL_FILE}")}  # before any is opened
    folders = [folder for folder in at if _of_kernels(folder) == kernels]
    if not folders:
        script, budget = ("kernels/run.py", "10m") if kernels else ("tune/run.py", "4m")
        make = f"{script_command(script)} --budget {budget}"
        raise UserError(f"study: no study in {str(runs)!r}; name its folder, or make one: {make}")
    return max(folders, key=at.__getitem__)


def last_write_ns(folder: Path) -> int:
    """Return when a study's journal was written last, in ns. Its write-ahead log counts unless it is empty, as reading
    a journal makes an empty one."""
    at = 0
    for path in (folder / JOURNAL_FILE, folder / f"{JOURNAL_FILE}-wal"):
        with suppress(FileNotFoundError):
            found = path.stat()
            at = max(at, found.st_mtime_ns if found.st_size or path.name == JOURNAL_FILE else 0)
    return at


def is_driver_alive(folder: Path) -> bool:
    """Whether a driver gave a sign of life lately, as far as the study's folder shows; a mirror's copy gets them less
    often."""
    silence = SILENCE_SECONDS + (MIRROR_EVERY_SECONDS if is_copy(folder) else 0.0)
    with suppress(OSError):
        return abs(time() - (folder / HEARTBEAT_FOLDER / DRIVER).stat().st_mtime) < silence
    return False


def _of_kernels(folder: Path) -> bool:
    """Whether a study is of kernels; False for a damaged one, so that asking for the newest study reports that."""
    try:
        return KERNELS in _opened(folder).facts
    except UserError:
        return False


def open_studies(folders: Sequence[Path]) -> list[Study]:
    """Open the studies that are named, else the newest in runs/. UserError: two have the same name."""
    studies = [open_study(folder) for folder in folders or [newest_study(RUNS)]]
    names = [study.name for study in studies]
    if len(set(names)) < len(names):
        raise UserError(
            f"study: {', '.join(names)}: each name may stand once; rename a folder, or name each study once"
        )
    return studies


def experiment_rows(study: Study, name: str) -> list[dict[str, Any]]:
    """Return the last row of each point of an experiment that was measured. UserError: there is none, and why."""
    stored = study.read(EXPERIMENT_ROWS_QUERY, name).itertuples(index=False)
    rows, script = last_rows(stored).values(), f"{script_command('tune/experiment.py')} {name}"
    measured = [row for row in rows if "skipped" not in row]
    if not measured:
        if is_driver_alive(study.folder):
            raise UserError(f"study: {study.name!r} has measured nothing of {name} yet; wait for its first row")
        why = ", ".join(dict.fromkeys(str(row["skipped"]) for row in rows)) or "it ended before"
        go_on = f"{script} --resume {shlex.quote(str(study.folder))}"
        raise UserError(f"study: {study.name!r} measured nothing of {name} ({why}); go on with it: {go_on}")
    return measured


def trained_trials(study: Study, ends: str = TRAINED_TRIALS_QUERY) -> pd.DataFrame:
    """Return a row for each trial that was trained whole, by a query of tune.store.queries, with its dimensions and
    epochs. UserError: there is none."""
    table = study.read(ends)
    if table.empty:
        raise UserError(f"study: {study.name!r} has no trial that came to its end yet; go on with it")
    texts = table["family"].map(lambda family: study.corpus(family).get("training_tokens", math.nan))
    return table.assign(epochs=table["tokens"] / texts).join(config_columns(table["config"], None))


def left_out_text(study: Study, ended: pd.DataFrame | None = None) -> str:
    """Return a sentence on the trainings, of those in `ended` or else of the whole study, that diverged, which
    `trained_trials` leaves out, with a space before it; nothing where none did."""
    whole = study.read(ENDED_TRIALS_QUERY) if ended is None else ended
    count = int(whole["valid_loss"].isna().sum())
    return f" Left out: {counted(count, 'training')} that diverged." if count else ""


def learning_curves(study: Study) -> pd.DataFrame:
    """Return a row for each report of the trials that `trained_trials` has, in order, with their dimensions; what was
    repeated after a kill counts once."""
    ends = trained_trials(study)
    own = ["trial", *config_columns(ends["config"], None), "epochs"]
    columns = "trial, steps, tokens, training_seconds, train_loss, valid_loss, accuracy, perplexity"
    of_training = "trained_loss, trained_perplexity, trained_accuracy"
    table = study.read(f"SELECT {columns}, {of_training} FROM ({lasting_reports_query()}) ORDER BY trial, report")
    table = table.merge(ends[[*own, "tokens"]].rename(columns={"tokens": "of"}), on="trial")
    epochs = table["epochs"] * table["tokens"] / table["of"]
    return table.assign(epochs=epochs, minutes=table["training_seconds"] / 60).drop(columns="of")


def over_seeds(table: pd.DataFrame, by: Sequence[str], names: Sequence[str]) -> pd.DataFrame:
    """Return a row for all rows that agree in `by`, and so differ in their seed only: means of the columns `names` (NaN
    where one value is), the number of `seeds`, and of the first column the 95 % interval, `low` to `high`, which for
    one seed is its value."""
    groups, first = table.groupby([*by]), names[0]
    means = groups[[*names]].mean(skipna=False)
    found = [
        (mean_interval(values.to_list()) if values.notna().all() else None) or (mean, mean, mean)
        for mean, (_, values) in zip(means[first], groups[first], strict=True)
    ]
    intervals = pd.DataFrame(found, columns=[first, "low", "high"], index=means.index, dtype=float)
    return means.assign(seeds=groups.size(), **intervals).reset_index()


def mean_curves(table: pd.DataFrame, config: Sequence[str], names: Sequence[str]) -> pd.DataFrame:
    """Return over_seeds() of each configuration's learning curves, at each number of steps that all its seeds
    report."""
    of_config, of_steps = ([*config], [*config, "steps"])
    seeds, there = (table.groupby(each)["trial"].transform("nunique") for each in (of_config, of_steps))
    return over_seeds(table[there == seeds], of_steps, names)


def published(name: str) -> pd.DataFrame:
    """Return the figures of a published report."""
    return pd.read_csv(PUBLISHED / f"{name}.csv")


TRIAL_COLUMNS = ["study", "trial"]
POOL_COLUMNS = ["family", "sha256", "vocabulary", "judged_context"]
"""Columns that must agree for perplexities to compare. judged_context: tokens of context at most that an evaluation
gives."""
LEVEL_COLUMNS = ["device", "level", "rung_seconds", "on_whole", "subset"]
"""Columns that must agree as well: equal training, measured on the same tokens. device: that of a rung's seconds,
or the study of its tokens."""


def _trials(study: Study, names: list[str]) -> pd.DataFrame:
    columns = "trial, family, config, parameters, state, reason, section, device_seconds, memory_bytes, mfu"
    table = study.read(f"SELECT {columns} FROM ({ranking_query()}) ORDER BY created, trial", study.until)
    texts = table["config"]
    points = [json.loads(text) for text in texts]
    table["config"] = [label(point) for point in points]
    table["words"] = [tables.in_words(point) for point in points]
    table.insert(0, "study", study.name)
    configs = config_columns(texts, study.measure.metric).reindex(columns=names)
    table = table.assign(device=study.name if study.has_rungs_of_tokens else study.device).join(configs)
    corpora = {family: study.corpus(family) for family in table["family"].unique()}
    keys = {"corpus": "name", "sha256": "sha256", "vocabulary": "vocabulary", "smoke_test": "builtin"}
    for column, key in keys.items():
        table[column] = table["family"].map({family: facts.get(key) for family, facts in corpora.items()})
    table["judged_context"] = (
        table["family"].map({family: study.judged_context(family) for family in corpora}).astype(float)
    )
    table["reason"] = table["reason"].astype(str)
    table["smoke_test"] = table["smoke_test"].eq(True)
    table["failed"] = table["section"] == "failed"
    table["anew"] = table["trial"].isin(study.read(f"SELECT trial FROM trials WHERE {IS_CONFIRM_TRIAL_SQL}")["trial"])
    numbers = ["parameters", "memory_bytes", "device_seconds", "mfu"]
    table[numbers] = table[numbers].astype(float)
    return table


def _measurements(study: Study, dimensions: Sequence[str]) -> pd.DataFrame:
    columns = "trial, family, final, rung, level, on_whole, subset, perplexity, bits_per_character"
    more = "test_perplexity, subset_perplexity, at, place, steps, tokens, training_seconds, loss, numbers"
    query = f"SELECT {columns}, {more} FROM ({PLACES_QUERY}) ORDER BY report"
    table = study.read(query, study.until).astype(
        {"perplexity": float, "loss": float, "rung": float, "subset": float, "final": bool, "on_whole": bool}
    )
    table["perplexity"] = table["perplexity"].clip(lower=sys.float_info.min)  # 0 where a loss is far below zero
    table.insert(0, "study", study.name)
    seconds = [
        math.nan if final or math.isnan(rung) else study.rung_seconds(family, int(rung))
        for family, rung, final in zip(table["family"], table["rung"], table["final"], strict=True)
    ]
    table["rung_seconds"] = np.array(seconds, dtype=float)
    if metric := study.measure.metric:
        reported = reported_columns(table["numbers"], metric, dimensions)
        values = table["loss"].astype(float).map(metric.to_reported)
        table = table.assign(**{study.measure.column: values}).join(reported)
    return table.drop(columns=["family", "numbers"])


def families(results: "Results", named: str | None) -> list[str]:
    """Return the family that is named, else all. UserError: the studies do not have it."""
    there = sorted(results.trials["family"].unique())
    if named is not None and named not in there:
        raise UserError(f"--family: {named!r} is not in the study: there are {', '.join(there)}")
    return there if named is None else [named]


SIDE_BY_SIDE = 9
"""Most values of a dimension that stand side by side on an axis, also of a range of integers."""
EFFICIENCY_COLUMNS = ["efficiency", "efficiency_low", "efficiency_high"]


@dataclass(frozen=True, kw_only=True)
class Results:
    """The trials of some studies, and what each reached."""

    studies: Sequence[Study]

    @cached_property
    def measure(self) -> Measure:
        """What the trials are compared by. UserError: the studies differ in it."""
        found = {each.measure: each.name for each in self.studies}
        if len(found) > 1:
            different = " and ".join(f"{name!r} goes by {each.name}" for each, name in found.items())
            raise UserError(f"study: {different}, which do not compare; name one of them")
        return next(iter(found))

    def name_of(self, row: Mapping[Any, Any] | pd.Series) -> str:
        """Return the name of a row's trial; of several studies with that of its own, as in `one/t001`."""
        return f"{row['study']}/{row['trial']}" if len(self.studies) > 1 else str(row["trial"])

    @cached_property
    def last_reported(self) -> dict[str, str]:
        """Columns of `reached` that a user's loop reported last, with their headings; its best may be of another
        report."""
        known = {*RESERVED_NAMES, *self.dimensions, self.measure.column}
        names = (name for name in self.reached if name not in known)
        return {name: f"last {name.removeprefix('reported_')}" for name in names}

    @cached_property
    def ranges(self) -> dict[str, bool]:
        """Dimensions of a user's loop that are ranges, and whether these are logarithmic."""
        found: dict[str, bool] = {}
        for study in self.studies:
            text = str(study.facts.get("settings", {}).get("space", ""))
            with suppress(UserError):  # in a stranger's study this may be anything
                space = parse_space(text) if study.measure.is_loop_metric and text.startswith("{") else {}
                for name, each in space.items():
                    if each.count > SIDE_BY_SIDE and not each.values:
                        found |= {name: each.log, f"config_{name}": each.log}
        return found

    @cached_property
    def dimensions(self) -> list[str]:
        """All dimensions: DIMENSIONS unless all studies are of loops, and what else configs of these studies have."""
        configs = (
            config_columns(each.read("SELECT config FROM trials")["config"], each.measure.metric)
            for each in self.studies
        )
        known = () if all(each.measure.is_loop_metric for each in self.studies) else DIMENSIONS
        return list(dict.fromkeys([*known, *(name for config in configs for name in config)]))

    @cached_property
    def trials(self) -> pd.DataFrame:
        """A row for each trial: study, family, corpus, config (as a label), words (the same in words), each of
        `dimensions`, parameters, state, reason, device_seconds, memory_bytes, mfu, anew.

        anew: whether it repeats another trial with another seed, for a last comparison. mfu: the mean over its reports.
        """
        return pd.concat([_trials(study, self.dimensions) for study in self.studies], ignore_index=True)

    @cached_property
    def reached(self) -> pd.DataFrame:
        """A row for each sound trial and level, the furthest last: what it had reached when it completed a rung, or
        after its decay (`final`), as tune.store.queries has it; with the columns of `trials`.

        level: such as `rung 2`, or DECAY; rung_seconds, device: as in LEVEL_COLUMNS; device: empty after the
        decay, as such trials compare across devices. Front and efficiency are those among the trials of a level; the
        curve of efficiency has each configuration once.
        """
        found = pd.concat([_measurements(study, self.dimensions) for study in self.studies], ignore_index=True)
        found = found.merge(self.trials, on=TRIAL_COLUMNS)
        table = found.assign(
            device=found["device"].mask(found["final"]), front=False, **dict.fromkeys(EFFICIENCY_COLUMNS, float("nan"))
        )
        for _, group in (
            () if self.measure.is_loop_metric else table.groupby([*POOL_COLUMNS, *LEVEL_COLUMNS], dropna=False)
        ):
            curved = group[~group["anew"]]
            size, perplexity = (group[column].to_numpy(float) for column in ("parameters", "perplexity"))
            table.loc[group.index, "front"] = sizes.front(size, perplexity)
            size, perplexity = (curved[column].to_numpy(float) for column in ("parameters", "perplexity"))
            table.loc[curved.index, EFFICIENCY_COLUMNS] = sizes.efficiency(size, perplexity)
        return table.sort_values("place", ascending=False, kind="stable")

    def of_family(self, family: str) -> pd.DataFrame:
        """Return `reached` of one family, the furthest last. UserError: there is none, or it is of several texts."""
        table = self.reached[self.reached["family"] == family]
        if table["anew"].all():
            raise UserError(f"family: {family!r} has no trial that completed a rung; wait for one, or name another")
        if len(table.drop_duplicates(POOL_COLUMNS)) > 1:
            perplexities = "perplexities of several texts, vocabularies or contexts"
            what = "metrics of several loops" if self.measure.is_loop_metric else perplexities
            raise UserError(f"study: {what} do not compare; name one study")
        return table
