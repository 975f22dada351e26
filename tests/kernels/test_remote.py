"""Kernels as Ray tasks: no two at a time, behind a token, and Ray is gone afterwards."""

import os
from types import SimpleNamespace

import pytest

from kernels.settings import Settings
from kernels.tasks import OverdueError, cluster, in_tasks, prepare_environment

SETTINGS = Settings(kernels=("copy", "hypotenuse_scalar"), sizes=(10,))


class OverTimeError(Exception):
    """Ray's."""


def ray_of(said, *, get=lambda waiting, timeout: [waiting]):
    def init(**asked):
        said["cluster"] = asked

    def remote(**resources):
        said.setdefault("resources", []).append(resources)
        return lambda task: SimpleNamespace(remote=lambda ends, function, *arguments: arguments)

    def shutdown():
        said["gone"] = True

    def cancel(waiting, force):
        said["cancelled"] = waiting, force

    exceptions = SimpleNamespace(**dict.fromkeys(("GetTimeoutError", "RayError", "WorkerCrashedError"), OverTimeError))
    return SimpleNamespace(
        init=init, remote=remote, get=get, cluster_resources=lambda: {"GPU": 2.0}, shutdown=shutdown, cancel=cancel,
        exceptions=exceptions,
    )  # fmt: skip


def test_a_task_takes_the_whole_node_and_one_gpu_where_it_has_use_for_it():
    said = {}
    rows = list(in_tasks(ray_of(said), SETTINGS))
    assert [row[0] for (row,) in rows] == ["copy", "hypotenuse_scalar"]
    assert [each["num_gpus"] for each in said["resources"]] == [1, 0]
    assert all(each["num_cpus"] == said["cluster"]["num_cpus"] for each in said["resources"])
    assert said["cluster"]["address"] == "local" and said["gone"]


def test_a_task_that_outlives_its_time_is_ended_and_ray_is_gone_after_a_failure_too():
    def get(waiting, timeout):
        raise OverTimeError

    said = {}
    with pytest.raises(OverdueError), cluster(ray_of(said, get=get)) as up:
        up.run(print, "what", on_gpu=False, seconds=1.0)
    assert said["cancelled"] == (("what",), True) and said["gone"]


def test_a_mode_set_outside_does_not_open_it(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    prepare_environment()
    assert (os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"]) == ("token", "mine")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    prepare_environment()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    monkeypatch.delenv("RAY_AUTH_TOKEN")
