"""The standings of one family's trials: what each reached, who leads a rung, and what a rung is worth."""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean
from typing import Literal

from tune.reports import TIE
from tune.search.scaling_law import Forecaster, Observation, ScalingLaw

FEWEST_SIZES = 2
"""Of trials that a law is fitted to, one of which has been seen to fall: losses after the same little training tell
nothing of how far any of them falls, and so nothing of what a large model would have."""
MOST_TRIALS = 200
"""That it is fitted to: those that were observed the most."""
NEW_SHARE = 0.1
"""It is fitted again when there are so many more observations, as a share of those before."""
NEXT = 1.001
"""How many times as long a training is for which it is asked what more of it brings."""
Entry = tuple[bool, float, str]
Forecast = tuple[float, float]
"""A loss in nats, and the standard deviation of its log."""
NORMAL = NormalDist()


def expected_gain(best: Forecast, other: Forecast) -> float:
    """Nats by which the lower of two losses is expected to be below that of the `best` (expected improvement, Jones et
    al. 1998)."""
    spread = best[0] * math.hypot(best[1], other[1])
    if not spread:
        return max(0.0, best[0] - other[0])
    ahead = (best[0] - other[0]) / spread
    return spread * (NORMAL.pdf(ahead) + ahead * NORMAL.cdf(ahead))


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a trial is at a rung. 0: not known.

    size: its weights; tokens: target tokens seen (steps, where all see as many in one); seconds: trained; warm: whether
    the warm-up of its learning rate is over, before which a loss says nothing of the rest.
    """

    size: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    warm: bool = True


NO_PROGRESS = Progress()


@dataclass(kw_only=True)
class Standing:
    """One trial: its loss at each rung it reached, the rung it is on its way to, and what it is doing.

    price: planned for that segment, in seconds of a slot. past_best: the last rung made it worse. telling: its drop
    over the last rung tells how it will go on. progress: at the rung that it reached last; observed: losses that a law
    is fitted to.
    """

    losses: dict[int, float] = field(default_factory=dict)
    rung: int = -1
    goal: int | None = None
    price: float = 0.0
    state: Literal["running", "paused", "finished", "ended"] = "paused"
    past_best: bool = False
    telling: bool = True
    progress: Progress = NO_PROGRESS
    observed: list[Observation] = field(default_factory=list)

    def told(self) -> dict[str, object]:
        """As plain data."""
        plain = {"progress": vars(self.progress), "observed": [vars(each) for each in self.observed]}
        return {**vars(self), **plain}

    def expected(self, falls: float) -> float:
        """Its loss, extrapolated by so many times its last drop where that is known and tells."""
        loss, before = self.losses[self.rung], self.losses.get(self.rung - 1)
        return loss if before is None or not self.telling else loss - falls * max(0.0, before - loss)


class Standings:
    """All trials of a family, compared by the losses that are expected of them. Each event costs O(log n).

    falls(rung): how many times its drop over a rung a loss is expected to fall from there to the end, as long as there
    is no law; ahead(rung, seconds): how many times the training that a trial has at a rung, in so many seconds, it has
    at its end; rises: whether a trial that a rung made worse waits behind the others; law, doubt: as of Rules;
    tie: losses closer than this are the same.
    """

    def __init__(
        self, falls: Callable[[int], float], ahead: Callable[[int, float], float], *, rises: bool = True,
        law: bool = True, doubt: float = 1.0, tie: float = TIE,
    ) -> None:  # fmt: skip
        self._tie = tie
        self._falls, self._ahead, self._rises, self._has_law, self._doubt = falls, ahead, rises, law, doubt
        self._forecaster: Forecaster | None = None
        self._earlier: list[list[Observation]] = []
        self._law_before: ScalingLaw | None = None
        self._observations, self._fitted_to = 0, 0
        self.trials: dict[str, Standing] = {}
        self._flying: dict[int, int] = {}
        self._better: dict[int, int] = {}
        self._worse: dict[int, int] = {}
        self._waiting: dict[int, list[Entry]] = {}

    def depart(self, trial: str, goal: int | None) -> bool:
        """A trial is on its way to a rung (None: on its last segment). False where it already was."""
        standing = self.trials.setdefault(trial, Standing())
        if standing.state == "running" and standing.goal == goal:
            return False
        self._arrive(standing)
        standing.goal, standing.state = goal, "running"
        if goal is not None:
            self._flying[goal] = self._flying.get(goal, 0) + 1
        return True

    def pause(self, trial: str) -> None:
        """A trial waits where it was."""
        standing = self.trials[trial]
        self._arrive(standing)
        standing.state = "paused"
        if standing.rung >= 0:
            heapq.heappush(self._waiting.setdefault(standing.rung, []), self._entry(trial))

    def again(self) -> None:
        """What is expected of trials changed: all that wait are put in order anew."""
        self._waiting.clear()
        for trial, standing in self.trials.items():
            if standing.state == "paused":
                self.pause(trial)

    def record(self, trial: str, rung: int, loss: float, *, telling: bool, progress: Progress) -> None:
        """A trial's loss at a rung, where it waits. One that is not finite ends it."""
        if not math.isfinite(loss):
            self.close(trial, "ended")
            return
        standing = self.trials[trial]
        standing.losses[rung], standing.rung, standing.telling, standing.progress = loss, rung, telling, progress
        if self._has_law and progress.warm and min(progress.size, progress.tokens, loss) > 0:
            standing.observed.append(Observation(size=progress.size, tokens=progress.tokens, loss=loss))
            self._observations += 1
        before = standing.losses.get(rung - 1)
        if before is not None:
            standing.past_best = self._rises and loss > before + self._tie
            counts = self._better if loss < before - self._tie else self._worse
            counts[rung] = counts.get(rung, 0) + 1
        self.pause(trial)
        if self._observations > (1 + NEW_SHARE) * self._fitted_to:
            self._fit()

    def learn(self, trials: Sequence[Sequence[Observation]]) -> None:
        """What trials of earlier studies observed on the same text, before any trial of this one."""
        if trials and self._has_law:
            self._earlier = [list(observed) for observed in trials]
            if _tell(trials):
                self._law_before = ScalingLaw.fit([each for observed in trials for each in observed])
            self._fit()

    def _fit(self) -> None:
        """A law, if what was observed is enough for one; all that wait are put in order by it."""
        self._fitted_to = self._observations
        own = [standing.observed for standing in self.trials.values() if standing.observed]
        trials = sorted(own, key=len, reverse=True) + self._as_here(own)
        if _tell(trials):
            self._forecaster = Forecaster.fit(trials[:MOST_TRIALS])
            self.again()

    def _as_here(self, own: list[list[Observation]]) -> list[list[Observation]]:
        """Earlier trials, their losses times what all of today's are off their law: today's may be measured on another
        subset of the text. One trial of unknown luck more, off by nothing, is counted."""
        law = self._law_before
        if law is None:
            return self._earlier
        offs = [fmean(math.log(each.loss / law.loss(each.size, each.tokens)) for each in trial) for trial in own]
        times = math.exp(sum(offs) / (1 + len(offs)))
        return [[replace(each, loss=times * each.loss) for each in trial] for trial in self._earlier]

    def expected(self, trial: str) -> Forecast:
        """The loss of a trial at its end, and the standard deviation of its log (0: not known)."""
        standing = self.trials[trial]
        by_law = self._by_law(trial, self._ahead(standing.rung, standing.progress.seconds))
        return by_law or (standing.expected(self._falls(standing.rung)), 0.0)

    def after(self, trial: str, seconds: float) -> Forecast | None:
        """The same after so many more seconds of training; None: there is no law yet, or its speed is not known."""
        known = self.trials[trial].progress.seconds
        return self._by_law(trial, 1 + max(0.0, seconds) / known) if known > 0 else None

    def outlook(self, size: float, tokens: float) -> Forecast | None:
        """The same of a new trial of so many weights after so many tokens; None: there is no law yet."""
        return None if self._forecaster is None else self._forecaster.loss(size, [], tokens)

    def _by_law(self, trial: str, times: float) -> Forecast | None:
        """Of a trial after so many times the training that it has."""
        at = self.trials[trial].progress
        if self._forecaster is None or min(at.size, at.tokens) <= 0:
            return None
        return self._forecaster.loss(at.size, self.trials[trial].observed, times * at.tokens)

    def foretold(self, trial: str, tokens: float) -> Forecast | None:
        """After so many target tokens in all, with the whole doubt; None: there is no law, or it was not fitted to this
        trial."""
        observed = self.trials[trial].observed
        return self._forecaster.interval(observed[0].size, observed, tokens) if self._forecaster and observed else None

    def enough(self, trial: str, gain: float, most: float) -> float:
        """Seconds of training in all, `most` at most, from which on one more brings a trial less than so many nats.

        All of them where there is no law.
        """
        at = self.trials[trial].progress

        def pays(seconds: float) -> bool:
            ends = [self.after(trial, each - at.seconds) for each in (seconds, NEXT * seconds)]
            now, then = (end[0] if end else math.inf for end in ends)
            return not now - then < gain * (NEXT - 1) * seconds

        low, high = at.seconds, most
        if not at.seconds or pays(most):
            return most
        if not pays(low):
            return low
        while high > NEXT * low:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if pays(middle) else (low, middle)
        return low

    def close(self, trial: str, state: Literal["finished", "ended"]) -> None:
        """A trial had its last segment, or is over."""
        self._arrive(self.trials[trial])
        self.trials[trial].state = state

    def turn(self, trial: str) -> None:
        """A trial is past its best: where it was on its way to a rung, that made it worse."""
        standing = self.trials[trial]
        if standing.goal is not None:
            self._worse[standing.goal] = self._worse.get(standing.goal, 0) + 1
        standing.past_best = True
        self.close(trial, "finished")

    @property
    def climbing(self) -> int:
        """How many trials are on their way to a rung, whichever."""
        return sum(self._flying.values())

    def flying(self, rung: int) -> int:
        """How many trials are on their way to a rung."""
        return self._flying.get(rung, 0)

    def gain(self, rung: int) -> float:
        """The share of trials that got better by going to a rung, one that did counted in advance."""
        better, worse = self._better.get(rung, 0), self._worse.get(rung, 0)
        return (1 + better) / (1 + better + worse)

    def first(self, rung: int, *, past_best: bool = False) -> str | None:
        """The most promising trial that waits at a rung; one that is past its best only where asked for."""
        waiting = self._waiting.get(rung, [])
        while waiting and not self._waits(waiting[0][-1], rung):
            heapq.heappop(waiting)
        return waiting[0][-1] if waiting and (past_best or not waiting[0][0]) else None

    def leader(self, *, past_best: bool = False) -> str | None:
        """The most promising of all trials that wait."""
        firsts = [self.first(rung, past_best=past_best) for rung in self._waiting]
        return min((trial for trial in firsts if trial is not None), key=self._entry, default=None)

    def waiting(self) -> list[str]:
        """All that wait, the most promising first."""
        there = (name for name, each in self.trials.items() if each.state == "paused" and each.rung >= 0)
        return sorted(there, key=self._entry)

    def _waits(self, trial: str, rung: int) -> bool:
        standing = self.trials[trial]
        return standing.state == "paused" and standing.rung == rung

    def _entry(self, trial: str) -> Entry:
        loss, doubt = self.expected(trial)
        return self.trials[trial].past_best, loss * math.exp(self._doubt * doubt), trial

    def _arrive(self, standing: Standing) -> None:
        if standing.state == "running" and standing.goal is not None:
            self._flying[standing.goal] -= 1
        standing.goal = None


def _tell(trials: Sequence[Sequence[Observation]]) -> bool:
    """Whether what was observed of these is enough for a law."""
    return len({observed[0].size for observed in trials}) >= FEWEST_SIZES and max(map(len, trials)) > 1
