"""The Ray that a search starts: its own, and closed to whoever has no token."""

import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import psutil
import pytest
import ray
from ray.tune.execution.class_cache import _ActorClassCache

from tune.backend import session
from tune.backend.session import local_ray
from tune.errors import ROOT, UserError
from tune.machine import READY
from tune.settings import Settings

JOIN = "import sys, ray; ray.init(address=sys.argv[1], logging_level=50); print(ray.cluster_resources()['CPU'])"


def join(address: str, **token: str) -> subprocess.CompletedProcess[str]:
    """What a process says that knows the address, and has this token; a stranger tries for three seconds only."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    stranger = tuple(token.values()) in TOKENS.values()
    environment = known | token | ({"RAY_gcs_server_port_wait_time_s": "3"} if stranger else {})
    return subprocess.run(
        [sys.executable, "-c", JOIN, address], env=environment, capture_output=True, text=True, timeout=600, check=False
    )


closed: list[Path] = []
"""Where the Ray of these tests had its files."""
started: list[str] = []
"""The command lines of its processes."""
TOKENS = {"none": ("disabled", ""), "another": ("token", "0" * 64)}


@pytest.fixture(scope="module")
def joined() -> dict[str, subprocess.CompletedProcess[str]]:
    """What becomes of each that tries to join, all at once: Ray takes its time to give up."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    with mock.patch.dict(os.environ, RAY_AUTH_MODE="disabled"):
        ray._raylet.Config.initialize("")  # as where it was imported before anything of ours
    others = {*psutil.Process().children(recursive=True)}  # of earlier tests
    with local_ray(cpus=1, gpus=0), ThreadPoolExecutor() as together:
        address = ray.get_runtime_context().gcs_address
        closed.append(Path(ray._private.worker._global_node.get_session_dir_path()))
        children = {*psutil.Process().children(recursive=True)} - others
        started.extend(" ".join(each.cmdline()) for each in children)
        assert os.getpgrp() not in {os.getpgid(each.pid) for each in children}, "told to end with this process's group"
        mine = [each.stat() for each in closed[0].parents if each.stat().st_uid == os.getuid()]
        assert any(stat.S_IMODE(each.st_mode) == 0o700 for each in mine)
        signal.raise_signal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
        assert heard == [signal.SIGTERM], "Ray took it, and would end this process without a word"
        tokens = TOKENS | {"ours": ("token", os.environ["RAY_AUTH_TOKEN"])}
        tries = {
            name: together.submit(join, address, RAY_AUTH_MODE=mode, RAY_AUTH_TOKEN=token)
            for name, (mode, token) in tokens.items()
        }
        return {name: each.result() for name, each in tries.items()}


def test_a_trial_begins_in_a_worker_that_was_begun_beforehand_and_has_imported_what_it_needs_before_it_has_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And devices are told of though that trial, as another job's may, holds them all."""

    class Begun:  # a trial; a class of a module would come with the imports of that
        def __init__(self) -> None:
            self.had = "torch" in sys.modules

        def told(self) -> tuple[int, bool, str]:
            return os.getpid(), self.had, os.environ["CUDA_VISIBLE_DEVICES"]

    def properties(kind: str) -> dict[str, Any]:
        return {"model": kind, "processor": "A", "precisions": ("fp32",), "memory_bytes": 8, "mps": False}

    def sees_none(kind: str) -> NoReturn:
        raise UserError("GPU: none there")

    before = dict(os.environ)
    with local_ray(cpus=1, gpus=1, preload=True):
        after, there = dict(os.environ), {each.pid for each in psutil.Process().children(recursive=True)}
        as_tune_begins_it = _ActorClassCache().get(Begun).options(num_cpus=1, num_gpus=1)
        trial = as_tune_begins_it.remote()
        pid, *told = ray.get(trial.told.remote())
        assert pid in there and told == [True, "0"]
        monkeypatch.setattr(session, "device_properties", properties)
        found = session.cluster_devices(Settings(budget=600))
        monkeypatch.setattr(session, "device_properties", sees_none)
        with pytest.raises(ValueError, match=r"^--address: on a node, GPU: none there$"):
            session.cluster_devices(Settings(budget=600))
    assert (found.slots, found.model) == (1, "cuda")
    assert {name: after.get(name) for name in before} == before
    assert not {"RAY_preload_python_modules", READY} & after.keys()


def test_a_machine_on_which_ray_does_not_start_in_time_is_told_in_a_line() -> None:
    given_up = Exception("The current node timed out during startup. This could happen because some of the raylet ...")
    with (
        mock.patch.object(ray, "init", side_effect=given_up),
        pytest.raises(UserError, match=r"did not start in time: .*try again .*--resume"),
        local_ray(cpus=1, gpus=0),
    ):
        pass


def test_what_trials_need_is_imported_without_a_question_to_cuda_which_would_hold_all_gpus_for_good() -> None:
    asked = "torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = None"
    told = f"import torch; {asked}; import tune.backend.preloaded"
    done = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_who_has_the_token_may_join(joined: dict[str, subprocess.CompletedProcess[str]]) -> None:
    """Or the refusals below would prove nothing."""
    assert joined["ours"].stdout == "1.0\n", joined["ours"].stderr


def test_it_has_no_process_that_nobody_asks(joined: dict[str, subprocess.CompletedProcess[str]]) -> None:
    assert any("raylet" in line for line in started)
    assert not [line for line in started if "monitor.py" in line or "dashboard.py" in line]


def test_its_files_are_closed_to_others_and_gone_afterwards(
    joined: dict[str, subprocess.CompletedProcess[str]],
) -> None:
    """Ray lets everyone write in its session's folder; above it is one that only this user can enter."""
    assert closed and not closed[0].exists()


@pytest.mark.parametrize("token", TOKENS)
def test_a_stranger_is_refused(joined: dict[str, subprocess.CompletedProcess[str]], token: str) -> None:
    refused = joined[token]
    assert refused.returncode != 0 and refused.stdout == ""
    assert "auth" in refused.stderr.lower()


def test_a_mode_set_outside_does_not_open_it() -> None:
    told = "import os, tune; print(os.environ['RAY_AUTH_MODE'])"
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    said = subprocess.run([sys.executable, "-c", told], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout == "token\n"
