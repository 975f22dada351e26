"""Peers in virtual time, each by its own code: Ray's ASHA and HyperBand, Optuna's pruners; random search, an oracle.

Their time is the optimizer steps of a trial, in units of the most steps between two reports. One that decides only when
a trial comes to certain steps is told only of those. Those that stop trials for good begin again with all
configurations, and a longer grace, when these are used up.
"""

import logging
import math
import warnings
from typing import Any, Literal

import optuna
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, HyperBandScheduler, TrialScheduler

from tune.curves.world import Stretch, World

ASHA_REDUCTION, ASHA_GRACE = 2, 2
HYPERBAND_REDUCTION = 2
OPTUNA_HALVING_REDUCTION, OPTUNA_HALVING_LEAST = 2, 2
OPTUNA_HYPERBAND_REDUCTION, OPTUNA_HYPERBAND_LEAST = 4, 2
"""The best settings of each on the seven tables, of reductions 2 to 5 and graces 1 to 16 (RESULTS.md)."""

Move = Stretch | Literal["hand back", "wait"]


class Peer:
    """What peers share: a trial that may go on does so on its slot, else the slot begins a new one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.unit = max(curve.steps_per_report for curve in world.curves)
        self.longest = max(len(curve.losses) * curve.steps_per_report for curve in world.curves) / self.unit
        self.going: int | None = None

    def next(self, world: World) -> Move:
        """The trial that just reported, if it may go on; else a new one."""
        trial = self.going if self.going is not None else world.draw()
        if trial is None and self.again():
            world.supply.begin_again()
            trial = world.draw()
        if trial is None:
            return "hand back"
        if self.going is None:
            self.begin(trial)
        self.going = None
        return Stretch(trial, self.until(trial))

    def told(self, trial: int, reports: int, fits: bool) -> None:
        """Ask the scheduler whether the trial goes on."""
        curve = self.world.curve(trial)
        if fits and self.goes_on(
            trial, self.time(trial, reports), curve.losses[reports - 1], reports == len(curve.losses)
        ):
            self.going = trial

    def time(self, trial: int, reports: int) -> float:
        """A trial's steps in units of the longest stretch between reports."""
        return reports * self.world.curve(trial).steps_per_report / self.unit

    def reports_at(self, trial: int, time: float) -> int:
        """The first report at a time or after it, the last one where that is too late."""
        curve = self.world.curve(trial)
        return min(len(curve.losses), math.ceil(time * self.unit / curve.steps_per_report - 1e-9))

    def next_of(self, trial: int, least: float, reduction: float) -> int:
        """The report at the next rung of a ladder."""
        before = self.world.reports.get(trial, 0)
        while self.reports_at(trial, least) <= before and self.reports_at(trial, least) < len(
            self.world.curve(trial).losses
        ):
            least *= reduction
        return self.reports_at(trial, least)

    def again(self) -> bool:
        """Begin again with all configurations? False where that would change nothing."""
        return False

    def begin(self, trial: int) -> None:
        """A new trial."""

    def until(self, trial: int) -> int:
        """The reports after which the scheduler must be asked."""
        return len(self.world.curve(trial).losses)

    def goes_on(self, trial: int, time: float, loss: float, over: bool) -> bool:
        """Whether a trial goes on after a report; over: that was its last."""
        return False


class Random(Peer):
    """Every configuration to its end."""


class Oracle(Peer):
    """The best configuration, and nothing else."""

    def next(self, world: World) -> Move:
        """All of the best curve, once."""
        if world.trials:
            return "hand back"
        world.trials.append(min(range(len(world.curves)), key=lambda index: world.curves[index].best[-1]))
        return Stretch(0, len(world.curve(0).losses))


class Stub:
    """As much of a Ray trial as a scheduler looks at."""

    is_saving = False

    def __init__(self, number: int) -> None:
        self.number, self.trial_id, self.status = number, str(number), Trial.PENDING


class RayAsha(Peer):
    """Ray's AsyncHyperBandScheduler."""

    def __init__(self, world: World, *, reduction: float = ASHA_REDUCTION, grace: float = ASHA_GRACE) -> None:
        super().__init__(world)
        self.reduction, self.grace = reduction, min(grace, self.longest)
        self._restart()

    def _restart(self) -> None:
        self._stubs: dict[int, Stub] = {}
        self._scheduler = AsyncHyperBandScheduler(
            time_attr="time",
            metric="loss",
            mode="min",
            max_t=self.longest,
            grace_period=self.grace,
            reduction_factor=self.reduction,
        )

    def again(self) -> bool:
        self.grace *= self.reduction
        if self.grace >= self.longest:
            return False
        self._restart()
        return True

    def begin(self, trial: int) -> None:
        self._stubs[trial] = Stub(trial)
        self._scheduler.on_trial_add(None, self._stubs[trial])

    def until(self, trial: int) -> int:
        return self.next_of(trial, self.grace, self.reduction)

    def goes_on(self, trial: int, time: float, loss: float, over: bool) -> bool:
        if trial not in self._stubs:
            return not over
        decision = self._scheduler.on_trial_result(None, self._stubs[trial], {"time": time, "loss": loss})
        return bool(decision == TrialScheduler.CONTINUE) and not over


class RayHyperBand(Peer):
    """Ray's HyperBandScheduler. Tune hands it all trials at once; it chooses who runs."""

    def __init__(self, world: World, *, reduction: float = HYPERBAND_REDUCTION) -> None:
        super().__init__(world)
        logging.getLogger("ray.tune").setLevel(logging.WARNING)
        self._scheduler = HyperBandScheduler(
            time_attr="time", metric="loss", mode="min", max_t=math.ceil(self.longest), reduction_factor=reduction
        )
        self._running = 0
        self._stubs: list[Stub] = []
        while (trial := world.draw()) is not None:
            self._stubs.append(Stub(trial))
            self._scheduler.on_trial_add(self, self._stubs[-1])

    def next(self, world: World) -> Move:
        if self.going is None:
            stub = self._scheduler.choose_trial_to_run(self)
            if stub is None:
                return "wait" if self._running else "hand back"
            self.going, stub.status = stub.number, Trial.RUNNING
            self._running += 1
        trial, self.going = self.going, None
        return Stretch(trial, world.reports.get(trial, 0) + 1)

    def told(self, trial: int, reports: int, fits: bool) -> None:
        stub, curve = self._stubs[trial], self.world.curve(trial)
        result = {"time": self.time(trial, reports), "loss": curve.losses[reports - 1]}
        self._running -= 1
        if not fits:
            stub.status = Trial.ERROR
            self._scheduler.on_trial_error(self, stub)
        elif reports == len(curve.losses):
            stub.status = Trial.TERMINATED
            self._scheduler.on_trial_complete(self, stub, result)
        else:
            decision = self._scheduler.on_trial_result(self, stub, result)
            if decision == TrialScheduler.CONTINUE:
                self.going = trial
                self._running += 1
            else:
                stub.status = Trial.PAUSED if decision == TrialScheduler.PAUSE else Trial.TERMINATED

    def stop_trial(self, stub: Stub) -> None:
        """What the scheduler asks of Ray's controller."""
        stub.status = Trial.TERMINATED
        self._scheduler.on_trial_remove(self, stub)


class OptunaPruner(Peer):
    """One of Optuna's pruners, by ask and tell."""

    def __init__(self, world: World, *, hyperband: bool, reduction: int, least: int) -> None:
        super().__init__(world)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", module="optuna")
        self.hyperband, self.reduction, self.least = hyperband, reduction, least
        self._rounds = 0
        self._restart()

    def _restart(self) -> None:
        options: dict[str, Any] = {"min_resource": self.least, "reduction_factor": self.reduction}
        pruner: optuna.pruners.BasePruner = (
            optuna.pruners.HyperbandPruner(max_resource=math.ceil(self.longest), **options)
            if self.hyperband
            else optuna.pruners.SuccessiveHalvingPruner(**options)
        )
        self._study = optuna.create_study(study_name=f"round {self._rounds}", pruner=pruner)
        self._trials: dict[int, optuna.Trial] = {}

    def again(self) -> bool:
        self.least *= self.reduction
        self._rounds += 1
        if self.least >= self.longest:
            return False
        self._restart()
        return True

    def begin(self, trial: int) -> None:
        self._trials[trial] = self._study.ask()

    def until(self, trial: int) -> int:
        return self.next_of(trial, self.least, self.reduction)

    def goes_on(self, trial: int, time: float, loss: float, over: bool) -> bool:
        asked = self._trials.get(trial)
        if asked is None:
            return not over
        asked.report(loss, math.floor(time + 1e-9))
        return not asked.should_prune() and not over


def optuna_hyperband(world: World) -> OptunaPruner:
    """Optuna's HyperbandPruner."""
    return OptunaPruner(world, hyperband=True, reduction=OPTUNA_HYPERBAND_REDUCTION, least=OPTUNA_HYPERBAND_LEAST)


def optuna_halving(world: World) -> OptunaPruner:
    """Optuna's SuccessiveHalvingPruner."""
    return OptunaPruner(world, hyperband=False, reduction=OPTUNA_HALVING_REDUCTION, least=OPTUNA_HALVING_LEAST)
