"""Ray for one search: started for it alone, and its Tuner told to do as the planner says."""

import logging
import os
import secrets
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
import ray._private.utils
import ray.tune

from model.config import Data
from tune.families import travelling
from tune.planner import Planner
from tune.private import private_folder
from tune.scheduler import AdmittingSearcher, BudgetScheduler, Desk, SlotKeeper
from tune.trial import Place, TrainingTrial

KERNELS_KEPT = "512"
"""By oneDNN, and as many by torch, where memory is limited; each keeps 1,024 otherwise, of 1 MB or more in bf16."""


def keep_fewer_kernels() -> None:
    """For the processes of trials that start from now on, unless the user said otherwise."""
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, KERNELS_KEPT)


@contextmanager
def local_ray(slots: int, gpus: int) -> Iterator[None]:
    """A Ray of this process's own, whatever else may be up, with one CPU a slot. It is gone afterwards, with its files.

    Who has no token is refused. It is new for each process and in its environment only, unless one is set there. Ray
    lets everyone write in its folder, so that lies in one that only this user can enter.
    """
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with private_folder() as folder:
        try:
            with sigterm_left_alone():
                ray.init(
                    address="local", num_cpus=slots, num_gpus=gpus, include_dashboard=False, log_to_driver=False,
                    configure_logging=False, logging_level=logging.WARNING, _temp_dir=str(folder / "ray"),
                )  # fmt: skip
            yield
        finally:
            ray.shutdown()


@contextmanager
def sigterm_left_alone() -> Iterator[None]:
    """Ray takes SIGTERM for itself when it starts, in Python and once more in C++, and would end this process by it."""
    kept, ray._private.utils.set_sigterm_handler = ray._private.utils.set_sigterm_handler, lambda handler: None
    try:
        yield
    finally:
        ray._private.utils.set_sigterm_handler = kept
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


class Silent(ray.tune.ProgressReporter):
    """In a notebook Ray's own would wipe what the cell shows."""

    def should_report(self, trials: list[Any], done: bool = False) -> bool:
        """Never."""
        return False

    def report(self, trials: list[Any], done: bool, *sys_info: str) -> None:
        """Nothing."""


def run_trials(planner: Planner, data: Mapping[str, Data], place: Place, needs: Mapping[str, float]) -> None:
    """Let Ray Tune run trials until the planner has handed back every slot; needs: what of Ray's each one takes."""
    desk, slots = Desk(planner), planner.slots.most
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(slots)
    scheduler = BudgetScheduler(desk)
    trainable = ray.tune.with_resources(
        ray.tune.with_parameters(TrainingTrial, data=dict(data), place=place, families=travelling()),
        dict(needs),
    )
    with tempfile.TemporaryDirectory(prefix="ration-") as scratch:
        tuner = ray.tune.Tuner(
            trainable,
            tune_config=ray.tune.TuneConfig(
                search_alg=AdmittingSearcher(desk), scheduler=scheduler, num_samples=-1, reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id, trial_name_creator=lambda trial: trial.trial_id,
            ),
            run_config=ray.tune.RunConfig(
                storage_path=scratch, name="tune", verbose=0, callbacks=[SlotKeeper(desk, scheduler, slots)],
                progress_reporter=Silent(), failure_config=ray.tune.FailureConfig(max_failures=0),
            ),
        )  # fmt: skip
        try:
            tuner.fit()
        except Exception:
            if desk.failed is None:
                raise
            raise desk.failed from None
