"""Laws of virtual time: the cap holds, time is charged as in the search, every scheduler is asked alike."""

import math
import random

import pytest
import ray
from tune.curves.world import Machine, Stretch, World

from tests.tune.virtual.made import curve, play, table
from tune.curves.asked import SCHEDULERS
from tune.curves.recorded import Table
from tune.curves.supply import Supply


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("seed", range(6))
def test_no_scheduler_spends_more_than_the_cap_or_passes_the_deadline(scheduler, seed):
    rng = random.Random(seed)
    made, workers = table(rng.randint(1, 30), seed=seed, reports=rng.randint(1, 30)), rng.choice([1, 2, 5, 8])
    share = rng.choice([0.01, 0.1, 0.4, 2.0])
    deadline = rng.choice([math.inf, 2 * share * made.exhaustive / workers])
    world = play(made, scheduler, share=share, seed=seed, workers=workers, deadline=deadline)
    assert world.spent <= world.cap * (1 + 1e-9)
    assert world.now <= deadline * (1 + 1e-9)
    trained = sum(count * world.curve(trial).seconds_per_report for trial, count in world.reports.items())
    assert trained <= world.spent + 1e-6
    assert not ray.is_initialized()


def test_a_slot_is_charged_from_its_start_up_until_it_is_handed_back():
    made = Table(name="two", curves=(curve(0, reports=4), curve(1, reports=2)))

    class Both:
        def next(self, world):
            trial = world.draw()
            return "hand back" if trial is None else Stretch(trial, len(world.curve(trial).losses))

        def told(self, trial, reports, fits):
            pass

    world = World(
        made.curves, 1e6, Machine(workers=2, start_up=5.0, thaw=1.0), Supply(made.curves, suggest="order", seed=0)
    )
    world.play(Both())
    assert world.spent == pytest.approx(2 * 6.0 + made.exhaustive)


def test_every_scheduler_draws_the_same_configurations_in_the_same_order():
    made = table(25)
    orders = [play(made, scheduler, share=0.2, seed=3).trials for scheduler in SCHEDULERS if scheduler != "oracle"]
    shortest = min(len(order) for order in orders)
    assert shortest > 1 and len({tuple(order[:shortest]) for order in orders}) == 1
