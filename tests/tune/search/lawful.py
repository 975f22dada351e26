"""Searches in virtual time whose trials follow a law that is known, each by a level, a slope and errors of its own."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tune.search.alone import Alone
from tune.search.other_caps import Conditions, Foretold, other_caps
from tune.search.resume import close_what_a_kill_left_open, restore
from tune.search.scaling_law import ScalingLaw
from tune.search.state import Terms
from tune.store.journal import Journal

TRUE = ScalingLaw(floor=1.2, of_size=0.2, size_power=0.5, of_tokens=0.5, token_power=0.4, size_unit=2e5, token_unit=2e3)
LEVEL, SLOPE, ERROR = 0.015, 0.008, 0.003
"""Standard deviations of a trial's, in logs of the loss."""
FALL, FALLS = 0.05, 0.005
"""Of the log of a loss by a decay, and its standard deviation between trials."""
DECAY_SHARE = 0.4


@dataclass(frozen=True, kw_only=True)
class Lawful:
    """How one trial trains; a step is a token."""

    seed: str
    size: float
    level: float
    slope: float
    fall: float
    most: float = math.inf
    diverges: float = math.inf
    turns: float = math.inf
    report_every: float = 1.0
    memory_bytes: float = 0.0

    @property
    def step_seconds(self) -> float:
        """Larger ones are slower."""
        return 0.02 + 0.05 * self.size / 1e6

    @property
    def parameters(self) -> int:
        """Weights."""
        return round(self.size)

    def loss(self, steps: float) -> float:
        """At a constant rate."""
        error = random.Random(f"{self.seed} {steps}").gauss(0, ERROR)
        off = self.level + self.slope * math.log(steps / TRUE.token_unit) + error
        return TRUE.loss(self.size, steps) * math.exp(off)

    def final(self, steps: float) -> float:
        """After a decay."""
        return self.loss(steps) * math.exp(-self.fall)


class Search(Alone):
    """One of these, or, of a journal, going on with it."""

    def __init__(self, *, sizes: bool = True, **about: Any) -> None:
        self.sizes = sizes
        going_on: Journal | None = about.get("journal")
        if going_on:
            close_what_a_kill_left_open(going_on)
        super().__init__(**about)
        terms = Terms(cap=self.seconds, deadline=None, processor="one", families={"alone": self.seconds})
        self.notes = restore(self.engine, going_on, terms, self.newest) if going_on else self.engine.agree(terms)

    def course(self, trial: str, family: str, config: Mapping[str, Any]) -> Any:
        """How a trial trains."""
        chance = random.Random(f"{self.seed} {trial}")
        size = 10 ** chance.uniform(4.5, 6.5)
        return Lawful(
            seed=f"{self.seed} {trial}", size=size if self.sizes else 1e5, level=chance.gauss(0, LEVEL),
            slope=chance.gauss(0, SLOPE), fall=chance.gauss(FALL, FALLS),
        )  # fmt: skip

    def newest(self, folder: Path, *, undecayed: bool) -> tuple[str, int] | None:
        """Where a trial goes on: at its last report, or before the decay that it had."""
        query = "SELECT steps, final FROM reports WHERE trial = ? ORDER BY report DESC LIMIT 1"
        for row in self.accounting.journal.rows(query, folder.name):
            return "kept", math.ceil((1 - DECAY_SHARE) * row["steps"]) if undecayed and row["final"] else row["steps"]
        return None

    def foretold(
        self, *, over: bool = True, cap: float | None = None, seeds: int = 0, decay_share: float = DECAY_SHARE
    ) -> Foretold:
        """What is to be expected of its cap, or of another. seeds: as of Conditions."""
        conditions = Conditions(
            cap=cap or self.seconds, families={"alone": 1.0}, slots=1, share=1.0, deadline=None, patient=True,
            over=over, seeds=seeds,
        )  # fmt: skip
        return other_caps(self.accounting.journal, {"alone": self.policy}, conditions, decay_share=decay_share)["alone"]

    @property
    def best(self) -> float:
        """The lowest loss after a decay."""
        (row,) = self.rows("SELECT MIN(valid_loss) AS loss FROM reports WHERE final")
        return float(row["loss"])
