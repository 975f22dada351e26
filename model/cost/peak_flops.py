"""The most that a device does of arithmetic.

What training takes of it, the FLOPs of a token (families.py) at so many tokens a second, is the model FLOPs utilisation
(Chowdhery et al. 2022, arXiv:2204.02311, appendix B): 6 FLOPs for each weight in a product, and attention's.
"""

import time

import torch

from model.nn.precision import compute_dtype, prepare

SIZES = {"cpu": 1024, "cuda": 4096}
"""Of the square matrices that are multiplied, by kind of device."""
PRODUCTS = {"cpu": 1, "cuda": 8}
"""Between two looks at the clock, which on a GPU has to be waited for."""
SECONDS = 0.1
"""What measuring a peak takes, beside the first products, which make their kernels."""


def peak_flops(precision: str, device: torch.device | str) -> float:
    """FLOP/s of products of matrices with the threads of this process: the best of some, as a busy machine slows some.

    Where that is one thread they are by its own time: what else runs there takes it nothing but what both want at once,
    such as the other half of a core. It leaves the process's switches as `precision.prepare` sets them.
    """
    place = torch.device(device)
    prepare(precision, place)
    size, products = SIZES[place.type], PRODUCTS[place.type]
    x = torch.randn(size, size, generator=torch.Generator().manual_seed(0)).to(place, compute_dtype(precision))
    clock = time.thread_time if place.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter

    def seconds() -> float:
        began = clock()
        for _ in range(products):
            x @ x
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        return clock() - began

    seconds()
    end, least = time.monotonic() + SECONDS, seconds()
    while time.monotonic() < end:
        least = min(least, seconds())
    return products * 2 * size**3 / least
