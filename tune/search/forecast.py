"""The standings of one family's trials: what each reached, what is expected of it, and which is the most promising."""

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
from tune.search.front import Forecast, Point, expected_hypervolume_gain, expected_lead, front, hypervolume, reference
from tune.search.ladder import Rules
from tune.search.scaling_law import Forecaster, Observation, ScalingLaw

FEWEST_SIZES = 2
"""Fewest model sizes of the trials that a law is fitted to, one of which must have been seen to fall: losses after the
same little training tell nothing of how far any of them falls, and so nothing of what a large model would have."""
MOST_TRIALS = 200
"""Most trials that it is fitted to: those with the most observations."""
NEW_SHARE = 0.1
"""Share of new observations, of those before, above which it is fitted again."""
LOSS_PER_LOG_PROMISE = 0.02
"""Share by which an expected loss is higher where a configuration is less promising by a factor of e."""
LEAST_PROMISE = 1e-300
"""Least promise that is counted: a prior that rules out everything says nothing; also of what adds nothing to the
front."""
NEXT = 1.001
"""Factor by which a training is made longer to ask what more of it brings."""
RUNG_1_LEAST = 12
"""Fewest trials that go to rung 1, whatever it makes of them."""
RUNG_1_APART = 4
"""How many of these come from the middle of those that wait, where rung 1 made all others worse: a trial that learns
fast turns first."""
RUNG_1_TIMES = 2.0
"""Rung 1 has had enough trials at this many times the number that it is expected to make better of all that reached
rung 0."""
FEWEST_TURNED = 10
"""Fewest trials past their best by which it is predicted what another would have at its own."""
Entry = tuple[bool, float, str]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a trial is at a rung. 0: not known.

    size: its weights; tokens: target tokens seen (or steps, where each has as many); seconds: of training; warm:
    whether the warm-up of its learning rate is over, before which a loss says nothing of the rest. Of a user's loop,
    gap: the longest seconds between two reports; numbers: what it reported there, where its loss is the best so far.
    """

    size: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    warm: bool = True
    gap: float = 0.0
    numbers: Mapping[str, float] | None = None

    def to_json(self) -> dict[str, object]:
        """Return it as plain data, without `numbers`."""
        return {name: value for name, value in vars(self).items() if name != "numbers"}


NO_PROGRESS = Progress()


@dataclass(frozen=True, kw_only=True)
class Favour:
    """What the prior says of a trial: how promising it is before anything is known of it, in (0, 1].

    promise: of its whole configuration; late: the factor in it that is due to its dropout, of which no loss tells
    before the trial has trained on `begins` tokens, as Progress has them (0: it has no dropout, or has it from the
    start).
    """

    promise: float = 1.0
    late: float = 1.0
    begins: float = 0.0

    def begins_between(self, tokens: float, before: float) -> bool:
        """Whether its dropout began between two rungs, at `before` and `tokens` tokens, or began before and has raised
        the loss, which has not fallen again yet."""
        return before < NEW_DROPOUT * self.begins and tokens > self.begins

    def share_to_come(self, tokens: float, end: float) -> float:
        """Return the share of its dropout's effect that comes between so many tokens and the end: a model learns to do
        with dropout until NEW_DROPOUT times as many tokens as it began after."""
        first, last = max(tokens, self.begins), min(end, NEW_DROPOUT * self.begins)
        return (last - first) / ((NEW_DROPOUT - 1) * self.begins) if last > first else 0.0


NO_FAVOUR = Favour()


@dataclass(kw_only=True)
class Standing:
    """One trial: its loss at each rung it reached, the rung it is on its way to, and what it is doing.

    price: planned for that segment, in seconds of a slot; past_best: whether the last rung made it worse, and no report
    on it was better; telling: whether its drop over the last rung tells how it will go on; progress: at the rung that
    it reached last; observed: losses that a law is fitted to.
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
    def target_rung(self) -> float:
        """The rung where it is, or is on its way to; inf: its end."""
        ends = self.state == "finished" or (self.state == "running" and self.goal is None)
        return math.inf if ends else self.rung if self.goal is None else self.goal

    def to_json(self) -> dict[str, object]:
        """Return it as plain data."""
        plain = {"progress": self.progress.to_json(), "observed": [vars(each) for each in self.observed]}
        return {**vars(self), **plain}

    def expected(self, falls: float) -> float:
        """Return its loss, less so many times its last drop where that is known and tells."""
        loss, before = self.losses[self.rung], self.losses.get(self.rung - 1)
        return loss if before is None or not self.telling else loss - falls * max(0.0, before - loss)


class Standings:
    """All trials of a family, compared by the final losses that are expected of them. Each event costs O(log n).

    Where the front counts, they are compared by what they are expected to add to the hypervolume of those that are
    further; then each question costs O(n).

    falls(rung): how many times its drop over a rung a loss is expected to fall from there to the end, as long as there
    is no law; ahead(rung, seconds): how many times its training at a rung, which took so many seconds, a trial has at
    its end; rules: the policy's; metric: by which trials are compared; favour(trial): how promising it was before
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
        self.in_flight = Counter[int]()
        """Number of trials on their way to each rung."""
        self._waiting: dict[int, list[Entry]] = {}
        self._points: dict[str, tuple[float, Forecast]] = {}
        self.turned: dict[str, tuple[float, float]] = {}
        """By trial that is past its best: the loss that it had there, and its seconds of training until that was seen.
        """
        self._reached = Counter[int]()
        self._worse, self._apart = 0, 0
        """Number of trials that rung 1 made worse, and of those that were sent there from the middle after that."""

    def note_departure(self, trial: str, goal: int | None) -> bool:
        """Note that a trial is on its way to a rung (None: in its last segment). Returns False where it already was."""
        standing = self.trials.setdefault(trial, Standing())
        if standing.state == "running" and standing.goal == goal:
            return False
        self._arrive(standing)
        self._apart += goal == 1 and standing.rung == 0 and self._from_the_middle
        standing.goal, standing.state = goal, "running"
        if goal is not None:
            self.in_flight[goal] += 1
        return True

    def pause(self, trial: str) -> None:
        """Let a trial wait where it was."""
        standing = self.trials[trial]
        self._arrive(standing)
        standing.state = "paused"
        if standing.rung >= 0 and not self._rules.front:
            heapq.heappush(self._waiting.setdefault(standing.rung, []), self._entry(trial))

    def reorder(self) -> None:
        """Put all that wait in order anew, as what is expected of them has changed."""
        self._waiting.clear()
        self._points.clear()
        for trial, standing in self.trials.items():
            if standing.state == "paused":
                self.pause(trial)

    def record(self, trial: str, rung: int, loss: float, *, telling: bool, progress: Progress) -> None:
        """Record a trial's loss at a rung, where it waits."""
        standing = self.trials[trial]
        self._points.pop(trial, None)
        new = rung not in standing.losses
        dropout_new = self._favour(trial).begins_between(progress.tokens, standing.progress.tokens)
        standing.losses[rung], standing.rung, standing.telling, standing.progress = loss, rung, telling, progress
        if loss <= 0 and not self._below_zero:  # of a family of a user's own: no law has such losses
            self._below_zero, self._forecaster = True, None
            self.reorder()
        if self._rules.law and progress.warm and min(progress.size, progress.tokens, loss) > 0:
            standing.observed.append(Observation(size=progress.size, tokens=progress.tokens, loss=loss))
            self._observations += 1
        before = standing.losses.get(rung - 1)
        if before is not None:
            now = self._metric.loss_of(progress.numbers)
            worse = (loss if now is None else now) > before + self._metric.tie and not dropout_new
            standing.past_best = self._rules.past_best and worse and loss >= before
        self._reached[rung] += new
        self._worse += new and rung == 1 and standing.past_best
        self.pause(trial)
        if self._observations > (1 + NEW_SHARE) * self._fitted_to:
            self._fit()

    def learn(self, trials: Sequence[Sequence[Observation]]) -> None:
        """Learn what trials of earlier studies observed by the same recipe on the same text, before any of this one."""
        if trials and self._rules.law:
            self._earlier = [list(observed) for observed in trials]
            if _can_fit_law(trials):
                self._law_before = ScalingLaw.fit([each for observed in trials for each in observed])
            self._fit()

    def _fit(self) -> None:
        """Fit a law, if what was observed is enough for one, and put all that wait in order by it."""
        self._fitted_to = self._observations
        own = [standing.observed for standing in self.trials.values() if standing.observed]
        trials = sorted(own, key=len, reverse=True) + self._as_here(own)
        if _can_fit_law(trials) and not self._below_zero:
            self._forecaster = Forecaster.fit(trials[:MOST_TRIALS])
            self.reorder()

    def _as_here(self, own: list[list[Observation]]) -> list[list[Observation]]:
        """Return the earlier trials, their losses times the mean factor by which today's are off the earlier law:
        today's may be measured on another subset of the text. One trial more that is not off is counted, so that few do
        not move it by luck."""
        law = self._law_before
        if law is None:
            return self._earlier
        offs = [fmean(math.log(each.loss / law.loss(each.size, each.tokens)) for each in trial) for trial in own]
        times = math.exp(sum(offs) / (1 + len(offs)))
        return [[replace(each, loss=times * each.loss) for each in trial] for trial in self._earlier]

    def expected(self, trial: str) -> Forecast:
        """Return the expected loss of a trial at its end, and the standard deviation of its log (0: not known)."""
        standing = self.trials[trial]
        by_law = self._by_law(trial, self._ahead(standing.rung, standing.progress.seconds))
        return by_law or (standing.expected(self._falls(standing.rung)), 0.0)

    def forecast_after(self, trial: str, seconds: float) -> Forecast | None:
        """Return the same after so many more seconds of training; None: there is no law yet, or the trial's speed is
        not known."""
        known = self.trials[trial].progress.seconds
        return self._by_law(trial, 1 + max(0.0, seconds) / known) if known > 0 else None

    def forecast_new(self, size: float, tokens: float) -> Forecast | None:
        """Return the same of a new trial with so many weights after so many tokens; None: there is no law yet."""
        return None if self._forecaster is None else self._forecaster.loss(size, [], tokens)

    def _by_law(self, trial: str, times: float) -> Forecast | None:
        """Return the same, by the law, after so many times a trial's present training; None: there is no law yet, or
        its size or tokens are not known."""
        at = self.trials[trial].progress
        if self._forecaster is None or min(at.size, at.tokens) <= 0:
            return None
        return self._forecaster.loss(at.size, self.trials[trial].observed, times * at.tokens)

    def forecast_at(self, trial: str, tokens: float) -> Forecast | None:
        """Return the same after so many target tokens in all, with the whole doubt; None: there is no law, or it was
        not fitted to this trial."""
        observed = self.trials[trial].observed
        return self._forecaster.interval(observed[0].size, observed, tokens) if self._forecaster and observed else None

    def enough_seconds(self, trial: str, gain: float, most: float) -> float:
        """Return the seconds of training in all, `most` at most, from which on one more brings a trial less than `gain`
        nats.

        Where there is no law, that is `most`.
        """
        at = self.trials[trial].progress

        def pays(seconds: float) -> bool:
            ends = [self.forecast_after(trial, each - at.seconds) for each in (seconds, NEXT * seconds)]
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
        """Note that a trial had its last segment, or is over."""
        self._arrive(self.trials[trial])
        self.trials[trial].state = state

    def note_turn(self, trial: str, loss: float, training: float) -> None:
        """Note that a trial is past its best, which had this loss, after so many seconds of training."""
        self.trials[trial].past_best = True
        self.turned[trial] = loss, training
        self._points.pop(trial, None)
        self.close(trial, "finished")

    def can_improve(self, trial: str | None, seconds: float) -> bool:
        """Whether a trial (None: a new one) is expected to improve on the best of those that are past their best. One
        that is better already is; another needs the time for as much training as one of them had, and, where they are
        enough to tell, is judged by what they gained from the rung where it is."""
        at = Standing(losses={-1: 0.0}) if trial is None else self.trials[trial]
        now, needed = at.losses[at.rung], min(training for _, training in self.turned.values())
        best = min(loss for loss, _ in self.turned.values())
        if trial is not None and now < best - TIE:
            return True
        if seconds < needed - at.progress.seconds:
            return False
        begun = 0.0 if trial is None else None
        before = {each: self.trials[each].losses.get(at.rung, begun) for each in self.turned}
        gains = [loss - then for each, (loss, _) in self.turned.items() if (then := before[each]) is not None]
        if len(gains) < FEWEST_TURNED:
            return True
        return expected_lead(best - now - fmean(gains), stdev(gains) * math.sqrt(1 + 1 / len(gains))) >= TIE

    def enough_at_rung_1(self) -> bool:
        """Whether as many trials went to rung 1 as should, by the share that it made worse: where losses are at their
        lowest so early, another configuration is worth more. At higher rungs, a trial's own last fall tells."""
        if self._from_the_middle:
            return False
        better = (1 + self._reached[1] - self._worse) / (2 + self._reached[1])
        return self._reached[1] + self.in_flight[1] >= max(RUNG_1_LEAST, RUNG_1_TIMES * better * self._reached[0])

    @property
    def _from_the_middle(self) -> bool:
        """Whether the next trial for rung 1 comes from the middle of those that wait: it made worse all that came from
        the front, and they are enough to tell."""
        return self._worse == self._reached[1] >= RUNG_1_LEAST - RUNG_1_APART and self._apart < RUNG_1_APART

    def share(self, rung: int) -> float:
        """Return the trials that reached this rung or are on their way to it, as a share of those that reached the one
        below."""
        return (self._reached[rung] + self.in_flight[rung]) / max(1, self._reached[rung - 1])

    def first(self, rung: int) -> str | None:
        """Return the trial that is to go up first of those that wait at a rung: the most promising one, or at rung 0 at
        times one from the middle; None: there is none."""
        if self._rules.front:
            return self._adds_most(rung, past_best=False)
        if rung == 0 and self._from_the_middle:
            there = {entry for entry in self._waiting.get(0, ()) if self._is_waiting(entry[-1], 0)}
            return sorted(there)[len(there) // 2][-1] if there else None
        return self._most_promising(rung, past_best=False)

    def _most_promising(self, rung: int, *, past_best: bool) -> str | None:
        waiting = self._waiting.get(rung, [])
        while waiting and not self._is_waiting(waiting[0][-1], rung):
            heapq.heappop(waiting)
        return waiting[0][-1] if waiting and (past_best or not waiting[0][0]) else None

    def leader(self, *, past_best: bool = False) -> str | None:
        """Return the most promising of all trials that wait; None: there is none."""
        if self._rules.front:
            return self._adds_most(None, past_best)
        firsts = [self._most_promising(rung, past_best=past_best) for rung in self._waiting]
        return min((trial for trial in firsts if trial is not None), key=self._entry, default=None)

    def enough_running_ahead(self, count: int) -> bool:
        """Whether so many of the running trials are more promising than all that wait and are not past their best; True
        where none such waits."""
        best = self.leader()
        if best is None:
            return True
        wait, run = self._entry(best), (name for name, each in self.trials.items() if each.state == "running")
        ahead = (name for name in run if self.trials[name].rung >= 0 and self._entry(name) < wait)
        return sum(1 for _ in itertools.islice(ahead, count)) == count

    def _adds_most(self, rung: int | None, past_best: bool) -> str | None:
        """Return the trial, of those that wait at a rung (None: at any), that is expected to add the most to the front
        of those beyond that rung, or on their way there (None: to their ends)."""
        there = [name for name in self.trials if self._is_waiting(name, rung)]
        waiting = [name for name in there if past_best or not self.trials[name].past_best]
        if not waiting:
            return None
        best, bound = self._front(math.inf if rung is None else rung + 1)

        def adds(trial: str) -> tuple[float, float, str]:
            added, below = expected_hypervolume_gain(*self._point(trial), best, bound)
            return -added, -below, trial

        return min(waiting, key=adds)

    def front_additions(self, sizes: Sequence[float], forecasts: Sequence[Forecast]) -> list[float] | None:
        """Return what each new trial, of so many weights, is expected to add to the front of all; None: there is none
        yet, or trials are compared by their losses."""
        if not (self._rules.front and self._compared()):
            return None
        begun = self._front(0)
        new = zip(sizes, forecasts, strict=True)
        return [expected_hypervolume_gain(math.log1p(size), forecast, *begun)[0] for size, forecast in new]

    def next_pareto_segment(
        self, seconds: float, longest: float, least: Callable[[str], float]
    ) -> tuple[str, float] | None:
        """Return the trial that has the next last segment, and its seconds, where so many seconds are shared equally by
        as many of those that wait as make the front of all last segments the largest.

        longest: most seconds of one; least(trial): least seconds that make something of it. None: no trial that waits
        gets as much, or nothing tells what they would bring.
        """
        if not self._compared():
            return None
        begun, bound = self._front(math.inf)
        found, largest = None, 0.0
        for count in itertools.count(1):
            each = min(seconds / count, longest)
            ends = dict[str, Point]()
            for trial in self.waiting():
                after = self.forecast_after(trial, each) if least(trial) < each else None
                if after is not None:
                    ends[trial] = self._point(trial)[0], after[0]
            chosen, names = begun, list[str]()
            while ends and len(names) < count:
                adds = {
                    trial: expected_hypervolume_gain(size, (loss, 0.0), chosen, bound)
                    for trial, (size, loss) in ends.items()
                }
                names.append(max(adds, key=adds.__getitem__))
                chosen = front([*chosen, ends.pop(names[-1])], bound)
            if len(names) < count or (area := hypervolume(chosen, bound)) <= largest:
                return found
            found, largest = (names[0], each), area
        return found

    def _front(self, least: float) -> tuple[list[Point], Point]:
        """Return the front of what is expected of those that are at this rung or further, or on their way there (inf:
        to their ends), and the reference of all."""
        points = dict[str, Point]()
        for name in self._compared():
            size, (loss, _) = self._point(name)
            points[name] = size, loss
        bound = reference(list(points.values()))
        return front((point for name, point in points.items() if self.trials[name].target_rung >= least), bound), bound

    def _compared(self) -> list[str]:
        """Return all trials that reached a rung and did not fail."""
        return [name for name, each in self.trials.items() if each.rung >= 0 and each.state != "ended"]

    def _point(self, trial: str) -> tuple[float, Forecast]:
        """Return the log of a trial's weights (and one more, as they may not be known), and what it is expected to
        have."""
        if trial not in self._points:
            expected = (self.turned[trial][0], 0.0) if trial in self.turned else self.expected(trial)
            self._points[trial] = math.log1p(self.trials[trial].progress.size), expected
        return self._points[trial]

    def waiting(self) -> list[str]:
        """Return all trials that wait, the most promising first."""
        return sorted((name for name in self.trials if self._is_waiting(name, None)), key=self._entry)

    def _is_waiting(self, trial: str, rung: int | None) -> bool:
        """Whether a trial waits at a rung (None: at any)."""
        standing = self.trials[trial]
        return standing.state == "paused" and (standing.rung >= 0 if rung is None else standing.rung == rung)

    def promise(self, trial: str, forecast: Forecast, tokens: float) -> float:
        """Return the number that ranks a trial with this forecast after so many tokens in all, low is good: its loss,
        raised by the doubt, and by what the prior says against it and against a dropout that is yet to take its full
        effect."""
        (loss, doubt), favour = forecast, self._favour(trial)
        unsure = min(doubt, LOSS_PER_LOG_PROMISE)
        unlikely = unsure * -math.log(max(favour.promise, LEAST_PROMISE))
        late = (LOSS_PER_LOG_PROMISE - unsure) * -math.log(max(favour.late, LEAST_PROMISE))
        unlikely += favour.share_to_come(self.trials[trial].progress.tokens, tokens) * late
        return loss * math.exp(self._rules.doubt * doubt + unlikely)

    def _entry(self, trial: str) -> Entry:
        standing = self.trials[trial]
        tokens = self._ahead(standing.rung, standing.progress.seconds) * standing.progress.tokens
        return standing.past_best, self.promise(trial, self.expected(trial), tokens), trial

    def _arrive(self, standing: Standing) -> None:
        if standing.state == "running" and standing.goal is not None:
            self.in_flight[standing.goal] -= 1
        standing.goal = None


def _can_fit_law(trials: Sequence[Sequence[Observation]]) -> bool:
    """Whether what was observed of these trials is enough for a law."""
    return len({observed[0].size for observed in trials}) >= FEWEST_SIZES and max(map(len, trials)) > 1
