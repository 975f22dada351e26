"""After the search: its winner's configuration on 1, 2, 4 ... devices, for what was kept aside from the start."""

import math
import signal

from model.config import Config
from tune.backend.worker_group import LeaseOver
from tune.display.console import Voice
from tune.experiments.base import FoundTrial
from tune.experiments.runner import Bench
from tune.experiments.scaling import SCALING
from tune.flags import counts_text
from tune.search.engine import Planner
from tune.search_context import Grounds, best_of_all
from tune.search_space import label
from tune.signals import interruptible
from tune.winners import Winner


def scale_winner(grounds: Grounds, planner: Planner, write: Voice) -> None:
    """Give the winner the rows of the scaling experiment that it lacks, and tell what they say. A Ray is up.

    Not after a signal; where one comes meanwhile, `planner.stopping` says so, as after the search.
    """
    if not grounds.aside.counts or planner.stopping in signal.Signals.__members__:
        return
    winner = best_of_all(planner.books.journal, grounds.settings.families)
    if winner is None:
        write("scaling: skipped: there is no winner, as no trial reached a rung")
        return
    bench = make_bench(grounds, planner, winner, write)
    planner.books.keep_aside(0.0)
    counts = counts_text(grounds.aside.counts)
    write(f"scaling: {winner.trial} {winner.family} {label(winner.config)} on {counts} devices")
    try:
        with interruptible():
            bench.measure()
    except KeyboardInterrupt as told:
        planner.stopping = str(told)
    except LeaseOver:
        write("scaling: cut short: the processes were still at work when their lease ended; --resume measures the rest")
    bench.conclude()


def make_bench(grounds: Grounds, planner: Planner, winner: Winner, write: Voice) -> Bench:
    """On the search's books, and before its deadline."""
    settings, books = grounds.settings, planner.books
    points = grounds.aside.points(settings.budget)

    def wall_left() -> float:
        left = planner.wall_left()
        return math.inf if left is None else left

    return Bench(
        experiment=SCALING, points=points, config=Config.at(winner.config, family=winner.family, seed=settings.seed),
        data=grounds.data[winner.family], devices=grounds.devices, books=books, trials=FoundTrial(winner.trial),
        folder=books.journal.folder, write=write, wall_left=wall_left,
    )  # fmt: skip
