"""The last comparison (`--confirm`): before the leader's last segment, the last two trials of a family are retrained
alike, with the same other seeds. As nothing was selected by these trainings, their losses are a fair test of whether
the two differ.

The last segment gets whatever they leave over.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from tune.search.forecast import NO_FAVOUR, Favour
from tune.search.ladder import Frame, Ladder
from tune.search.policy import BudgetLeft, Confirm, Finish, HandBack, Move, Wait
from tune.search.successive_halving import PAYS_NO_MORE, SuccessiveHalving


class HalvingWithConfirmation(SuccessiveHalving):
    """Successive halving that keeps `Ladder.confirm` seconds of a slot for each of these trainings."""

    def __init__(
        self, frame: Frame, ladder: Ladder, price: Callable[[str | None, int], float],
        favour: Callable[[str], Favour] = lambda trial: NO_FAVOUR,
    ) -> None:  # fmt: skip
        super().__init__(frame, ladder, price, favour)
        self._begun: list[str] = []
        """The trials whose configurations were retrained on this ladder, one entry for each training: the leader, the
        other, the leader, ..."""
        self._times: Counter[str] = Counter()

    def on_confirming(self, trial: str, of: str) -> None:
        if trial not in self.trials:
            self._begun.append(of)
            self._times[of] += 1
        super().on_confirming(trial, of)

    def refit(self, ladder: Ladder) -> None:
        """Take another ladder; under another cap or deadline a new last comparison is made."""
        super().refit(ladder)
        self._begun = []

    def make_ladder(self, seconds: float, within: float = math.inf, deadline: float = math.inf) -> Ladder:
        """Return the ladder as SuccessiveHalving does; after a completed last comparison, a further one is kept only
        its part of what the cap has grown by."""
        ladder, more = super().make_ladder(seconds, within, deadline), max(0.0, seconds - self.ladder.seconds)
        done = self._times.total() >= 2 * self._frame.seeds
        return replace(ladder, confirm=ladder.confirm * more / seconds) if done else ladder

    def decide(self, left: BudgetLeft) -> Move:
        """Decide as SuccessiveHalving does, on what these trainings leave; they begin when the leader would have its
        last segment, and from then on no trial is promoted."""
        if self.is_hopeless or self._finisher is not None or not self._frame.seeds:
            return super().decide(left)
        due, each = 2 * self._frame.seeds - len(self._begun), self.ladder.confirm
        if not self._begun:
            beside = due * each / (left.slots + left.running)
            rest = replace(left, seconds=max(0.0, left.seconds - due * each), wall=max(0.0, left.wall - beside))
            move = super().decide(rest)
            if isinstance(move, Finish):
                return self._next_confirmation(move.trial, left) or super().decide(left)
            if isinstance(move, HandBack) and not left.running:  # the leader needs what is kept for them
                return self._lead(left)
            others = left.slots + left.running - 1  # without this slot they and the last segment would not end in time
            if isinstance(move, HandBack) and due * each / others + self.ladder.kept > left.wall:
                return Wait("the last two are trained again soon")
            return move
        leader = self._begun[0]
        if self.trials[leader].state != "paused":
            return super().decide(left)
        if due and (anew := self._next_confirmation(leader, left)):
            return anew
        seconds, least = min(left.seconds, left.wall), self.ladder.overhead
        if left.running == 0 or left.seconds > left.wall:
            return self._last_segment(leader, seconds, least) if seconds > least else HandBack(PAYS_NO_MORE)
        return HandBack("the last two are trained again, and the leader gets what they leave over")

    def _next_confirmation(self, leader: str, left: BudgetLeft) -> Confirm | None:
        """Return the next of these trainings; None where it cannot be paid for, or no other trial waits to compare
        with."""
        number, each = len(self._begun), self.ladder.confirm
        other = next(iter(self._begun[1:] or (trial for trial in self.standings.waiting() if trial != leader)), None)
        least = self.ladder.overhead + self.ladder.first if self._times else 0.0  # for a second comparison
        if other is None or min(left.seconds, left.wall) < each or each < least:
            return None
        of, beside = (leader, other) if number % 2 == 0 else (other, leader)
        return Confirm(of, beside, self._times[of] + 1, each, f"{of} again with another seed, beside {beside}")

    def state(self) -> dict[str, object]:
        return super().state() | {"confirmed": [self._begun, dict(self._times)]}
