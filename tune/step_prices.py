"""What a step costs on a device: the prices that the recipe, and so the prior, and --plan use. Standard library only.

A GPU works through a step kernel by kernel: a small one takes as long as its launch, whatever it computes.
"""

from dataclasses import dataclass

from tune.search_space import ASPECT, PER_LAYER

LAUNCHES = {"nanogpt": (142, 52), "translation": (152, 119)}
"""By family, the kernels of an eager step by Muon in bf16 outside its layers, and in each layer, as torch's profiler
counts them on an H100 (`make gpu PART=1`). Muon has 14 for all matrices of one shape; there are four and five shapes.
"""


@dataclass(frozen=True, kw_only=True)
class StepPrices:
    """The prices of steps on a device. flops: most FLOP/s of a step; launch_seconds: least seconds of a kernel, however
    small; 0 on a core."""

    flops: float
    launch_seconds: float = 0.0

    def step(self, launches: float, flops: float) -> float:
        """Return the seconds of a step: of launching its kernels or of their arithmetic, whichever takes longer."""
        return max(launches * self.launch_seconds, flops / self.flops)

    def trained(self, family: str, weights: float, flops: float) -> float:
        """Return the FLOP/s in steps of so many FLOPs of a model with so many weights in its layers, whose d_model over
        layers is ASPECT."""
        layers = (weights / (PER_LAYER[family] * ASPECT**2)) ** (1 / 3)
        return flops / self.step(launches(family, layers), flops)


def launches(family: str, layers: float) -> float:
    """Return the kernels of a step; 0 for a user's own family, of which none are known."""
    beside, each = LAUNCHES.get(family, (0, 0))
    return beside + each * layers


NOMINAL = {"cpu": StepPrices(flops=2e11), "cuda": StepPrices(flops=1.4e14, launch_seconds=4e-6)}
"""Assumed prices by kind of device, for what is decided before any is measured, so that the same command has the same
text: those of the core on which the default size was tuned, and of an H100, whose steps are CUDA graphs. They are used
too where the search's own process has no GPU, as on a cluster whose driver runs elsewhere."""
