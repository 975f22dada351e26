"""What the planner keeps of trials, leases and families; all of it can be read back from the journal."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tune.search_space import Config


@dataclass(kw_only=True)
class TrialRecord:
    """One configuration in training.

    step_seconds: median seconds of a step by which its rungs were fixed, None before that; goal: steps of its life that
    its last lease was for, None where only seconds counted; deaths: how often its process died; micro_batches: into how
    many parts its batches were cut, None before it ran.
    """

    family: str
    config: Config
    steps: int = 0
    step_seconds: float | None = None
    checkpoint: str | None = None
    goal: int | None = None
    deaths: int = 0
    micro_batches: int | None = None


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What a slot is to do next: a trial and its lease, reserved already.

    rung: None for the last stretch; seconds: device-seconds from `opened` (the study's clock) on; steps and
    training_seconds: as in model.training.train.Stretch, and so micro_batches.
    """

    trial: str
    family: str
    config: Config
    slot: int
    lease: int
    rung: int | None
    opened: float
    seconds: float
    steps: int | None
    training_seconds: float | None
    checkpoint: str | None
    micro_batches: int


@dataclass(kw_only=True)
class Running:
    """A lease in use: into how many parts batches are cut on it, how many slots were there when it was opened, what it
    was charged so far, by what; since when its worker is gone, where the driver slept and came too late; and whether
    the deadline made it shorter than its stretch may need."""

    assignment: Assignment
    fresh_slot: bool
    steps_before: int
    micro_batches: int
    there: int = 0
    charged: dict[str, float] = field(default_factory=dict)
    gone: float | None = None
    hurried: bool = False


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a study runs under from a moment on: its cap in device-seconds, its deadline in seconds from its start, its
    processor, and, by family, the seconds of a slot that it has of the cap."""

    cap: float
    deadline: float | None
    processor: str
    families: Mapping[str, float]
