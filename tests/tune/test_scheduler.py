"""Processes of slots that were handed back are gone, those of Ray's that nobody waits for among them."""

import time
from types import SimpleNamespace
from typing import Any

import ray

from tune.ray_run import local_ray
from tune.scheduler import SlotKeeper


class Starting:
    """A process that takes its time, as one that imports torch does."""

    def __init__(self, seconds: float) -> None:
        time.sleep(seconds)

    def here(self) -> bool:
        """Whether it got there."""
        return True


def test_a_process_that_was_replaced_while_it_started_is_ended_and_no_other() -> None:
    """Ray asks it to end and would wait until it has started; its slot is charged no more by then."""
    with local_ray(slots=3, gpus=0):
        seconds = {"busy": 0, "idle": 0, "replaced": 600}
        live: dict[str, Any] = {name: ray.remote(Starting).remote(seconds[name]) for name in seconds}
        controller = SimpleNamespace(
            _actor_cache=SimpleNamespace(_cached_objects={"slot": ["idle"]}, num_cached_objects=1),
            _actor_manager=SimpleNamespace(
                _live_actors_to_ray_actors_resources={name: (handle, None) for name, handle in live.items()}
            ),
            _actor_to_trial={"busy": "t001"},
        )
        books = SimpleNamespace(idle_slots=1)
        desk = SimpleNamespace(planner=SimpleNamespace(books=books), waiting=[])
        keeper = SlotKeeper(desk, SimpleNamespace(controller=controller), slots=3)  # type: ignore[arg-type]
        keeper._kept = {"slot"}
        assert ray.get([live["busy"].here.remote(), live["idle"].here.remote()]) == [True, True]
        waiting = live["replaced"].here.remote()
        keeper.on_step_end(0, [])
        ended, _ = ray.wait([waiting], timeout=60)
        assert ended == [waiting]
        assert ray.get([live["busy"].here.remote(), live["idle"].here.remote()]) == [True, True]
