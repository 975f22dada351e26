"""Copies from the host to a GPU, without which no GPU time is whole."""

import numpy as np

from kernels import cuda
from kernels.kernel import Kernel

KERNELS = (
    Kernel(
        name="transfers", dtype="float64", inputs=lambda size, random: (random.random(size),),
        reference=lambda a: a, output=np.empty_like, bytes_per_element=8, implementations=cuda.transfers(),
    ),
)  # fmt: skip
