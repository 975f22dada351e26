"""The checks before the timing: an implementation that is wrong once is not timed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.kernel import Bind, Implementation, Inputs, Kernel, RefusedError

SIZES = (0, 1, 2, 127, 257, 1003)
"""Sizes to check: nothing, one, and no multiples of a vector, a block or a chunk."""
SPECIAL_SIZE = 1003
DEVIATIONS = 6.0
POISON = 0xA5
"""Value of each byte of an output before the call, so that what is not written shows."""


class WrongError(Exception):
    """A result is not what it should be; the text names the case."""


GAPS = "non-contiguous"
"""The case that an implementation may refuse."""


def cases(kernel: Kernel, implementation: Implementation, random: np.random.Generator) -> Iterator[tuple[str, Inputs]]:
    """Yield names and fresh inputs: of all sizes, with gaps, read-only, with NaN and infinities where these are
    defined."""
    for size in SIZES if kernel.sized else (1,):
        yield f"size {size}", kernel.inputs(size, random)
    inputs = kernel.inputs(SIZES[-1], random)
    if any(isinstance(each, np.ndarray) for each in inputs):
        yield GAPS, tuple(map(with_gaps, inputs))
        yield "read-only", tuple(map(read_only, inputs))
    if kernel.special and not implementation.only_finite:
        yield "NaN and infinities", kernel.special(kernel.inputs(SPECIAL_SIZE, random))


def with_gaps(value: Any) -> Any:
    """Return the same numbers in an array that is not contiguous: a view of every second place."""
    return np.repeat(value, 2, axis=-1)[..., ::2] if isinstance(value, np.ndarray) else value


def read_only(value: Any) -> Any:
    """Return a copy that cannot be written."""
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
    return value


def check(kernel: Kernel, implementation: Implementation, bind: Bind, seed: int) -> float:
    """Return the largest relative error over all cases. WrongError: it is above the kernel's tolerance."""
    random = np.random.default_rng(seed)
    worst = 0.0
    for name, inputs in cases(kernel, implementation, random):
        try:
            worst = max(worst, check_inputs(kernel, implementation, bind, inputs))
        except (RefusedError, TypeError, WrongError) as error:  # a TypeError is numba's refusal of an array with gaps
            if name != GAPS or isinstance(error, WrongError):
                raise WrongError(f"{name}: {error}") from None
    return worst


def check_inputs(kernel: Kernel, implementation: Implementation, bind: Bind, inputs: Inputs) -> float:
    """Return the largest relative error on these inputs. WrongError: it is above the tolerance, or inputs changed."""
    before = [each.copy() if isinstance(each, np.ndarray) else each for each in inputs]
    output = kernel.output(*inputs) if kernel.output else None
    if output is not None:
        output.view(np.uint8).fill(POISON)
    with np.errstate(all="ignore"):
        got = bind(inputs, output).result()
        if implementation.random:
            return _check_random(kernel, inputs, got)
        want = kernel.reference(*inputs)
    for old, now in zip(before, inputs, strict=True):
        if not np.array_equal(np.asarray(old), np.asarray(now), equal_nan=np.asarray(old).dtype.kind == "f"):
            raise WrongError("it changed its inputs")
    if want is None and got is None:
        return 0.0
    error = relative_error(np.asarray(got), np.asarray(want), kernel.least)
    if error > kernel.tolerance:
        raise WrongError(f"relative error {error:.2g}, at most {kernel.tolerance:.2g} is right")
    return error


def _check_random(kernel: Kernel, inputs: Inputs, got: float) -> float:
    assert kernel.expectation
    mean, deviation = kernel.expectation(*inputs)
    if abs(got - mean) > DEVIATIONS * deviation + 1:
        raise WrongError(f"{got} is not within {DEVIATIONS:.0f} standard deviations ({deviation:.3g}) of {mean:.6g}")
    return abs(got - mean) / mean if mean else 0.0


def relative_error(got: NDArray[Any], want: NDArray[Any], least: float) -> float:
    """Return the largest |got - want| / max(|want|, least); infinite where shapes, NaN or infinities differ."""
    if got.shape != want.shape:
        return np.inf
    if np.array_equal(got, want, equal_nan=got.dtype.kind == "f"):
        return 0.0
    got, want = np.atleast_1d(got.astype(np.float64)), np.atleast_1d(want.astype(np.float64))
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return np.inf
    difference, size = np.abs(got[finite] - want[finite]), np.maximum(np.abs(want[finite]), least)
    with np.errstate(all="ignore"):
        error = np.where(difference == 0, 0, difference / size)
    return float(np.nan_to_num(error, nan=np.inf, posinf=np.inf).max(initial=0.0))
