"""Checkpoints: folders of safetensors and JSON, written whole or not at all, read only if undamaged."""

import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file, save_model
from safetensors.torch import load_model as load_weights
from torch import Tensor, nn

from model.config import OLD_DEFAULTS, Config
from model.data.tokenizer import Tokenizer
from model.families import BUILT_IN, FAMILIES
from model.nn.precision import native_precisions, prepare, set_compute
from tune.errors import UserError, is_disk_error
from tune.machine import restore_replaced, sync_folder, write_folder_whole

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
BEFORE_DECAY, AFTER_DECAY = "before-decay", "after-decay"
AVERAGE, BEST = "average.", ".best."  # a dot begins no parameter's name
"""Prefixes of a parameter's name, for its average and its best value so far among the optimizer's tensors."""
LONGEST_REASON = 300  # characters of why weights cannot be read
KEPT = 2  # step checkpoints: the newest, and one to fall back to


class DamagedCheckpoint(UserError):
    """A checkpoint folder whose files are missing, cut off or altered."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a checkpoint holds, read and verified: where the weights are, the optimizer's tensors and the JSON state."""

    weights: Path
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def save(
    folder: Path, model: nn.Module, tensors: dict[str, Tensor], state: dict[str, Any], name: str = "",
    late: Callable[[], dict[str, Any]] = dict,
) -> Path:  # fmt: skip
    """Write `folder`/`name`; without a name step-000123, unless a sound one of these steps is there. Then drop all step
    checkpoints but the newest up to there.

    `state` is JSON-able and has `steps`; `late` returns what belongs to it but is known only once the tensors are
    written. A kill at any moment leaves the earlier checkpoints untouched.
    """
    path = folder / (name or f"step-{state['steps']:06d}")

    def fill(place: Path) -> None:
        try:
            save_model(model, str(place / WEIGHTS))
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, place / OPTIMIZER)
        except SafetensorError as error:  # so it reports a full disk
            raise OSError(errno.EIO, str(error), str(place)) from error
        files = {file: _digest(place / file) for file in (WEIGHTS, OPTIMIZER)}
        sync_folder(place)  # so that what this takes is in what is known late
        body = json.loads(json.dumps({**state, **late(), "files": files}))  # as it will be read
        (place / STATE).write_text(json.dumps({"checksum": _checksum(body), **body}))

    if name or not _sound(path):  # one of the same steps stays: a kill while it is replaced would lose it
        write_folder_whole(path, fill)
    there = {each: _steps(each) for each in folder.glob("step-*")}
    serve = sorted(
        (each for each in there if there[each] <= state["steps"]), key=there.__getitem__
    )  # later ones do not
    for each in there.keys() - serve[-KEPT:]:
        shutil.rmtree(each, ignore_errors=True)
    return path


def load(path: Path) -> Saved:
    """Read and verify a checkpoint folder; DamagedCheckpoint says which file is not as it was written,
    OSError which one the disk does not give now."""
    state = _read_state(path)
    for file in (WEIGHTS, OPTIMIZER):
        if not (path / file).is_file() or _digest(path / file) != state["files"].get(file):
            raise DamagedCheckpoint(f"checkpoint: {path / file} is missing or damaged; use an older checkpoint")
    try:
        return Saved(weights=path / WEIGHTS, tensors=load_file(path / OPTIMIZER), state=state)
    except SafetensorError as error:
        raise DamagedCheckpoint(f"checkpoint: {path / OPTIMIZER}: {error}; use an older checkpoint") from error


def load_or_older(path: Path) -> tuple[Path | None, Saved | None]:
    """Read this checkpoint, or where it is damaged the newest sound one beside it; (None, None) where there is none."""
    try:
        return path, load(path)
    except DamagedCheckpoint:
        older = latest(path.parent)
        return older, None if older is None else load(older)


def latest(folder: Path) -> Path | None:
    """Return the undamaged checkpoint with the most steps in a trial's folder, or None. Nobody may write there."""
    restore_replaced(folder)
    return next(filter(_sound, sorted([*folder.glob("step-*"), folder / BEFORE_DECAY], key=_steps, reverse=True)), None)


def _sound(path: Path) -> bool:
    try:
        load(path)
    except DamagedCheckpoint:
        return False
    return True


def model_resume_checkpoint(folder: Path, *, undecayed: bool) -> tuple[str, int] | None:
    """Return path and steps of the checkpoint at which a trial's next segment begins; undecayed: before its decay."""
    if undecayed:
        forget_decay(folder)
    path = latest(folder)
    return None if path is None else (str(path), _steps(path))


def forget_decay(folder: Path) -> None:
    """Let a trial go on from before its decay: drop the step checkpoints from inside it, unless there is none
    before."""
    restore_replaced(folder)
    if not _sound(folder / BEFORE_DECAY):
        return
    for path in folder.glob("step-*"):
        with suppress(DamagedCheckpoint, KeyError, TypeError):
            if _read_state(path)["decay"]["fraction"] < 1:
                shutil.rmtree(path, ignore_errors=True)


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return those of a checkpoint's tensors whose names begin with a prefix (AVERAGE or BEST), by the rest of the
    name."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def export(checkpoint: Path, folder: Path, tokenizer_json: str, *, averaged: bool = False) -> Path:
    """Copy a checkpoint's weights, config and tokenizer to `folder`, replacing what was there.

    averaged: take the average of each parameter that has one. Where the checkpoint is gone the newest beside it is
    taken: the trial went on, and was ended on its way.
    """
    saved = load(checkpoint if checkpoint.is_dir() else latest(checkpoint.parent) or checkpoint)

    def fill(place: Path) -> None:
        if averaged:
            weights = load_file(saved.weights)
            with safe_open(saved.weights, framework="pt") as file:
                tied = file.metadata() or {}  # the file has tied weights under one of their names
            averages = with_prefix(saved.tensors, AVERAGE).items()
            of_them = {tied.get(name, name): tensor for name, tensor in averages}
            save_file(weights | {name: of_them[name] for name in of_them if name in weights}, place / WEIGHTS)
        else:
            shutil.copyfile(saved.weights, place / WEIGHTS)
        (place / TOKENIZER).write_text(tokenizer_json, encoding="utf-8")
        (place / CONFIG).write_text(json.dumps(saved.state["config"], indent=1))

    return write_folder_whole(folder, fill)


def exported_config(folder: Path) -> Config:
    """Return the config of an exported model. OSError, ValueError, TypeError: there is none."""
    return Config(**OLD_DEFAULTS | json.loads((folder / CONFIG).read_text()))


def load_model(folder: Path, device: torch.device | str = "cpu") -> tuple[nn.Module, Tokenizer]:
    """Return an exported model, in evaluation mode, and its tokenizer. UserError: they cannot be read."""
    try:
        config = exported_config(folder)
        tokenizer = Tokenizer.from_json((folder / TOKENIZER).read_text(encoding="utf-8"))
    except OSError as error:
        what = f"{str(error.filename)!r} cannot be read ({error.strerror})"
        raise UserError(f"model: {what}; name a best-<family> folder of a study") from None
    except (ValueError, TypeError, LookupError) as error:
        raise UserError(f"model: {folder}: {error}; name a best-<family> folder of a study") from error
    return trained_model(config, folder, tokenizer, device), tokenizer


def trained_model(config: Config, folder: Path, tokenizer: Tokenizer, device: torch.device | str) -> nn.Module:
    """Return the model of a config in evaluation mode, with the weights of a folder, exported or a checkpoint.
    UserError: they are gone, damaged, or of another config.

    It computes in fp32 where the device does not do the precision natively and fast in which it was trained.
    """
    precision = config.precision
    if precision != "fp32" and precision not in native_precisions(device):
        precision = "fp32"
    prepare(precision, device)
    model = FAMILIES[config.family].build(config, tokenizer.vocabulary, tokenizer.pad or 0).to(device)
    try:
        load_weights(model, folder / WEIGHTS)
    except torch.OutOfMemoryError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        what = " ".join(str(error).split())[:LONGEST_REASON]
        raise UserError(f"model: {folder / WEIGHTS}: {what}; name a best-<family> folder of a study") from error
    set_compute(model, precision, own=config.family not in BUILT_IN)
    return model.eval()


def _read_state(path: Path) -> dict[str, Any]:
    try:
        with _named(path / STATE):
            state = json.loads((path / STATE).read_text())
        known = type(state["steps"]) is int and isinstance(state["files"], dict)
        sound = state.pop("checksum") == _checksum(state) and known
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        if is_disk_error(error):
            raise
        sound = False
    if not sound:
        raise DamagedCheckpoint(f"checkpoint: {path / STATE} is missing or damaged; use an older checkpoint")
    return state


def _steps(path: Path) -> int:
    """Steps of the checkpoint in this folder, -1 where its state cannot be read."""
    try:
        return int(_read_state(path)["steps"])
    except DamagedCheckpoint:
        return -1


def _checksum(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    with _named(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Have the error of reading a file name it: what a disk does not give now is not damaged, and may be back later."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise
