"""The process that a user's training loop runs in: one lease after another, as its worker (backend/loop_trial.py) says.

It starts with the user's folder first on its path and ours last, and imports of ours only what `tune/loop.py` needs: a
`model.py` of the user's is found before ours. Lines of JSON go both ways. Where a loop reports to Ray Tune, or asks it
for a checkpoint, we answer in its place.
"""

import base64
import gc
import importlib.util
import json
import os
import pickle
import select
import shutil
import signal
import socket
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from tune.errors import is_disk_error, is_user_code
from tune.loop import FIRST_SAVE_SECONDS, Lease, StopLoop, Terms, current_lease, set_current_lease
from tune.machine import can_print, descendants

THREAD_LOOK_SECONDS = 0.05
"""Seconds between two looks whether a thread that serves many tasks is still at one."""

BOOT = """
import sys
folder, root = sys.argv[1:3]
sys.path[:] = [*([folder] if folder else []), *(each for each in sys.path if each not in ('', folder)), root]
from tune.loop_process import main
main(int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
"""
"""Code of such a process; its arguments are the user's folder, ours, the descriptors of a socket and a pipe, and a
folder that is removed after its end."""


def main(descriptor: int, pipe: int, scratch: str) -> None:
    """Work on leases until the worker is gone: the first line says what the loop is, each other what a lease is for."""
    line = socket.socket(fileno=descriptor)
    end_when_pipe_closes(pipe, line)
    sys.meta_path.insert(0, RayTuneFinder(scratch))
    lines = line.makefile("r", encoding="utf-8")

    def send(message: Mapping[str, Any]) -> None:
        line.sendall((json.dumps(message) + "\n").encode())

    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what it printed stays if it is killed
    source, here, own_main = json.loads(lines.readline()), os.getcwd(), sys.modules["__main__"]
    loop: Callable[[], object] | None = None
    save_seconds = FIRST_SAVE_SECONDS
    for request in map(json.loads, lines):
        if "stop" in request:  # it came after the lease was over
            continue
        terms = Terms(**request)
        lease = Lease(terms, send, lambda: bool(select.select([line], [], [], 0)[0]), save_seconds=save_seconds)
        writing = True
        try:
            print_to(terms.output)
            writing = False
            os.chdir(here)
            loop = loop or load_loop(source)
            set_current_lease(lease, busy_threads(is_beyond_stdlib))
            lease.end_setup()
            run_loop(loop)
            lease.on_return()
        except Exception as error:
            with suppress(Exception):  # the disk may be full
                traceback.print_exc()
            what: dict[str, Any] = {"error": traceback.format_exc()}
            if isinstance(error, OSError) and is_disk_error(error) and (lease.saving or writing or not can_print()):
                what = {"refused": [error.errno, error.strerror, error.filename]}
            send({"lease": terms.lease, **what})
            return
        set_current_lease(None)
        save_seconds = lease.save_seconds
        if is_script(source):
            sys.modules["__main__"] = own_main
            forget_modules(Path(os.path.realpath(source["file"])).parent)
        release_memory()
        send({"lease": terms.lease, "idle": not busy_threads(is_user_code)})  # the next trial's process begins anew


def run_loop(loop: Callable[[], object]) -> None:
    """Run the loop, and its threads, to their end. RuntimeError: it exits with a code other than 0."""
    process = os.getpid()
    try:
        with suppress(StopLoop):
            loop()
    except SystemExit as ended:
        end_forked(process, ended.code)
        if ended.code not in (None, 0):
            raise RuntimeError(f"it exited with {ended.code!r}") from ended
    except Exception:
        if os.getpid() != process:
            end_forked(process, traceback.format_exc())
        raise
    end_forked(process, 0)
    while left := [thread for thread in busy_threads(is_user_code) if not thread.daemon]:
        left[0].join(THREAD_LOOK_SECONDS)


def end_forked(process: int, code: object) -> None:
    """End this process if the loop forked it from `process`, and it came back from the loop too: what follows there is
    said once, by its parent. code: as of SystemExit."""
    if os.getpid() == process:
        return
    with suppress(Exception):
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


def is_beyond_stdlib(file: Path) -> bool:
    """Whether a file is not of the standard library: a thread that is at work for someone runs such code."""
    return not file.is_relative_to(sysconfig.get_path("stdlib")) or "site-packages" in file.parts


def busy_threads(counts: Callable[[Path], bool]) -> list[threading.Thread]:
    """Return the other threads with code on their stack from a file that counts, or that only just begin; those of a
    pool that wait for work have none but the standard library's."""
    frames = sys._current_frames()
    del frames[threading.get_ident()]
    found = []
    for thread in threading.enumerate():
        if (frame := frames.get(thread.ident or 0)) is not None:
            files = {each.f_code.co_filename for each, _ in traceback.walk_stack(frame)}
            if files == {threading.__file__} or any(counts(Path(file)) for file in files if file[:7] != "<frozen"):
                found.append(thread)
    return found


def end_when_pipe_closes(pipe: int, line: socket.socket) -> None:
    """Let this process, and what it starts, end when the other end of a pipe is closed, however the worker that holds
    it ended. The watching process is no child of this one, as the loop may wait for any of its children."""
    loop = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the loop may signal its group
    if first := os.fork():
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(pipe)
        os.waitpid(first, 0)
    elif os.fork():
        os._exit(0)
    else:
        line.close()
        os.read(pipe, 1)
        kill_process_tree(loop)
        os._exit(0)


def kill_process_tree(loop: int) -> None:
    """Kill a loop's process, its descendants in any session, and its process group, in which the caller may be."""
    for each in (loop, *descendants(loop)):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(loop, signal.SIGKILL)


def print_to(file: str) -> None:
    """Append to a file what the loop prints from now on, and what C libraries print for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    Path(file).parent.mkdir(exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def release_memory() -> None:
    """Free what the loop left, so that it does not burden the next lease."""
    sys.stdout.flush()
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def load_loop(source: Mapping[str, str]) -> Callable[[], object]:
    """Return the user's loop, to be called without arguments: a script that is run anew for each lease, or a function,
    which gets the configuration of the lease."""
    if "pickled" in source:  # by the driver, in this session: none is ever read from a study
        return bind_lease_config(pickle.loads(base64.b64decode(source["pickled"])))
    file = source["file"]
    sys.path[0] = os.path.dirname(os.path.realpath(file))  # as Python itself does, which follows links
    if is_script(source):
        return lambda: script(file)
    name = Path(file).stem
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, file
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return bind_lease_config(getattr(module, source["function"]))


def is_script(source: Mapping[str, str]) -> bool:
    """Whether the loop is a file that is run, no function."""
    return not {"function", "pickled"} & source.keys()


def forget_modules(folder: Path) -> None:
    """Forget the modules that were loaded from a script's folder, so that they too are executed anew with it. Installed
    ones stay, and packages with machine code, which may not be loaded twice."""
    found: dict[str, Path] = {}
    for name, module in list(sys.modules.items()):
        known = getattr(module, "__dict__", {})  # asking for an attribute may load a lazy module
        place = known.get("__file__") or next(iter(known.get("__path__") or ()), None)
        if isinstance(place, str) and Path(place).is_relative_to(folder) and is_user_code(Path(place)):
            found[name] = Path(place)
    stay = {name.partition(".")[0] for name, place in found.items() if place.suffix not in ("", ".py")}
    for name in found:
        if name.partition(".")[0] not in stay:
            sys.modules.pop(name, None)


def script(file: str) -> None:
    """Run a file as `python FILE` does in its folder. It stays `__main__`, as what it saves late may be pickled."""
    sys.argv[:] = [file]
    os.chdir(Path(file).parent)
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = file
    exec(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True), module.__dict__)


def bind_lease_config(train: Callable[[dict[str, Any]], object]) -> Callable[[], object]:
    """Return a function that calls the user's with the configuration of the lease."""

    def run() -> object:
        lease = current_lease()
        assert lease is not None
        lease.asked = True
        return train(dict(lease.terms.config))

    return run


class RayTuneFinder:
    """An import finder that finds `ray.tune` as Python does, and lets its functions report to us. scratch: where
    trials have their folders."""

    def __init__(self, scratch: str) -> None:
        self._scratch = scratch

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of `ray.tune`, as importlib asks; None for any other module."""
        if name != "ray.tune":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                patch_ray_tune(module, self._scratch)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def patch_ray_tune(tune: Any, scratch: str) -> None:
    """Replace ray.tune.report and ray.tune.get_checkpoint in this process, and what ray.tune.get_context tells of a
    trial, which has its folder in `scratch`."""

    def report(metrics: dict[str, Any], *, checkpoint: Any = None) -> None:
        def save(folder: Path) -> None:
            with checkpoint.as_directory() as theirs:
                shutil.copytree(theirs, folder, dirs_exist_ok=True)

        if (lease := current_lease()) is not None:
            lease.report(tune.utils.flatten_dict(metrics), None, None if checkpoint is None else save, always=True)
            if lease.over:
                raise StopLoop

    def get_checkpoint() -> Any:
        lease = current_lease()
        if lease is None or lease.checkpoint is None:
            return None
        lease.end_setup()
        return tune.Checkpoint.from_directory(str(lease.checkpoint))

    def of_trial(told: Callable[[Terms], object]) -> Callable[[], object]:
        return lambda: None if (lease := current_lease()) is None else told(lease.terms)

    def own_folder(trial: str) -> str:
        os.makedirs(folder := os.path.join(scratch, trial), exist_ok=True)  # not in the study, which holds no links
        return folder

    tune.report, tune.get_checkpoint = report, get_checkpoint
    context = tune.get_context()
    context.get_trial_id = context.get_trial_name = of_trial(lambda terms: terms.trial)
    context.get_trial_dir = of_trial(lambda terms: own_folder(terms.trial))
    context.get_experiment_name = of_trial(lambda terms: Path(terms.output).parents[1].name)
