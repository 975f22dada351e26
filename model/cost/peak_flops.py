"""The peak FLOP/s of a device.

The share of it that training reaches, FLOPs of a token (families.py) times tokens a second, is the model FLOPs
utilisation (Chowdhery et al. 2022, arXiv:2204.02311, appendix B): 6 FLOPs for each weight in a product, and
attention's.
"""

import time

import torch

from model.nn.precision import compute_dtype, prepare

SIZES = {"cpu": 1024, "cuda": 4096}
"""Rows and columns of the matrices that are multiplied, by kind of device."""
PRODUCTS = {"cpu": 1, "cuda": 8}
"""Products between two looks at the clock, for which a GPU has to be waited for."""
SECONDS = 0.1
"""Seconds to measure a peak for, beside the first products, which load their kernels."""


def peak_flops(precision: str, device: torch.device | str) -> float:
    """Return the FLOP/s of matrix products with the threads of this process: the best of several, as a busy machine
    slows some.

    A single thread is timed by its own CPU time, so that other processes cost it only what they share, such as the
    other half of a core. The process's switches are left as `precision.prepare` sets them.
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
