"""Kernels as Ray tasks: no two at a time, behind a token, and Ray is gone afterwards."""

import os
from types import SimpleNamespace

import pytest

from kernels.remote import in_tasks, prepare_environment
from kernels.settings import Settings

SETTINGS = Settings(kernels=("copy", "triad"), sizes=(10,))


def ray_of(said, *, get=lambda waiting: [waiting]):
    def init(**cluster):
        said["cluster"] = cluster

    def remote(**resources):
        said["resources"] = resources
        return lambda function: SimpleNamespace(remote=lambda *arguments: arguments)

    def shutdown():
        said["gone"] = True

    resources = {"GPU": 2.0}
    return SimpleNamespace(init=init, remote=remote, get=get, cluster_resources=lambda: resources, shutdown=shutdown)


def test_a_task_takes_the_whole_node_and_one_gpu():
    said = {}
    rows = list(in_tasks(ray_of(said), SETTINGS))
    assert [row[0] for (row,) in rows] == ["copy", "triad"]
    assert said["resources"]["num_cpus"] == said["cluster"]["num_cpus"] and said["resources"]["num_gpus"] == 1
    assert said["cluster"]["address"] == "local" and said["gone"]


def test_ray_is_gone_after_a_failure_too():
    def get(waiting):
        raise RuntimeError

    said = {}
    with pytest.raises(RuntimeError):
        list(in_tasks(ray_of(said, get=get), SETTINGS))
    assert said["gone"]


def test_a_mode_set_outside_does_not_open_it(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    prepare_environment()
    assert (os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"]) == ("token", "mine")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    prepare_environment()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    monkeypatch.delenv("RAY_AUTH_TOKEN")
