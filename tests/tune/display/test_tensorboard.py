"""What TensorBoard's own reader finds in a study's runs, and a real browser on its pages; where trials stand."""

import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PageAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from model.training.evaluation import Score
from tests.analysis.conftest import Written
from tests.forked import FORKING
from tests.readme import of
from tests.searches import comes
from tests.tune.display.browser import Page, browser
from tests.tune.display.conftest import ENDED, check_all_are_complete, hparams_table, killed, read, trial_runs, watched
from tests.tune.search.world import MFU, World, add_trial
from tune.display import standings, tensorboard
from tune.display.standings import draw_front, levels, ranking_table
from tune.display.tensorboard import METRICS, REASONS, EventFile, TensorBoard, TrialRun, hparams_start, scalar
from tune.facts import record_overhead
from tune.reports import Evaluation, Report, journal_row
from tune.search.engine import GIVE_UP
from tune.search_space import DIMENSIONS, VARIABLE_RECIPE_FIELDS, recipe_field_values
from tune.settings import Settings
from tune.store.journal import Journal
from tune.store.queries import ranking
from tune.winners import winners

FRONTS = ["front/nanogpt", "front/translation"]


def text(run: Any, tag: str) -> str:
    return str(run.Tensors(tag)[-1].tensor_proto.string_val[0].decode())


def finished(folder: Path, **about: Any) -> World:
    world, board = watched(folder, **about)
    world.run()
    board.on_close(world.engine)
    return world


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A search that is over."""
    return finished(tmp_path_factory.mktemp("study"), pictures=True)


def test_of_a_trial_that_failed_nothing_later_says_that_it_may_go_on(tmp_path: Path) -> None:
    """That its family is given up on is said of it too."""
    world, board = watched(tmp_path)
    failed = [world.taken().trial for _ in range(2)]
    for trial in failed:
        world.engine.on_error(trial, "error: alike")
    while world.engine.next_assignment() is not None:
        (trial,) = world.engine.running
        world.engine.on_error(trial, "error: alike")
    board.on_close(world.engine)
    assert world.total(f"SELECT COUNT(*) FROM decisions WHERE action = '{GIVE_UP}'")
    for trial, _, run in trial_runs(tmp_path):
        assert read(run).Scalars("7 trial/ended")[-1].value == REASONS["error"], trial


def led(folder: Path) -> list[float]:
    """The losses of the best so far."""
    return [event.value for event in read(folder / "tensorboard" / "ledger").Scalars("2 best so far/nanogpt")]


def test_a_trial_thawed_resumed_and_extended_is_one_curve(tmp_path: Path) -> None:
    """Killed after some reports, gone on with to the cap, and with a larger cap once more; it knows its best."""
    world, _ = watched(tmp_path)
    world.run(reports=9)
    world.journal.close()
    finished(tmp_path).journal.close()
    before = led(tmp_path)
    world, _ = watched(tmp_path, cap=1200)
    world.run(reports=2)
    assert led(tmp_path)[len(before)] == before[-1] < before[0]
    world.run()
    assert world.total("SELECT COUNT(*) FROM reports WHERE final") > 2
    for trial, _, folder in trial_runs(tmp_path):
        run = read(folder)
        for tag in run.Tags()["scalars"]:
            steps = [event.step for event in run.Scalars(tag)]
            assert steps == sorted(steps)
        (last,) = world.journal.rows("SELECT * FROM reports WHERE trial = ? ORDER BY report DESC LIMIT 1", trial)
        shown = run.Scalars("4 valid/loss")
        assert shown[-1].step == last["tokens"] and shown[-1].value == pytest.approx(last["valid_loss"])
        assert len({event.step for event in shown}) == len(shown)


def test_what_was_done_again_is_shown_once(tmp_path: Path) -> None:
    """A process went back to 150 tokens and died, and the trial goes on from its checkpoint at 120. To the page's
    reader the first step back of a run is not like the later ones."""
    journal = Journal(tmp_path, new=True)
    config = {"d_model": 16, "heads": 4, "layers": 2, "dropout": 0.0, "precision": "fp32"}
    add_trial(journal, state="running", config=json.dumps(config), parameters=5)
    for of_one_process, left in (((100, 200, 300, 150), [100, 150]), ((140, 250), [100, 140, 250])):
        run = TrialRun(tmp_path / "run", journal, "t001", hparams_start(config, "nanogpt", config))
        for tokens in of_one_process:
            valid = Evaluation(loss=tokens / 100)
            report = Report(steps=1, tokens=tokens, training_seconds=1.0, parameters=5, valid=valid)
            run.on_report(report, now=1.0)
            journal.insert("reports", journal_row(report) | {"trial": "t001", "at": 1.0})
        on_the_page = PageAccumulator(str(tmp_path / "run")).Reload().Tensors("4 valid/loss")
        assert [event.step for event in on_the_page] == left
    shown = read(tmp_path / "run").Scalars("4 valid/loss")
    assert [event.step for event in shown] == left
    assert [event.value for event in shown] == pytest.approx([1.0, 1.4, 2.5])


def test_both_splits_have_the_loss_and_the_perplexity_of_a_list(tmp_path: Path) -> None:
    journal = Journal(tmp_path, new=True)
    run = TrialRun(tmp_path / "run", journal, "t001", hparams_start({}, "nanogpt", {}))
    splits = {"valid": Evaluation(loss=2.0), "trained": Evaluation(loss=1.0)}
    run.on_report(Report(steps=1, tokens=10, training_seconds=1.0, parameters=5, **splits), now=1.0)
    shown = read(tmp_path / "run")
    for split, tags in (
        ("valid", ("4 valid/loss", "4 valid/perplexity")),
        ("trained", ("5 train/loss without dropout", "5 train/perplexity without dropout")),
    ):
        values = [shown.Scalars(tag)[-1].value for tag in tags]
        assert values == pytest.approx([splits[split].loss, splits[split].perplexity])


def test_hparams_have_the_perplexity_of_the_weights_that_are_kept_and_what_follows_from_it(tmp_path: Path) -> None:
    """As the ranking has it: of the average where that is better, and of the whole split once that was measured."""
    run = TrialRun(tmp_path / "run", Journal(tmp_path, new=True), "t001", hparams_start({}, "nanogpt", {}))
    tags = {head: tag for tag, head in METRICS.items()}
    valid, averaged, whole = (Evaluation(loss=loss, bits_per_character=loss / 2) for loss in (2.0, 1.9, 1.8))
    splits: dict[str, Evaluation] = {}
    for tokens, (split, kept) in enumerate({"valid": valid, "averaged": averaged, "whole": whole}.items(), 1):
        splits[split] = kept
        run.on_report(Report(steps=1, tokens=tokens, training_seconds=1.0, parameters=500_000, **splits), now=1.0)
        shown = read(tmp_path / "run")
        cells = {head: shown.Scalars(tag)[-1].value for head, tag in tags.items() if tag in shown.Tags()["scalars"]}
        assert cells["perplexity"] == pytest.approx(kept.perplexity)
        assert cells["bits per character"] == pytest.approx(kept.bits_per_character)
        assert cells["perplexity per million parameters"] == pytest.approx(2 * kept.perplexity)


def test_a_run_is_named_by_its_config_and_its_tags_are_grouped(over: World) -> None:
    for trial, family, folder in trial_runs(over.journal.folder):
        assert folder.name.startswith(f"{trial} d") and family in ("nanogpt", "translation")
        run = read(folder)
        assert {tag.partition("/")[0] for tag in run.Tags()["scalars"]} == {"4 valid", "5 train", "6 speed", "7 trial"}
        shares = run.Scalars("6 speed/mfu")
        assert shares and all(event.value == pytest.approx(MFU) for event in shares)


def test_a_run_has_a_name_that_a_folder_can_have_whatever_letters_its_config_is_of(tmp_path: Path) -> None:
    world, _ = watched(tmp_path)
    trial = world.taken().trial
    world.engine.trials[trial].config = {"how": "ж" * 80, "what": "€" * 80}
    board = TensorBoard(tmp_path / "other", world.journal, Settings(budget=600), DIMENSIONS)
    board.on_decision(world.engine, trial, "start", "")
    (folder,) = (tmp_path / "other").glob("*/t*")
    assert folder.name.startswith(f"{trial} how=ж")


def test_what_follows_is_read_last_though_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for begun, steps in ((2e9, (0, 1, 2)), (1e9, (3, 4)), (1e9, (5,))):
        monkeypatch.setattr(tensorboard.time, "time", lambda begun=begun: begun)
        file = EventFile(tmp_path)
        for step in steps:
            file.add(scalar("loss", 9.0 - step), step=step)
    assert [event.step for event in read(tmp_path).Scalars("loss")] == [0, 1, 2, 3, 4, 5]


def test_how_a_winner_translates_is_in_its_run(tmp_path: Path) -> None:
    """Of a study too that goes on only to end."""
    world, _ = watched(tmp_path, cap=240)
    world.run()
    world.journal.close()
    again, board = watched(tmp_path, cap=240)
    trial = winners(again.journal)["translation"].trial
    board.translated(again.engine, trial, Score(bleu=12.5, chrf=40.0, sentences=128, signature=""))
    shown = {name: read(folder).Tags()["scalars"] for name, _, folder in trial_runs(tmp_path)}
    assert [name for name, tags in shown.items() if "7 trial/test_bleu" in tags] == [trial]


def test_what_it_takes_of_a_search_is_written_down(tmp_path: Path) -> None:
    """Of all runs of a study; what was taken before the first is none of it."""
    world, board = watched(tmp_path)
    world.run(reports=3)
    before = board.watch.seconds, world.journal.watch.seconds
    for rest in (10_000, 0):
        with record_overhead(world.journal, board):
            world.run(rest)
        taken = world.journal.facts()["overhead"]
        assert taken["tensorboard"] == pytest.approx(board.watch.seconds - before[0])
        assert 0 <= taken["journal"] <= world.journal.watch.seconds - before[1]
        assert max(taken.values()) == taken["search"] > 0


def test_the_run_ledger_ends_as_the_ledger_does(over: World) -> None:
    run, ledger = read(over.journal.folder / "tensorboard" / "ledger"), over.accounting.ledger
    last = {tag: run.Scalars(tag)[-1] for tag in run.Tags()["scalars"]}
    assert last["1 budget/spent"].value == pytest.approx(ledger.spent)
    assert last["1 budget/left"].value == pytest.approx(ledger.left)
    assert last["1 budget/reserved"].value == last["1 budget/running"].value == 0
    assert last["1 budget/spent"].wall_time == pytest.approx(ledger.spent)
    for family in ("nanogpt", "translation"):
        of_family = f"FROM reports JOIN trials USING (trial) WHERE family = '{family}'"
        best, first = f"SELECT MIN(valid_loss) {of_family}", f"SELECT COUNT(DISTINCT trial) {of_family} AND rung = 0"
        assert last[f"2 best so far/{family}"].value == pytest.approx(over.total(best))
        assert last[f"3 rungs/{family} rung 0"].value == over.total(first)


def test_a_winners_run_shows_the_perplexity_that_it_is_ranked_by(over: World) -> None:
    for winner in winners(over.journal).values():
        (folder,) = (folder for name, _, folder in trial_runs(over.journal.folder) if name == winner.trial)
        shown = read(folder).Scalars("4 valid/perplexity on the whole split")[-1].value
        assert shown == pytest.approx(winner.perplexity)


def test_the_layout_names_what_is_there(over: World) -> None:
    run = read(over.journal.folder / "tensorboard" / "ledger")
    layout = Layout.FromString(run.Tensors("custom_scalars__config__")[-1].tensor_proto.string_val[0])
    assert [category.title for category in layout.category] == ["budget", "best so far", "rungs"]
    for category in layout.category:
        for chart in category.chart:
            assert any(re.fullmatch(tag, known) for tag in chart.multiline.tag for known in run.Tags()["scalars"])


def test_settings_ranking_and_fronts_are_there(over: World) -> None:
    run = read(over.journal.folder / "tensorboard" / "ledger")
    assert "| budget | `10m` |" in text(run, "settings")
    for family, front in zip(("nanogpt", "translation"), FRONTS, strict=True):
        assert "| after its decay on the whole validation split | 1 | t" in text(run, f"ranking/{family}")
        pictures = run.Images(front)
        assert len(pictures) > 1 and pictures[-1].encoded_image_string[:4] == b"\x89PNG"


def test_pictures_that_cost_too_much_wait_for_the_end(folder: Path) -> None:
    run = read(folder / "tensorboard" / "ledger")
    assert [len(run.Images(front)) for front in FRONTS] == [1, 1]


def test_each_decision_is_told_with_its_reason(over: World) -> None:
    for trial, _, folder in trial_runs(over.journal.folder):
        told = [event.tensor_proto.string_val[0].decode() for event in read(folder).Tensors("decisions")]
        rows = over.journal.rows("SELECT action, reason FROM decisions WHERE trial = ? ORDER BY decision", trial)
        assert told == [f"**{row['action']}**: {row['reason']}" for row in rows]


def test_after_the_cap_also_of_what_is_freed_of_the_recipe(tmp_path: Path) -> None:
    vary = recipe_field_values(
        VARIABLE_RECIPE_FIELDS, {"learning_rate": 3e-3, "batch_tokens": 768, "weight_decay": 0.1, "context": 64}
    )
    world = finished(tmp_path, vary=vary)
    check_all_are_complete(tmp_path, [*DIMENSIONS, *VARIABLE_RECIPE_FIELDS])
    paid = world.journal.rows("SELECT trial, TOTAL(charged) AS seconds FROM leases GROUP BY trial")
    shown = {run.partition("/")[2].split()[0]: row["device-seconds"] for run, row in hparams_table(tmp_path)[1].items()}
    for trial, seconds in paid:
        assert abs(shown[trial] - seconds) < 1e-3 * seconds


def test_studies_side_by_side_fill_the_columns_that_they_share(tmp_path: Path) -> None:
    """As with `tensorboard --logdir runs`, whatever else one of them varies, and in whatever order."""
    many = {**dict.fromkeys(("own", "other"), (1, 2)), **DIMENSIONS, **dict.fromkeys(VARIABLE_RECIPE_FIELDS, (1, 2))}
    few = {"dropout": (0.0, 0.1), "layers": (2, 4)}
    journal, shown = Journal(tmp_path, new=True), tmp_path / "tensorboard"
    TensorBoard(shown, journal, Settings(budget=60), many)  # TensorBoard has the columns of one study for all
    for study, dimensions in {"many": many, "few": few}.items():
        config = {name: values[-1] for name, values in dimensions.items()}
        TrialRun(shown / study / "t1", journal, "t1", hparams_start(dimensions, study, config))
    _, rows = hparams_table(tmp_path)
    assert rows["few/t1"] == {"family": "few", "dropout": 0.1, "layers": 4}
    assert {"family", *many} <= set(rows["many/t1"])


def test_after_a_sigkill_and_after_going_on(tmp_path: Path) -> None:
    process = FORKING.Process(target=killed, args=(tmp_path,), daemon=True)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    check_all_are_complete(tmp_path)
    finished(tmp_path)
    check_all_are_complete(tmp_path)


def test_after_divergence_out_of_memory_and_the_death_of_its_process(tmp_path: Path) -> None:
    world, _ = watched(tmp_path)
    world.diverging, world.dying = {2: 0.0}, {"t003": 2}
    world.run(reports=12)
    world.engine.end("t001", "memory")
    check_all_are_complete(tmp_path)
    ends = {run.partition("/")[2].split()[0]: row[ENDED] for run, row in hparams_table(tmp_path)[1].items()}
    assert ends["t001"] == REASONS["memory"] and ends["t003"] == REASONS["error"]
    assert REASONS["diverged"] in ends.values()


def test_after_a_lease_in_which_no_step_fitted(tmp_path: Path) -> None:
    """Its report is of as many tokens as the one before, and is told after what was decided for it."""
    world, _ = watched(tmp_path)
    while not (again := [run.assignment.trial for run in world.engine.running.values() if run.steps_before]):
        world.run(reports=1)
    trial = again[0]
    steps = world.engine.trials[trial].steps
    world.engine.on_report(
        trial, Report(steps=steps, tokens=steps, training_seconds=0.0, parameters=1000, ended="lease")
    )
    check_all_are_complete(tmp_path)
    assert REASONS["price"] in {row[ENDED] for row in hparams_table(tmp_path)[1].values()}


BROKEN = {"t003": "diverged", "t004": "error: it died | and again", "t005": "memory"}


@pytest.fixture
def study(tmp_path: Path) -> Written:
    """Two sound trials, one of which spells nothing; one that diverged after the furthest rung of all, and two that
    have no rung."""
    study = Written(tmp_path / "study")
    for trial, perplexity, rung in (("t001", 4.0, 0), ("t002", 3.0, 0), ("t003", 2.0, 1)):
        study.trial(trial, state="stopped" if trial in BROKEN else "paused", reason=BROKEN.get(trial))
        study.report(trial, perplexity, rung=rung, bits_per_character=None if trial == "t001" else 1.0)
    for trial in ("t004", "t005"):
        study.trial(trial, state="stopped", reason=BROKEN[trial])
    return study


def test_the_table_numbers_the_sound_ones_and_ends_with_the_others(study: Written) -> None:
    rows = ranking(study.journal, by="perplexity-per-parameter")
    sound, broken = (part.splitlines()[2:] for part in ranking_table(rows, study.folder).split("\n\n"))
    cells = [line.strip("| ").split(" | ") for line in sound]
    assert [[*row[1:3], row[-2]] for row in cells] == [["1", "t002", "1"], ["2", "t001", "-"]]
    assert [line.split()[1] for line in broken] == list(BROKEN)
    assert draw_front("nanogpt", rows).image.encoded_image_string


@pytest.mark.parametrize("losses", [(800.0, 1.0), (800.0, -800.0), (-800.0, -800.0)])
def test_a_front_is_drawn_though_a_perplexity_is_no_float(tmp_path: Path, losses: tuple[float, float]) -> None:
    study = Written(tmp_path / "study")
    for trial, loss in zip(("t001", "t002"), losses, strict=True):
        study.trial(trial)
        study.report(trial, Evaluation(loss=loss).perplexity, valid_loss=loss)
    assert draw_front("nanogpt", ranking(study.journal, by="perplexity-per-parameter")).image.encoded_image_string


def test_what_shows_the_rows_left_out_is_of_this_study(study: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standings, "TOP", 1)
    text = ranking_table(ranking(study.journal, by="perplexity-per-parameter"), study.folder / "of two words")
    told = [shlex.split(each) for each in re.findall(r"more: `.*rank\.py (.*)`", text)]
    assert told == [[str(study.folder / "of two words"), "--top", "0"]] * 2


def test_a_family_of_which_nothing_is_sound_has_a_table_all_the_same(tmp_path: Path) -> None:
    study = Written(tmp_path / "study")
    study.trial("t001", state="stopped", reason="diverged")
    study.report("t001", 3.0)
    rows = ranking(study.journal)
    assert levels(rows) == {} and ranking_table(rows, study.folder).endswith("| diverged |")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (study := tmp_path_factory.mktemp("user") / "runs" / "study").mkdir(parents=True)
    return finished(study, cap=300).journal.folder


@pytest.fixture(scope="module", params=of("tensorboard"))
def address(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """Of a TensorBoard that a user begins as the documents say, and that has read all runs."""
    program, *flags = shlex.split(request.param)
    words = [str(Path(sys.executable).parent / program), *flags, "--port", "0", "--host", "127.0.0.1"]
    with subprocess.Popen(words, cwd=folder.parents[1], stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            address = next(found[1] for line in server.stderr if (found := re.search(r"at (http://\S+)", line)))
            assert comes(lambda: len(runs(address)) > len(list(trial_runs(folder))))
            yield address
        finally:
            server.kill()


def runs(address: str) -> list[str]:
    with urllib.request.urlopen(f"{address}data/runs", timeout=60) as answer:
        return list(json.loads(answer.read()))


def test_it_serves_the_studies(address: str, folder: Path) -> None:
    trials = {f"study/tensorboard/{family}/{run.name}" for _, family, run in trial_runs(folder)}
    assert trials | {"study/tensorboard/ledger"} <= {*runs(address)}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def in_order(wanted: list[str]) -> str:
    """A condition: these texts are seen, each after the one before it."""
    return f"{json.dumps(wanted)}.reduce((from, text) => words().indexOf(text, from) + 1 || NaN, 0)"


def test_scalars_are_grouped_from_the_budget_to_the_trial(page: Page, address: str) -> None:
    page.open(f"{address}#scalars")
    page.wait_for(in_order(["1 budget", "2 best so far", "3 rungs", "4 valid", "5 train", "6 speed", "7 trial"]))
    page.wait_for("seen().filter((each) => each.matches('path.line') && each.getAttribute('d').length > 50).length > 5")


def test_hparams_show_every_trial_in_the_columns_of_the_space(page: Page, address: str, folder: Path) -> None:
    page.open(f"{address}#hparams")
    page.wait_for(in_order(["family", *DIMENSIONS, *METRICS.values()]))
    for _, family, run in trial_runs(folder):
        page.wait_for(f"words().includes({json.dumps(f'study/tensorboard/{family}/{run.name}')})")
