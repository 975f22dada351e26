"""Every trial of some studies, and every measurement of them that may be compared with others."""

import json
from collections.abc import Sequence

import pandas as pd

from analysis import formats
from analysis.studies import Study

SPACE = ("d_model", "heads", "layers", "dropout", "precision")
TRIAL = ["study", "trial"]
POOL = ["family", "sha256", "vocabulary"]
"""Perplexities compare inside one of these only."""
DECAY = "decay"
BROKEN = r"^(?:diverged|memory|error)\b"
"""Reasons that are no choice of the search; the journal's text may go on after the word."""


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
    mfu = "AVG(mfu)" if study.has("reports", "mfu") else "NULL"
    table = study.read(
        f"""SELECT trials.trial, family, config, parameters, state, reason,
                  COALESCE(paid.device_seconds, 0.0) AS device_seconds, seen.memory_bytes, seen.mfu
           FROM trials
           LEFT JOIN (SELECT trial, SUM(seconds) AS device_seconds FROM charges GROUP BY trial) paid USING (trial)
           LEFT JOIN (SELECT trial, MAX(memory_bytes) AS memory_bytes, {mfu} AS mfu
                      FROM reports GROUP BY trial) seen USING (trial)
           ORDER BY trials.created, trials.trial"""
    )
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
    table["reason"] = table["reason"].astype(object).where(table["reason"].notna(), "").astype(str)
    table["smoke_test"] = table["smoke_test"].eq(True)
    table["failed"] = (table["state"] == "failed") | table["reason"].str.contains(BROKEN)
    numbers = ["parameters", "memory_bytes", "device_seconds", "mfu"]
    table[numbers] = table[numbers].astype(float)
    return table


def measurements(studies: Sequence[Study], everyone: pd.DataFrame) -> pd.DataFrame:
    """One row a trial and level: what it had reached when it completed a rung, or after its decay (`final`).

    `level` is `rung 2` or DECAY, `rung_seconds` the training seconds of that rung; the columns of `everyone`, their
    trials, are there too.
    What was measured twice, as after a kill, counts as last measured.
    """
    found = pd.concat([_measurements(study) for study in studies], ignore_index=True)
    return found.merge(everyone, on=TRIAL)


def _measurements(study: Study) -> pd.DataFrame:
    table = study.read(
        """SELECT trial, family, rung, final, steps, tokens, reports.training_seconds,
                  perplexity, bits_per_character, test_perplexity
           FROM reports JOIN trials USING (trial)
           WHERE (rung IS NOT NULL OR final = 1) AND perplexity < 9e999 AND at <= ? ORDER BY report""",
        study.until,
    ).astype({"perplexity": float, "rung": float, "final": bool})
    table.insert(0, "study", study.name)
    rungs = table[~table["final"]].drop_duplicates(["trial", "rung"], keep="last")
    decayed = table[table["final"]].drop_duplicates("trial", keep="last")
    highest = rungs.groupby("trial")["rung"].max()
    decayed = decayed.assign(rung=decayed["trial"].map(highest).fillna(decayed["rung"]))
    table = pd.concat((rungs, decayed), ignore_index=True)
    table["level"] = table["rung"].map("rung {:.0f}".format).astype(str).where(~table["final"], DECAY)
    ladder = {
        (family, rung): study.rung_seconds(family, int(rung))
        for family, rung in table[["family", "rung"]].dropna().drop_duplicates().itertuples(index=False)
    }
    rung = pd.Series(zip(table["family"], table["rung"], strict=True), index=table.index, dtype=object)
    table["rung_seconds"] = rung.map(ladder).astype(float)
    table.loc[table["final"], "rung_seconds"] = float("nan")
    return table.drop(columns="family")
