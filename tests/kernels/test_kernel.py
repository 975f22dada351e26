"""Where the arrays of a kernel lie."""

import numpy as np
import pytest

from kernels.kernel import LINE, on_line
from kernels.registry import KERNELS


@pytest.mark.parametrize("name", ["vector_add", "layer_norm", "cross_entropy"])
@pytest.mark.parametrize("size", [1, 1000])
def test_all_arrays_begin_on_a_cache_line_and_hold_what_the_seed_gives(name, size):
    inputs, output = KERNELS[name].arrays(size, seed=3)
    plain = KERNELS[name].inputs(size, np.random.default_rng(3))
    assert all(each.ctypes.data % LINE == 0 for each in (*inputs, output))
    assert all(map(np.array_equal, inputs, plain))
    assert [each.dtype for each in inputs] == [each.dtype for each in plain]


def test_a_placed_array_is_contiguous_and_a_copy():
    array = np.arange(12.0).reshape(3, 4).T
    placed = on_line(array)
    array[0] = -1
    assert placed.flags.c_contiguous and placed.flags.writeable and placed[0, 0] == 0 and placed.shape == (4, 3)
