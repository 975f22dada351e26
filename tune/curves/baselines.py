"""Baselines, each a policy of the engine in place of its own: Ray's ASHA and HyperBand and Optuna's pruners by their
own code, ASHA with promotion, one report for all, random search, an oracle.

Their time is a trial's optimizer steps, in units of the most steps between two reports: rung k is k + 1 units. A
scheduler that decides at certain times only is told of those alone. One that stops trials for good begins again with
all configurations, and a longer grace period, when these are used up.
"""

import logging
import math
import warnings
from collections.abc import Callable
from typing import Any

import optuna
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, HyperBandScheduler, TrialScheduler

from tune.curves.recorded import CurveSuggestions
from tune.search.family import with_margin
from tune.search.forecast import NO_PROGRESS, Progress, Standing
from tune.search.ladder import Ladder
from tune.search.policy import BudgetLeft, HandBack, Move, Policy, Promote, Start, Wait

ASHA_REDUCTION, ASHA_GRACE = 2, 2
HYPERBAND_REDUCTION = 2
OPTUNA_HALVING = {"reduction": 2, "grace": 2}
OPTUNA_HYPERBAND = {"reduction": 4, "grace": 2}
"""Reduction factors, and grace periods in units of time: the best of each scheduler on the seven tables, of reductions
2 to 5 and grace periods 1 to 16 (docs/log.md)."""
FIRST_REPORTS_SHARE = 0.5
"""Largest share of the cap for the first reports of all, before the best go on."""


class Baseline(Policy):
    """Policy that baselines share: a trial that may go on does so, else a slot begins a new one; nothing is kept for
    later.

    unit: steps in a unit of time; longest: units to the end of the longest life; price: as of SuccessiveHalving.
    """

    ladder: Ladder
    is_hopeless = False
    last_segment = None
    has_more = True

    def __init__(
        self, *, supply: CurveSuggestions, price: Callable[[str | None, int], float], unit: float, steps: float,
        step_seconds: float,
    ) -> None:  # fmt: skip
        self.supply, self._price = supply, price
        self._unit_seconds, self.longest = unit * step_seconds, steps / unit
        self.trials: dict[str, Standing] = {}
        self.going: dict[str, None] = {}
        self.decision: dict[str, int] = {}

    def rung_seconds(self, rung: int) -> float:
        return (rung + 1) * self._unit_seconds

    # --- called by the engine

    def decide(self, left: BudgetLeft) -> Move:
        """Go on with a trial that may, else begin a new one, as long as what is left pays for it."""
        for trial in self.going:
            if (rung := self._affordable(trial, self.decision[trial], left)) is not None:
                return Promote(trial, rung, "goes on")
        if self.going and self._running:
            return Wait("the next that goes on cannot be paid yet")
        return self._begin(left) if not self.going else HandBack("nothing is left")

    def on_promoted(self, trial: str, rung: int, seconds: float) -> None:
        if trial not in self.trials:
            self.trials[trial] = Standing()
            self.begin(trial)
            self.decision[trial] = self.next_decision(trial, -1)
        self.going.pop(trial, None)
        self.trials[trial].state, self.trials[trial].goal = "running", rung

    def on_reported(
        self, trial: str, rung: int, loss: float, *, telling: bool = True, progress: Progress = NO_PROGRESS
    ) -> None:
        """Note a trial's loss at a time; the rule says whether it goes on if it is to decide there, else it does."""
        standing = self._rests(trial, "paused")
        standing.rung = rung
        over = rung + 1 >= self.longest
        standing.losses[rung] = loss
        goes_on = True
        if rung >= self.decision[trial]:
            self.decision[trial] = self.next_decision(trial, rung)
            goes_on = self.should_continue(trial, rung + 1.0, loss, over) and not over
        if goes_on:
            self.going[trial] = None

    def on_finished(self, trial: str, training: float = 0.0, beside: float = 0.0) -> None:
        self._rests(trial, "finished")
        self.on_complete(trial)

    def on_turned(self, trial: str, loss: float, training: float) -> None:
        self.on_finished(trial)

    def on_ended(self, trial: str, reason: str) -> None:
        self._rests(trial, "ended")
        self.on_failed(trial)

    def on_interrupted(self, trial: str) -> None:
        """Let a trial go on whose segment ended before its goal, when what was left did not pay for the rest."""
        self._rests(trial, "paused")
        self.going[trial] = None

    def ignore(self, *_: Any, **__: Any) -> None:
        """Do nothing: no baseline has a ladder, or knows of a last segment or a last comparison; no trial
        of a replay returns by itself, and none is resumed."""

    on_life_known = on_finishing = on_confirming = on_returned = enough_seconds = on_resumed = refit = ignore

    def make_ladder(self, seconds: float, within: float = math.inf, deadline: float = math.inf) -> Ladder:
        raise NotImplementedError

    def state(self) -> dict[str, object]:
        return {}

    # --- overridden by the rules

    def begin(self, trial: str) -> None:
        """Note a new trial."""

    def begin_round(self) -> bool:
        """Return whether to begin again with all configurations; False where that would change nothing."""
        return False

    def next_decision(self, trial: str, rung: int) -> int:
        """Return the rung above this one at which the rule must be asked."""
        return math.ceil(self.longest) - 1

    def should_continue(self, trial: str, time: float, loss: float, is_last: bool) -> bool:
        """Return whether a trial goes on from a decision. is_last: whether that was its last."""
        return True

    def on_complete(self, trial: str) -> None:
        """Note that a trial came to an end of its own."""

    def on_failed(self, trial: str) -> None:
        """Note that a trial failed."""

    # --- shared

    @property
    def _parked(self) -> list[str]:
        """Trials that wait until the rule promotes them, the best of those at one rung first."""
        waiting = {trial: each for trial, each in self.trials.items() if each.state == "paused"}
        there = (trial for trial, each in waiting.items() if trial not in self.going and each.rung + 1 < self.longest)
        return sorted(there, key=lambda trial: (waiting[trial].losses[waiting[trial].rung], trial))

    @property
    def _running(self) -> int:
        return sum(standing.state == "running" for standing in self.trials.values())

    def _rests(self, trial: str, state: Any) -> Standing:
        standing = self.trials[trial]
        standing.state, standing.goal = state, None
        return standing

    def _begin(self, left: BudgetLeft) -> Move:
        if not self.supply.has_more and self.begin_round():
            self.supply.begin_again()
        if not self.supply.has_more:
            return HandBack("every configuration was tried")
        if self._price(None, 0) > min(left.seconds, left.wall):
            return HandBack("nothing is left for another")
        return Start("a slot is free")

    def _affordable(self, trial: str, rung: int, left: BudgetLeft) -> int | None:
        """Return a rung on the way to this one whose lease is no more than a slot's even share of what is left, else
        the next one; None: that cannot be paid. A long reservation would leave nothing for the other slots, which are
        charged while idle."""
        before, even = self.trials[trial].rung, left.seconds / (left.slots + left.running)
        while rung > before + 1 and (
            with_margin(self._price(trial, rung)) > even or self._price(trial, rung) > left.wall
        ):
            rung = before + max(1, (rung - before) // 2)
        return rung if self._price(trial, rung) <= min(left.seconds, left.wall) else None


class OwnLadder(Baseline):
    """Baseline that decides at `grace` units of time, and then each time at `reduction` times as many."""

    def __init__(self, *, reduction: float = ASHA_REDUCTION, grace: float = ASHA_GRACE, **common: Any) -> None:
        super().__init__(**common)
        self.reduction, self.grace = reduction, grace

    def next_decision(self, trial: str, rung: int) -> int:
        time = self.grace
        while time <= rung + 1:
            time *= self.reduction
        return math.ceil(min(time, self.longest) - 1e-9) - 1


class Stub:
    """The part of a Ray trial that a scheduler looks at."""

    is_saving = False

    def __init__(self, name: str) -> None:
        self.trial_id, self.status = name, Trial.PENDING


class RayAsha(OwnLadder):
    """Ray's AsyncHyperBandScheduler."""

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._judges: dict[str, tuple[AsyncHyperBandScheduler, Stub]] = {}
        self._restart()

    def _restart(self) -> None:
        self._scheduler = AsyncHyperBandScheduler(
            time_attr="time",
            metric="loss",
            mode="min",
            max_t=self.longest,
            grace_period=min(self.grace, self.longest),
            reduction_factor=self.reduction,
        )

    def begin_round(self) -> bool:
        self.grace *= self.reduction
        if self.grace >= self.longest:
            return False
        self._restart()
        return True

    def begin(self, trial: str) -> None:
        self._judges[trial] = self._scheduler, Stub(trial)
        self._scheduler.on_trial_add(None, self._judges[trial][1])

    def should_continue(self, trial: str, time: float, loss: float, is_last: bool) -> bool:
        scheduler, stub = self._judges[trial]
        decision = scheduler.on_trial_result(None, stub, {"time": time, "loss": loss})
        return bool(decision == TrialScheduler.CONTINUE)


class RayHyperBand(Baseline):
    """Ray's HyperBandScheduler. As in Tune, it is given all trials at once, and chooses which one runs."""

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        logging.getLogger("ray.tune").setLevel(logging.WARNING)
        self._scheduler = HyperBandScheduler(
            time_attr="time",
            metric="loss",
            mode="min",
            max_t=math.ceil(self.longest),
            reduction_factor=HYPERBAND_REDUCTION,
        )
        self._stubs: dict[str, Stub] = {}
        self._new: list[Stub] = []
        for number in range(self.supply.count):
            self._new.append(Stub(str(number)))
            self._scheduler.on_trial_add(self, self._new[-1])

    def decide(self, left: BudgetLeft) -> Move:
        """Go on with a trial that needs no pause, else with the one that the scheduler chooses."""
        if self.going:
            return super().decide(left)
        stub = self._scheduler.choose_trial_to_run(self)
        if stub is None:
            return Wait("a bracket is not complete") if self._running else HandBack("nobody is chosen")
        if stub in self._new:
            self._new.remove(stub)
            self._new.insert(0, stub)
            return self._begin(left)
        name = next(name for name, each in self._stubs.items() if each is stub)
        rung = self._affordable(name, self.decision[name], left)
        return HandBack("nothing is left") if rung is None else Promote(name, rung, "is chosen")

    def begin(self, trial: str) -> None:
        self._stubs[trial] = self._new.pop(0)

    def on_promoted(self, trial: str, rung: int, seconds: float) -> None:
        super().on_promoted(trial, rung, seconds)
        self._stubs[trial].status = Trial.RUNNING

    def next_decision(self, trial: str, rung: int) -> int:
        """Return the rung of the next milestone of its bracket, which Ray keeps private."""
        bracket = self._scheduler._trial_info[self._stubs[trial]][0]
        return max(rung + 1, math.ceil(min(bracket._cumul_r, self.longest)) - 1)

    def should_continue(self, trial: str, time: float, loss: float, is_last: bool) -> bool:
        stub, result = self._stubs[trial], {"time": time, "loss": loss}
        if is_last:
            stub.status = Trial.TERMINATED
            self._scheduler.on_trial_complete(self, stub, result)
            return False
        decision = self._scheduler.on_trial_result(self, stub, result)
        if decision != TrialScheduler.CONTINUE:
            stub.status = Trial.PAUSED if decision == TrialScheduler.PAUSE else Trial.TERMINATED
        self.decision[trial] = self.next_decision(trial, self.trials[trial].rung)
        return bool(decision == TrialScheduler.CONTINUE)

    def on_complete(self, trial: str) -> None:
        standing = self.trials[trial]
        self.should_continue(trial, standing.rung + 1.0, standing.losses.get(standing.rung, math.inf), True)

    def on_failed(self, trial: str) -> None:
        self._stubs[trial].status = Trial.ERROR
        self._scheduler.on_trial_error(self, self._stubs[trial])

    def stop_trial(self, stub: Stub) -> None:
        """Stop a trial; the scheduler asks this of Ray's controller, whose place this policy takes."""
        stub.status = Trial.TERMINATED
        self._scheduler.on_trial_remove(self, stub)


class OptunaPruner(OwnLadder):
    """One of Optuna's pruners, on trials from `Study.ask`."""

    def __init__(self, *, hyperband: bool, **common: Any) -> None:
        super().__init__(**common)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", module="optuna")
        self.hyperband, self._rounds = hyperband, 0
        self._asked: dict[str, optuna.Trial] = {}
        self._restart()

    def _restart(self) -> None:
        options: dict[str, Any] = {"min_resource": self.grace, "reduction_factor": self.reduction}
        pruner: optuna.pruners.BasePruner = (
            optuna.pruners.HyperbandPruner(max_resource=math.ceil(self.longest), **options)
            if self.hyperband
            else optuna.pruners.SuccessiveHalvingPruner(**options)
        )
        # HyperBand draws a trial's bracket from this name and the trial's number
        self._study = optuna.create_study(study_name=f"seed {self.supply.seed} round {self._rounds}", pruner=pruner)

    def begin_round(self) -> bool:
        self.grace *= self.reduction
        self._rounds += 1
        if self.grace >= self.longest:
            return False
        self._restart()
        return True

    def begin(self, trial: str) -> None:
        self._asked[trial] = self._study.ask()

    def should_continue(self, trial: str, time: float, loss: float, is_last: bool) -> bool:
        asked = self._asked[trial]
        asked.report(loss, math.floor(time + 1e-9))
        return not asked.should_prune()


class PromotionAsha(OwnLadder):
    """ASHA as it was published (Li et al. 2018, arXiv:1810.05934), and as Syne Tune 0.13 has it: trials are parked at
    each rung; a free slot promotes the best parked one that is among the best 1 / reduction of its rung, the highest
    rung first, else begins a new one; where there is none left, it promotes the best parked one of the highest rung."""

    def decide(self, left: BudgetLeft) -> Move:
        """Go on with a trial on its way to its next rung, else promote one, begin a new one, or take the best parked
        one."""
        if self.going:
            return super().decide(left)
        first = {self.trials[trial].rung: trial for trial in reversed(self._parked)}
        for fills in (False, True):
            for rung, trial in sorted(first.items(), reverse=True):
                losses = sorted(each.losses[rung] for each in self.trials.values() if rung in each.losses)
                best = losses[: int(len(losses) / self.reduction)]
                if fills or (best and self.trials[trial].losses[rung] <= best[-1]):
                    reached = self._affordable(trial, self.decision[trial], left)
                    if reached is not None:
                        return Promote(trial, reached, "is the best parked" if fills else "is promoted")
            if not fills and isinstance(move := self._begin(left), Start):
                return move
        return Wait("what runs may be promoted") if self._running else HandBack("nothing is left")

    def should_continue(self, trial: str, time: float, loss: float, is_last: bool) -> bool:
        return False


class OneReport(Baseline):
    """Baseline that trains every configuration to its first report, for half of the cap at most; then the best of these
    to their ends."""

    _whole: float | None = None

    def decide(self, left: BudgetLeft) -> Move:
        """Return a trial on its way to its end, else begin a new one while half of the cap lasts, else take the best
        that waits."""
        self._whole = left.seconds if self._whole is None else self._whole
        if self.going:
            return super().decide(left)
        if self.supply.has_more and left.seconds > (1 - FIRST_REPORTS_SHARE) * self._whole:
            return self._begin(left)
        for trial in self._parked[:1]:
            rung = self._affordable(trial, self.decision[trial], left)
            return HandBack("nothing is left") if rung is None else Promote(trial, rung, "is the best that waits")
        return Wait("first reports are missing") if self._running else HandBack("nothing is left")

    def next_decision(self, trial: str, rung: int) -> int:
        return 0 if rung < 0 else super().next_decision(trial, rung)

    def should_continue(self, trial: str, time: float, loss: float, is_last: bool) -> bool:
        return False


def make_baseline(scheduler: str, **common: Any) -> Policy:
    """Return the baseline of that name."""
    makers: dict[str, Callable[[], Policy]] = {
        "ray-asha": lambda: RayAsha(**common),
        "ray-hyperband": lambda: RayHyperBand(**common),
        "optuna-hyperband": lambda: OptunaPruner(hyperband=True, **OPTUNA_HYPERBAND, **common),
        "optuna-halving": lambda: OptunaPruner(hyperband=False, **OPTUNA_HALVING, **common),
        "promotion-asha": lambda: PromotionAsha(**common),
        "one-report": lambda: OneReport(**common),
        "random": lambda: Baseline(**common),
        "oracle": lambda: Baseline(**common),
    }
    return makers[scheduler]()
