"""A list of configurations in the place of a search: each is trained whole, to its own number of steps and with its own
decay; none is suggested, compared or stopped.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tune.errors import UserError
from tune.search.family import FIRST_OVERHEAD_SECONDS, CostModel, Family, TrialRecord, with_margin
from tune.search.forecast import NO_PROGRESS, Progress
from tune.search.ladder import Frame, Ladder
from tune.search.memory_model import Memory
from tune.search.policy import HandBack, Left, Move, Train
from tune.search.successive_halving import SuccessiveHalving
from tune.search_space import Config, Dimensions, label

MARGIN = 1.5
"""Of a lease over its price. It is less than a search's: a training may be most of the cap, and one that is cut short
goes on."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One of a list. steps: of its training; seconds: that these are guessed to take of a slot; spare: it is left out
    before any that is not."""

    config: Config
    steps: int
    seconds: float
    spare: bool = False


class Listing(SuccessiveHalving):
    """Gives each free slot the first of a list that is not begun, or waits half-way. Where what is left does not pay
    for all of these, the dearest are left out.

    Guesses are corrected by what steps took of the one that is nearest by its own guess. It stands in the place of a
    family's suggestions too, as it knows which trial has which of the list. segment: as of CostModel; trials, price_to:
    as of Engine.
    """

    def __init__(
        self, listed: Sequence[Listed], ladder: Ladder, segment: Callable[[str | None, float], float],
        trials: Mapping[str, TrialRecord], price_to: Callable[[str, int], float],
    ) -> None:  # fmt: skip
        frame = Frame(slots=1, shortest=ladder.first, overhead=ladder.overhead)
        super().__init__(frame, ladder, lambda trial, rung: math.inf)
        self._listed, self._segment, self._records, self._price_to = listed, segment, trials, price_to
        self._of: dict[str, int] = {}
        """Of each trial its place in the list."""

    @property
    def left_out(self) -> list[Listed]:
        """Those that were not begun, or wait half-way."""
        return [self._listed[place] for place, _ in self._open()]

    def step_seconds(self, trial: str) -> float:
        """Expected of a trial that made none."""
        listed = self._listed[self._of[trial]]
        return self._expected(listed) / listed.steps

    def decide(self, left: Left) -> Move:
        """What a free slot should do."""
        if self.hopeless:
            return super().decide(left)
        waiting, room = self._open(), min(left.seconds, left.wall)
        prices = {place: self._rest(place, trial) for place, trial in waiting}
        paid, rest = set[int](), left.seconds
        for place in sorted(prices, key=lambda each: (self._listed[each].spare, prices[each], each)):
            if prices[place] <= rest:
                paid.add(place)
                rest -= prices[place]
        for place, trial in waiting:
            wanted = with_margin(prices[place], MARGIN) if left.running else prices[place]  # the last may be cut short
            if place in paid and wanted <= room:
                listed, reason = self._listed[place], f"{place + 1} of {len(self._listed)} in the list"
                return Train(listed.config, listed.steps, prices[place], reason, trial)
        few = f"what is left does not pay for {len(waiting)} of the list"
        return HandBack(few if waiting else "all of the list is trained, or in training")

    def _rest(self, place: int, trial: str | None) -> float:
        """The price of what is left of a training."""
        listed = self._listed[place]
        return self._price_to(trial, listed.steps) if trial else self._segment(None, self._expected(listed))

    def _open(self) -> list[tuple[int, str | None]]:
        """Places of those that are to begin or to go on, and the trial that began one."""
        trials = {place: trial for trial, place in self._of.items()}
        found = ((place, trials.get(place)) for place in range(len(self._listed)))
        waiting = {trial for trial, each in self.trials.items() if each.state == "paused"}
        return [(place, trial) for place, trial in found if trial is None or trial in waiting]

    def _expected(self, listed: Listed) -> float:
        """Seconds of its steps."""
        known = ((self._listed[place], self._records[trial].step_seconds) for trial, place in self._of.items())
        taken = [(each.seconds, each.steps * step) for each, step in known if step]
        if not taken:
            return listed.seconds
        guess, seconds = min(taken, key=lambda each: abs(math.log(each[0] / listed.seconds)))
        return listed.seconds * seconds / guess

    # --- events

    def finishing(self, trial: str) -> None:
        """A trial is on its way to its end; to tell it again changes nothing. Of several of one configuration it is the
        one that has the steps of its goal."""
        self.standings.depart(trial, None)
        booked, goal = self._of[trial], self._records[trial].goal
        if self._listed[booked].steps != goal:
            wanted = self._listed[booked].config, goal
            places = (place for place, each in enumerate(self._listed) if (each.config, each.steps) == wanted)
            place = next(places, booked)
            self._of = {one: booked if held == place else held for one, held in self._of.items()} | {trial: place}

    def refitted(self, seconds: float, within: float = math.inf, deadline: float = math.inf) -> Ladder:
        """For another share of the cap: there are no rungs."""
        return self.ladder

    def refit(self, ladder: Ladder) -> None:
        """What came to its end stays there."""
        self.ladder = ladder

    # --- as suggestions

    def suggest(self, trial: str) -> Config:
        """None is asked for."""
        raise NotImplementedError

    def tried(self, trial: str, config: Config) -> None:
        """A trial was begun with a configuration. UserError: the list has no other such."""
        taken = set(self._of.values())
        places = (place for place, each in enumerate(self._listed) if each.config == config and place not in taken)
        if (place := next(places, None)) is None:
            raise UserError(f"config: {label(config)} of {trial} is not in the list: do not trust that study")
        self._of[trial] = place

    def tell(self, trial: str, rung: int, loss: float | None, progress: Progress = NO_PROGRESS) -> None:
        """Nothing is learned from losses."""


def listed_family(
    listed: Sequence[Listed], ladder: Ladder | None, seconds: float, memory: Memory, *,
    trials: Mapping[str, TrialRecord], price_to: Callable[[str, int], float],
) -> Family:  # fmt: skip
    """A family that trains a list in so many seconds of a slot. ladder: that of its study, None: it is a new one; there
    are no rungs; trials, price_to: of its engine."""
    prices = CostModel()
    bare = Ladder(
        seconds=seconds, first=1.0, top=0, explore=seconds, kept=0.0, last=0.0, start_up=prices.start_up,
        overhead=FIRST_OVERHEAD_SECONDS,
    )  # fmt: skip
    listing = Listing(listed, ladder or bare, prices.segment, trials, price_to)
    return Family(
        seconds=seconds, policy=listing, suggestions=listing, cost_model=prices, memory=memory, whole=True,
        margin=MARGIN, guess=listing.step_seconds,
    )  # fmt: skip


def dimensions(listed: Sequence[Listed]) -> Dimensions:
    """What the configurations of a list have, each with its values."""
    names = dict.fromkeys(name for each in listed for name in each.config)
    return {name: tuple(dict.fromkeys(each.config[name] for each in listed if name in each.config)) for name in names}
