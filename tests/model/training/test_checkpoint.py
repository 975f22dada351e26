"""Checkpoints: whole or not there, the same when read again, and never trusted when damaged."""

import json
import pickle
import random
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from model.config import Config, build_model
from model.data.tokenizer import CharacterTokenizer, SubwordTokenizer
from model.nn.precision import set_compute
from model.training import checkpoint as checkpoints
from model.training.checkpoint import DamagedCheckpoint, export, latest, load, load_model, save
from tests.conftest import small_files
from tune import machine
from tune.errors import is_disk_error


class Bomb:
    """Pickled, it makes a file when it is opened."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.marker,)


CONFIG = Config(family="nanogpt", d_model=16, heads=4, layers=2, context=16, batch_tokens=32)
TOKENIZER = CharacterTokenizer("abcdefgh")


def model(config: Config = CONFIG, vocabulary: int = TOKENIZER.vocabulary, pad: int = 0) -> torch.nn.Module:
    torch.manual_seed(0)
    made = build_model(config, vocabulary=vocabulary, pad=pad)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    set_compute(made, config.precision)
    return made


def saved(folder: Path, steps: int, name: str = "", config: Config = CONFIG, fraction: float = 1.0) -> Path:
    """fraction: of the peak rate; below 1 it is one from inside a decay."""
    tensors = {"random.cpu": torch.get_rng_state(), "moment": torch.arange(3.0)}
    decay = {"fraction": fraction, "length": None}
    state = {"steps": steps, "config": asdict(config), "numbers": [0.1, None], "decay": decay}
    return save(folder, model(config), tensors, state, name)


def test_what_is_read_is_what_was_written_and_nothing_is_pickled(tmp_path: Path) -> None:
    path = saved(tmp_path, 12)
    assert {file.suffix for file in path.iterdir()} == {".safetensors", ".json"}
    found = load(path)
    assert path.name == "step-000012" and found.state["steps"] == 12 and found.state["numbers"] == [0.1, None]
    assert torch.equal(found.tensors["moment"], torch.arange(3.0))
    read = checkpoints.load_file(found.weights)
    assert all(torch.equal(value, read[name]) for name, value in model().state_dict().items())
    assert Config(**found.state["config"]) == CONFIG


def test_the_last_two_are_kept_the_same_step_once_and_the_one_before_the_decay(tmp_path: Path) -> None:
    saved(tmp_path, 3, checkpoints.BEFORE_DECAY)
    saved(tmp_path, 5)
    twentieth = saved(tmp_path, 20).stat().st_ino
    for steps in (20, 1_000_000):
        saved(tmp_path, steps)
    assert {path.name for path in tmp_path.iterdir()} == {checkpoints.BEFORE_DECAY, "step-1000000", "step-000020"}
    assert (tmp_path / "step-000020").stat().st_ino == twentieth
    assert latest(tmp_path) == tmp_path / "step-1000000"


def test_a_damaged_one_of_the_same_steps_is_written_anew(tmp_path: Path) -> None:
    (saved(tmp_path, 5) / checkpoints.WEIGHTS).write_bytes(b"")
    path = saved(tmp_path, 5)
    assert latest(tmp_path) == path


def test_a_later_one_that_did_not_serve_leaves_room_for_one_to_fall_back_to(tmp_path: Path) -> None:
    saved(tmp_path, 100)
    (saved(tmp_path, 200) / checkpoints.WEIGHTS).write_bytes(b"")
    for steps in (150, 160):
        saved(tmp_path, steps)
    (saved(tmp_path, 170) / checkpoints.WEIGHTS).write_bytes(b"")
    assert latest(tmp_path) == tmp_path / "step-000160"


def test_tensors_in_any_memory_format_are_written(tmp_path: Path) -> None:
    moment = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    path = save(tmp_path, model(), {"moment": moment}, {"steps": 1})
    assert torch.equal(load(path).tensors["moment"], moment)


@pytest.mark.parametrize("file", [checkpoints.WEIGHTS, checkpoints.OPTIMIZER, checkpoints.STATE])
def test_any_damage_falls_back_to_the_one_before(file: str, tmp_path: Path) -> None:
    before, newest = saved(tmp_path, 5), saved(tmp_path, 6)
    whole = (newest / file).read_bytes()
    chooser = random.Random(0)
    for place in [0, len(whole) - 1, *(chooser.randrange(len(whole)) for _ in range(20))]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << chooser.randrange(8)
        (newest / file).write_bytes(flipped)
        if not _only_blank_changed(whole, flipped):
            with pytest.raises(DamagedCheckpoint):
                load(newest)
            assert latest(tmp_path) == before
    for end in (0, 1, len(whole) // 2, len(whole) - 1):
        (newest / file).write_bytes(whole[:end])
        assert latest(tmp_path) == before
    (newest / file).unlink()
    assert latest(tmp_path) == before
    (before / file).unlink()
    assert latest(tmp_path) is None


@pytest.mark.parametrize("file", [checkpoints.WEIGHTS, checkpoints.OPTIMIZER, checkpoints.STATE])
def test_a_file_that_the_disk_does_not_give_now_is_no_damage_and_is_told_by_its_name(file: str, tmp_path: Path) -> None:
    """Else a trial would go on from an older one, or from none, because of a network disk's hiccup."""
    path = saved(tmp_path, 5) / file
    path.unlink()
    path.symlink_to("/proc/self/mem")  # the first bytes of which no process can read
    with pytest.raises(OSError) as told:
        latest(tmp_path)
    assert is_disk_error(told.value) and told.value.filename == str(path)


def _only_blank_changed(whole: bytes, flipped: bytes) -> bool:
    """Whether JSON with this flip still says the same."""
    try:
        return bool(json.loads(whole) == json.loads(flipped))
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("name", "at"), [*(("", at) for at in range(12)), *((checkpoints.BEFORE_DECAY, at) for at in range(13))]
)
def test_a_kill_at_any_moment_leaves_the_one_before(
    name: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after `at` of the file operations that write step 6, beside step 5 or in its place."""
    folder = tmp_path / "trial"
    before, after = saved(folder, 5, name), folder / (name or "step-000006")
    left = iter(range(at))

    class Killed(BaseException):
        pass

    def dying(function):
        def call(*arguments, **named):
            if next(left, None) is None:
                raise Killed
            return function(*arguments, **named)

        return call

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(checkpoints, "save_model", dying(checkpoints.save_model))
        patch.setattr(checkpoints, "save_file", dying(checkpoints.save_file))
        patch.setattr(machine, "sync", dying(machine.sync))
        patch.setattr(Path, "rename", dying(Path.rename))
        patch.setattr(Path, "write_text", dying(Path.write_text))
        saved(folder, 6, name)
    shutil.copytree(folder, read := tmp_path / "read")  # as the next save alone has to find it too
    assert latest(read) == read / (after if after.exists() else before).name
    saved(folder, 7)
    assert load(after if after.exists() else before).state["steps"] in (5, 6)
    assert all(path.name[0] != "." for path in folder.iterdir())


def test_a_file_that_may_not_grow_leaves_the_one_before(tmp_path: Path) -> None:
    """The operating system's own refusal, which comes out of the tensors' library as an error of another kind."""
    before = saved(tmp_path, 5)
    with small_files(), pytest.raises(OSError, match="large"):
        saved(tmp_path, 6)
    assert list(tmp_path.iterdir()) == [before]


def forge(path: Path, **changes: object) -> None:
    """Another state, with a checksum that is right."""
    state = json.loads((path / checkpoints.STATE).read_text()) | changes
    del state["checksum"]
    (path / checkpoints.STATE).write_text(json.dumps({"checksum": checkpoints._checksum(state), **state}))


@pytest.mark.parametrize("file", [checkpoints.WEIGHTS, checkpoints.OPTIMIZER, checkpoints.STATE])
def test_a_strangers_pickle_is_never_opened(tmp_path: Path, file: str) -> None:
    """Not even where the state's checksums are made to fit it."""
    path, marker = saved(tmp_path / "trial", 5), tmp_path / "executed"
    (path / file).write_bytes(pickle.dumps(Bomb(marker)))
    if file != checkpoints.STATE:
        files = json.loads((path / checkpoints.STATE).read_text())["files"]
        forge(path, files=files | {file: checkpoints._digest(path / file)})
    if file == checkpoints.WEIGHTS:
        with pytest.raises(SafetensorError):
            checkpoints.load_weights(model(), load(path).weights)
    else:
        assert latest(tmp_path / "trial") is None
    assert not marker.exists()


@pytest.mark.parametrize("change", [{"steps": "5"}, {"steps": None}, {"files": []}, {"files": None}])
def test_a_strangers_state_is_damaged_though_its_checksum_is_right(tmp_path: Path, change: dict[str, object]) -> None:
    path = saved(tmp_path, 5)
    forge(path, **change)
    assert latest(tmp_path) is None
    (path / checkpoints.STATE).write_text("[" * 100_000)
    assert latest(tmp_path) is None


@pytest.mark.parametrize(("fraction", "after"), [(0.5, checkpoints.BEFORE_DECAY), (1.0, "step-000009")])
def test_a_decay_is_forgotten_from_before_it_on_and_only_then(tmp_path: Path, fraction: float, after: str) -> None:
    """Not what was trained at the constant rate since, as of a trial that went on and was cut short before its next."""
    saved(tmp_path, 5)
    saved(tmp_path, 9, fraction=fraction)
    checkpoints.forget_decay(tmp_path)
    assert latest(tmp_path) == tmp_path / "step-000009"
    saved(tmp_path, 6, checkpoints.BEFORE_DECAY)
    saved(tmp_path, 9, fraction=fraction)
    saved(tmp_path, 12, f"{checkpoints.AFTER_DECAY}-000012", fraction=0.0)
    checkpoints.forget_decay(tmp_path)
    assert latest(tmp_path) == tmp_path / after
    assert {path.name[:6] for path in tmp_path.iterdir()} == {"step-0", "before", "after-"}


@pytest.mark.parametrize("decay", [{}, None, {"fraction": "half"}], ids=str)
def test_a_strangers_state_that_tells_no_decay_is_passed_over_where_one_is_forgotten(
    tmp_path: Path, decay: object
) -> None:
    saved(tmp_path, 5, checkpoints.BEFORE_DECAY)
    forge(saved(tmp_path, 6), decay=decay)
    inside = saved(tmp_path, 7, fraction=0.5)
    checkpoints.forget_decay(tmp_path)
    assert not inside.exists()


@pytest.mark.parametrize("changes", [{}, {"architecture": "nanogpt"}, {"family": "translation"}], ids=str)
def test_an_exported_model_gives_the_same_logits(changes: dict[str, str], tmp_path: Path) -> None:
    config, tokenizer = replace(CONFIG, **changes), TOKENIZER
    if config.family == "translation":
        tokenizer = SubwordTokenizer.train(["one two three"] * 3, 300, marks=True)
    made = model(config, tokenizer.vocabulary, tokenizer.pad or 0)
    path = save(tmp_path / "trial", made, {}, {"steps": 7, "config": asdict(config)})
    for _ in range(2):  # the second replaces the first
        folder = export(path, tmp_path / "best", tokenizer.to_json())
    loaded, again = load_model(folder)
    tokens = torch.tensor([again.encode("abcabcdefgh")])
    inputs = (tokens, torch.zeros_like(tokens)) * 2 if config.family == "translation" else (tokens,)
    assert torch.equal(loaded(*inputs), made.eval()(*inputs))


def test_where_newer_ones_took_its_place_the_newest_is_exported(tmp_path: Path) -> None:
    """Of a trial that was ended on its way from the rung that it is known by."""
    known, _, newest = (saved(tmp_path / "t001", steps, config=replace(CONFIG, seed=steps)) for steps in (1, 2, 3))
    assert not known.exists()
    folder = export(known, tmp_path / "best-nanogpt", TOKENIZER.to_json())
    assert (folder / "model.safetensors").read_bytes() == (newest / "model.safetensors").read_bytes()
    assert json.loads((folder / "config.json").read_text())["seed"] == 3
    with pytest.raises(DamagedCheckpoint):
        export(tmp_path / "t002" / "step-000001", tmp_path / "best-nanogpt", TOKENIZER.to_json())
