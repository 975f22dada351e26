"""What train() is asked for, and what it tells."""

from dataclasses import dataclass

from model.training.evaluation import Evaluation
from tune.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """How far to train on one lease; with neither `steps` nor `training_seconds`, to the lease's end."""

    device_seconds: float                   # the lease: everything from the call of train() on ends inside it
    steps: int | None = None                # of the trial's life
    training_seconds: float | None = None   # of the trial's life, spent in steps; a fixed number of steps once measured
    micro_batches: int = 1                  # parts of a batch, to begin with; doubled where memory runs out
    rehearse: bool = False                  # memory is scarce: try a batch before the first step
    final: bool = False                     # decay to zero; then the subset of valid, and all of valid and test
    whole: bool = True                      # those two where they fit; without it the subset alone
    peak_flops: float | None = None         # of the device a second, where known: the price of a first step

    def __post_init__(self) -> None:
        if self.final and self.training_seconds is not None:
            raise UserError(f"training_seconds: {self.training_seconds} with final: a final stretch fills its lease; "
                             "give steps or nothing")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How a trial is doing, about once a second; the last one has `ended`."""

    steps: int
    tokens: int                     # target tokens seen, padding not counted
    train_loss: float               # un-smoothed, mean since the Progress before
    learning_rate: float            # of the base shape
    gradient_norm: float
    tokens_per_second: float
    step_seconds: float             # median
    training_seconds: float         # of the trial's life, spent in steps
    memory_bytes: int               # peak, above what the process held before the trial
    parameters: int
    micro_batches: int              # parts that a batch is cut into
    ran_out: bool                   # of memory, on this stretch; smaller parts helped
    seconds: dict[str, float]       # by lease.PHASES, since the Progress before: what the clock advanced
    valid: Evaluation | None = None     # of the fixed subset, always the same one: what a curve is made of
    whole: Evaluation | None = None     # of all of the validation split, and so test
    test: Evaluation | None = None
    # "rung", "lease" (too short for its steps), "final", "stopped" (as told), "diverged", "unmeasured" (memory did not
    # suffice for the smallest evaluation at its end)
    ended: str | None = None
    checkpoint: str | None = None   # the newest of the trial, with `ended`; None when diverged
