"""What other caps would buy: the best loss that each family of a study is expected to have under them, and how sure
that is.

It is assumed that a search tries the configurations that the study has tried; under a smaller cap fewer, drawn from
these. The one that leads is trained as far as the search would train its leader, and then has the loss that the law of
all trials predicts. That is a loss at a constant rate, on a subset. It is corrected for the decay, and for the whole
split, by the ratio of the losses of decayed trials to what the law predicts for them, and is as unsure as that ratio.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Literal

from tune.search.forecast import FEWEST_SIZES
from tune.search.front import Forecast
from tune.search.ladder import WALL_CLOCK_MULTIPLE
from tune.search.resume import last_moment
from tune.search.successive_halving import SuccessiveHalving
from tune.store.journal import Journal
from tune.store.queries import decayed_trials

TIMES = (0.5, 1.0, 2.0)
"""The caps that are asked about, as multiples of the study's."""
SPREAD = NormalDist().inv_cdf(0.9)
"""Standard deviations either side of the mean that hold four fifths of a normal distribution."""
How = Literal["new search", "this search", "continued"]
"""Who would have the cap: a search from its start; this one, which has ended under it; this one, from here on."""


@dataclass(frozen=True, kw_only=True)
class End:
    """A trial after its decay: its loss in nats, and the target tokens that it has seen."""

    trial: str
    loss: float
    tokens: float


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The best loss of a family under a cap of device-seconds, in nats, its interval of 80 %, and the trial that has
    it. Where `how` is "this search", loss, low and high are the same."""

    cap: float
    how: How
    trial: str
    loss: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class CapForecast:
    """What to expect of one family under each of the caps. decayed: whether losses are those after a decay, which takes
    a trial that had one, or those at a constant rate; why: a line on why there are no rows."""

    rows: Sequence[Expected] = ()
    decayed: bool = False
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class CapResources:
    """What a family has of a cap: its share and what is left of it, in seconds of a slot; the wall clock in which a
    search uses that cap, and what is left of it. times: the cap over what the study has spent."""

    times: float
    seconds: float
    left: float
    wall: float
    wall_left: float


@dataclass(frozen=True, kw_only=True)
class StudyConditions:
    """What a study runs under: its cap in device-seconds and each family's share of it, slots, the device-seconds in a
    second of one, its deadline, whether it is patient, and whether it is over: it spends no more of this cap; seeds:
    with which the last two are trained anew."""

    cap: float
    families: Mapping[str, float]
    slots: int
    share: float
    deadline: float | None
    patient: bool
    over: bool
    seeds: int = 0

    def resources_at(self, name: str, times: float, *, spent: float, charged: float, now: float) -> CapResources:
        """Return what a family has of a cap so many times as large. spent, charged: by all and by it, in
        device-seconds."""
        cap, end = times * self.cap, math.inf if self.deadline is None else self.deadline
        all_slots = self.share * self.slots
        within = math.inf if self.patient else WALL_CLOCK_MULTIPLE * cap / all_slots
        left = max(0.0, min(self.families[name] * cap - charged, cap - spent))
        seconds, begun = self.families[name] * cap / self.share, cap / spent if spent else math.inf
        part = min(1.0, self.families[name] * self.slots)  # of the time to a deadline, as the engine has it
        return CapResources(
            times=begun, seconds=seconds, left=left / self.share,
            wall=min(within, end),
            wall_left=max(0.0, min(max(within - now, (cap - spent) / all_slots), part * (end - now))),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FamilyHistory:
    """What a family has done so far: seconds of a slot that went into rungs; by trial, the target tokens from which it
    would go on; ends; and the trial that is in its last segment. anew: trainings of the last two that are to come."""

    on_rungs: float
    anew: int
    tokens: Mapping[str, float]
    ends: Sequence[End]
    last: str | None = None


def predict_other_caps(
    journal: Journal, policies: Mapping[str, SuccessiveHalving], conditions: StudyConditions, *, decay_share: float
) -> dict[str, CapForecast]:
    """Return what to expect of each family. decay_share: share of a life that its decay takes."""
    charged = {
        (row["family"], row["purpose"]): float(row["seconds"])
        for row in journal.rows("""
            SELECT family, purpose, SUM(seconds) AS seconds
            FROM charges JOIN leases USING (lease) JOIN trials ON trials.trial = leases.trial GROUP BY 1, 2""")
    }
    spent = float(journal.rows("SELECT TOTAL(seconds) AS spent FROM charges")[0]["spent"])
    tokens = {
        row["trial"]: float(row["tokens"])
        for row in journal.rows("SELECT trial, MAX(tokens) AS tokens FROM reports WHERE tokens > 0 GROUP BY trial")
    }
    ends, now, found = decayed_trials(journal), last_moment(journal), {}
    for name, policy in policies.items():
        had = [End(trial=row["trial"], loss=row["loss"], tokens=row["tokens"]) for row in ends if row["family"] == name]
        going = [trial for trial, at in policy.trials.items() if at.state == "running" and at.goal is None]
        from_before = {end.trial: (1 - decay_share) * end.tokens for end in had}
        behind = FamilyHistory(
            on_rungs=charged.get((name, "rung"), 0.0) / conditions.share, tokens=tokens | from_before, ends=had,
            last=next((trial for trial in going if policy.trials[trial].rung >= 0), None),  # else it trains anew
            anew=2 * conditions.seeds,
        )  # fmt: skip
        by_it = sum(seconds for (family, _), seconds in charged.items() if family == name)
        means = partial(conditions.resources_at, name, spent=spent, charged=by_it, now=now)
        found[name] = OtherCaps(policy, behind).forecast_rows(conditions.cap, means, over=conditions.over)
    return found


class OtherCaps:
    """The prediction for one family. trials: those that may go on and that a law predicts; empty as long as there is no
    law, and where a loss is not above zero, as a family of a user's own may have it: no law has such losses."""

    def __init__(self, policy: SuccessiveHalving, history: FamilyHistory) -> None:
        self._policy, self._behind, predict = policy, history, policy.standings.forecast_at
        at_rungs = (loss for each in policy.trials.values() for loss in each.losses.values())
        self._below_zero = any(loss <= 0 for loss in (*at_rungs, *(end.loss for end in history.ends)))
        going = {name: each for name, each in policy.trials.items() if each.state != "ended" and predict(name, 1.0)}
        going = {} if self._below_zero else going
        self.trials = sorted([name for name, each in going.items() if not each.past_best] or going)
        ratios = [
            (math.log(end.loss / predicted[0]), predicted[1] ** -2)
            for end in (() if self._below_zero else history.ends)
            if end.trial in policy.trials and (predicted := predict(end.trial, end.tokens))
        ]
        weight = sum(weight for _, weight in ratios)
        self._ratio = sum(ratio * weight for ratio, weight in ratios) / weight if ratios else 0.0
        self._doubt = weight**-0.5 if ratios else 0.0
        self._own_ends = {end.trial: end for end in history.ends}
        over, planned = history.ends or history.last, policy.ladder.explore
        self._explored = min(1.0, history.on_rungs / planned) if over and planned else 1.0
        """Share of the seconds that a ladder plans for rungs which were worth using so far; the rest is for a last
        segment."""

    def expected(self, trial: str, tokens: float) -> Forecast:
        """Return the expected loss of a trial after so many tokens in all, after a decay where the effect of one is
        known.

        For a trial that had its own decay, only the way from there on is in doubt, as a part of the fall from what was
        seen.
        """
        end = self._own_ends.get(trial)
        loss, doubt = self._by_law(trial, tokens)
        if end is None:
            return loss * math.exp(self._ratio), math.hypot(doubt, self._doubt)
        there, _ = self._by_law(trial, end.tokens)
        seen = self._policy.trials[trial].observed[-1].loss
        way, fall = abs(math.log(loss / there)), abs(math.log(seen / loss))
        return end.loss * loss / there, doubt * min(1.0, way / fall) if fall else doubt

    def _by_law(self, trial: str, tokens: float) -> Forecast:
        """Return the expected loss at a constant rate."""
        predicted = self._policy.standings.forecast_at(trial, tokens)
        assert predicted, "there is a law"
        return predicted

    def forecast_from_start(self, resources: CapResources) -> tuple[str, Forecast]:
        """Return the best trial of a search that has such a cap from its start, and the loss that is expected of that
        search.

        How many trials it begins goes with the square root of the cap, as the width of a ladder does; they are drawn at
        random from those that the study has.
        """
        ladder = self._policy.make_ladder(resources.seconds, resources.wall)
        ends = self._forecast_ends(self.trials, ladder.end + (1 - self._explored) * ladder.explore - ladder.overhead)
        forecasts = [self.expected(*end) for end in ends]
        count, logs = len(ends), [math.log(loss) for loss, _ in forecasts]
        drawn = math.ceil(count * math.sqrt(min(1.0, resources.times)))
        none_better = [(1 - better / count) ** drawn for better in range(count + 1)]
        chances = [this - one_more for this, one_more in itertools.pairwise(none_better)]
        mean = sum(chance * log for chance, log in zip(chances, logs, strict=True))
        luck = sum(chance * (log - mean) ** 2 for chance, log in zip(chances, logs, strict=True))
        return ends[0][0], (math.exp(mean), math.hypot(forecasts[0][1], math.sqrt(luck)))

    def forecast_continued(self, resources: CapResources) -> tuple[str, Forecast]:
        """Return the trial that the rest of a cap goes to, after the rungs that it still pays for, and its expected
        loss."""
        ladder, behind = self._policy.make_ladder(resources.seconds, resources.wall), self._behind
        left, start = min(resources.left, resources.wall_left), 0.0
        if behind.last in self.trials:
            trial = behind.last
        else:
            trial, _ = self._forecast_ends(self.trials, ladder.end)[0]
            left = max(0.0, left - behind.anew * ladder.confirm)
            to_come = max(0.0, self._explored * ladder.explore - behind.on_rungs)
            rungs = min(to_come, max(0.0, left - ladder.kept))
            if rungs >= ladder.cost(0):
                left, start = left - rungs, ladder.rung_seconds(ladder.top)
        rate = self._rate(trial)
        had = max(behind.tokens[trial], self._policy.trials[trial].progress.tokens, rate * start)
        return trial, self.expected(trial, had + rate * max(0.0, left - ladder.overhead))

    def _forecast_ends(self, trials: Iterable[str], seconds: float) -> list[tuple[str, float]]:
        """Return the trials and their tokens after so many seconds of training, first the one that leads by what it has
        then."""

        def entry(end: tuple[str, float]) -> tuple[float, str]:
            return self._policy.standings.promise(end[0], self.expected(*end), end[1]), end[0]

        return sorted(((trial, self._rate(trial) * seconds) for trial in trials), key=entry)

    def _rate(self, trial: str) -> float:
        """Return a trial's target tokens in a second of training."""
        at = self._policy.trials[trial].progress
        return at.tokens / at.seconds

    def forecast_rows(self, cap: float, resources: Callable[[float], CapResources], *, over: bool) -> CapForecast:
        """Return the rows, or why there are none."""
        sizes = {each.observed[0].size for each in self._policy.trials.values() if each.observed}
        if self._policy.past_best:
            return CapForecast(why="trials are past their best on this text, of which no law of losses that fall tells")
        if len(sizes) < FEWEST_SIZES:
            rule = f"{len(sizes)} of at least {FEWEST_SIZES} were seen after their warm-up"
            return CapForecast(why=f"too few sizes for a law of losses: {rule}")
        if self._below_zero:
            return CapForecast(why="losses reach zero, of which no law tells")
        if not self.trials:
            return CapForecast(
                why="no law of losses: it takes a trial seen at two rungs after its warm-up, and one to go on"
            )
        if self._behind.ends and not self._doubt:
            return CapForecast(
                why="no trial that had its decay was seen after its warm-up, so what a decay gives is not known"
            )
        return CapForecast(rows=self.rows(cap, resources, over=over), decayed=self._doubt > 0)

    def rows(self, cap: float, resources: Callable[[float], CapResources], *, over: bool) -> list[Expected]:
        """Return what to expect of the cap and of others. over: the study has ended under its cap, and spends no more
        of it.

        A larger cap can do whatever a smaller one can, so that none is expected to bring less.
        """
        best = min(self._behind.ends, key=lambda end: end.loss, default=None)
        found: list[Expected] = []
        for times in TIMES:
            mean = resources(times)
            goes_on = mean.left > self._policy.ladder.cost(0) and not (over and times <= 1)
            if best is not None and over and times == 1:
                found.append(
                    Expected(
                        cap=cap, how="this search", trial=best.trial, loss=best.loss, low=best.loss, high=best.loss
                    )
                )
                continue
            trial, (loss, doubt) = self.forecast_continued(mean) if goes_on else self.forecast_from_start(mean)
            low, high = (loss * math.exp(sign * SPREAD * doubt) for sign in (-1, 1))
            if best is not None and goes_on:
                loss, low, high = (min(best.loss, each) for each in (loss, low, high))
            elif best is not None:
                loss, high = max(best.loss, loss), max(best.loss, high)
            if found:
                loss, low, high = min(found[-1].loss, loss), min(found[-1].low, low), min(found[-1].high, high)
            how: How = "continued" if goes_on else "new search"
            found.append(Expected(cap=times * cap, how=how, trial=trial, loss=loss, low=low, high=high))
        return found
