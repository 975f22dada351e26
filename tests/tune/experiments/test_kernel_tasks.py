"""Kernels as Ray tasks: no two at a time, one GPU at most, and none outlives its time."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernels.settings import Settings
from tune.experiments.kernels import Cluster, OverdueError, in_tasks

SETTINGS = Settings(kernels=("copy", "hypotenuse_scalar"), sizes=(10,))


class OverTimeError(Exception):
    """Ray's."""


def cluster_of(said: dict[str, Any], get: Callable[..., Any] = lambda waiting, timeout: [waiting]) -> Cluster:
    def remote(**resources: Any) -> Callable[..., Any]:
        said.setdefault("resources", []).append(resources)
        return lambda task: SimpleNamespace(remote=lambda ends, function, *arguments: arguments)

    def cancel(waiting: Any, force: bool) -> None:
        said["cancelled"] = waiting, force

    exceptions = SimpleNamespace(**dict.fromkeys(("GetTimeoutError", "RayError", "WorkerCrashedError"), OverTimeError))
    ray = SimpleNamespace(remote=remote, get=get, cancel=cancel, exceptions=exceptions)
    return Cluster(ray=cast(Any, ray), gpus=1)


def test_a_task_takes_the_whole_node_and_one_gpu_where_it_has_use_for_it() -> None:
    said: dict[str, Any] = {}
    rows = cast(Any, list(in_tasks(cluster_of(said), SETTINGS)))
    assert [row[0] for (row,) in rows] == ["copy", "hypotenuse_scalar"]
    assert [each["num_gpus"] for each in said["resources"]] == [1, 0]
    assert len({each["num_cpus"] for each in said["resources"]}) == 1


def test_a_task_that_outlives_its_time_is_ended() -> None:
    def get(waiting: Any, timeout: float) -> Any:
        raise OverTimeError

    said: dict[str, Any] = {}
    with pytest.raises(OverdueError):
        cluster_of(said, get).run(print, "what", on_gpu=False, seconds=1.0)
    assert said["cancelled"] == (("what",), True)
