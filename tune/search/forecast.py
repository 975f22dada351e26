"""The standings of one family's trials: what each reached, who leads a rung, and what a rung is worth."""

import functools
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Literal

from tune.reports import NATS, NEW_DROPOUT, TIE, Metric
from tune.search.front import Forecast, Point, addition, expected_gain, front, hypervolume, reference
from tune.search.ladder import Rules
from tune.search.scaling_law import Forecaster, Observation, ScalingLaw

FEWEST_SIZES = 2
"""Of trials that a law is fitted to, one of which has been seen to fall: losses after the same little training tell
nothing of how far any of them falls, and so nothing of what a large model would have."""
MOST_TRIALS = 200
"""That it is fitted to: those that were observed the most."""
NEW_SHARE = 0.1
"""It is fitted again when there are so many more observations, as a share of those before."""
LEVEL = 0.02
"""What is expected to lose more by this share is less promising by a factor of e."""
LEAST_PROMISE = 1e-300
"""Of a prior: one that rules out all says nothing; and of what adds nothing to the front."""
NEXT = 1.001
"""How many times as long a training is for which it is asked what more of it brings."""
RUNG_1_LEAST = 12
"""Trials go there, whatever it makes of them."""
RUNG_1_APART = 4
"""Of these come from the middle of those that wait, where it made all others worse: who learns fast turns first."""
RUNG_1_TIMES = 2.0
"""As many as it is expected to make better, of all that reached rung 0, are enough."""
FEWEST_TURNED = 10
"""Trials past their best from which it is foretold what another would have at its own."""
Entry = tuple[bool, float, str]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a trial is at a rung. 0: not known.

    size: its weights; tokens: target tokens seen (steps, where all see as many in one); seconds: trained; warm: whether
    the warm-up of its learning rate is over, before which a loss says nothing of the rest; of a user's loop, gap: the
    longest seconds between two reports, numbers: what it reported there, where its loss is the best so far.
    """

    size: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    warm: bool = True
    gap: float = 0.0
    numbers: Mapping[str, float] | None = None

    def told(self) -> dict[str, object]:
        """As plain data, without what is known of the loss."""
        return {name: value for name, value in vars(self).items() if name != "numbers"}


NO_PROGRESS = Progress()


@dataclass(frozen=True, kw_only=True)
class Favour:
    """How promising a trial is before anything is known of it, in (0, 1].

    promise: by its whole configuration; late: how much less than without its dropout, of which no loss tells before it
    has trained on `begins` tokens, as Progress has them (0: it has none, or from the start).
    """

    promise: float = 1.0
    late: float = 1.0
    begins: float = 0.0

    def new(self, tokens: float, before: float) -> bool:
        """Whether its dropout began between two rungs, or a loss has risen and not yet fallen by it."""
        return before < NEW_DROPOUT * self.begins and tokens > self.begins

    def to_come(self, tokens: float, end: float) -> float:
        """Of what its dropout does, the share that it does between so many tokens and the end: it is learned to do with
        until NEW_DROPOUT times as many as it began after."""
        first, last = max(tokens, self.begins), min(end, NEW_DROPOUT * self.begins)
        return (last - first) / ((NEW_DROPOUT - 1) * self.begins) if last > first else 0.0


NO_FAVOUR = Favour()


@dataclass(kw_only=True)
class Standing:
    """One trial: its loss at each rung it reached, the rung it is on its way to, and what it is doing.

    price: planned for that segment, in seconds of a slot. past_best: the last rung made it worse, and no report on it
    was better. telling: its drop over the last rung tells how it will go on. progress: at the rung that it reached
    last; observed: losses that a law is fitted to.
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

    @property
    def heading(self) -> float:
        """The rung where it is, or is on its way to; inf: its end."""
        ends = self.state == "finished" or (self.state == "running" and self.goal is None)
        return math.inf if ends else self.rung if self.goal is None else self.goal

    def told(self) -> dict[str, object]:
        """As plain data."""
        plain = {"progress": self.progress.told(), "observed": [vars(each) for each in self.observed]}
        return {**vars(self), **plain}

    def expected(self, falls: float) -> float:
        """Its loss, extrapolated by so many times its last drop where that is known and tells."""
        loss, before = self.losses[self.rung], self.losses.get(self.rung - 1)
        return loss if before is None or not self.telling else loss - falls * max(0.0, before - loss)


class Standings:
    """All trials of a family, compared by the losses that are expected of them. Each event costs O(log n).

    Or, where the front counts, by what they are expected to add to the hypervolume of those that are further: each
    question costs O(n).

    falls(rung): how many times its drop over a rung a loss is expected to fall from there to the end, as long as there
    is no law; ahead(rung, seconds): how many times the training that a trial has at a rung, in so many seconds, it has
    at its end; rules: the policy's; metric: by which trials are compared; favour(trial): how promising it was before
    anything was known, which counts as far as its forecast is in doubt, but not in a front.
    """

    def __init__(
        self, falls: Callable[[int], float], ahead: Callable[[int, float], float], rules: Rules, *,
        metric: Metric = NATS, favour: Callable[[str], Favour] = lambda trial: NO_FAVOUR,
    ) -> None:  # fmt: skip
        self._falls, self._ahead, self._rules, self._metric = falls, ahead, rules, metric
        self._favour = functools.cache(favour)
        self._forecaster: Forecaster | None = None
        self._earlier: list[list[Observation]] = []
        self._law_before: ScalingLaw | None = None
        self._observations, self._fitted_to, self._below_zero = 0, 0, False
        self.trials: dict[str, Standing] = {}
        self.flying = Counter[int]()
        """How many trials are on their way to a rung."""
        self._waiting: dict[int, list[Entry]] = {}
        self._points: dict[str, tuple[float, Forecast]] = {}
        self.turned: dict[str, tuple[float, float]] = {}
        """Of trials that are past their best the loss that they had there, and the training until that was seen."""
        self._reached = Counter[int]()
        self._worse, self._apart = 0, 0
        """Trials that rung 1 made worse, and those that went there since it had made all worse."""

    def depart(self, trial: str, goal: int | None) -> bool:
        """A trial is on its way to a rung (None: on its last segment). False where it already was."""
        standing = self.trials.setdefault(trial, Standing())
        if standing.state == "running" and standing.goal == goal:
            return False
        self._arrive(standing)
        self._apart += goal == 1 and standing.rung == 0 and self._from_the_middle
        standing.goal, standing.state = goal, "running"
        if goal is not None:
            self.flying[goal] += 1
        return True

    def pause(self, trial: str) -> None:
        """A trial waits where it was."""
        standing = self.trials[trial]
        self._arrive(standing)
        standing.state = "paused"
        if standing.rung >= 0 and not self._rules.front:
            heapq.heappush(self._waiting.setdefault(standing.rung, []), self._entry(trial))

    def again(self) -> None:
        """What is expected of trials changed: all that wait are put in order anew."""
        self._waiting.clear()
        self._points.clear()
        for trial, standing in self.trials.items():
            if standing.state == "paused":
                self.pause(trial)

    def record(self, trial: str, rung: int, loss: float, *, telling: bool, progress: Progress) -> None:
        """A trial's loss at a rung, where it waits."""
        standing = self.trials[trial]
        self._points.pop(trial, None)
        new = rung not in standing.losses
        dropout_new = self._favour(trial).new(progress.tokens, standing.progress.tokens)
        standing.losses[rung], standing.rung, standing.telling, standing.progress = loss, rung, telling, progress
        if loss <= 0 and not self._below_zero:  # of a family of a user's own: no law has such losses
            self._below_zero, self._forecaster = True, None
            self.again()
        if self._rules.law and progress.warm and min(progress.size, progress.tokens, loss) > 0:
            standing.observed.append(Observation(size=progress.size, tokens=progress.tokens, loss=loss))
            self._observations += 1
        before = standing.losses.get(rung - 1)
        if before is not None:
            now = self._metric.latest(progress.numbers)
            worse = (loss if now is None else now) > before + self._metric.tie and not dropout_new
            standing.past_best = self._rules.past_best and worse and loss >= before
        self._reached[rung] += new
        self._worse += new and rung == 1 and standing.past_best
        self.pause(trial)
        if self._observations > (1 + NEW_SHARE) * self._fitted_to:
            self._fit()

    def learn(self, trials: Sequence[Sequence[Observation]]) -> None:
        """What trials of earlier studies observed on the same text, before any trial of this one."""
        if trials and self._rules.law:
            self._earlier = [list(observed) for observed in trials]
            if _tell(trials):
                self._law_before = ScalingLaw.fit([each for observed in trials for each in observed])
            self._fit()

    def _fit(self) -> None:
        """A law, if what was observed is enough for one; all that wait are put in order by it."""
        self._fitted_to = self._observations
        own = [standing.observed for standing in self.trials.values() if standing.observed]
        trials = sorted(own, key=len, reverse=True) + self._as_here(own)
        if _tell(trials) and not self._below_zero:
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
        while high > NEXT * low:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if pays(middle) else (low, middle)
        return low

    def close(self, trial: str, state: Literal["finished", "ended"]) -> None:
        """A trial had its last segment, or is over."""
        self._arrive(self.trials[trial])
        self.trials[trial].state = state

    def turn(self, trial: str, loss: float, training: float) -> None:
        """A trial is past its best, which had this loss, after so many seconds of training."""
        self.trials[trial].past_best = True
        self.turned[trial] = loss, training
        self._points.pop(trial, None)
        self.close(trial, "finished")

    def may_gain(self, trial: str | None, seconds: float) -> bool:
        """Whether a trial (None: a new one) is expected to make the best better, by what those that are past theirs
        gained still from the rung where it is; as long as these are few, if there is time for as much training. One
        that is better than them already does."""
        at = Standing(losses={-1: 0.0}) if trial is None else self.trials[trial]
        now, needed = at.losses[at.rung], min(training for _, training in self.turned.values())
        best = min(loss for loss, _ in self.turned.values())
        if trial is not None and now < best - TIE:
            return True
        if seconds < needed - at.progress.seconds:
            return False
        before = {each: {-1: 0.0, **self.trials[each].losses} for each in self.turned}
        gains = [loss - before[each][at.rung] for each, (loss, _) in self.turned.items() if at.rung in before[each]]
        if len(gains) < FEWEST_TURNED:
            return True
        spread = stdev(gains) * math.sqrt(1 + 1 / len(gains))
        return expected_gain((best, 0.0), (now + fmean(gains), spread / best)) >= TIE

    def enough_at_rung_1(self) -> bool:
        """Whether as many trials went there as should, by how many of those that reported there it made worse: where
        losses are at their lowest so early, another configuration is worth more. Above, a trial's own last fall
        tells."""
        if self._from_the_middle:
            return False
        better = (1 + self._reached[1] - self._worse) / (2 + self._reached[1])
        return self._reached[1] + self.flying[1] >= max(RUNG_1_LEAST, RUNG_1_TIMES * better * self._reached[0])

    @property
    def _from_the_middle(self) -> bool:
        """Whether the next for rung 1 comes from there: it made all worse that came from the front, as far as they are
        enough to tell."""
        return self._worse == self._reached[1] >= RUNG_1_LEAST - RUNG_1_APART and self._apart < RUNG_1_APART

    def share(self, rung: int) -> float:
        """Of the trials that reached the rung below, those that reached this one or are on their way."""
        return (self._reached[rung] + self.flying[rung]) / max(1, self._reached[rung - 1])

    def first(self, rung: int, *, past_best: bool = False) -> str | None:
        """The most promising trial that waits at a rung; one that is past its best only where asked for."""
        if self._rules.front:
            return self._adds_most(rung, past_best)
        waiting = self._waiting.get(rung, [])
        while waiting and not self._waits(waiting[0][-1], rung):
            heapq.heappop(waiting)
        if rung == 0 and self._from_the_middle:
            there = {entry for entry in waiting if self._waits(entry[-1], 0)}
            return sorted(there)[len(there) // 2][-1] if there else None
        return waiting[0][-1] if waiting and (past_best or not waiting[0][0]) else None

    def leader(self, *, past_best: bool = False) -> str | None:
        """The most promising of all trials that wait."""
        if self._rules.front:
            return self._adds_most(None, past_best)
        firsts = [self.first(rung, past_best=past_best) for rung in self._waiting]
        return min((trial for trial in firsts if trial is not None), key=self._entry, default=None)

    def led_by(self, count: int) -> bool:
        """Whether so many of the trials that run are more promising than all that wait and are not past their best;
        where none such waits, they are."""
        best = self.leader()
        if best is None:
            return True
        wait, run = self._entry(best), (name for name, each in self.trials.items() if each.state == "running")
        ahead = (name for name in run if self.trials[name].rung >= 0 and self._entry(name) < wait)
        return sum(1 for _ in itertools.islice(ahead, count)) == count

    def _adds_most(self, rung: int | None, past_best: bool) -> str | None:
        """Of those that wait at a rung (None: at any) the one that is expected to add the most to the front of those
        beyond it, or on their way there (None: to their ends)."""
        there = [name for name in self.trials if self._waits(name, rung)]
        waiting = [name for name in there if past_best or not self.trials[name].past_best]
        if not waiting:
            return None
        best, bound = self._front(math.inf if rung is None else rung + 1)

        def adds(trial: str) -> tuple[float, float, str]:
            added, below = addition(*self._point(trial), best, bound)
            return -added, -below, trial

        return min(waiting, key=adds)

    def addition(self, size: float, forecast: Forecast) -> float | None:
        """What a new trial of so many weights is expected to add to the front of all; None: there is none yet, or the
        loss counts."""
        there = self._rules.front and self._compared()
        return addition(math.log1p(size), forecast, *self._front(0))[0] if there else None

    def sharing(self, seconds: float, longest: float, least: Callable[[str], float]) -> tuple[str, float] | None:
        """Who has the next last segment, and how many seconds, where so many are shared by as many of those that wait
        as make the front of all last segments the largest.

        longest: seconds of one; least(trial): those that make something of it. None: nobody waits that has as much, or
        nothing tells what they would bring.
        """
        if not self._compared():
            return None
        begun, bound = self._front(math.inf)
        found, largest = None, 0.0
        for count in itertools.count(1):
            each = min(seconds / count, longest)
            ends = dict[str, Point]()
            for trial in self.waiting():
                after = self.after(trial, each) if least(trial) < each else None
                if after is not None:
                    ends[trial] = self._point(trial)[0], after[0]
            chosen, names = begun, list[str]()
            while ends and len(names) < count:
                best = chosen
                names.append(max(ends, key=lambda trial: addition(ends[trial][0], (ends[trial][1], 0.0), best, bound)))
                chosen = front([*chosen, ends.pop(names[-1])], bound)
            if len(names) < count or (area := hypervolume(chosen, bound)) <= largest:
                return found
            found, largest = (names[0], each), area
        return found

    def _front(self, least: float) -> tuple[list[Point], Point]:
        """What is expected of those that are on their way to this rung or further (inf: to their ends); and the
        reference of all."""
        points = dict[str, Point]()
        for name in self._compared():
            size, (loss, _) = self._point(name)
            points[name] = size, loss
        bound = reference(list(points.values()))
        return front((point for name, point in points.items() if self.trials[name].heading >= least), bound), bound

    def _compared(self) -> list[str]:
        """All that reached a rung and did not fail."""
        return [name for name, each in self.trials.items() if each.rung >= 0 and each.state != "ended"]

    def _point(self, trial: str) -> tuple[float, Forecast]:
        """The log of its weights (one more, as they may not be known), and what it is expected to have."""
        if trial not in self._points:
            expected = (self.turned[trial][0], 0.0) if trial in self.turned else self.expected(trial)
            self._points[trial] = math.log1p(self.trials[trial].progress.size), expected
        return self._points[trial]

    def waiting(self) -> list[str]:
        """All that wait, the most promising first."""
        return sorted((name for name in self.trials if self._waits(name, None)), key=self._entry)

    def _waits(self, trial: str, rung: int | None) -> bool:
        """Whether it waits at a rung (None: at any)."""
        standing = self.trials[trial]
        return standing.state == "paused" and (standing.rung >= 0 if rung is None else standing.rung == rung)

    def promise(self, trial: str, forecast: Forecast, tokens: float) -> float:
        """By what a trial with this forecast after so many tokens in all is ranked, low is good: its loss with the
        doubt, and with what the prior says against it, of dropout that is yet to begin in full."""
        (loss, doubt), favour = forecast, self._favour(trial)
        unsure = min(doubt, LEVEL)
        unlikely = unsure * -math.log(max(favour.promise, LEAST_PROMISE))
        late = (LEVEL - unsure) * -math.log(max(favour.late, LEAST_PROMISE))
        unlikely += favour.to_come(self.trials[trial].progress.tokens, tokens) * late
        return loss * math.exp(self._rules.doubt * doubt + unlikely)

    def _entry(self, trial: str) -> Entry:
        standing = self.trials[trial]
        tokens = self._ahead(standing.rung, standing.progress.seconds) * standing.progress.tokens
        return standing.past_best, self.promise(trial, self.expected(trial), tokens), trial

    def _arrive(self, standing: Standing) -> None:
        if standing.state == "running" and standing.goal is not None:
            self.flying[standing.goal] -= 1
        standing.goal = None


def _tell(trials: Sequence[Sequence[Observation]]) -> bool:
    """Whether what was observed of these is enough for a law."""
    return len({observed[0].size for observed in trials}) >= FEWEST_SIZES and max(map(len, trials)) > 1
