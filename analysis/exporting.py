"""Export of a study for others' tools: an Optuna storage, which optuna-dashboard opens; a winner as nanoGPT's
ckpt.pt."""

import json
import math
import os
import shlex
from collections.abc import Mapping
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import StorageInternalError
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from analysis.settings import ExportSettings
from analysis.study import RUNS, Study, newest_study, open_study
from tune.errors import UserError
from tune.flags import invalid
from tune.search_space import label
from tune.store.queries import ranking_query

NOT_IN_A_URL = set("?%{}")
"""Characters of a path that SQLAlchemy or Optuna would read as something else."""
LOG_FROM = 10.0
"""How many times its smallest a dimension's largest value must be for a logarithmic scale."""
EXPORTED_COLUMNS = (
    *("parameters", "device_seconds", "memory_bytes", "test_perplexity", "bits_per_character", "level", "reason"),
)
"""Columns of the ranking that become attributes of a trial."""


def export(settings: ExportSettings) -> int:
    """Write what is asked for, and print how to open it. UserError: the study does not serve."""
    if settings.optuna is not None and (odd := NOT_IN_A_URL & {*str(settings.optuna.absolute())}):
        rule = f"{str(settings.optuna)!r} has {min(odd)!r} in its path, which the address of a storage cannot have"
        raise invalid("optuna", f"{rule}: name another file or folder")
    study = open_study(settings.study or newest_study(RUNS))
    if settings.nanogpt is not None and not os.path.isfile(settings.nanogpt / "sample.py"):
        rule = f"'{settings.nanogpt}' has no sample.py: name a clone of https://github.com/karpathy/nanoGPT"
        raise invalid("nanogpt", rule)
    if settings.optuna is not None:
        print(export_optuna(study, settings.optuna))
    if settings.nanogpt is not None:
        print(export_nanogpt(study, settings.nanogpt))
    return 0


def export_nanogpt(study: Study, clone: Path) -> str:
    """Write the winner of nanogpt for upstream's sample.py; return the command for it. UserError: there is no
    winner."""
    from model.inference import write_upstream  # this imports PyTorch

    kept = study.read(
        f"SELECT * FROM ({ranking_query()}) WHERE family = 'nanogpt' AND checkpoint IS NOT NULL", study.until
    )
    if kept.empty:
        raise UserError(f"study: {str(study.folder)!r} has no winner of nanogpt: name one that has a best-nanogpt")
    best = kept.iloc[0]
    steps, loss = int(best["steps"]), math.log(best["perplexity"])
    return write_upstream(study.folder / "best-nanogpt", clone, study.name, steps=steps, loss=loss)


def export_optuna(study: Study, file: Path) -> str:
    """Write a new SQLite file with an Optuna study for each family, whose values compare; return what opens it.

    UserError: the file exists already, or cannot be written.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    measure = study.measure
    direction = StudyDirection.MINIMIZE if measure.low_first else StudyDirection.MAXIMIZE
    attributes = {"value": measure.label, "cap_seconds": float(study.facts["cap_seconds"]), "device": study.device}
    found = optuna_trials(study)
    try:
        with file.open("xb"):  # not through a link, and not over an existing file
            pass
        try:
            url = f"sqlite:///{file.absolute()}"
            kept = optuna.storages.RDBStorage(url)
            for family, trials in found.items():
                made = optuna.create_study(storage=kept, study_name=f"{study.name} {family}", direction=direction)
                for name, value in attributes.items():
                    made.set_user_attr(name, value)
                made.add_trials(trials)
            kept.engine.dispose()
        except BaseException:  # an interrupt too: the file is ours, and incomplete
            file.unlink(missing_ok=True)
            raise
    except (OSError, SQLAlchemyError, StorageInternalError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        why = cause.strerror if isinstance(cause, OSError) else str(getattr(cause, "orig", None) or cause)
        remedy = "name a new file in a folder that you may write"
        raise UserError(f"--optuna: {str(file)!r} cannot be written ({why}): {remedy}") from None
    return f"{file}: optuna-dashboard {shlex.quote(url)}"


def optuna_trials(study: Study) -> dict[str, list[FrozenTrial]]:
    """Return the trials of each family as Optuna's, in the order in which they began.

    A trial after its decay is complete, a failed one failed, and one that waits or was stopped is pruned. Values are
    the perplexities of the furthest level that a trial completed, intermediate values those of its reports, by steps.
    For a user's loop values are the best metric, and all trials with a place compare, so they are complete.
    """
    rows = study.read(f"SELECT * FROM ({ranking_query()}) ORDER BY created, trial", study.until)
    rows["config"] = rows["config"].map(json.loads)
    reports = study.read(
        """SELECT trial, steps, at, perplexity AS value, numbers FROM reports
           WHERE (perplexity < 9e999 OR numbers IS NOT NULL) AND steps IS NOT NULL ORDER BY report"""
    )
    rows["value"] = rows["perplexity"].astype(float)
    if metric := study.measure.metric:
        rows["value"] = rows["loss"].astype(float).map(metric.to_reported)
        reports["value"] = [json.loads(numbers).get(metric.name) for numbers in reports["numbers"]]
        reports = reports.dropna(subset="value")
    looks = {str(trial): group for trial, group in reports.groupby("trial")}
    return {
        str(family): [
            frozen(study, number, row, looks.get(row["trial"], reports.head(0)), space)
            for number, row in enumerate(group.to_dict("records"))
        ]
        for family, group in rows.groupby("family", sort=False)
        for space in [distributions(group["config"])]
    }


def frozen(
    study: Study, number: int, row: Mapping[Any, Any], looks: pd.DataFrame, space: Mapping[str, BaseDistribution]
) -> FrozenTrial:
    """Return Optuna's form of a trial, from its row of the ranking and its reports."""
    config, state = row["config"], state_of(row)
    began = float(study.facts.get("created") or 0.0)
    ended = float(looks["at"].max()) if len(looks) else float(row["created"])
    value = None if pd.isna(row["value"]) else float(row["value"])
    attributes = {name: row[name] for name in EXPORTED_COLUMNS if not pd.isna(row[name])}
    return FrozenTrial(
        number=number, trial_id=number, state=state, params=config,
        intermediate_values=dict(zip(looks["steps"].astype(int), looks["value"].astype(float), strict=True)),
        distributions={name: space[name] for name in config}, system_attrs={},
        value=None if state == TrialState.FAIL else value, values=None,
        user_attrs={"trial": row["trial"], "config": label(config), **attributes},
        datetime_start=datetime.fromtimestamp(began + row["created"]),  # local time without a zone, as Optuna keeps it
        datetime_complete=datetime.fromtimestamp(began + ended) if state.is_finished() else None,
    )  # fmt: skip


def state_of(row: Mapping[Any, Any]) -> TrialState:
    if row["section"] == "failed":
        return TrialState.FAIL
    if row["state"] == "running":
        return TrialState.RUNNING
    counts = row["section"] == "decayed" or (row["own"] and row["section"] == "rung")
    return TrialState.COMPLETE if counts else TrialState.PRUNED


def distributions(configs: pd.Series) -> dict[str, BaseDistribution]:
    """Return each dimension's range of the values tried; for words and mixed types, the values themselves."""
    names = dict.fromkeys(chain.from_iterable(configs))
    return {name: distribution([config[name] for config in configs if name in config]) for name in names}


def distribution(values: list[Any]) -> BaseDistribution:
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        low, high = min(values), max(values)
        log = low > 0 and high >= LOG_FROM * low
        return IntDistribution(low, high, log=log) if kinds == {int} else FloatDistribution(low, high, log=log)
    return CategoricalDistribution(list({repr(value): value for value in sorted(values, key=repr)}.values()))
