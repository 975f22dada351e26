"""A list of configurations that is trained in place of a search: each whole, to its own number of steps and with its
own decay; none is suggested, compared or stopped.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tune.errors import UserError
from tune.search.family import FIRST_OVERHEAD_SECONDS, CostModel, Family, TrialRecord, with_margin
from tune.search.forecast import NO_PROGRESS, Progress
from tune.search.ladder import Frame, Ladder
from tune.search.memory_model import MemoryModel
from tune.search.policy import BudgetLeft, HandBack, Move, Train
from tune.search.successive_halving import SuccessiveHalving
from tune.search_space import Config, label

MARGIN = 1.5
"""Factor of a lease over its price. It is less than a search's: a training may be most of the cap, and one that is cut
short goes on."""


@dataclass(frozen=True, kw_only=True)
class ListEntry:
    """One entry of a list. steps: of its training; seconds: of a slot that these are guessed to take; turn: entries of
    a higher one are left out before any of a lower one."""

    config: Config
    steps: int
    seconds: float
    turn: int = 0


def paid_places(listed: Sequence[ListEntry], prices: Mapping[int, float], seconds: float) -> set[int]:
    """Return the places in a list that so many seconds pay for, the cheapest first in each turn. prices: by place."""
    paid = set[int]()
    for place in sorted(prices, key=lambda each: (listed[each].turn, prices[each], each)):
        if prices[place] <= seconds:
            paid.add(place)
            seconds -= prices[place]
    return paid


class ListPolicy(SuccessiveHalving):
    """Policy that gives each free slot the first entry of a list that is not begun, or waits half-way. Where what is
    left does not pay for all of these, the dearest of the last turn are left out.

    Guesses of seconds are corrected by what the entry with the nearest guess took. The object is also the family's
    source of suggestions, as it knows which trial has which entry. segment: as in CostModel; trials, price_to: as in
    Engine.
    """

    shared_failures = ("error",)
    """That one diverged is a result, and no reason to expect the same of the others."""

    def __init__(
        self, listed: Sequence[ListEntry], ladder: Ladder, segment: Callable[[str | None, float], float],
        trials: Mapping[str, TrialRecord], price_to: Callable[[str, int], float],
    ) -> None:  # fmt: skip
        frame = Frame(slots=1, shortest=ladder.first, overhead=ladder.overhead)
        super().__init__(frame, ladder, lambda trial, rung: math.inf)
        self._listed, self._segment, self._records, self._price_to = listed, segment, trials, price_to
        self._of: dict[str, int] = {}
        """By trial, its place in the list."""

    @property
    def left_out(self) -> list[ListEntry]:
        """Entries that were not begun, or wait half-way."""
        return [self._listed[place] for place, _ in self._open()]

    def step_seconds(self, trial: str) -> float:
        """Return the expected seconds a step of a trial that made none."""
        listed = self._listed[self._of[trial]]
        return self._expected(listed) / listed.steps

    def decide(self, left: BudgetLeft) -> Move:
        """Return what a free slot should do."""
        if self.is_hopeless:
            return super().decide(left)
        waiting, room = self._open(), min(left.seconds, left.wall)
        prices = {place: self._price_of_rest(place, trial) for place, trial in waiting}
        paid = paid_places(self._listed, prices, left.seconds)
        turn = min((self._listed[place].turn for place, _ in waiting), default=0)
        for place, trial in waiting:
            if left.running and self._listed[place].turn > turn:
                break  # what runs may leave enough for the rest of this turn
            wanted = with_margin(prices[place], MARGIN) if left.running else prices[place]  # the last may be cut short
            if place in paid and wanted <= room:
                listed, reason = self._listed[place], f"{place + 1} of {len(self._listed)} in the list"
                return Train(listed.config, listed.steps, prices[place], reason, trial)
        few = f"what is left does not pay for {len(waiting)} of the list"
        return HandBack(few if waiting else "all of the list is trained, or in training")

    def _price_of_rest(self, index: int, trial: str | None) -> float:
        """Return the price of what is left of a training."""
        listed = self._listed[index]
        return self._price_to(trial, listed.steps) if trial else self._segment(None, self._expected(listed))

    def _open(self) -> list[tuple[int, str | None]]:
        """Return the places of entries that are to begin or to go on, and the trial that began each, None where none
        did."""
        trials = {place: trial for trial, place in self._of.items()}
        found = ((place, trials.get(place)) for place in range(len(self._listed)))
        waiting = {trial for trial, each in self.trials.items() if each.state == "paused"}
        return [(place, trial) for place, trial in found if trial is None or trial in waiting]

    def _expected(self, listed: ListEntry) -> float:
        """Return the expected seconds of a slot for the steps of an entry."""
        known = ((self._listed[place], self._records[trial].step_seconds) for trial, place in self._of.items())
        taken = [(each.seconds, each.steps * step) for each, step in known if step]
        if not taken:
            return listed.seconds
        guess, seconds = min(taken, key=lambda each: abs(math.log(each[0] / listed.seconds)))
        return listed.seconds * seconds / guess

    # --- events

    def on_finishing(self, trial: str) -> None:
        """Note that a trial is on its way to its end; told again it changes nothing. Of several entries with its
        configuration it has the one whose steps are its goal."""
        self.standings.note_departure(trial, None)
        booked, goal = self._of[trial], self._records[trial].goal
        if self._listed[booked].steps != goal:
            wanted = self._listed[booked].config, goal
            places = (place for place, each in enumerate(self._listed) if (each.config, each.steps) == wanted)
            place = next(places, booked)
            self._of = {one: booked if held == place else held for one, held in self._of.items()} | {trial: place}

    def make_ladder(self, seconds: float, within: float = math.inf, deadline: float = math.inf) -> Ladder:
        """Return the same ladder for another share of the cap: there are no rungs."""
        return self.ladder

    def refit(self, ladder: Ladder) -> None:
        """Take another ladder. What came to its end stays there."""
        self.ladder = ladder

    # --- as suggestions

    def suggest(self, trial: str) -> Config:
        """Not called: a list suggests nothing."""
        raise NotImplementedError

    def note_tried(self, trial: str, config: Config) -> None:
        """Note that a trial was begun with a configuration. UserError: the list has no other entry with it."""
        taken = set(self._of.values())
        places = (place for place, each in enumerate(self._listed) if each.config == config and place not in taken)
        if (place := next(places, None)) is None:
            raise UserError(f"config: {label(config)} of {trial} is not in the list: do not trust that study")
        self._of[trial] = place

    def tell(self, trial: str, rung: int, loss: float | None, progress: Progress = NO_PROGRESS) -> None:
        """Ignore a loss: nothing is learned from it."""


def listed_family(
    listed: Sequence[ListEntry], ladder: Ladder | None, seconds: float, memory: MemoryModel, *,
    trials: Mapping[str, TrialRecord], price_to: Callable[[str, int], float],
) -> Family:  # fmt: skip
    """Return a family that trains a list in so many seconds of a slot. ladder: that of its study, None where the study
    is new; it has no rungs; trials, price_to: as in Engine."""
    prices = CostModel()
    bare = Ladder(
        seconds=seconds, first=1.0, top=0, explore=seconds, kept=0.0, last=0.0, start_up=prices.start_up,
        overhead=FIRST_OVERHEAD_SECONDS,
    )  # fmt: skip
    listing = ListPolicy(listed, ladder or bare, prices.segment, trials, price_to)
    return Family(
        seconds=seconds, policy=listing, suggestions=listing, cost_model=prices, memory=memory, whole=True,
        margin=MARGIN, guess=listing.step_seconds,
    )  # fmt: skip
