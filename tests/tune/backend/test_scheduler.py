"""Processes that nobody waits for are ended: of slots that were handed back, replaced ones, and those too late.

And where a process has a Ray, as these tests' has, no search begins.
"""

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.tune.experiment import Trial

from kernels.settings import Settings as KernelSettings
from model.training.checkpoint import model_resume_checkpoint
from tests.tune.search.world import World
from tune.backend.scheduler import NOT_STARTED, BudgetScheduler, SlotKeeper, TuneBridge
from tune.backend.session import local_ray
from tune.errors import UserError
from tune.experiments import kernels
from tune.experiments.base import ExperimentSettings
from tune.experiments.kernels import Cluster
from tune.experiments.runner import run_experiment
from tune.experiments.scaling import SCALING
from tune.settings import Settings
from tune.store.heartbeat import GRACE_SECONDS
from tune.study import run_study


def begun(seconds: float) -> Any:
    """A process that takes its time, as one that imports torch does."""

    class Starting:  # a class of a module would come with the imports of that
        def __init__(self) -> None:
            time.sleep(seconds)

        def here(self) -> bool:
            """Whether it got there."""
            return True

    return ray.remote(Starting).remote()


@pytest.fixture(scope="module")
def up() -> Iterator[Cluster]:
    """The Ray of kernels, for as many processes as these tests begin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "THREADS", 4)
        with kernels.cluster() as cluster:
            yield cluster


def test_a_process_that_was_replaced_while_it_started_is_ended_and_no_other(up: Cluster) -> None:
    """Ray asks it to end and would wait until it has started; its slot is charged no more by then."""
    seconds = {"busy": 0, "idle": 0, "replaced": 600}
    live: dict[str, Any] = {name: begun(seconds[name]) for name in seconds}
    controller = SimpleNamespace(
        _actor_cache=SimpleNamespace(_cached_objects={"slot": ["idle"]}, num_cached_objects=1),
        _actor_manager=SimpleNamespace(
            _live_actors_to_ray_actors_resources={name: (handle, None) for name, handle in live.items()}
        ),
        _actor_to_trial={"busy": "t001"},
    )
    accounting = SimpleNamespace(idle_slots=1)
    bridge = SimpleNamespace(engine=SimpleNamespace(accounting=accounting), waiting=[])
    keeper = SlotKeeper(bridge, SimpleNamespace(controller=controller), slots=3)  # type: ignore[arg-type]
    keeper._kept = {"slot"}
    assert ray.get([live["busy"].here.remote(), live["idle"].here.remote()]) == [True, True]
    waiting = live["replaced"].here.remote()
    keeper.on_step_end(0, [])
    ended, _ = ray.wait([waiting], timeout=600)
    assert ended == [waiting]
    assert ray.get([live["busy"].here.remote(), live["idle"].here.remote()]) == [True, True]


def test_a_search_in_a_process_that_has_a_ray_is_refused_before_anything_is_written_and_leaves_that_as_it_is(
    up: Cluster, tmp_path: Path
) -> None:
    space: Any = {"width": [4, 8]}
    asked = Settings(budget="1h", train=lambda config: None, space=space, metric="loss", out=tmp_path / "study")
    experiment = ExperimentSettings(budget="1h", families="nanogpt", text_corpus="builtin", out=tmp_path / "experiment")
    local = local_ray(cpus=1, gpus=0)
    for begin in (partial(run_study, asked), partial(run_experiment, SCALING, experiment), local.__enter__):
        with pytest.raises(UserError, match=r"^Ray: this process has one already[^\n]*ray\.shutdown\(\) first$"):
            begin()
    assert ray.is_initialized()
    assert os.listdir(tmp_path) == []


def test_a_kernel_is_measured_in_a_task_which_keeps_its_rows_as_they_come(up: Cluster, tmp_path: Path) -> None:
    asked = KernelSettings(kernels=("scalar_add",), implementations=("numpy",))
    rows = kernels.rows_of(up, asked, "scalar_add", file=tmp_path / "rows")
    assert [row["implementation"] for row in rows] == ["numpy"]
    assert len((tmp_path / "rows").read_text().splitlines()) == 1


def late(world: World, live: dict[str, Any], name: str = "t001") -> SlotKeeper:
    """Of a trial whose lease is over, and whose process Ray has not heard of yet; `live`: those that Ray began."""
    trial = SimpleNamespace(
        temporary_state=SimpleNamespace(ray_actor=None), config={"assignment": {"trial": name}}, error_file=None,
        status=Trial.PENDING,
    )  # fmt: skip
    world.now += world.engine.running[name].assignment.seconds + GRACE_SECONDS
    bridge = TuneBridge(world.engine, world.newest)
    bridge.known[name] = trial  # type: ignore[assignment]
    scheduler = BudgetScheduler(bridge)
    scheduler.controller = SimpleNamespace(
        stop_trial=lambda each: setattr(each, "status", Trial.TERMINATED),
        _actor_cache=SimpleNamespace(num_cached_objects=0),
        _trial_to_actor=SimpleNamespace(get=lambda _: "starting"),
        _actor_manager=SimpleNamespace(
            _live_actors_to_ray_actors_resources={name: (handle, None) for name, handle in live.items()}
        ),
    )
    return SlotKeeper(bridge, scheduler, slots=1)


def test_a_process_that_has_not_started_within_its_lease_is_ended_and_not_the_one_that_had_the_trial_before(
    up: Cluster, tmp_path: Path
) -> None:
    """This process gave the trial's last sign of life: were it ended for it, no test would be left to say so."""
    world = World(tmp_path, cap=600, slots=1)
    world.live(world.taken())
    starting = begun(600)
    waiting = starting.here.remote()
    keeper = late(world, {"starting": starting})
    keeper.on_step_begin(0, [])
    assert ray.wait([waiting], timeout=600)[0] == [waiting]
    assert keeper._bridge.killed == {"t001": NOT_STARTED}


@pytest.mark.parametrize("fresh", [{"new"}, {"old"}, {"new", "old"}, set()], ids=sorted)
def test_an_idle_process_goes_to_a_trial_whose_lease_does_not_pay_for_a_new_one(fresh: set[str]) -> None:
    running = {name: SimpleNamespace(fresh_slot=name in fresh) for name in ("new", "old")}
    engine = SimpleNamespace(running=running, is_done=False)
    bridge = TuneBridge(engine, model_resume_checkpoint)  # type: ignore[arg-type]
    for name, status in (("new", Trial.PENDING), ("old", Trial.PAUSED)):
        config = {"assignment": {"trial": name}}
        bridge.known[name] = SimpleNamespace(status=status, config=config, set_config=config.update)  # type: ignore
    bridge.waiting.append(SimpleNamespace(trial="old"))  # type: ignore[arg-type]
    bridge.config = lambda assignment: {}  # type: ignore[method-assign]
    scheduler, cache = BudgetScheduler(bridge), SimpleNamespace(num_cached_objects=1)
    scheduler.controller = SimpleNamespace(_actor_cache=cache, _staged_trials=[])
    first = scheduler.choose_trial_to_run(None)
    assert first is bridge.known["new" if fresh == {"old"} else "old"]
    cache.num_cached_objects = 0
    assert (scheduler.choose_trial_to_run(None) is bridge.known["old"]) == (fresh == {"old"})
    assert not bridge.waiting


def test_where_ray_has_no_device_the_search_ends_with_one_line(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=1)
    world.taken()
    keeper = late(world, {})
    with pytest.raises(ValueError, match=r"^--devices: Ray had no device for t001 [^\n]*--resume$"):
        keeper.on_step_begin(0, [])
    assert keeper._bridge.failed is not None


def test_where_ray_has_no_device_as_its_machine_is_gone_the_trial_waits_for_another(tmp_path: Path) -> None:
    world, there = World(tmp_path, cap=600, slots=2), frozenset("ab")
    engine = world.engine
    engine.slots.there = lambda: there
    first, second = world.taken(), world.taken()
    there = frozenset("a")
    keeper = late(world, {}, second.trial)
    known = keeper._bridge.known[second.trial]
    keeper.on_step_begin(0, [])
    assert known.status == Trial.TERMINATED and engine.running.keys() == {first.trial}
    assert not keeper._bridge.known and not engine.trials[second.trial].deaths
    there = frozenset("ab")
    assert world.taken().trial == second.trial
