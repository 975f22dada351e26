"""Recorded curves: files, a study's journal, and what is known of a loss between two reports and after a decay."""

import itertools
import json
import math
import sqlite3
from pathlib import Path

import pytest

from tests.tune.curves.made import table
from tune.cli import main
from tune.curves.recorded import MOST_REPORTS, PUBLISHED, Curve, CurveSuggestions, load_tables, resample_losses
from tune.curves.replay_settings import ReplaySettings
from tune.experiments.curves import SHAPES
from tune.reports import EPOCHS_AS_NEW
from tune.search.forecast import Favour
from tune.store.journal import SCHEMA

REPORT = "INSERT INTO reports (trial, at, training_seconds, valid_loss, memory_bytes) VALUES (?, 0, ?, ?, ?)"
MEASURED = [(4.0, 4.5), (8.0, 4.0), (16.0, 3.0)]


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_published_table_is_whole_and_goes_by_its_name(path: Path) -> None:
    """In own mode, of built-in models; the replay can suggest of it as a search does. An average is measured from twice
    the warm-up on."""
    (table,) = load_tables(Path(path.stem))
    assert table == load_tables(path)[0] and table.is_own_mode and len(table.curves) == len(SHAPES)
    for curve in table.curves:
        assert {curve.family, path.stem.split("-")[0]} == {table.curves[0].family} and curve.tokens_per_step > 0
        assert curve.text_tokens > 0 and curve.warm_up_steps > 0 and min(curve.losses) < curve.losses[0]
        assert 0 < curve.final(curve.max_steps) < curve.losses[0]
        assert len(curve.averaged) == (len(curve.losses) if curve.max_steps >= 2 * curve.warm_up_steps else 0)


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
    tables = load_tables(journal(tmp_path / "a #study?" / "journal.db", trials))
    sizes = [(table.name, len(table.curves)) for table in tables]
    assert sizes == [("a #study?-nanogpt", 2), ("a #study?-translation", 1)]
    curve = tables[0].curves[0]
    assert [curve.losses[report - 1] for report in (1, 2, 4)] == pytest.approx([4.5, 4.0, 3.0])
    assert curve.seconds == pytest.approx(16.0) and curve.memory_bytes == 16000


def test_a_trial_that_reported_once_before_it_trained_is_a_curve_of_a_bounded_size(tmp_path: Path) -> None:
    path = journal(tmp_path / "study" / "journal.db", {"unmeasured": ("loop", "finished", "returned")})
    with sqlite3.connect(path) as connection:
        connection.execute(REPORT, ("unmeasured", 1e-3, 9.0, 0))
        connection.execute(REPORT, ("unmeasured", 3600.0, 2.0, 0))
    ((curve,),) = [table.curves for table in load_tables(path)]
    assert len(curve.losses) == MOST_REPORTS and curve.seconds == pytest.approx(3600.0)
    assert 2.0 < curve.losses[0] < 9.0 and curve.losses[-1] == 2.0


def test_of_what_was_trained_again_after_a_kill_a_curve_has_the_second(tmp_path: Path) -> None:
    """The first was of other seconds, as a machine is never the same."""
    path = journal(tmp_path / "study" / "journal.db", {"t001": ("nanogpt", "finished", "decayed")})
    again = [(10, 4.0, 4.5), (20, 9.0, 9.9), (30, 13.0, 9.9), (20, 8.0, 4.0), (40, 16.0, 3.0)]
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM reports")
        for steps, seconds, loss in again:
            connection.execute(REPORT, ("t001", seconds, loss, 1))
            connection.execute("UPDATE reports SET steps = ? WHERE steps IS NULL", (steps,))
    ((curve,),) = (table.curves for table in load_tables(path))
    assert curve.losses == resample_losses(MEASURED, 4.0)


def test_a_trial_that_diverged_is_a_curve_that_does_after_its_last_loss(tmp_path):
    trials = {"t001": ("nanogpt", "finished", "decayed"), "t002": ("nanogpt", "stopped", "diverged: loss is nan")}
    (table,) = load_tables(journal(tmp_path / "study" / "journal.db", trials))
    sound, broken = table.curves
    assert sound.diverges == math.inf and sound.finite_reports == len(sound.losses)
    assert broken.losses[: broken.finite_reports] == sound.losses, "what it had measured it has"
    assert sound.max_steps < broken.diverges <= broken.max_steps and table.cut_short == 0


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
    losses = resample_losses([(1.0, 6.0), (64.0, 0.0)], 1.0)
    assert [losses[seconds - 1] for seconds in (1, 2, 4, 8, 16, 32, 64)] == pytest.approx([6, 5, 4, 3, 2, 1, 0])


ROW = {"config": {"width": 1}, "parameters": 9, "seconds_per_report": 2.0, "steps_per_report": 100}


def test_a_row_of_a_file_is_a_curve_that_ends_where_its_reports_do_or_are_not_finite(tmp_path: Path) -> None:
    rows = [
        ROW | {"valid_loss": [3, 2, 1], "memory_mb": 5},
        ROW | {"valid_loss": [3, None, 1], "memory_mb": None, "dropout_after": 0},
    ]
    (tmp_path / "made.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (table,) = load_tables(tmp_path / "made.jsonl")
    whole, broken = table.curves
    assert (whole.max_steps, whole.diverges, whole.memory_bytes) == (300, math.inf, 5e6)
    assert (broken.finite_reports, broken.diverges, broken.memory_bytes) == (1, 200, 0)
    assert whole.dropout_after == EPOCHS_AS_NEW and broken.dropout_after == 0
    assert table.exhaustive_seconds == 12 and not table.is_own_mode and not table.cut_short


def test_a_loss_between_two_reports_lies_between_theirs_and_none_is_passed_before_its_report() -> None:
    curve = Curve(config={}, parameters=1, seconds_per_report=1.0, report_every=10.0, losses=(4.0, 2.0, 3.0, 1.0))
    assert (
        [curve.loss(10 * report) for report in (1, 2, 3, 4)]
        == list(curve.losses)
        == pytest.approx([curve.final(10 * report) for report in (1, 2, 3, 4)])
    )
    between = [curve.loss(steps) for steps in range(10, 21)]
    assert all(high > low for high, low in itertools.pairwise(between))
    assert curve.loss(math.sqrt(10 * 20)) == pytest.approx(3.0)
    assert [curve.lowest(steps) for steps in (9, 19, 20, 39, 40)] == [math.inf, 4.0, 2.0, 2.0, 1.0]


def test_in_own_mode_a_last_segment_has_the_decayed_loss_where_one_was_measured(tmp_path: Path) -> None:
    decayed = [None, 2.5, None, 1.5]
    row = ROW | {"valid_loss": [4.0, 3.5, 3.25, 3.0], "decayed_loss": decayed, "decay_share": 0.4}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    (table,) = load_tables(tmp_path / "own.jsonl")
    (curve,) = table.curves
    assert table.is_own_mode and curve.max_steps == 400
    assert [curve.final(steps) for steps in (200, 400)] == pytest.approx([2.5, 1.5])
    assert curve.final(math.sqrt(200 * 400)) == pytest.approx(math.sqrt(2.5 * 1.5))
    assert [curve.final(steps) for steps in (100, 150)] == [curve.loss(steps) for steps in (100, 150)]
    assert [curve.loss(steps) for steps in (200, 400)] == [3.5, 3.0]


def test_in_own_mode_a_report_without_a_loss_lies_between_its_neighbours_and_none_follows_a_divergence(
    tmp_path: Path,
) -> None:
    losses = [4.0, None, 3.0, 2.5, None, None]
    row = ROW | {"valid_loss": losses, "averaged_loss": losses[:4], "decayed_loss": [None, None, 2.0, None, None, None]}
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (row, row | {"decayed_loss": []})))
    (own, other), full = load_tables(tmp_path / "own.jsonl")[0].curves, [4.0, 4 - math.log(2) / math.log(3), 3.0, 2.5]
    assert list(own.losses[:4]) == list(own.averaged) == pytest.approx(full)
    assert (own.finite_reports, own.diverges, own.lowest(600)) == (4, 500, 2.5)
    assert other.finite_reports == 1, "of another schedule it is a loss that was not finite"


@pytest.mark.parametrize(("dropout", "after", "seen"), [(0.0, 4.0, True), (0.1, 4.0, False), (0.1, 0.0, True)])
def test_that_a_loss_rises_as_dropout_begins_is_no_turn(dropout: float, after: float, seen: bool) -> None:
    """With the fifth time that the text is seen; it falls again from the sixth on. Dropout from the first step on does
    not begin there."""
    losses = [3.0 - 0.1 * report for report in range(16)] + [1.9] * 7 + [1.5 - 0.05 * report for report in range(17)]
    risen = Curve(
        config={"dropout": dropout}, parameters=0, seconds_per_report=1.0, losses=tuple(losses), tokens_per_step=1.0,
        text_tokens=4.0, dropout_after=after,
    )  # fmt: skip
    assert math.isfinite(risen.turning_steps) is seen


@pytest.mark.parametrize("suggest", ["order", "prior"])
def test_every_curve_is_handed_out_once_and_once_more_when_it_begins_again(suggest: str) -> None:
    prior = (lambda config: Favour(promise=float(config["depth"]) + 1.0)) if suggest == "prior" else None
    curves = table(20).curves  # each larger than the one before
    supply = CurveSuggestions(curves, seed=1, prior=prior)
    for _ in range(2):
        given = []
        while supply.has_more:
            first = supply.first()
            given.append(supply.suggest(f"t{len(given)}")["curve"])
            assert curves[given[-1]] is first
            supply.tell(f"t{len(given) - 1}", 0, 1.0 / len(given))
        assert sorted(given) == list(range(len(curves)))
        supply.begin_again()
