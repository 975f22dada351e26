"""The one ranking: like with like, and the same answer wherever it is asked."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from analysis.plots.search import curves
from analysis.ranking import ranking as ranked_by_analysis
from analysis.ranking import winner as won_by_analysis
from analysis.study import Results, open_study
from tests.analysis.conftest import Written
from tests.tune.display.conftest import Sampled, read, watched
from tests.tune.search.world import World
from tune.display.panel import read_study_view
from tune.display.standings import ranking_table
from tune.own_space import LOOP
from tune.ranking import ranking as returned
from tune.reports import Evaluation
from tune.store.journal import UPGRADES, connect
from tune.store.queries import (
    LEVELS,
    TRAINED_TRIALS_QUERY,
    best_so_far,
    lasting_reports_query,
    level_text,
    measured_text,
    ranking,
)
from tune.winners import last_lines, winners

FAMILIES = ("translation", "nanogpt")


@pytest.fixture
def study(tmp_path: Path) -> Written:
    return Written(tmp_path / "study")


def decayed(study: Written, trial: str, subset: float, whole: float | None, family: str = "nanogpt") -> None:
    """A trial after its decay, by its perplexities."""
    study.trial(trial, family=family)
    on_whole = {} if whole is None else {"whole_loss": math.log(whole), "whole_perplexity": whole}
    columns = {"final": 1, "valid_loss": math.log(subset), "valid_subset": 4096, "checkpoint": trial}
    study.report(trial, subset, rung=None, bits_per_character=1.0, whole_bits_per_character=1.5, **columns, **on_whole)


MEASURES = {"loss": math.log, "perplexity": float}


@pytest.mark.parametrize(
    ("whole", "found", "measured"),
    [
        (5.5, [("t2", 5.5, None), ("t1", 6.0, None)], "on the whole validation split"),
        (None, [("t1", 4.0, 4096), ("t2", 5.0, 4096)], "on 4,096 validation tokens"),
    ],
)
def test_where_all_were_measured_on_the_whole_split_that_counts_else_the_subset_for_all(
    study: Written, whole: float | None, found: list[tuple[str, float, int | None]], measured: str
) -> None:
    """Else the one without it would win by being measured on less."""
    decayed(study, "t1", subset=4.0, whole=6.0)
    decayed(study, "t2", subset=5.0, whole=whole)
    rows = ranking(study.journal)
    assert [(row["trial"], row["perplexity"], row["subset"]) for row in rows] == found
    assert {measured_text(row) for row in rows} == {winners(study.journal)["nanogpt"].measured} == {measured}


BROKE = pytest.mark.parametrize(
    "reason", ["diverged", "memory: ran out of it in the evaluation at its end", "error: mine"]
)


@BROKE
def test_a_trial_that_broke_is_no_winner_however_good_it_was_before(study: Written, reason: str) -> None:
    for trial, perplexity in (("t1", 3.0), ("t2", 5.0)):
        study.trial(trial, **({"state": "stopped", "reason": reason} if trial == "t1" else {}))
        study.report(trial, perplexity, rung=0, valid_loss=math.log(perplexity), checkpoint=trial)
    assert [(row["trial"], row["section"]) for row in ranking(study.journal)] == [("t2", "rung"), ("t1", "failed")]
    assert best_so_far(study.journal)["nanogpt"]["trial"] == "t2"


@BROKE
def test_what_a_trial_came_to_by_a_decay_stands_where_it_broke_as_it_went_on(study: Written, reason: str) -> None:
    """Under a larger cap: its weights from then are kept."""
    for trial, perplexity in (("t1", 3.0), ("t2", 5.0)):
        decayed(study, trial, subset=perplexity, whole=perplexity)
    state = "failed" if reason.startswith("error") else "stopped"
    study.journal.update("trials", "t1", {"state": state, "reason": reason})
    rows = ranking(study.journal)
    assert [(row["trial"], row["section"]) for row in rows] == [("t1", "decayed"), ("t2", "decayed")]
    assert best_so_far(study.journal)["nanogpt"]["trial"] == winners(study.journal)["nanogpt"].trial == "t1"


def test_what_another_family_was_measured_on_changes_nothing(study: Written) -> None:
    decayed(study, "t1", subset=4.0, whole=6.0)
    decayed(study, "t2", subset=5.0, whole=5.5)
    alone = [dict(row) for row in ranking(study.journal)]
    decayed(study, "t3", subset=3.0, whole=None, family="translation")
    assert [dict(row) for row in ranking(study.journal) if row["family"] == "nanogpt"] == alone


@pytest.mark.parametrize(("ended", "charged"), [("stopped", 9.0), ("lease", 9.0), (None, 9.0), (None, None)])
def test_of_a_loop_that_is_cut_short_what_it_reported_by_then_counts(
    study: Written, ended: str | None, charged: float | None
) -> None:
    """Also where it failed or was killed on its way, but not what a lease that goes on has reported so far."""
    study.slot()
    for trial, loss in (("t1", 0.7), ("t2", 0.5)):
        study.trial(trial, family=LOOP)
        study.report(trial, None, valid_loss=loss, numbers='{"loss": 1}', ended="rung", steps=10)
    lease = study.lease("t1", 0, rung=1, price=9.0, opened=0.0, charged=charged)
    for loss, steps, told in ((0.2, 12, None), (0.1, 15, ended)):
        study.report(
            "t1", None, rung=None, valid_loss=loss, numbers='{"loss": 1}', ended=told, steps=steps, lease=lease
        )
    if ended is None and charged:
        study.journal.update("trials", "t1", {"state": "failed", "reason": "error: mine"})
    assert connect(study.folder).execute(f"SELECT COUNT(*) FROM ({LEVELS})", (math.inf,)).fetchone()[0] == 2
    (first, other) = ranking(study.journal)
    told = (first["trial"], first["loss"], first["steps"], level_text(first), first["section"])
    assert told == (("t1", 0.1, 15, "at rung 0", "rung") if charged else ("t2", 0.5, 10, "at rung 0", "rung"))
    assert best_so_far(study.journal)[LOOP]["trial"] == first["trial"] != other["trial"]


@pytest.mark.parametrize("ended", ["lease", None])
@pytest.mark.parametrize(("state", "reason"), [("failed", "error: mine"), ("paused", "killed")])
def test_a_loop_that_begins_anew_on_a_lease_keeps_the_best_that_it_had(
    study: Written, ended: str | None, state: str, reason: str
) -> None:
    """As one that never saves does."""
    study.slot()
    study.trial("t1", family=LOOP)
    for rung, loss, told in ((0, 0.3, "rung"), (None, 5.0, ended)):
        lease = study.lease("t1", 0, rung=0, price=9.0, opened=0.0, charged=1.0)
        last = {"valid_loss": loss, "ended": told, "steps": 9, "lease": lease}
        study.report("t1", None, rung=rung, numbers='{"loss": 1}', **last)
    study.journal.update("trials", "t1", {"state": state, "reason": reason})
    assert [row["loss"] for row in ranking(study.journal)] == [0.3]


def test_what_failed_before_its_first_rung_has_no_place(study: Written) -> None:
    study.slot()
    for trial, rung, loss in (("t1", 0, 0.5), ("t2", None, 0.1)):
        study.trial(trial, family=LOOP)
        lease = study.lease(trial, 0, rung=0, price=9.0, opened=0.0, charged=1.0)
        last = {"valid_loss": loss, "ended": None if rung is None else "rung", "steps": 9, "lease": lease}
        study.report(trial, None, rung=rung, numbers='{"loss": 1}', **last)
    assert best_so_far(study.journal)[LOOP]["trial"] == "t2"
    study.journal.update("trials", "t2", {"state": "failed", "reason": "error: mine"})
    assert best_so_far(study.journal)[LOOP]["trial"] == ranking(study.journal)[0]["trial"] == "t1"


def test_of_two_loops_that_are_equally_good_the_one_that_saved_is_first(study: Written) -> None:
    for trial, checkpoint in (("t1", None), ("t2", "checkpoints/t2/step-9")):
        study.trial(trial, family=LOOP)
        study.report(trial, None, valid_loss=0.5, numbers='{"loss": 1}', ended="rung", steps=10, checkpoint=checkpoint)
    assert ranking(study.journal)[0]["trial"] == best_so_far(study.journal)[LOOP]["trial"] == "t2"


def test_what_a_loop_was_cut_short_with_counts_at_the_highest_rung_that_it_had(study: Written) -> None:
    study.slot()
    study.trial("t1", family=LOOP)
    for rung, loss in ((0, 0.9), (1, 0.8), (None, 0.7)):
        ended = "lease" if rung is None else "rung"
        lease = study.lease("t1", 0, rung=rung, price=9.0, opened=0.0, charged=9.0)
        study.report("t1", None, rung=rung, valid_loss=loss, numbers='{"loss": 1}', ended=ended, steps=10, lease=lease)
    (row,) = ranking(study.journal)
    assert (row["loss"], level_text(row)) == (0.7, "at rung 1")


def test_a_loop_that_goes_on_after_its_last_lease_stands_where_it_got_to(study: Written) -> None:
    """As under a larger cap: what it says of it is its last report, also where that is no new best."""
    study.trial("t1", family=LOOP)
    for rung, steps, last in ((0, 5, {"ended": "rung"}), (None, 8, {"ended": "final", "final": 1})):
        study.report("t1", None, rung=rung, valid_loss=1 / steps, numbers="{}", steps=steps, **last)
    study.report("t1", None, rung=1, valid_loss=1 / 8, numbers='{"loss": 9}', ended="rung", steps=10)
    (row,) = ranking(study.journal)
    assert (row["loss"], row["steps"], row["numbers"], level_text(row)) == (1 / 8, 10, '{"loss": 9}', "at rung 1")


def test_the_training_loss_of_a_trial_at_its_end_is_that_of_its_last_tenth(study: Written) -> None:
    """Its last one, where a larger cap took it further."""
    study.trial("t1", state="finished")
    study.charge("steps", 1.0, trial="t1")
    for steps, loss in ((50, 0.5), (90, 9.0), (91, 2.0), (100, 1.0)):
        study.report("t1", 4.0, rung=None, steps=steps, train_loss=loss, final=int(steps in (50, 100)), valid_loss=1.4)
    (row,) = study.journal.rows(TRAINED_TRIALS_QUERY)
    assert (row["steps"], row["train_loss"]) == (100, 1.5)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"whole": 4.2, "subset": 4.0}, {"whole": 4.3, "subset": 3.9}),
        ({"whole": 4.2, "subset": 4.0}, {"whole": None, "subset": 3.9}),
        ({"whole": None, "subset": 4.0}, {"whole": None, "subset": 5.0}),
        ({"whole": None, "subset": 6.0, "averaged": 4.0}, {"whole": None, "subset": 5.0, "averaged": 5.5}),
    ],
)
def test_of_several_decays_of_one_trial_the_best_is_kept(
    study: Written, better: dict[str, float], worse: dict[str, float], order: int
) -> None:
    """As of one that went on under a larger cap, from before its first."""
    study.trial("t1")
    for name, each in [("better", better), ("worse", worse)][::order]:
        told = {split: each.get(split) for split in ("whole", "averaged")}
        columns = {
            f"{split}_{what}": value and of(value) for split, value in told.items() for what, of in MEASURES.items()
        }
        subset = {"valid_loss": math.log(each["subset"]), "checkpoint": name}
        study.report("t1", each["subset"], rung=None, final=1, ended="final", **subset, **columns)
    assert [row["checkpoint"] for row in ranking(study.journal)] == ["better"]
    assert winners(study.journal)["nanogpt"].checkpoint.name == "better"


def test_what_turned_and_was_not_measured_says_nothing_of_how_others_are(study: Written) -> None:
    decayed(study, "t1", subset=4.0, whole=6.0)
    decayed(study, "t2", subset=5.0, whole=5.5)
    study.trial("t3")
    study.report("t3", 3.0, rung=None, final=1, ended="turned", valid_loss=math.log(3.0), valid_subset=4096)
    assert [(row["trial"], row["perplexity"], row["on_whole"]) for row in ranking(study.journal)] == [
        ("t2", 5.5, 1), ("t1", 6.0, 1), ("t3", 3.0, 0)]  # fmt: skip


@pytest.mark.parametrize("shift", [0.0, -2_000.0, 6_000.0])
def test_the_order_of_trials_does_not_hang_on_where_zero_is(study: Written, shift: float) -> None:
    """Also of losses whose perplexity is no number any more, as nats of an image."""
    for trial, loss in (("t1", 3.0), ("t2", 1.0), ("t3", 2.0)):
        study.trial(trial)
        found = Evaluation(loss=loss + shift)
        study.report(trial, found.perplexity, rung=0, valid_loss=found.loss, checkpoint=trial)
    assert [row["trial"] for row in ranking(study.journal)] == ["t2", "t3", "t1"]
    assert winners(study.journal)["nanogpt"].trial == best_so_far(study.journal)["nanogpt"]["trial"] == "t2"


def test_a_trial_is_as_good_as_the_better_of_its_weights_and_their_average(study: Written) -> None:
    for trial, subset, averaged in (("t1", 4.0, 5.0), ("t2", 6.0, 3.0), ("t3", 3.5, None)):
        study.trial(trial)
        of_average = {"averaged_loss": averaged and math.log(averaged), "averaged_perplexity": averaged}
        columns = {"valid_loss": math.log(subset), "checkpoint": trial, **of_average}
        study.report(trial, subset, rung=0, bits_per_character=1.0, averaged_bits_per_character=0.9, **columns)
    rows = ranking(study.journal)
    assert [(row["trial"], row["perplexity"], row["averaged"]) for row in rows] == [
        ("t2", 3.0, 1), ("t3", 3.5, 0), ("t1", 4.0, 0)]  # fmt: skip
    assert winners(study.journal)["nanogpt"].averaged and rows[0]["bits_per_character"] == 0.9


@pytest.mark.parametrize(("whole", "first"), [(None, "t1"), (5.0, "t2")])
def test_a_training_anew_has_a_place_only_with_what_all_others_were_measured_on(
    study: Written, whole: float | None, first: str
) -> None:
    decayed(study, "t1", subset=4.0, whole=6.0)
    decayed(study, "t2", subset=3.0, whole=whole)
    study.journal.insert("decisions", {"at": 0.0, "trial": "t2", "action": "confirm", "reason": "anew"})
    assert best_so_far(study.journal)["nanogpt"]["trial"] == first
    assert {row["trial"]: row["perplexity"] for row in ranking(study.journal)}["t1"] == 6.0


def test_a_training_anew_has_no_place_before_another_trial_had_its_decay(study: Written) -> None:
    """It is short: the leader, whose last segment comes after it or was cut short, is better."""
    study.trial("t1")
    study.report("t1", 11.0, rung=1, valid_loss=math.log(11.0))
    decayed(study, "t2", subset=16.0, whole=16.5)
    study.journal.insert("decisions", {"at": 0.0, "trial": "t2", "action": "confirm", "reason": "anew"})
    assert best_so_far(study.journal)["nanogpt"]["trial"] == ranking(study.journal)[0]["trial"] == "t1"
    study.report("t1", 5.0, rung=None, final=1, valid_loss=1.6, whole_perplexity=5.1, whole_loss=1.63)
    assert [row["trial"] for row in ranking(study.journal)] == ["t1", "t2"]
    assert {row["trial"]: row["final"] for row in ranking(study.journal)} == {"t1": 1, "t2": 1}


def test_two_subsets_are_two_levels(study: Written) -> None:
    """As of a search that went on with another subset: none of the one is ranked among those of the other."""
    for trial, perplexity, subset in (("t1", 5.0, 4096), ("t2", 2.0, 2048), ("t3", 4.0, 4096), ("t4", 3.0, 2048)):
        study.trial(trial, parameters=1000)
        study.report(trial, perplexity, valid_loss=math.log(perplexity), valid_subset=subset)
    assert [row["trial"] for row in ranking(study.journal)] == ["t3", "t1", "t2", "t4"]
    found = ranked_by_analysis(Results(studies=[open_study(study.folder)]), by="perplexity")
    assert found["trial"].tolist() == ["t3", "t1", "t2", "t4"] and found["place"].tolist() == [1, 2, 1, 2]


def test_who_waits_after_its_process_died_keeps_its_place(study: Written) -> None:
    for trial, state in (("t1", "paused"), ("t2", "failed")):
        study.trial(trial, state=state, reason="error: its process is gone")
        study.report(trial, 5.0)
    assert [row["section"] for row in ranking(study.journal)] == ["rung", "failed"]


@pytest.mark.parametrize("reports", [9, 100_000])
def test_all_that_show_a_best_show_the_first_of_the_ranking(tmp_path: Path, reports: int) -> None:
    """Of a search that is under way or over, with trials that diverge."""
    world, board = watched(tmp_path, cap=900)
    world.diverging = {1: 3.0, 5: 6.0}
    world.run(reports)
    board.on_close(world.engine)
    results = Results(studies=[open_study(tmp_path)])
    theirs, frame = ranked_by_analysis(results), returned(tmp_path)
    firsts = {row["family"]: row for row in reversed(ranking(world.journal)) if row["level"] is not None}
    assert {name: row["trial"] for name, row in best_so_far(world.journal).items()} == {
        name: row["trial"] for name, row in firsts.items()}  # fmt: skip
    view = read_study_view(connect(tmp_path), FAMILIES, cap=900, now=world.now)
    ledger = read(tmp_path / "tensorboard" / "ledger")
    assert firsts
    for name, row in firsts.items():
        pool = theirs[theirs["family"] == name]
        found, shown = won_by_analysis(results, pool), view.families[name].best
        assert found is not None and shown is not None
        first = frame[frame["family"] == name].iloc[0]
        told = {(each["trial"], each["perplexity"]) for each in (row, first, found)}
        assert told == {(row["trial"], row["perplexity"])}
        assert (shown.trial, shown.found) == (row["trial"], f"perplexity {row['perplexity']:.4g}")
        winner = winners(world.journal)[name]
        assert (winner.trial, winner.perplexity) == (row["trial"], row["perplexity"])
        line = next(last_lines(world.journal, {name: winner}, {}, [name]))
        assert f"best {row['trial']} " in line and f"perplexity {row['perplexity']:.4g} {measured_text(row)} (" in line
        assert subset_loss(ledger, name) == pytest.approx(best_so_far(world.journal)[name]["subset_loss"])


def test_tensorboard_knows_when_what_led_has_failed_and_when_it_is_to_go_on(tmp_path: Path) -> None:
    world, _ = watched(tmp_path, cap=900)
    world.run(30)
    before = best_so_far(world.journal)
    paused = {row["trial"] for row in world.rows("SELECT trial FROM trials WHERE state = 'paused'")}
    led = {family: row["trial"] for family, row in before.items() if row["trial"] in paused}
    assert led
    for trial in led.values():
        world.engine.end(trial, "error: mine")
    after, ledger = best_so_far(world.journal), read(tmp_path / "tensorboard" / "ledger")
    for family, trial in led.items():
        assert after[family]["trial"] != trial
        assert subset_loss(ledger, family) == pytest.approx(after[family]["subset_loss"])
    for trial in led.values():
        world.engine.retry(trial, "error: mine")
    ledger = read(tmp_path / "tensorboard" / "ledger")
    for family in led:
        assert subset_loss(ledger, family) == pytest.approx(before[family]["subset_loss"])


def subset_loss(ledger: EventAccumulator, family: str) -> float:
    """What TensorBoard has last as the loss of the best so far."""
    return float(ledger.Scalars(f"2 best so far/{family}")[-1].value)


def test_of_a_search_that_is_over_the_table_has_the_rankings_order_and_a_curve_ends_on_what_it_began_with(
    tmp_path: Path,
) -> None:
    """The whole split is harder than its subset there, and each loss falls from report to report."""
    world = World(tmp_path, cap=900, slots=2, suggestions=Sampled).run()
    results = Results(studies=[open_study(tmp_path)])
    assert world.total("SELECT COUNT(*) FROM reports WHERE whole_loss > valid_loss") > 0
    for name in FAMILIES:
        rows = [row for row in ranking(world.journal, by="perplexity-per-parameter") if row["family"] == name]
        theirs = ranked_by_analysis(results, by="perplexity-per-parameter")
        theirs = theirs[(theirs["family"] == name) & theirs["place"].notna()]
        shown = [line.split(" | ")[2] for line in ranking_table(rows, tmp_path).split("\n\n")[0].splitlines()[2:]]
        assert shown == theirs["trial"].tolist()[: len(shown)] and shown
        for _, line in curves(results, name).data.groupby("trial"):
            assert line["perplexity"].is_monotonic_decreasing


@pytest.mark.parametrize("reports", [14, 100_000])
def test_what_a_search_returns_is_the_analysis_ranking_of_it_with_every_trial_and_its_price(
    tmp_path: Path, reports: int
) -> None:
    """Of trials that diverged, whose processes died, and that have no rung yet when it is looked at."""
    world = World(tmp_path, cap=900, slots=3, seed=1, suggestions=Sampled)
    world.diverging, world.dying = {2: 0.0, 5: 6.0}, {"t004": 2}
    world.run(reports)
    found = returned(tmp_path)
    rows = {row["trial"]: row for row in found.to_dict("records")}
    assert len(rows) == len(found) == world.total("SELECT COUNT(*) FROM trials")
    for trial in world.rows("SELECT * FROM trials"):
        config = json.loads(trial["config"])
        assert {name: rows[trial["trial"]][name] for name in config} == config
        paid = world.total(f"SELECT TOTAL(seconds) FROM charges WHERE trial = '{trial['trial']}'")
        assert rows[trial["trial"]]["device_seconds"] == pytest.approx(paid, nan_ok=True) or paid == 0
    theirs = ranked_by_analysis(Results(studies=[open_study(tmp_path)]), by="perplexity")
    assert {"failed", "decayed" if world.engine.is_done else "rung"} <= set(found["section"])
    for name, family in found.groupby("family"):
        other = theirs[theirs["family"] == name][list(found)].astype(dict(found.dtypes))
        pd.testing.assert_frame_equal(family.reset_index(drop=True), other.reset_index(drop=True))


def test_who_came_further_stands_before_who_is_better_below(study: Written) -> None:
    for trial, rung, perplexity in (("t001", 0, 3.0), ("t002", 1, 4.0), ("t003", 0, 2.0)):
        study.trial(trial)
        study.report(trial, perplexity, valid_loss=math.log(perplexity), rung=rung)
    study.report("t001", 5.0, valid_loss=math.log(5.0), rung=None, final=1)
    table = returned(study.folder)
    assert table["trial"].tolist() == ["t001", "t002", "t003"]
    assert table["rung"].tolist() == [0, 1, 0], "after its decay the highest before it"


def test_of_reports_that_were_made_again_after_a_kill_the_last_ones_last(study: Written) -> None:
    study.trial("t1")
    for steps in (1, 2, 3, 2, 3, 4):
        study.report("t1", 4.0, rung=None, steps=steps)
    rows = study.journal.rows(f"SELECT report, steps FROM ({lasting_reports_query()}) ORDER BY report")
    assert [tuple(row) for row in rows] == [(1, 1), (4, 2), (5, 3), (6, 4)]


def test_a_journal_of_before_is_ranked_and_does_not_say_on_what(study: Written) -> None:
    """What it lacks is read as unknown; it is not written to."""
    for trial, perplexity in (("t1", 5.0), ("t2", 4.0)):
        study.trial(trial)
        study.report(trial, perplexity, valid_loss=math.log(perplexity))
    columns = [words[5] for words in map(str.split, UPGRADES) if words[:3] == ["ALTER", "TABLE", "reports"]]
    assert {"valid_subset", "whole_perplexity"} <= set(columns)
    for column in columns:
        study.journal.rows(f"ALTER TABLE reports DROP COLUMN {column}")
    rows = ranking(connect(study.folder))
    assert [row["trial"] for row in rows] == ["t2", "t1"] and {measured_text(row) for row in rows} == {""}
    assert returned(study.folder)["trial"].tolist() == ["t2", "t1"]
    kept = {row["name"] for row in study.journal.rows("PRAGMA main.table_info(reports)")}
    assert not kept & set(columns)
