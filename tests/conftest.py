"""What tests of several folders share."""

from __future__ import annotations

import gc
import os
import resource
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

import tune  # noqa: F401 - it makes Ray's settings, before a test imports Ray

if TYPE_CHECKING:
    from tests.searches import Searched
    from tests.soak.observer import Observer

os.environ["OMP_NUM_THREADS"] = "1"  # on a busy machine two threads wait for each other, and that loudly
os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the hub, or takes from a cache of this machine's user
os.environ["HF_HOME"] = "/proc/no/hub"
os.environ.setdefault("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))  # it takes seconds to make anew
CACHE = tempfile.TemporaryDirectory(prefix="ration-cache-")
os.environ["XDG_CACHE_HOME"] = CACHE.name


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds tune/, model/ and the rest."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def observer() -> Iterator[Observer]:
    """Looks at the processes of real searches while they run."""
    from tests.soak.observer import Observer

    looking = Observer()
    looking.start()
    yield looking
    looking.end()


@pytest.fixture(scope="session")
def searched(observer: Observer, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """README's first search, the cap made small, in a user's folder with no other study."""
    from tests.searches import search_until_found

    return search_until_found(observer, tmp_path_factory.mktemp("user") / "runs" / "search")


@pytest.fixture(scope="session", autouse=True)
def few_steps() -> None:
    """What a step takes is measured in one: no law asks how exactly."""
    from model.cost import probe

    probe.LEAST_STEPS = probe.MEASURED_STEPS = 1


@pytest.fixture(scope="session", autouse=True)
def no_syncs() -> None:
    """No test pulls the plug: most of the time of those with many checkpoints would go to waiting for the disk."""
    os.fsync = lambda fd: None


@pytest.fixture(autouse=True)
def one_thread(few_steps: None) -> Iterator[None]:
    """Torch's, again after a test that gave it more: all later ones of its process would have them."""
    import torch

    yield
    torch.set_num_threads(1)


@contextmanager
def small_files() -> Iterator[None]:
    """Where no file may grow beyond 4,096 bytes, as on a disk that takes no more."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def quick_timing(patch: pytest.MonkeyPatch) -> None:
    """Kernels are timed in next to no time, whatever others do meanwhile, and beside them one copy that nothing has to
    compile."""
    quick = {"VALUES": 5, "VALUE_SECONDS": 1e-5, "SETTLING_SECONDS": 0.0, "TRIES": 1}
    for name, value in (quick | {"CORES_TAKEN": 1e9, "LARGEST_SPREAD": 1e9}).items():
        patch.setattr(f"kernels.timing.{name}", value)

    def peaks(moved: int, places: Iterable[str]) -> dict[str, Any]:
        import numpy as np

        from kernels.benchmark import MARK, PAIR
        from kernels.kernel import Call

        numbers = np.ones(max(1, moved // PAIR))
        return {f"{MARK}{place} plain": Call(function=numbers.copy, arguments=(), read=bool) for place in places}

    patch.setattr("kernels.benchmark.peak_contenders", peaks)


def know_step_speed(patch: pytest.MonkeyPatch) -> None:
    """Experiments are priced without a step."""
    from tune.experiments.prices import StepSpeed

    known = StepSpeed(once=0.01, layer=0.005, flops=1e11, spread=0.0)
    patch.setattr("tune.experiments.prices.measure_step_speed", lambda *_: known)


WITH_RAY = (
    {"test_search", "test_readme", "test_examples"},
    {"test_runner", "test_session", "test_scheduler", "test_own_search", "test_cluster"},
)
"""Files whose tests start a Ray, which wait for long: two workers have them, and take about the same time. Of the first
some look at the same search.
"""
FORKED = {
    *("test_ends", "test_registry", "test_sleep", "test_tensorboard", "test_training_memory", "test_loop_trial"),
    *("test_ddp", "test_classifier", "test_killed_driver", "test_worker_group", "test_loop_processes"),
}
"""Files without Ray whose processes are forked (tests/forked.py): what these are forked from takes seconds to begin in
each worker that has one.
"""
SLOW = {
    *("test_compiled", "test_ddp", "test_probe", "test_train", "test_training_memory", "test_ablation"),
    *("test_cuda_kernels", "test_implementations", "test_wheel", "test_ends", "test_sleep"),
    *("test_corpora", "test_hub", "test_bad_input", "test_plan", "test_state", "test_suggest", "test_queries"),
    *("test_tensorboard", "test_report", "test_figures", "test_entries", "test_large_batch", "test_cuda_path"),
    *("test_classifier", "test_registry", "test_experiment_figures", "test_disk_faults"),
    *("test_recipe", "test_curves", "test_ways_to_learn"),
    *("test_loop_trial", "test_first_trial", "test_loop_report", "test_typed_space", "test_past_best", "test_slurm"),
    *("test_kernels_command", "test_loader", "test_machine_peaks", "test_cuda_graph", "test_worker_group"),
    *("test_killed_driver", "test_loop_processes", "test_loops", "test_winners", "test_time_budget", "test_cohort"),
    *("test_measure", "test_trainable", "test_tokenizer", "test_cuda_cohort", "test_mirror", "test_readme_kernels"),
    *("test_benchmark", "test_baselines", "test_cache", "test_export", "test_prospects", "test_base", "test_earlier"),
}
"""Files that take a core some seconds: they train or draw for long, compile, or begin processes."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ray: it starts a Ray")
    config.addinivalue_line("markers", "slow: it takes seconds")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those with Ray first, as they take longest, and then those that one worker has."""
    for item in items:
        if any(item.path.stem in names for names in WITH_RAY):
            item.add_marker("ray")
        elif item.path.stem in SLOW:
            item.add_marker("slow")
    items.sort(key=lambda item: (item.get_closest_marker("ray") is None, item.path.stem not in FORKED))


def pytest_collection_finish() -> None:
    """What was imported stays: looking through it each time that a training collects garbage takes half a second."""
    gc.collect()
    gc.freeze()


class Scheduling(LoadScopeScheduling):
    """Of three workers (see the Makefile) two run what has a Ray, one file after the other, the third all else: first
    what is forked.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        lanes = (str(names) for names in (*WITH_RAY, FORKED) if Path(file).stem in names)
        return next(lanes, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """In place of xdist's own marks of groups, which pytest 9.2 does not let through."""
    return Scheduling(config, log)
