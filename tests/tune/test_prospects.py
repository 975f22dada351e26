"""What is left of a study, and what other caps would buy: told of any study that there is, which is only read."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.tune.search.world import WARM_UP_STEPS, Numbered, World, add_trial
from tests.tune.test_registry import CORE
from tune import cli
from tune.assembly import make_engine
from tune.errors import UserError
from tune.experiments.experiment_settings import ExperimentSettings
from tune.prospects import favour_of, note_prospects, prospect_lines, prospects, restore_policies
from tune.recipe import Recipe
from tune.search.resume import close_what_a_kill_left_open, spent
from tune.search.suggest import Suggester
from tune.search_context import make_search_context
from tune.settings import Settings
from tune.store.heartbeat import DRIVER, HEARTBEAT_FOLDER, write_heartbeat
from tune.store.journal import Journal
from tune.store.mirror import MIRRORED

RECIPE = Recipe(
    context=64, batch_tokens=768, learning_rate=2e-3, warm_up_steps=WARM_UP_STEPS, weight_decay=0.1,
    architecture="modern", optimizer="muon", taps=3, dropout_after=4.0, label_smoothing=0.0,
    betas=(0.9, 0.99), weights=1e5, tokens=1e6, flops=0.0, why={},
)  # fmt: skip
Study = Callable[..., World]


class Alike(Numbered):
    """All of one size."""

    def suggest(self, trial: str) -> dict[str, Any]:
        return super().suggest(trial) | {"d_model": 128}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """study(reports, **about): a search of two families that has gone so far, in a folder as a search leaves it."""

    def made(reports: float = float("inf"), cap: float = 1200.0, patient: bool = True, **about: Any) -> World:
        folder = tmp_path / "study"
        folder.mkdir()
        world = World(folder, cap=cap, **{"slots": 2} | about)
        facts = {
            "settings": Settings(budget=cap, seed=3, patient=patient, search="random").stored(),
            "recipes": dict.fromkeys(world.families, asdict(RECIPE)), "devices": {"slots": 2, "name": "CPU core"},
        }  # fmt: skip
        (folder / "study.json").write_text(json.dumps(facts))
        world.journal.write_facts(**facts)
        world.run(reports)
        if world.engine.is_done:
            world.journal.write_facts(ended={"reason": "cap", "spent": world.accounting.ledger.spent, "cap": cap})
        return world

    return made


def asked(world: World, **changes: Any) -> Settings:
    return Settings.of_study(world.journal.folder, plan=True, **changes)


@pytest.mark.parametrize("reports", [3, 20, 31, float("inf")])
def test_it_knows_what_the_search_knew_whether_that_is_over_runs_or_was_killed(study: Study, reports: float) -> None:
    world = study(reports)
    with Journal.in_memory_copy(world.journal.folder) as journal:
        found = restore_policies(journal, asked(world), world.journal.folder, slots=2, share=1.0)
    for name, family in world.families.items():
        assert found[name].state() == family.policy.state()


@pytest.mark.parametrize("more", [{"vary": "weight_decay"}, {"first": "precision=fp32"}, {"fix": "dropout=0.1"}])
def test_who_is_promising_before_anything_is_known_is_so_in_a_plan_too(tmp_path: Path, more: dict[str, str]) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on a mat\n" * 30_000)
    settings = Settings(budget="4h", families="nanogpt", **more, text_corpus=tmp_path / "text.txt")
    context = make_search_context(settings, replace(CORE, precisions=("fp32", "bf16")))
    (tmp_path / "study").mkdir()
    with Journal(tmp_path / "study", new=True) as journal:
        journal.write_facts(**context.facts())
        suggestions = make_engine(context, journal, []).families["nanogpt"].suggestions
        assert isinstance(suggestions, Suggester)
        trials = [f"t{number:03d}" for number in range(1, 30)]
        for trial in trials:
            add_trial(journal, trial, config=json.dumps(suggestions.suggest(trial)))
        found = favour_of(settings, "nanogpt", context.recipes["nanogpt"], journal)
        assert [found(trial) for trial in trials] == [suggestions.favour(trial) for trial in trials]
        assert len({found(trial) for trial in trials}) > 3
        begins = context.recipes["nanogpt"].dropout_after * context.data["nanogpt"].training_tokens
        assert begins in {found(trial).begins for trial in trials} and begins > 0


@pytest.mark.parametrize("trials_each", [2, 0.5])
def test_of_parts_of_a_gpu_and_of_several_cores_it_predicts_what_the_search_did_at_its_end(
    study: Study, trials_each: float
) -> None:
    """What measuring took of a whole device before the first lease has a slot too, and no say in what one is."""
    world = study(trials_each=trials_each, cap=2400.0)
    world.journal.insert("slots", {"slot": 99, "opened": 0.0, "closed": 1.0})
    world.journal.insert("charges", {"at": 1.0, "slot": 99, "what": "start", "seconds": 1.0})
    note_prospects(asked(world), world.engine)
    told = world.journal.facts()["prospects"]
    found = {name: asdict(each) for name, each in prospects(asked(world)).forecasts.items()}
    assert json.loads(json.dumps(found)) == told and all(each["rows"] for each in found.values())


def test_once_a_study_goes_on_what_was_predicted_at_its_end_is_there_no_more(study: Study) -> None:
    world = study(20)
    note_prospects(asked(world), world.engine)
    assert world.journal.facts()["prospects"]
    assert not World(world.journal.folder, cap=1200.0, slots=2).journal.facts()["prospects"]


def test_of_a_study_that_goes_on_with_the_slots_that_it_kept_it_predicts_a_larger_cap_on_all(study: Study) -> None:
    """What was handed back before it was killed was of no more use under that cap."""
    killed = study(0, cap=2400.0, patient=False, slots=8)
    killed.journal.write_facts(devices={"slots": 8})
    while killed.journal.facts().get("slots_kept") != 1:
        assert not killed.engine.is_done
        killed.run(1)
    world = World(killed.journal.folder, cap=2400.0, slots=8)
    assert not world.engine.is_done and world.engine.slots.most == 1
    note_prospects(asked(world), world.run().engine)
    told = world.journal.facts()["prospects"]
    world.journal.write_facts(ended={"reason": "cap", "spent": world.accounting.ledger.spent, "cap": 2400.0})
    found = {name: asdict(each) for name, each in prospects(asked(world)).forecasts.items()}
    assert json.loads(json.dumps(found)) == told and all(each["rows"] for each in found.values())


def test_of_other_devices_it_predicts_what_the_search_would_that_goes_on_with_them(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("tune.devices.core_count", lambda: 8)
    folder, told = study(46).journal.folder, list[object]()
    for devices in (1, 2, 8):
        world = World(folder, cap=1200.0, slots=devices)
        world.engine.stopping = "SIGINT"
        note_prospects(asked(world, devices=devices), world.engine)
        told.append(world.journal.facts()["prospects"])
        found = {name: asdict(each) for name, each in prospects(asked(world, devices=devices)).forecasts.items()}
        assert json.loads(json.dumps(found)) == told[-1]
    assert told[0] != told[1] != told[2]
    with pytest.raises(UserError, match=r"^--devices: '9' is more than the 8 there are: ask for at most 8, or add"):
        prospects(asked(world, devices=9))
    for devices in (4, None):
        with pytest.raises(UserError, match=r"^--plan: looks at this machine, .*6379': leave --address out; "):
            prospects(asked(world, devices=devices, address="10.0.0.1:6379"))
    for gain in (None, "0.01/h"):  # what cannot be foreseen is said
        lines = "\n".join(prospect_lines(prospects(asked(world, stop_below_gain=gain))))
        assert ("--stop-below-gain is not planned for" in lines) == (gain is not None)
    world.journal.write_facts(devices={"kind": "cuda", "slots": 2})
    with pytest.raises(UserError, match=r"^--resume: the study runs on GPUs, and here are CPU cores: "):
        prospects(asked(world, devices=8))
    assert prospects(asked(world)).forecasts


def test_of_a_mirrors_copy_what_is_left_is_what_going_on_finds_left(study: Study) -> None:
    """What ran since is charged as if it had been used; no copy is changed by who asks."""
    world = study(20)
    world.journal.write_facts(devices={"slots": 2, "share": 1.0})
    folder, known = world.journal.folder, prospects(asked(world)).spent
    (folder / HEARTBEAT_FOLDER).mkdir(exist_ok=True)
    write_heartbeat(folder, DRIVER, 0, world.now + 40.0, MIRRORED)
    told = prospects(asked(world)).spent
    assert known + 40.0 < told == prospects(asked(world)).spent
    world.journal.close()
    with Journal(folder, new=False) as journal:
        close_what_a_kill_left_open(journal)
        assert spent(journal) == pytest.approx(told)


def test_the_study_is_only_read(study: Study) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    world = study()
    world.journal.close()
    folder = world.journal.folder
    before = files()
    assert prospects(asked(world)).spent == pytest.approx(1200.0, rel=0.05)
    assert files() == before


def test_a_cap_that_is_spent_already_is_refused(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    world = study(46)
    assert cli.main(Settings, ["--plan", "--resume", str(world.journal.folder), "--budget", "30s"]) == 2
    assert re.match("--budget: '30s' is less than the .* that the study spent", capsys.readouterr().err)


def test_of_a_study_that_runs_too_and_what_is_in_its_journal_stays(study: Study) -> None:
    world = study(46)
    before = [tuple(row) for row in world.journal.rows("SELECT * FROM leases")]
    rows = prospects(asked(world)).forecasts["nanogpt"].rows
    assert [row.how for row in rows][1:] == ["continued", "continued"]
    assert [tuple(row) for row in world.journal.rows("SELECT * FROM leases")] == before
    world.run()
    assert world.accounting.ledger.spent <= 1200.0


def test_the_command_tells_it_in_lines_that_fit(
    study: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    world = study()
    world.journal.close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tune.prospects.label", lambda config: "d64 h4 l2 p.1 bf16")
    assert cli.main(Settings, ["--plan", "--resume", "study", "--budget", "40m"]) == 0
    printed = capsys.readouterr().out
    assert all(len(line) <= 120 for line in printed.splitlines()[1:])
    assert re.match(r"\S+study\nspent 1\dm\S+ of 40m, unspent 2\dm\S*\. Nothing was written\.\n", printed)
    for family in world.families:
        assert re.search(
            rf"^{family}: best so far t\d+ d64 .*\n  loss \d.* after its decay on the whole", printed, re.M
        )
    for cap, how in (("20m", "new search"), ("40m", "continued"), ("1h20m", "continued")):
        assert len(re.findall(rf"^  {cap} +{how} +\d\.\d+ +\d\.\d+ to \d\.\d+ +\d", printed, re.M)) == 2


def test_with_too_few_sizes_one_line_says_so_and_there_is_no_figure(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    world = study(suggestions=Alike)
    assert cli.main(Settings, ["--plan", "--resume", str(world.journal.folder)]) == 0
    printed = capsys.readouterr().out
    line = "  no forecast: too few sizes for a law of losses: 1 of at least 2 were seen after their warm-up"
    assert printed.count(line) == 2 and "continued " not in printed


def test_a_folder_without_a_trial_or_a_study_is_one_line(
    tmp_path: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the search was killed before its journal had tables."""
    world = study(0)
    assert cli.main(Settings, ["--plan", "--resume", str(tmp_path / "none")]) == 2
    assert cli.main(Settings, ["--plan", "--resume", str(world.journal.folder)]) == 2
    world.journal.close()
    (world.journal.folder / "journal.db").write_bytes(b"")
    assert cli.main(Settings, ["--plan", "--resume", str(world.journal.folder)]) == 2
    missing, *empty = capsys.readouterr().err.splitlines()
    assert missing.startswith("--resume: ") and len(empty) == 2
    assert all("has no trial yet: leave --plan out" in line for line in empty)
    (world.journal.folder / "journal.db").write_bytes(b"SQLite format 3\0" + bytes(9000))
    assert cli.main(Settings, ["--plan", "--resume", str(world.journal.folder)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_experiment_that_goes_on_is_not_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(ExperimentSettings, ["curves", "--plan", "--resume", "nowhere"]) == 2
    assert capsys.readouterr().err == "--plan: an experiment that has begun has no plan: leave --plan or --resume out\n"
