import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from threading import Barrier

import pytest

from tune.cli import parser
from tune.flags import families_text, flag_words, parse_families
from tune.own_space import made_space
from tune.settings import OF_A_LOOP, Settings


def settings(**changes):
    return Settings(**{"budget": 60.0} | changes)


def test_families_take_their_shares():
    for text, shares in {
        "translation": {"translation": 1},
        "nanogpt,translation": {"nanogpt": 0.5, "translation": 0.5},
        "translation=70,nanogpt=30": {"translation": 0.7, "nanogpt": 0.3},
    }.items():
        assert parse_families(text) == parse_families(families_text(shares)) == shares
        assert settings(families=shares).families == shares
    for text, said in {"nanogpt,nanogpt": "twice", "translation=x,nanogpt=3": "no share"}.items():
        with pytest.raises(ValueError, match=said):
            parse_families(text)


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
        ({"families": {}}, "--families"),
        ({"vary": ("batch_tokens",), "rungs": "tokens"}, "--vary: 'batch_tokens' makes steps of unequal tokens"),
        ({"seed": 2**32}, "--seed: '4294967296'"),
        ({"confirm": 1}, "--confirm: '1' is too few: .*write 2"),
        ({"objective": "size"}, "--objective: 'size' is not there: choose loss or front"),
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
    assert settings().slots(available=2) == 2
    assert settings(devices=1).slots(available=2) == 1
    with pytest.raises(ValueError, match=r"--devices: '3' is more than the 2 there are: .* 2, or add --oversubscribe"):
        settings(devices=3).slots(available=2)
    assert settings(devices=3, oversubscribe=True).slots(available=2) == 3


def test_a_new_study_needs_a_new_folder_that_can_be_made(tmp_path):
    settings(out=tmp_path / "studies" / "new").new_folder()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for taken in (tmp_path, tmp_path / "file", tmp_path / "link"):
        with pytest.raises(ValueError, match=r"--out: .* exists already"):
            settings(out=taken).make_folder()
    for hopeless in (tmp_path / "file" / "study", Path("/proc/no/study"), tmp_path / ("x" * 300)):
        with pytest.raises(ValueError, match=r"--out: .* cannot be made"):
            settings(out=hopeless).make_folder()


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
    "space": made_space({"layers": [2, 10]}),
    "range": made_space({"d_model": {"low": 64, "high": 256}, "weight_decay": [0.05, 1e-06]}),
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
        assert vars(parser(Settings).parse_args(flag_words(stored))) == stored
    left_out = {each.name for each in fields(Settings)} - set(original.stored())
    assert left_out == {"out", "resume", "config", "address", "plan", "load", *OF_A_LOOP, "train"}


STRANGE = (
    *(None, [], {}, {"seed": "1"}, {"budget": 60}, {"budget": "60s", "out": "/x"}, {"budget": "60s", "seed": True}),
    *({"budget": "60s", "skip_bad_lines": "yes"}, {"budget": "60s", "families": "bert"}),
    {"budget": "60s", "rungs": "../x"},
)


def test_settings_that_stored_did_not_write_are_refused():
    for stored in STRANGE:
        with pytest.raises(ValueError):
            Settings.from_stored(stored)
