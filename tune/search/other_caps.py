"""What other caps would buy: the best loss that each family of a study is expected to have under them, and how sure
that is.

What is assumed: the configurations are those that the study has tried; of a smaller cap, as many as it would have begun
with, drawn from these. The one that leads is trained as far as the search would train its leader. Its loss is then that
of the law of all trials. That is of losses at a constant rate, on a subset: what the decay makes of them, and the whole
split, is the ratio of what decayed trials have to what the law says of them, as sure as that is.
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
from tune.search.ladder import WALLS
from tune.search.resume import last_moment
from tune.search.successive_halving import SuccessiveHalving
from tune.store.journal import Journal
from tune.store.queries import decayed

TIMES = (0.5, 1.0, 2.0)
"""The cap that is asked about, in caps of the study."""
SPREAD = NormalDist().inv_cdf(0.9)
"""Four of five of a normal lie within so many standard deviations."""
How = Literal["from its start", "found", "going on"]
"""What has a cap: a search from its start; this one, which has ended under it; this one, from here on."""


@dataclass(frozen=True, kw_only=True)
class End:
    """What a trial has after its decay: its loss in nats, and the target tokens that it has seen."""

    trial: str
    loss: float
    tokens: float


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The best loss of a family under a cap of device-seconds, in nats, its interval of 80 %, and of which trial.
    Found: all three are the same."""

    cap: float
    how: How
    trial: str
    loss: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Foretold:
    """Of one family, of each of the caps. decayed: losses are those after a decay, of which some trial tells; else
    those at a constant rate; why: there are no rows, in a line."""

    rows: Sequence[Expected] = ()
    decayed: bool = False
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a family has of a cap: its share and what is left of it, in seconds of a slot; the wall clock in which a
    search uses that cap, and what is left of it. times: the cap, in what the study has spent."""

    times: float
    seconds: float
    left: float
    wall: float
    wall_left: float


@dataclass(frozen=True, kw_only=True)
class Conditions:
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

    def means(self, name: str, times: float, *, spent: float, charged: float, now: float) -> Means:
        """Of a family, under a cap so many times as large. spent, charged: by all and by it, in device-seconds."""
        cap, end = times * self.cap, math.inf if self.deadline is None else self.deadline
        all_slots = self.share * self.slots
        within = math.inf if self.patient else WALLS * cap / all_slots
        left = max(0.0, min(self.families[name] * cap - charged, cap - spent))
        seconds, begun = self.families[name] * cap / self.share, cap / spent if spent else math.inf
        return Means(
            times=begun, seconds=seconds, left=left / self.share,
            wall=min(within, end), wall_left=max(0.0, min(max(within - now, (cap - spent) / all_slots), end - now)),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Behind:
    """What a family has behind it: seconds of a slot that went into rungs, target tokens by trial, from which each
    would go on, ends, and the trial that is in its last segment; anew: trainings of the last two that are to come."""

    on_rungs: float
    anew: int
    tokens: Mapping[str, float]
    ends: Sequence[End]
    last: str | None = None


def other_caps(
    journal: Journal, policies: Mapping[str, SuccessiveHalving], conditions: Conditions, *, decay_share: float
) -> dict[str, Foretold]:
    """By family what to expect. decay_share: of a life, at its end."""
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
    ends, now, found = decayed(journal), last_moment(journal), {}
    for name, policy in policies.items():
        had = [
            End(trial=row["trial"], loss=math.log(row["perplexity"]), tokens=row["tokens"])
            for row in ends if row["family"] == name
        ]  # fmt: skip
        going = [trial for trial, at in policy.trials.items() if at.state == "running" and at.goal is None]
        from_before = {end.trial: (1 - decay_share) * end.tokens for end in had}
        behind = Behind(
            on_rungs=charged.get((name, "rung"), 0.0) / conditions.share, tokens=tokens | from_before, ends=had,
            last=next((trial for trial in going if policy.trials[trial].rung >= 0), None),  # else it is trained anew
            anew=2 * conditions.seeds,
        )  # fmt: skip
        by_it = sum(seconds for (family, _), seconds in charged.items() if family == name)
        means = partial(conditions.means, name, spent=spent, charged=by_it, now=now)
        found[name] = OtherCaps(policy, behind).foretold(conditions.cap, means, over=conditions.over)
    return found


class OtherCaps:
    """Of one family. trials: those that may go on, as far as a law tells of them; none as long as there is none."""

    def __init__(self, policy: SuccessiveHalving, behind: Behind) -> None:
        self._policy, self._behind, foretell = policy, behind, policy.standings.foretold
        going = {name: each for name, each in policy.trials.items() if each.state != "ended" and foretell(name, 1.0)}
        self.trials = sorted([name for name, each in going.items() if not each.past_best] or going)
        ratios = [
            (math.log(end.loss / foretold[0]), foretold[1] ** -2)
            for end in behind.ends
            if end.trial in policy.trials and (foretold := foretell(end.trial, end.tokens))
        ]
        weight = sum(weight for _, weight in ratios)
        self._ratio = sum(ratio * weight for ratio, weight in ratios) / weight if ratios else 0.0
        self._doubt = weight**-0.5 if ratios else 0.0
        self._own_ends = {end.trial: end for end in behind.ends}
        over, planned = behind.ends or behind.last, policy.ladder.explore
        self._explored = min(1.0, behind.on_rungs / planned) if over and planned else 1.0
        """Of what a ladder gives to rungs, what was worth it so far; the rest is for a last segment."""

    def expected(self, trial: str, tokens: float) -> Forecast:
        """Of a trial after so many tokens in all, as far as decays are known after one.

        Of one that had its own the doubt is of the way from there alone, as a part of the fall from what was seen.
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
        """At a constant rate."""
        foretold = self._policy.standings.foretold(trial, tokens)
        assert foretold, "there is a law"
        return foretold

    def from_start(self, means: Means) -> tuple[str, Forecast]:
        """The best trial of a search that has such a cap from its start, and what it is expected to have.

        How many it begins with goes with the square root of the cap, as the width of a ladder does; they are drawn from
        those that the study has, with luck.
        """
        ladder = self._policy.refitted(means.seconds, means.wall)
        ends = self._ends(self.trials, ladder.end + (1 - self._explored) * ladder.explore - ladder.overhead)
        forecasts = [self.expected(*end) for end in ends]
        count, logs = len(ends), [math.log(loss) for loss, _ in forecasts]
        drawn = math.ceil(count * math.sqrt(min(1.0, means.times)))
        none_better = [(1 - better / count) ** drawn for better in range(count + 1)]
        chances = [this - one_more for this, one_more in itertools.pairwise(none_better)]
        mean = sum(chance * log for chance, log in zip(chances, logs, strict=True))
        luck = sum(chance * (log - mean) ** 2 for chance, log in zip(chances, logs, strict=True))
        return ends[0][0], (math.exp(mean), math.hypot(forecasts[0][1], math.sqrt(luck)))

    def going_on(self, means: Means) -> tuple[str, Forecast]:
        """The trial that the rest of a cap goes to, after the rungs that it still pays for, and what it should have."""
        ladder, behind = self._policy.refitted(means.seconds, means.wall), self._behind
        left, start = min(means.left, means.wall_left), 0.0
        if behind.last in self.trials:
            trial = behind.last
        else:
            trial, _ = self._ends(self.trials, ladder.end)[0]
            left = max(0.0, left - behind.anew * ladder.confirm)
            to_come = max(0.0, self._explored * ladder.explore - behind.on_rungs)
            rungs = min(to_come, max(0.0, left - ladder.kept))
            if rungs >= ladder.cost(0):
                left, start = left - rungs, ladder.rung_seconds(ladder.top)
        rate = self._rate(trial)
        had = max(behind.tokens[trial], self._policy.trials[trial].progress.tokens, rate * start)
        return trial, self.expected(trial, had + rate * max(0.0, left - ladder.overhead))

    def _ends(self, trials: Iterable[str], seconds: float) -> list[tuple[str, float]]:
        """Trials, and their tokens after so many seconds of training, the one first that leads by what it has then."""

        def entry(end: tuple[str, float]) -> tuple[float, str]:
            return self._policy.standings.promise(end[0], self.expected(*end), end[1]), end[0]

        return sorted(((trial, self._rate(trial) * seconds) for trial in trials), key=entry)

    def _rate(self, trial: str) -> float:
        """Target tokens in a second of training."""
        at = self._policy.trials[trial].progress
        return at.tokens / at.seconds

    def foretold(self, cap: float, means: Callable[[float], Means], *, over: bool) -> Foretold:
        """As `rows`, if there is a law."""
        sizes = {each.observed[0].size for each in self._policy.trials.values() if each.observed}
        if self._policy.past_best:
            return Foretold(why="trials are past their best on this text, of which no law of losses that fall tells")
        if len(sizes) < FEWEST_SIZES:
            rule = f"{len(sizes)} of at least {FEWEST_SIZES} were seen after their warm-up"
            return Foretold(why=f"too few sizes for a law of losses: {rule}")
        if not self.trials:
            return Foretold(
                why="no law of losses: it takes a trial seen at two rungs after its warm-up, and one to go on"
            )
        if self._behind.ends and not self._doubt:
            return Foretold(
                why="no trial that had its decay was seen after its warm-up, so what a decay gives is not known"
            )
        return Foretold(rows=self.rows(cap, means, over=over), decayed=self._doubt > 0)

    def rows(self, cap: float, means: Callable[[float], Means], *, over: bool) -> list[Expected]:
        """What to expect of the cap and of others. over: the study has ended under its cap, and spends no more of it.

        A larger cap can do whatever a smaller one can, so that none is expected to bring less.
        """
        best = min(self._behind.ends, key=lambda end: end.loss, default=None)
        found: list[Expected] = []
        for times in TIMES:
            mean = means(times)
            goes_on = mean.left > self._policy.ladder.cost(0) and not (over and times <= 1)
            if best is not None and over and times == 1:
                found.append(
                    Expected(cap=cap, how="found", trial=best.trial, loss=best.loss, low=best.loss, high=best.loss)
                )
                continue
            trial, (loss, doubt) = self.going_on(mean) if goes_on else self.from_start(mean)
            low, high = (loss * math.exp(sign * SPREAD * doubt) for sign in (-1, 1))
            if best is not None and goes_on:
                loss, low, high = (min(best.loss, each) for each in (loss, low, high))
            elif best is not None:
                loss, high = max(best.loss, loss), max(best.loss, high)
            if found:
                loss, low, high = min(found[-1].loss, loss), min(found[-1].low, low), min(found[-1].high, high)
            how: How = "going on" if goes_on else "from its start"
            found.append(Expected(cap=times * cap, how=how, trial=trial, loss=loss, low=low, high=high))
        return found
