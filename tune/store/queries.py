"""The one ranking of a study's trials, which all that show a ranking read from its journal by these queries.

Only like is compared with like. A trial is ranked by the furthest level that it completed: its decay, else its highest
rung. Its loss there is that on the fixed validation subset (whose size an earlier version's journal does not tell), or,
after the decay, on the whole split, where all decayed trials of its family were measured on that; by the weights that
are kept, which are their average where that is better. A trial that turned when no time was left to measure it so
stands behind those that were. What failed has no place, unless it had its decay before, as under a smaller cap. A
user's loop is ranked by its best metric of what it completed, however it ended.
"""

import json
import math
import sqlite3
from collections.abc import Iterable
from typing import Literal

from tune.reports import Row
from tune.store.journal import Fact, Journal

DECAY, END = "decay", "end"
"""Names of the last levels: after a decay, and of a user's loop that came to its end."""
SECTIONS = ("decayed", "rung", "unranked", "failed")
"""Sections of the ranking in this order: after their decay, waiting or stopped at a rung, without a rung yet, broken.
"""
FAILED = """((state = 'failed' OR (state = 'stopped' AND reason IS NOT NULL AND (
    reason LIKE 'diverged%' OR reason LIKE 'memory%' OR reason LIKE 'error%')))
    AND trial NOT IN (SELECT trial FROM reports WHERE final AND numbers IS NULL))"""
"""Condition on a row of trials: it failed before it had a decay, and has no place among the others. One that waits may
yet go on, whatever happened to it. Text may follow the word of a reason."""
VALUES = {
    "perplexity": "loss",
    "perplexity-per-parameter": "IIF(own, loss, perplexity / parameters)",
}
"""SQL for what trials of one level are ranked by, low first; those of a user's loop by its metric. Order by perplexity
is that by loss, which is not cut off where perplexity would be too large for a number."""
ORDER = "IIF(own, 0, final) DESC, IIF(own OR final, 0, rung) DESC, on_whole DESC, subset DESC"
"""SQL order of levels, the furthest first; of two subsets the larger first."""
CHECKPOINT_FIRST_SQL = "checkpoint IS NULL"
"""SQL order of what is equally good: first what a checkpoint was kept of."""
IS_CONFIRM_TRIAL_SQL = "trial IN (SELECT trial FROM decisions WHERE action = 'confirm')"
"""Condition on a trial: it trains the configuration of another one anew. It has a place, but only where it was measured
on the whole split, and another trial of its family had its decay: its training is too short to end a search with."""
DECAYED_FAMILIES_QUERY = f"""
    SELECT ends.family FROM reports JOIN trials AS ends USING (trial) WHERE final AND at <= ?1
        AND NOT ({IS_CONFIRM_TRIAL_SQL})"""
"""Query of the families of which a trial, none of those, had its decay until a moment (?1)."""
REACHED_RUNG_SQL = """IFNULL(rung, (SELECT IFNULL(MAX(earlier.rung), 0) FROM reports AS earlier
                             WHERE earlier.trial = reports.trial AND earlier.report < reports.report))"""
"""SQL for the rung of a report that counts; where it completes none, the highest that its trial had completed."""
LAST_LOOP_REPORTS_QUERY = """
    SELECT MAX(report) FROM reports JOIN leases USING (lease)
    WHERE numbers IS NOT NULL AND closed IS NOT NULL GROUP BY lease"""
"""Query of the last report of a user's loop on each closed lease, however that ended."""
NO_RUNG_YET_SQL = "trial NOT IN (SELECT trial FROM reports WHERE rung IS NOT NULL)"
"""Condition on a trial: it completed no rung. If it failed then, it has no place, not even if it is of a user's loop.
"""
LEVELS = f"""
    WITH completed AS (
        SELECT reports.*, family, parameters, created, IFNULL(averaged_loss < valid_loss, 0) AS averaged,
               numbers IS NOT NULL AS own, {REACHED_RUNG_SQL} AS reached,
               ROW_NUMBER() OVER (
                   PARTITION BY trial, IIF(final, -1, {REACHED_RUNG_SQL})
                   ORDER BY final AND numbers IS NULL AND whole_loss IS NULL,
                            CASE WHEN numbers IS NOT NULL THEN valid_loss
                                 WHEN final THEN IFNULL(whole_loss, MIN(valid_loss, IFNULL(averaged_loss, 9e999)))
                                 ELSE 0 END,
                            report DESC
               ) AS again
        FROM reports JOIN trials USING (trial)
        WHERE (final OR rung IS NOT NULL
               OR (report IN ({LAST_LOOP_REPORTS_QUERY}) AND NOT ({FAILED} AND {NO_RUNG_YET_SQL})))
            AND IIF(numbers IS NULL, perplexity, ABS(valid_loss)) < 9e999 AND at <= ?1
            AND (numbers IS NOT NULL OR NOT {FAILED})
            AND NOT ({IS_CONFIRM_TRIAL_SQL}
                     AND (whole_perplexity IS NULL OR family NOT IN ({DECAYED_FAMILIES_QUERY})))),
    alike AS (
        SELECT *, IIF(averaged, averaged_perplexity, perplexity) AS kept_perplexity,
               final AND whole_perplexity IS NOT NULL AND MIN(
                   whole_perplexity IS NOT NULL OR IFNULL(ended, '') = 'turned') OVER (PARTITION BY family, final)
                   AS on_whole
        FROM completed WHERE again = 1)
    SELECT family, trial, parameters, created, report, at, final,
           IIF(final, MAX(rung) OVER (PARTITION BY trial), reached) AS rung,
           IIF(final, IIF(own, '{END}', '{DECAY}'), 'rung ' || reached) AS level,
           on_whole, IIF(on_whole, NULL, valid_subset) AS subset,
           own, IIF(own, numbers, NULL) AS numbers,
           IIF(on_whole, whole_loss, IIF(averaged, averaged_loss, valid_loss)) AS loss,
           IIF(on_whole, whole_perplexity, kept_perplexity) AS perplexity,
           IIF(on_whole, whole_bits_per_character, IIF(averaged, averaged_bits_per_character, bits_per_character))
               AS bits_per_character,
           IIF(averaged, averaged_loss, valid_loss) AS subset_loss, kept_perplexity AS subset_perplexity,
           test_perplexity, averaged,
           steps, tokens, training_seconds, checkpoint
    FROM alike"""
"""Query of a row for each level that each sound trial completed until a moment (?1), measured like the others there. Of
what was measured twice, as after a kill, it has the later one, but of several decays, as under a larger cap, the one
with the lowest loss, on the whole split if one was measured there. Of a user's loop the best counts, also what it had
when a lease cut it short, or when it failed on its way to a further rung, in place of what it had at the rung before.
rung: after the decay, the highest before it; averaged: whether the average of the weights is kept."""
PLACES_QUERY = f"""
    SELECT *, ROW_NUMBER() OVER (PARTITION BY family
               ORDER BY {ORDER}, {VALUES["perplexity"]}, {CHECKPOINT_FIRST_SQL}, created, trial, report DESC
           ) AS place
    FROM ({LEVELS})"""
"""Query of levels with their place in their family: the first at a moment (?1) is the best so far."""
RANKING = f"""
    SELECT trials.family, trials.trial, config, state, IFNULL(reason, '') AS reason, trials.created,
           trials.parameters, CASE WHEN {FAILED} AND own IS NOT 1 THEN 'failed' WHEN final AND NOT own THEN 'decayed'
           WHEN level IS NOT NULL THEN 'rung' ELSE 'unranked' END AS section,
           final, rung, level, on_whole, subset, averaged, IFNULL(own, 0) AS own, loss, numbers, perplexity,
           perplexity / (trials.parameters / 1e6) AS perplexity_per_million, bits_per_character, test_perplexity,
           report, steps, tokens, training_seconds, checkpoint, IFNULL(paid, 0.0) AS device_seconds, memory_bytes, mfu
    FROM trials
    LEFT JOIN (SELECT *, MIN(place) FROM ({PLACES_QUERY}) GROUP BY trial) AS reached USING (trial)
    LEFT JOIN (SELECT trial, SUM(seconds) AS paid FROM charges GROUP BY trial) USING (trial)
    LEFT JOIN (SELECT trial, MAX(memory_bytes) AS memory_bytes, AVG(mfu) AS mfu FROM reports GROUP BY trial)
        USING (trial)"""
"""Query of a row for each trial, with the furthest level that it had completed at a moment (?1): the one with the
smallest number of a place."""

ENDED_TRIALS_QUERY = f"""
    SELECT trials.trial, trials.family, config, trials.created, trials.parameters, steps, tokens, training_seconds,
           step_seconds, valid_loss, perplexity, bits_per_character, nats_per_word, accuracy, trained_loss,
           trained_accuracy, bleu, chrf, step_bytes, step_allocations, step_ratio, paid AS device_seconds,
           most_bytes AS memory_bytes, mean_mfu AS mfu,
           lowest_loss, 1.0 * lowest_at / steps AS lowest_at,
           (SELECT AVG(train_loss) FROM reports AS late
            WHERE late.trial = trials.trial AND late.steps > .9 * ended.steps) AS train_loss
    FROM trials JOIN (
        SELECT * FROM reports WHERE final OR ended = 'diverged' GROUP BY trial HAVING report = MAX(report)
    ) AS ended USING (trial)
    JOIN (SELECT trial, SUM(seconds) AS paid FROM charges GROUP BY trial) USING (trial)
    JOIN (SELECT trial, MIN(valid_loss) AS lowest_loss, steps AS lowest_at FROM reports GROUP BY trial) USING (trial)
    JOIN (SELECT trial, MAX(memory_bytes) AS most_bytes, AVG(mfu) AS mean_mfu FROM reports GROUP BY trial) USING (trial)
    WHERE NOT {FAILED} OR reason LIKE 'diverged%' ORDER BY trials.created, trials.trial"""
"""Query of a row for each trial that came to its end, or diverged, and then has no valid_loss: what it was after its
last step, and what it took; train_loss: the mean over the last tenth of its steps, with dropout; lowest_loss,
lowest_at: the lowest loss on the validation subset, and after what share of its steps it was."""
TRAINED_TRIALS_QUERY = f"SELECT * FROM ({ENDED_TRIALS_QUERY}) WHERE valid_loss IS NOT NULL ORDER BY created, trial"
"""Query of those of these rows that came to their ends."""

EXPERIMENT_ROWS_QUERY = "SELECT value FROM rows WHERE experiment = ? ORDER BY row"
"""Query of the rows of an experiment, each as JSON."""


LOSS = "MIN({0}.valid_loss, IFNULL({0}.averaged_loss, {0}.valid_loss))"
"""Expression of the validation loss of a row of reports, of its weights or their average; {0}: the table's name."""
OF_BEST = f"""(reports.ended IN ('turned', 'final') AND EXISTS (
    SELECT 1 FROM reports AS earlier WHERE earlier.trial = reports.trial
    AND earlier.training_seconds < reports.training_seconds AND earlier.valid_loss IS NOT NULL
    AND (reports.ended = 'turned'
         OR reports.numbers IS NULL AND {LOSS.format("earlier")} = {LOSS.format("reports")})))"""
"""Condition on a row of reports: it closed a trial that went back to its best weights, so its losses are of its best
and not of its end: the trial had turned, or an earlier look had exactly its loss."""


def lasting_reports_query(measured: str = "TRUE") -> str:
    """Return a query of the reports that are `measured`, without those that a later one of their trial, at no more
    steps, repeats, as after a kill; of several at as many steps it has the last."""
    return f"""
        SELECT * FROM (
            SELECT *, MIN(steps) OVER (
                PARTITION BY trial ORDER BY report ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS later
            FROM reports WHERE {measured})
        WHERE later IS NULL OR steps < later"""


By = Literal["perplexity", "perplexity-per-parameter"]
Reader = Journal | sqlite3.Connection


def _rows(journal: Reader, query: str) -> list[sqlite3.Row]:
    """Return the rows, until now, of a query that asks until when (?1)."""
    return journal.rows(query, math.inf) if isinstance(journal, Journal) else [*journal.execute(query, (math.inf,))]


def ranking_query(by: By = "perplexity") -> str:
    """Return RANKING ordered by family, section and level, in each the lowest first; trials without a place, as they
    began."""
    section = " ".join(f"WHEN '{name}' THEN {number}" for number, name in enumerate(SECTIONS))
    return f"""
        SELECT * FROM ({RANKING})
        ORDER BY family, CASE section {section} END, {ORDER}, {VALUES[by]}, {CHECKPOINT_FIRST_SQL}, created, trial"""


def ranking(journal: Reader, by: By = "perplexity") -> list[sqlite3.Row]:
    """Return the rows of `ranking_query`."""
    return _rows(journal, ranking_query(by))


def best_so_far(journal: Reader) -> dict[str, sqlite3.Row]:
    """Return by family the first row of its ranking, where it has one, as a row of LEVELS with its config."""
    query = f"SELECT reached.*, config FROM ({PLACES_QUERY}) AS reached JOIN trials USING (trial) WHERE place = 1"
    return {row["family"]: row for row in _rows(journal, query)}


def decayed_trials(journal: Reader) -> list[sqlite3.Row]:
    """Return for each sound trial that had its decay the row of LEVELS that says what it came to."""
    return _rows(journal, f"SELECT * FROM ({LEVELS}) WHERE final AND tokens > 0 ORDER BY report")


def last_rows(stored: Iterable[Iterable[str]]) -> dict[str, dict[str, Fact]]:
    """Return the last row of each point of an experiment that has one, by the point's key. stored: rows of
    EXPERIMENT_ROWS_QUERY."""
    rows = (json.loads(value) for (value,) in stored)
    return {row["key"]: row for row in rows}


def level_text(row: Row | sqlite3.Row) -> str:
    """Return "at rung 2", or "after its decay"; for a user's loop that ended, at its own end or with its last lease,
    "when it ended"."""
    if row["final"] and "own" in row.keys() and row["own"]:  # noqa: SIM118 - a sqlite3.Row has its values in it
        return "when it ended"
    return "after its decay" if row["final"] else f"at rung {row['rung']:.0f}"


def measured_text(row: Row | sqlite3.Row) -> str:
    """Return "on the whole validation split", or "on 3,872 validation tokens"; nothing where an earlier version wrote
    neither."""
    if row["on_whole"]:
        return "on the whole validation split"
    known = row["subset"] is not None and row["subset"] == row["subset"]
    return f"on {row['subset']:,.0f} validation tokens" if known else ""
