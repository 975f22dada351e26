"""A search of one family in virtual time: its trials follow power laws, and some diverge; and its bare policy."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from tests.tune.search.world import Numbered
from tune.search.confirm import Confirming
from tune.search.engine import Engine
from tune.search.family import CostModel, Family
from tune.search.ladder import Frame, Ladder, Rules
from tune.search.resume import agreed, last_moment, spent
from tune.search.simulator import Clock, Costs, PowerLaw, Simulation
from tune.search.successive_halving import SuccessiveHalving
from tune.store.accounting import Accounting, Ledger
from tune.store.journal import Journal

STEP, OVERHEAD, START_UP = 0.05, 1.25, 6.0


class Told(Confirming):
    """Keeps its events, (name, what was told)."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.events: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        for name in ("promoted", "finishing", "confirming", "reported", "interrupted", "finished", "turned", "ended"):
            setattr(self, name, self._keep(name, getattr(self, name)))

    def _keep(self, name: str, tell: Any) -> Any:
        def told(*what: Any, **more: Any) -> None:
            self.events.append((name, what, more))
            tell(*what, **more)

        return told


def framed(**about: Any) -> Frame:
    """A family that has all slots."""
    return Frame(**{"slots": 1} | about, shortest=5.0, overhead=OVERHEAD, start_up=START_UP)


def bare(*, seconds: float = 600.0, more: bool = True, **frame: Any) -> SuccessiveHalving:
    """A policy by itself, its prices those of its ladder. more: it may start trials."""

    def price(trial: str | None, rung: int) -> float:
        at = policy.trials[trial].rung if trial else -1
        return OVERHEAD + policy.rung_seconds(rung) - (policy.rung_seconds(at) if at >= 0 else 0.0)

    shape = framed(**frame)
    policy = SuccessiveHalving(shape, shape.fit(seconds), price)
    policy.more = more
    return policy


class Alone(Simulation):
    """The search of one family under a cap in device-seconds, until it is over: `run`. life: seconds of training;
    journal: of one that it is to go on with; turning: after which training its trials turn, in seconds, the first and
    the last of them."""

    def __init__(
        self, *, seed: int = 0, seconds: float = 600.0, slots: int = 1, life: float = math.inf, diverging: float = 0.0,
        deadline: float = math.inf, configs: int = 10_000, costs: Costs | None = None, step: float = STEP,
        rules: Rules = Rules(), seeds: int = 0, rungs: str = "seconds",  # noqa: B008 - it is frozen
        journal: Journal | None = None, turning: tuple[float, float] = (math.inf, math.inf),
        favour: Callable[[str], float] = lambda trial: 1.0, within: float = math.inf,
    ) -> None:  # fmt: skip
        self.turning = turning
        clock, self.seed, self.diverging, self.seconds, self.step = Clock(), seed, diverging, seconds, step
        self.most, before = life / step, journal or Journal(None, new=True)
        clock.now = last_moment(before)
        ledger = Ledger(cap=seconds, clock=clock, spent_before=spent(before))
        self.accounting = Accounting(before, ledger, clock)
        self.families: dict[str, Family] = {}
        self.frame = framed(slots=slots, life=life, rules=rules, seeds=seeds)
        engine = Engine(
            accounting=self.accounting, families=self.families, slots=slots,
            wall_left=lambda: deadline - clock.now, within=within,
        )  # fmt: skip
        first = [terms.families["alone"][1] for terms in agreed(before)[:1]]
        self.ladder: Ladder = (first and first[0]) or self.frame.fit(seconds, min(within, deadline))
        self.policy = Told(self.frame, self.ladder, engine.price_of("alone"), favour)
        self.families["alone"] = Family(
            seconds=seconds,
            policy=self.policy,
            cost_model=CostModel(),
            suggestions=Numbered(configs),
            life_steps=self.most,
            equal_tokens=rungs == "tokens",
        )
        super().__init__(engine, clock, costs or Costs(start_up=START_UP, overhead=OVERHEAD), self.course)

    def course(self, trial: str, family: str, config: Mapping[str, Any]) -> PowerLaw:
        """How a trial trains."""
        rng = random.Random(f"{self.seed} {trial}")
        sound = (
            rng.randint(1, round(0.03 * self.seconds / self.step) + 1) if rng.random() < self.diverging else math.inf
        )
        return PowerLaw(
            step_seconds=self.step, floor=rng.uniform(1, 2), nats=rng.uniform(1, 3), power=rng.uniform(0.2, 0.6),
            most=self.most, diverges=sound, parameters=round(10 ** rng.uniform(4, 7)),
            turns=(self.turning[0] if math.isinf(self.turning[1]) else rng.uniform(*self.turning)) / self.step,
        )  # fmt: skip

    @property
    def spent(self) -> float:
        """Device-seconds."""
        return self.accounting.ledger.spent

    def rows(self, query: str) -> list[Any]:
        """Of its journal."""
        return list(self.accounting.journal.rows(query))

    def decided(self, *actions: str) -> list[Any]:
        """The decisions of these kinds, in their order; all of them where none is named."""
        return [row for row in self.rows("SELECT * FROM decisions") if not actions or row["action"] in actions]
