"""One family's contest played alone, in virtual time."""

import math
import random
from dataclasses import dataclass, field

from tune.search.successive_halving import Contest, Finish, HandBack, Left, Move, Promote, Start, Wait

OVERHEAD, START_UP = 1.25, 6.0


@dataclass
class Family:
    """A contest on slots in virtual time: trials follow power laws, and some diverge."""

    seed: int
    seconds: float = 600.0
    slots: int = 1
    horizon: float | None = None
    diverging: float = 0.0
    deadline: float | None = None
    moves: list[Move] = field(default_factory=list)
    events: list[tuple] = field(default_factory=list)
    trained: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.contest = self.new_contest()
        self.left, self.now, self.running, self.open = self.seconds, 0.0, [], 0

    def new_contest(self) -> Contest:
        return Contest(
            seconds=self.seconds, slots=self.slots, price=self.price, shortest=5.0, overhead=OVERHEAD,
            start_up=START_UP, horizon=None if self.horizon is None else lambda trial: self.horizon,
            wall=math.inf if self.deadline is None else self.deadline,
        )  # fmt: skip

    def price(self, trial, rung):
        return OVERHEAD + max(0.0, self.contest.rung_seconds(rung, trial) - self.trained.get(trial, 0.0))

    def loss(self, trial, seconds):
        rng = random.Random(f"{self.seed} {trial}")
        if rng.random() < self.diverging and seconds > rng.uniform(0, 0.03 * self.seconds):
            return math.nan
        return rng.uniform(1, 2) + rng.uniform(1, 3) * seconds ** -rng.uniform(0.2, 0.6)

    def tell(self, *event) -> None:
        self.events.append(event)
        getattr(self.contest, event[0])(*event[1:])

    def wall(self):
        return None if self.deadline is None else self.deadline - self.now

    def ask(self) -> Move:
        move = self.contest.next(Left(seconds=self.left, slots=1, running=len(self.running), wall=self.wall()))
        self.moves.append(move)
        return move

    def play(self, stop_after: int = 10**6) -> "Family":
        """Until every slot is handed back; each slot's start-up is paid when it first gets work."""
        free = self.slots
        while (free or self.running) and len(self.moves) < stop_after:
            waits = False
            while free and not waits:
                self.left -= START_UP
                move = self.ask()
                self.left += START_UP
                if isinstance(move, HandBack):
                    free -= 1
                elif isinstance(move, Wait):
                    waits = True
                else:
                    free -= 1
                    self.begin(move)
            if self.running:
                self.end(min(self.running))
                free += 1
            elif waits:
                raise AssertionError("waits for nothing")
        return self

    def begin(self, move) -> None:
        if isinstance(move, Start):
            trial, rung = f"t{len(self.contest.trials):03d}", 0
            self.tell("started", trial)
        elif isinstance(move, Promote):
            trial, rung = move.trial, move.rung
            self.tell("promoted", trial, rung)
        else:
            trial, rung = move.trial, None
            self.tell("finishing", trial)
        price = move.seconds if isinstance(move, Finish) else self.price(trial, rung)
        assert price <= self.left + 1e-9, f"{move} needs {price}, {self.left} are left"
        self.left -= price
        self.running.append((self.now + price, trial, rung, price))

    def end(self, run) -> None:
        self.running.remove(run)
        self.now, trial, rung, price = run
        self.trained[trial] = self.trained.get(trial, 0.0) + price - OVERHEAD
        loss = self.loss(trial, self.trained[trial])
        if not math.isfinite(loss):
            self.tell("ended", trial, "diverged")
        elif rung is None:
            self.tell("finished", trial, loss)
        else:
            self.tell("reported", trial, rung, loss)
