"""What a step costs on a device: the one price that the recipe, and so the prior, and --plan go by. Standard library
only.

A GPU works through a step kernel by kernel: small ones take as long as giving them out does, whatever is in them.
"""

from dataclasses import dataclass

from tune.search_space import ASPECT, PER_LAYER

LAUNCHES = {"nanogpt": (142, 52), "translation": (152, 119)}
"""Kernels of an eager step by Muon in bf16 beside its layers, and of each layer, as torch's profiler counts them on an
H100 (`make gpu PART=1`). Muon has 14 for all matrices of a shape together, of which there are four and five."""


@dataclass(frozen=True, kw_only=True)
class StepPrices:
    """flops: FLOP/s that a step trains at most; launch_seconds: of a kernel, however small; 0 on a core."""

    flops: float
    launch_seconds: float = 0.0

    def step(self, launches: float, flops: float) -> float:
        """Seconds of a step: what takes longer counts, giving out its kernels or their arithmetic."""
        return max(launches * self.launch_seconds, flops / self.flops)

    def trained(self, family: str, weights: float, flops: float) -> float:
        """FLOP/s of steps of so many FLOPs of a model of usual proportions with so many weights in its layers."""
        layers = (weights / (PER_LAYER[family] * ASPECT**2)) ** (1 / 3)
        return flops / self.step(launches(family, layers), flops)


def launches(family: str, layers: float) -> float:
    """Kernels of a step; of a family of a user's own none are known."""
    beside, each = LAUNCHES.get(family, (0, 0))
    return beside + each * layers


NOMINAL = {"cpu": StepPrices(flops=2e11), "cuda": StepPrices(flops=1.4e14, launch_seconds=4e-6)}
"""By kind of device, for what is decided before any is measured, so that the same command has the same text: of the
core on which the default size was tuned; of an H100, whose steps are graphs. It serves too where the search's own
process has no GPU, as on a cluster whose driver runs elsewhere."""
