"""Every trial of some studies, and every measurement of them that may be compared with others."""

import json
from collections.abc import Sequence

import pandas as pd

from analysis import formats
from analysis.studies import Study
from tune.queries import PLACES, in_order

SPACE = ("d_model", "heads", "layers", "dropout", "precision")
TRIAL = ["study", "trial"]
POOL = ["family", "sha256", "vocabulary"]
"""Perplexities compare inside one of these only."""
LEVEL = ["device", "level", "rung_seconds", "on_whole", "subset"]
"""And there inside one of these: as much training, measured on the same."""


def trials(studies: Sequence[Study]) -> pd.DataFrame:
    """One row a trial: study, family, corpus, config (in short) and each of `dimensions`, parameters, state, reason,
    device_seconds, memory_bytes, mfu.

    mfu: the mean over its reports of the share of the device's peak that training took.
    """
    names = dimensions(studies)
    return pd.concat([_trials(study, names) for study in studies], ignore_index=True)


def dimensions(studies: Sequence[Study]) -> list[str]:
    """SPACE, and what else some config of these studies has."""
    configs = (json.loads(config) for study in studies for config in study.read("SELECT config FROM trials")["config"])
    return list(dict.fromkeys([*SPACE, *(name for config in configs for name in config)]))


def _trials(study: Study, names: list[str]) -> pd.DataFrame:
    columns = "trial, family, config, parameters, state, reason, section, device_seconds, memory_bytes, mfu"
    table = study.read(f"SELECT {columns} FROM ({in_order()}) ORDER BY created, trial", study.until)
    points = [json.loads(config) for config in table["config"]]
    table["config"] = [formats.config(point) for point in points]
    table.insert(0, "study", study.name)
    table = table.assign(device=study.device).join(pd.DataFrame(points, index=table.index).reindex(columns=names))
    corpora = {family: study.corpus(family) for family in table["family"].unique()}
    for column, key in (
        ("corpus", "name"),
        ("sha256", "sha256"),
        ("vocabulary", "vocabulary"),
        ("smoke_test", "builtin"),
    ):
        table[column] = table["family"].map({family: facts.get(key) for family, facts in corpora.items()})
    table["reason"] = table["reason"].astype(str)
    table["smoke_test"] = table["smoke_test"].eq(True)
    table["failed"] = table["section"] == "failed"
    numbers = ["parameters", "memory_bytes", "device_seconds", "mfu"]
    table[numbers] = table[numbers].astype(float)
    return table


def measurements(studies: Sequence[Study], everyone: pd.DataFrame) -> pd.DataFrame:
    """One row a sound trial and level: what it had reached when it completed a rung, or after its
    decay (`final`), as tune.queries has it.

    `level` is `rung 2` or DECAY, `rung_seconds` the training seconds of that rung; the columns of `everyone`, their
    trials, are there too.
    """
    found = pd.concat([_measurements(study) for study in studies], ignore_index=True)
    return found.merge(everyone, on=TRIAL)


def _measurements(study: Study) -> pd.DataFrame:
    columns = "trial, family, final, rung, level, on_whole, subset, perplexity, bits_per_character"
    more = "test_perplexity, subset_perplexity, at, place, steps, tokens, training_seconds"
    query = f"SELECT {columns}, {more} FROM ({PLACES}) ORDER BY report"
    table = study.read(query, study.until).astype(
        {"perplexity": float, "rung": float, "subset": float, "final": bool, "on_whole": bool}
    )
    table.insert(0, "study", study.name)
    ladder = {
        (family, rung): study.rung_seconds(family, int(rung))
        for family, rung in table[["family", "rung"]].dropna().drop_duplicates().itertuples(index=False)
    }
    rung = pd.Series(zip(table["family"], table["rung"], strict=True), index=table.index, dtype=object)
    table["rung_seconds"] = rung.map(ladder).astype(float)
    table.loc[table["final"], "rung_seconds"] = float("nan")
    return table.drop(columns="family")
