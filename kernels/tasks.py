"""The kernels as Ray tasks, one at a time, on a Ray of their own. Ray itself is handed in: kernels/ imports none."""

import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from kernels import machine_peaks
from kernels.benchmark import Row, measure
from kernels.kernel import THREADS
from kernels.registry import asked
from kernels.settings import Settings
from tune.machine import private_folder

RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray gives its workers niceness 15: a time taken at that is another time than outside
    "RAY_worker_niceness": "0",
}
ENDING_SECONDS = 0.5
"""What a task that is ended may take to be gone; after it the system ends its process, where nobody else did."""
Returned = TypeVar("Returned")


class OverdueError(Exception):
    """A task was ended, as its time was over."""


def prepare_environment() -> None:
    """Before Ray is imported, as it reads its settings then: nobody joins without a token, made for this process."""
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Ray that is up, and how many GPUs a task may take: one at most."""

    ray: Any
    gpus: int

    def run(
        self, function: Callable[..., Returned], *arguments: Any, on_gpu: bool, seconds: float | None = None,
        **options: Any,
    ) -> Returned:  # fmt: skip
        """A task that takes all cores, so that no two run at a time, and the GPU if it needs it; Ray's own `options`.

        OverdueError: it was not done after so many seconds, and is gone.
        """
        resources = {"num_cpus": THREADS, "num_gpus": self.gpus * on_gpu, "max_retries": 0}
        ends = None if seconds is None else time.monotonic() + seconds
        waiting = self.ray.remote(**resources, **options)(until).remote(ends, function, *arguments)
        try:
            return self.ray.get(waiting, timeout=seconds)
        except self.ray.exceptions.GetTimeoutError:
            self.ray.cancel(waiting, force=True)
            with suppress(self.ray.exceptions.RayError):
                self.ray.get(waiting, timeout=ENDING_SECONDS)
            raise OverdueError from None
        except self.ray.exceptions.WorkerCrashedError:
            if ends is None or time.monotonic() < ends:
                raise
            raise OverdueError from None


def until(ends: float | None, function: Callable[..., Returned], *arguments: Any) -> Returned:
    """Call a function in a process that the system ends by this machine's monotonic clock, where nobody else did."""
    left = 0.0 if ends is None else max(1e-6, ends + ENDING_SECONDS - time.monotonic())
    signal.setitimer(signal.ITIMER_REAL, left)
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


@contextmanager
def cluster(ray: ModuleType) -> Iterator[Cluster]:
    """A Ray of this process's own; it is gone afterwards, with its files, which no other user can get at meanwhile."""
    with private_folder() as folder:
        try:
            ray.init(
                address="local", num_cpus=THREADS, include_dashboard=False, log_to_driver=False,
                configure_logging=False, logging_level=logging.WARNING, _temp_dir=str(folder / "ray"),
            )  # fmt: skip
            yield Cluster(ray=ray, gpus=int(min(1, ray.cluster_resources().get("GPU", 0))))
        finally:
            ray.shutdown()


def takes_gpu(settings: Settings, name: str) -> bool:
    """Whether a kernel is to run on a GPU too."""
    return any(each.device == "gpu" for each in asked(settings, name))


def peaks_of(up: Cluster, seconds: float | None = None) -> machine_peaks.Found | None:
    """In a process that ends with it, as it changes switches."""
    return up.run(machine_peaks.measured, on_gpu=True, seconds=seconds, max_calls=1)


def rows_of(up: Cluster, settings: Settings, name: str, seconds: float | None = None) -> list[Row]:
    """Of one kernel."""
    arguments = name, settings.sizes, settings.implementations, settings.seed
    return up.run(measure, *arguments, on_gpu=takes_gpu(settings, name), seconds=seconds)


def in_tasks(ray: ModuleType, settings: Settings) -> Iterator[list[Row]]:
    """The rows of each kernel."""
    with cluster(ray) as up:
        for name in settings.kernels:
            yield rows_of(up, settings, name)
