"""A study's journal is a table."""

import json
import sqlite3
from pathlib import Path

import pytest

from tune.cli import main
from tune.curves.asked import ReplaySettings
from tune.curves.recorded import evenly, load
from tune.store.journal import SCHEMA

REPORT = "INSERT INTO reports (trial, at, training_seconds, valid_loss, memory_bytes) VALUES (?, 0, ?, ?, ?)"
MEASURED = [(4.0, 4.5), (8.0, 4.0), (16.0, 3.0)]


def journal(path: Path, trials: dict[str, tuple[str, str, str | None]]) -> Path:
    """A study's journal: each trial's family, state and reason; all but the unmeasured have the same losses."""
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.executescript(SCHEMA)
        for trial, (family, state, reason) in trials.items():
            trial_row = (trial, family, '{"d_model": 64}', 1000, state, reason, 0.0)
            connection.execute("INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?)", trial_row)
            for seconds, loss in MEASURED if trial != "unmeasured" else ():
                connection.execute(REPORT, (trial, seconds, loss, 1000 * seconds))
    return path


def test_a_journal_is_a_table_for_each_family(tmp_path):
    families = {"t001": "nanogpt", "t002": "nanogpt", "t003": "translation", "unmeasured": "translation"}
    trials = {trial: (family, "paused", None) for trial, family in families.items()}
    tables = load(journal(tmp_path / "a #study?" / "journal.db", trials))
    sizes = [(table.name, len(table.curves)) for table in tables]
    assert sizes == [("a #study?-nanogpt", 2), ("a #study?-translation", 1)]
    curve = tables[0].curves[0]
    assert [curve.losses[report - 1] for report in (1, 2, 4)] == pytest.approx([4.5, 4.0, 3.0])
    assert curve.seconds == pytest.approx(16.0) and curve.memory_bytes == 16000


def test_a_replay_says_which_share_of_the_trials_could_have_gone_on(tmp_path, capsys):
    whole = {"t001": ("nanogpt", "finished", "decayed"), "t002": ("nanogpt", "stopped", "diverged")}
    cut_short = {"t003": ("nanogpt", "paused", "rung 0"), "t004": ("nanogpt", "stopped", "price")}
    unmeasured = {"unmeasured": ("nanogpt", "paused", None)}
    flags = ["--budget", "50%", "--seeds", "1", "--schedulers", "ration", "--json"]
    for name, trials, share in (("whole", whole, None), ("mixed", whole | cut_short | unmeasured, "2 of 4 trials")):
        path = journal(tmp_path / name / "journal.db", trials)
        assert main(ReplaySettings, [str(path), *flags]) == 0
        out, error = capsys.readouterr()
        assert json.loads(out) and error.count("\n") == (share is not None) and (share or "") in error


def test_between_two_measurements_equal_ratios_of_time_are_equal_falls():
    losses = evenly([(1.0, 6.0), (64.0, 0.0)], 1.0)
    assert [losses[seconds - 1] for seconds in (1, 2, 4, 8, 16, 32, 64)] == pytest.approx([6, 5, 4, 3, 2, 1, 0])
