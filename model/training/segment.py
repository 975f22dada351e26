"""What train() is asked for."""

from dataclasses import dataclass

from tune.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Segment:
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
            raise UserError(f"training_seconds: {self.training_seconds} with final: a final segment fills its lease; "
                             "give steps or nothing")
