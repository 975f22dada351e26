"""Settings as they are typed, checked, kept in a study's folder, and had again; lengths of time and sums of money."""

import json
import os
import random
import re
import shlex
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from tests.tune.search.world import add_trial
from tune import cli
from tune.flags import families_text, flag_name, flag_words, parse_families
from tune.own_space import make_space
from tune.search_flags import LOOP_ONLY_SETTINGS
from tune.search_space import SPACES
from tune.settings import Settings
from tune.store.journal import Journal
from tune.units import duration_text, energy_text, money_text, parse_duration, parse_price

pytestmark = pytest.mark.usefixtures("empty_folder")


def settings(**changes):
    return Settings(**{"budget": 60.0} | changes)


def test_families_take_their_shares():
    for text, shares in {
        "translation": {"translation": 1},
        "nanogpt,translation": {"nanogpt": 0.5, "translation": 0.5},
        "translation=70,nanogpt=30": {"translation": 0.7, "nanogpt": 0.3},
    }.items():
        assert parse_families(text) == parse_families(families_text(shares)) == shares
        per_cent = {name: 100 * share for name, share in shares.items()}
        assert settings(families=shares).families == settings(families=per_cent).families == shares
    assert settings(range={"layers": (2, 4)}).range == settings(range="layers=2,4").range


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"report_every": 0}, "--report-every: '0s' is not above zero"),
        ({"budget": float("nan")}, "--budget: 'nan' is not a length of time: write 8h"),
        ({"budget": None}, "--budget: 'None' is not a length of time"),
        ({"deadline": float("inf")}, "--deadline: 'inf' is not a length of time"),
        ({"memory_limit": 0}, "--memory-limit: '0MB' is not above zero: write 2GB"),
        ({"families": {"translation": 0.7, "nanogpt": 0.4}}, "--families: .*translation=70,nanogpt=40.* add up to 100"),
        ({"families": {"translation": 1.0, "nanogpt": 0.0}}, "--families: .* above 0"),
        ({"families": {"translation": float("nan"), "nanogpt": 0.5}}, "--families: .* above 0"),
        *(({name: empty}, f"--{name}: ") for name in ("families", "fix", "set") for empty in ((), [])),
        *(({name: 5}, f"--{name}: ") for name in ("families", "space", "range", "first", "fix", "vary", "set")),
        ({"families": {}}, "--families"),
        ({"families": {"translation": 60, "nanogpt": 30}}, "--families: .*translation=60,nanogpt=30.* add up to 100"),
        ({"families": {"translation": None}}, "--families: 'translation=None' gives no share"),
        ({"families": {"translation": True}}, "--families: 'translation=true' gives no share"),
        ({"budget": True}, "--budget: 'true' is not a length of time"),
        ({"budget": -1}, "--budget: '-1s' is not above zero"),
        ({"deadline": 1e12}, "--deadline: '277777777h46m40s' is more than a hundred years"),
        *(({name: 1.5}, f"--{name}: '1.5' is not a whole number") for name in ("seed", "devices", "confirm")),
        ({"seed": True}, "--seed: 'true' is not a whole number"),
        ({"trials_per_gpu": 1.5}, "--trials-per-gpu: '1.5' is no number of trials"),
        ({"memory_limit": 1.5}, "--memory-limit: '1.5' has no unit"),
        ({"vary": ("batch_tokens",), "rungs": "tokens"}, "--vary: 'batch_tokens' makes steps of unequal tokens"),
        *(({"patient": odd}, f"--patient: {odd!r} is neither on nor off: write True or False") for odd in (1, "no")),
        ({"seed": 2**32}, "--seed: '4294967296'"),
        ({"confirm": 1}, "--confirm: '1' is too few: .*write 2"),
        ({"objective": "size"}, "--objective: 'size' is not known: choose from loss, front"),
        ({"objective": "front", "confirm": 2}, "--objective: 'front' has no one leader, whom --confirm is about"),
        ({"objective": "front", "stop_below_gain": 0.01}, "--objective: 'front' .* --stop-below-gain is about"),
        ({"stop_below_gain": -0.1}, "--stop-below-gain: '-0.1/h' is no gain: write nats a device-hour, 0 or more"),
        ({"stop_below_gain": float("nan")}, "--stop-below-gain: 'nan/h' is no gain"),
        *(
            ({"stop_below_gain": text}, f"--stop-below-gain: '{text}' is no gain: .* such as 0.002/h$")
            for text in ("", "x/h", "0.002", "0.002/m", "inf/h", "1/h/h")
        ),
    ],
    ids=str,
)
def test_an_invalid_value_is_refused_in_one_line(changes, said):
    with pytest.raises(ValueError, match=f"^{said}") as refused:
        settings(**changes)
    assert "\n" not in str(refused.value)


def test_slots_are_all_devices_unless_fewer_are_asked_for_and_more_need_oversubscribe():
    assert settings().slots(2, "cpu") == settings().slots(2, "cuda") == 2
    assert settings(devices=1).slots(2, "cpu") == 1
    with pytest.raises(ValueError, match=r"--devices: '3' is more than the 2 there are: .* 2, or add --oversubscribe"):
        settings(devices=3).slots(2, "cpu")
    more = settings(devices=3, oversubscribe=True)
    assert more.slots(2, "cpu") == 3
    with pytest.raises(ValueError, match=r"--devices: '3' is more than the 2 there are: ask for at most 2$"):
        replace(more, address="10.0.0.1:6379").slots(2, "cpu")


def test_a_new_study_needs_a_new_folder_that_can_be_made(tmp_path):
    settings(out=tmp_path / "studies" / "new").new_folder()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for taken in (tmp_path, tmp_path / "file", tmp_path / "link"):
        with pytest.raises(ValueError, match=r"--out: .* exists already"):
            settings(out=taken).make_folder()
    beyond = tmp_path / "link" / "study", tmp_path / "link" / "of" / "studies"
    for hopeless in (tmp_path / "file" / "study", Path("/proc/no/study"), tmp_path / ("x" * 300), *beyond):
        with pytest.raises(ValueError, match=r"--out: .* cannot be made"):
            settings(out=hopeless).make_folder()
    Path("runs").symlink_to("x" * 300)  # to look at it fails, as where it is another user's
    with pytest.raises(ValueError, match=r"--out: '.*/runs/.*' cannot be made"):
        settings().make_folder()


def test_where_the_present_folder_is_gone_that_is_one_line(tmp_path, monkeypatch, capsys):
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cli.main(Settings, ["--budget", "8h"]) == 2
    assert re.fullmatch(r"--out: 'runs/\S+' is of the present folder, which is gone .*\n", capsys.readouterr().err)


@pytest.mark.parametrize("out", [None, "runs/new"])
def test_a_mirror_is_another_place_than_the_studys_own(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ValueError, match=r"^--mirror: '\S+/runs' is where the study itself lies: name another"):
        settings(mirror="runs", out=out).check_files()


@pytest.mark.parametrize("inside", ["runs/x", "runs/x/copies"])
def test_a_study_that_goes_on_is_not_copied_into_itself(study, inside):
    Path(inside).mkdir(exist_ok=True)
    with pytest.raises(ValueError, match=r"^--mirror: '\S+' is where the study itself lies: name another"):
        parse(f"--resume runs/x --mirror {inside}")
    assert parse("--resume runs/x --mirror runs").mirror == study.parent, "as one that goes on in its copy has it"


def test_what_numpy_counts_is_a_number_and_families_may_be_a_tuple():
    made = settings(seed=np.int64(3), budget=np.float64(60.0), families=("translation", "nanogpt"))
    assert json.loads(json.dumps(made.stored()))["seed"] == "3" and made.families["nanogpt"] == 0.5


def test_studies_that_begin_at_once_have_folders_of_their_own_and_one_that_all_name_is_had_by_one(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    together = Barrier(8)

    def begin(changes):
        together.wait()
        try:
            return settings(**changes).make_folder()
        except ValueError as error:
            return error

    with ThreadPoolExecutor(8) as searches:
        folders = list(searches.map(begin, [{}] * 8))
        found = list(searches.map(begin, [{"out": tmp_path / "one"}] * 8))
    assert len(set(folders)) == 8 and all(folder.is_absolute() and folder.is_dir() for folder in folders)
    assert found.count(tmp_path / "one") == 1 and sum("exists already" in str(each) for each in found) == 7


EVERYTHING = {
    "budget": 5_400.5,
    "families": {"translation": 0.7, "nanogpt": 0.3},
    "fix": {"heads": 8, "dropout": 0.1, "precision": "bf16"},
    "vary": ("learning_rate", "weight_decay"),
    "set": {"context": 256, "learning_rate": 1.23456789e-05},
    "space": make_space({"layers": [2, 10]}),
    "range": make_space({"d_model": {"low": 64, "high": 256}, "weight_decay": [0.05, 1e-06]}),
    "at_most": 5_500_000,
    "first": ({"d_model": 128, "layers": 10}, {"dropout": 0.1}),
    "devices": 3,
    "trials_per_gpu": 2,
    "cores_per_trial": 2,
    "oversubscribe": True,
    "deadline": 60.0,
    "stop_below_gain": 0.00002,
    "seed": 7,
    "confirm": 3,
    "rungs": "tokens",
    "search": "random",
    "learn_from": (Path("/runs/one"), Path("/runs/two")),
    "memory_limit": 1_500_000_000,
    "deterministic": True,
    "report_every": 1.0,
    "translation_corpus": "hub:a/b:en-es#en,es",
    "text_corpus": Path("/data/text.txt"),
    "own_corpus": "hub:a/images",
    "mirror": Path("/drive"),
    "price_per_hour": 2.5,
    "skip_bad_lines": True,
}


def test_what_is_stored_is_as_it_is_typed_and_gives_the_same_settings_again_but_for_what_a_run_is_told_anew(tmp_path):
    for changes in ({}, {"objective": "front"}, EVERYTHING):
        original = settings(**changes, out=tmp_path)
        stored = json.loads(json.dumps(original.stored()))
        assert Settings.from_stored(stored, out=tmp_path) == original
        typed = vars(cli.parser(Settings).parse_args(flag_words(stored)))
        assert typed == {name: value for name, value in stored.items() if value is not False}
    asked = settings(out="new", text_corpus="text.txt", memory_limit="1.5GB")
    assert (asked.out, asked.text_corpus) == (Path.cwd() / "new", Path.cwd() / "text.txt")
    assert asked.memory_limit == EVERYTHING["memory_limit"]
    left_out = {each.name for each in fields(Settings)} - set(original.stored())
    assert left_out == {"out", "resume", "config", "address", "plan", "load", *LOOP_ONLY_SETTINGS, "train"}


STRANGE = (
    *(None, [], {}, {"seed": "1"}, {"budget": 60}, {"budget": "60s", "out": "/x"}, {"budget": "60s", "seed": True}),
    *({"budget": "60s", "skip_bad_lines": "yes"}, {"budget": "60s", "families": "bert"}),
    {"budget": "60s", "rungs": "../x"},
)


@pytest.mark.parametrize("seconds", [1.1 * 3600, 3600 / 7, 1000 / 3, 0.0014, 8e9 / 7])
def test_a_resumed_study_has_the_lengths_of_time_of_its_first_run_to_the_last_digit(tmp_path, seconds):
    """Else its ladder would be fitted anew, as under another cap."""
    first = Settings(budget=seconds, deadline=2 * seconds, report_every=seconds)
    again = Settings.from_stored(first.stored(), out=tmp_path)
    assert (again.budget, again.deadline, again.report_every) == (first.budget, first.deadline, first.report_every)
    with pytest.raises(ValueError, match=r"^--report-every: '0s' is not above zero"):
        Settings(budget=seconds, report_every=0.0004)


def test_settings_that_stored_did_not_write_are_refused():
    for stored in STRANGE:
        with pytest.raises(ValueError):
            Settings.from_stored(stored)


@pytest.fixture
def searched(monkeypatch):
    """A search that only notes its settings."""
    calls: list[Settings] = []
    study = types.ModuleType("tune.study")
    study.run = lambda settings: calls.append(settings) or 143
    monkeypatch.setitem(sys.modules, "tune.study", study)
    return calls


@pytest.fixture
def study(tmp_path):
    """A folder that a study left behind."""
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    settings = Settings(budget=3600, seed=3, fix={"heads": 4}, oversubscribe=True, devices=3, out=folder)
    (folder / "study.json").write_text(json.dumps({"settings": settings.stored()}))
    return folder


def parse(flags: str) -> Settings:
    return cli.parse(Settings, flags.split())


OVER = {"reason": "cap", "spent": 3598.0, "cap": 3600.0}


@pytest.mark.parametrize("ended", [OVER | {"reason": "SIGINT"}, {"reason": "cap", "spent": 1.0}, OVER])
def test_a_study_that_is_not_known_to_be_over_is_searched(searched, study, ended):
    """Told to end, of before the cap was written down with its end, or where nothing was found."""
    with Journal(study, new=True) as journal:
        journal.write_facts(ended=ended)
    assert cli.main(Settings, ["--resume", str(study)]) == 143 and len(searched) == 1


@pytest.mark.parametrize("way", [{}, {"deadline": "2h"}, {"stop_below_gain": "0.01/h"}])
def test_what_is_said_of_a_study_that_is_over_can_be_typed(empty_folder: Path, way: dict[str, str]) -> None:
    """To rank it, and to go on: with each flag that bounds it."""
    (folder := empty_folder / "a study").mkdir()
    settings = Settings(budget="1h", **way)
    (folder / "study.json").write_text(json.dumps({"settings": settings.stored()}))
    with Journal(folder, new=True) as journal:
        add_trial(journal, state="finished")
        journal.insert("reports", {"trial": "t001", "at": 1.0, "final": 1, "valid_loss": 1.0})
        journal.write_facts(ended={"reason": "cap", "spent": 60.0, **settings.terms}, caps=[settings.terms])
    over = Settings.of_study(folder).nothing_to_do() or ""
    ways, _, ranks = over.partition("; ")[2].partition(" goes on, and ")
    assert Path(shlex.split(ranks.partition(" ranks ")[0])[-1]) == folder
    for flag, more in {"budget": "2h", "deadline": "3h", "stop_below_gain": "0.001/h"}.items():
        goes_on = Settings.of_study(folder, **{flag: more}).nothing_to_do() is None
        assert goes_on == (flag_name(flag) in ways)


def test_a_path_or_present_folder_that_is_not_utf_8_is_one_line(capsys, searched, empty_folder, monkeypatch):
    for flag in ("--out", "--text-corpus", "--resume"):
        assert cli.main(Settings, ["--budget", "8h", flag, "x\udcff"]) == 2
        assert capsys.readouterr().err.endswith("/x\\udcff' is not in UTF-8: rename it, or take another place\n")
        assert searched == [] and list(empty_folder.iterdir()) == []
    there = Path(os.fsdecode(os.fsencode(empty_folder) + b"/\xff"))
    there.mkdir()
    monkeypatch.chdir(there)
    assert cli.main(Settings, ["--budget", "8h"]) == 2
    assert re.fullmatch(r"--out: '.*udcff/runs/\S+' is not in UTF-8: .*\n", capsys.readouterr().err)
    assert searched == [] and list(there.iterdir()) == []


def test_a_resumed_study_keeps_its_own_settings_but_may_get_a_new_total_and_deadline_and_other_devices(study):
    settings = parse("--resume runs/x")
    assert (settings.budget, settings.seed, settings.fix, settings.devices) == (3600, 3, {"heads": 4}, 3)
    assert settings.resume == settings.out == study
    settings = parse("--resume runs/x --budget 2h --deadline 3h --seed 3 --fix heads=4 --devices 1")
    assert (settings.budget, settings.deadline, settings.devices) == (7200, 10_800, 1)
    (study / "off.yaml").write_text("oversubscribe: false\n")
    assert not parse("--resume runs/x --config runs/x/off.yaml").oversubscribe
    stored = Settings(budget=3600, devices=3).stored()
    (study / "study.json").write_text(json.dumps({"settings": stored}))
    assert parse("--resume runs/x --oversubscribe").slots(1, "cpu") == 3


@pytest.mark.parametrize("flags", ["--families made,nanogpt,translation", "--trials-per-gpu auto", "--config new.yaml"])
def test_the_flags_that_began_a_study_may_be_typed_again_beside_resume(tmp_path, monkeypatch, flags):
    """As a job of Slurm's does that is queued again: what the search found, and what was rounded, is as it was."""
    monkeypatch.setitem(SPACES, "made", {"width": (8, 16)})
    (tmp_path / "new.yaml").write_text("budget: 2h\nseed: 4\nfix: {heads: 4}\nrange: {layers: [2, 4]}\n")
    began = parse(f"--budget 2h {flags}")
    found = replace(began, trials_per_gpu=4) if began.trials_per_gpu == "auto" else began
    (tmp_path / "study.json").write_text(json.dumps({"settings": found.stored()}))
    assert parse(f"--budget 2h {flags} --resume {tmp_path}") == parse(f"--resume {tmp_path}")
    (tmp_path / "new.yaml").write_text("seed: 5\n")
    with pytest.raises(ValueError, match=r"^--trials-per-gpu, --seed: not as in "):
        parse(f"--config new.yaml --trials-per-gpu 3 --resume {tmp_path}")


def test_flags_that_contradict_the_study_are_refused_by_name(study):
    with pytest.raises(ValueError, match=r"^--fix, --seed, --skip-bad-lines: not as in .*: leave --fix, .* out$"):
        parse("--resume runs/x --seed 4 --devices 3 --fix heads=8 --skip-bad-lines")
    with pytest.raises(ValueError, match=r"^--out: "):
        parse("--resume runs/x --out elsewhere")


def test_a_damaged_study_is_refused_in_one_line(study):
    for damaged in ("", "[", "[]", "{}", '{"settings": {"budget": "8"}}', "[" * 100_000, "\udcff"):
        (study / "study.json").write_text(damaged, errors="surrogateescape")
        with pytest.raises(ValueError, match=r"^--resume: '.*' has a damaged study.json \(.*\): name another study$"):
            parse("--resume runs/x")


@pytest.mark.parametrize("damaged", [None, "", "[", "[]", "{}"])
def test_where_its_study_json_is_damaged_or_gone_a_study_is_what_its_journal_says(study, damaged):
    whole = parse("--resume runs/x --budget 2h")
    with Journal(study, new=True) as journal:
        journal.write_facts(**json.loads((study / "study.json").read_text()))
    (study / "study.json").unlink()
    if damaged is not None:
        (study / "study.json").write_text(damaged)
    assert parse("--resume runs/x --budget 2h") == whole


DOCUMENTED = {"8h": 28_800, "90m": 5_400, "45s": 45, "1h30m": 5_400, "1.5h": 5_400, ".5m": 30}
NOT_A_TIME = ("", "h", "-1h", "1h1h", "30m1h", "1e3s", "infs", "nanh", "1 h", "8H", "1..5h", "9" * 400 + "h")


def test_every_documented_form_is_read_and_anything_else_is_refused():
    assert {text: parse_duration(text) for text in DOCUMENTED} == DOCUMENTED
    for text in NOT_A_TIME:
        with pytest.raises(ValueError, match="write 8h"):
            parse_duration(text)
    with pytest.raises(ValueError, match="'8' has no unit"):
        parse_duration("8")


def test_text_and_seconds_are_inverse_and_reading_never_rounds_up():
    rng = random.Random(0)
    for _ in range(500):
        seconds = parse_duration(f"{rng.random() * 10 ** rng.randint(0, 6):.6f}s")
        assert parse_duration(duration_text(seconds)) == seconds
    assert parse_duration("0.0009s") == 0 and parse_duration("0.333333h") <= 0.333333 * 3600


def test_units_come_largest_first_and_none_is_empty():
    assert [duration_text(seconds) for seconds in (28_692, 28_800, 0)] == ["7h58m12s", "8h", "0s"]


def test_money_is_of_device_hours_and_unknown_things_are_not_told():
    assert money_text(5400, parse_price("2.50")) == ", 3.75 at 2.50 a device-hour"
    assert energy_text(3600.0) == ", 1 Wh of this machine" and energy_text(9e6) == ", 2.5 kWh of this machine"
    assert money_text(5400, None) == energy_text(None) == ""
    for text in ("", "-1", "free", "nan", "inf", "2,50", "1e3", "9" * 400):
        with pytest.raises(ValueError, match=r"is no price: write what an hour of a device costs you, such as 2\.50$"):
            parse_price(text)
