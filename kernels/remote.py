"""The kernels as Ray tasks, one at a time, on a Ray of their own. Ray itself is handed in: run.py alone imports it."""

import logging
import os
import secrets
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from kernels.bench import Row, measure
from kernels.compiled import THREADS
from kernels.settings import Settings

RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray gives its workers niceness 15: a time taken at that is another time than outside
    "RAY_worker_niceness": "0",
}


def prepare_environment() -> None:
    """Before Ray is imported, as it reads its settings then: nobody joins without a token, made for this process."""
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def in_tasks(ray: ModuleType, settings: Settings) -> Iterator[list[Row]]:
    """The rows of each kernel. A task takes all cores, and the GPU where there is one, so no two run at a time."""
    ray.init(
        address="local", num_cpus=THREADS, include_dashboard=False, log_to_driver=False,
        configure_logging=False, logging_level=logging.WARNING,
    )  # fmt: skip
    try:
        gpus = min(1, ray.cluster_resources().get("GPU", 0))
        task: Any = ray.remote(num_cpus=THREADS, num_gpus=gpus, max_retries=0)(measure)
        asked = (settings.sizes, settings.implementations, settings.seed)
        for waiting in [task.remote(name, *asked) for name in settings.kernels]:
            yield ray.get(waiting)
    finally:
        ray.shutdown()
