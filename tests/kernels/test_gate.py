"""A wrong implementation is found, is a FAIL row and is not timed; a right one is let through."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernels import benchmark, timing
from kernels.benchmark import KERNELS
from kernels.kernel import (
    LINE,
    Implementation,
    Kernel,
    RefusedError,
    UnavailableError,
    bind_returning,
    bind_with_output,
)
from kernels.settings import Settings
from kernels.table import report
from kernels.verify import relative_error
from tests.conftest import quick_timing

ADD, PI = KERNELS["vector_add"], KERNELS["monte_carlo_pi"]


def with_one(kernel: Kernel, function: Callable[..., Any], **more: Any) -> Kernel:
    bind = bind_with_output if kernel.output else bind_returning
    return replace(kernel, implementations=[Implementation(name="it", build=lambda: bind(function), **more)])


def row_of(kernel: Kernel) -> benchmark.Row:
    (row,) = benchmark.rows(kernel, (100,), None, seed=0)
    return row


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_timing(monkeypatch)


def misses_the_last(a, b, out):
    np.add(a[:-1], b[:-1], out[:-1])


def misses_what_fills_no_block(a, b, out):
    full = a.size // 4 * 4
    np.add(a[:full], b[:full], out[:full])


def ignores_gaps(a, b, out):
    a = a if a.base is None or a.flags.c_contiguous else a.base[: a.size]
    np.add(a, b, out)


def cleans_nan(a, b, out):
    np.add(np.nan_to_num(a), b, out)


def writes_to_its_input(a, b, out):
    np.add(a, b, out)
    if a.flags.writeable and a.size:
        a[0] += 1


def refuses_read_only(a, b, out):
    if not a.flags.writeable:
        raise RefusedError("no")
    np.add(a, b, out)


def crashes_on_nothing(a, b, out):
    out[0] = a[0]
    np.add(a, b, out)


WRONG = (
    misses_the_last, misses_what_fills_no_block, ignores_gaps, cleans_nan, writes_to_its_input, refuses_read_only,
    crashes_on_nothing, lambda a, b, out: np.add(a, b + 1e-15, out), lambda a, b, out: None,
)  # fmt: skip


@pytest.mark.parametrize("function", WRONG, ids=lambda function: function.__name__)
def test_a_planted_bug_is_found_and_not_timed(function, monkeypatch):
    monkeypatch.setattr(timing, "in_turns", lambda calls: pytest.fail("it was timed"))
    row = row_of(with_one(ADD, function))
    assert row["correct"] == "FAIL" and row["median_seconds"] is None and row["status"].startswith("FAIL: ")
    assert "\n" not in row["status"]


def test_losses_that_lose_their_digits_where_logits_are_large_are_found():
    def adds_the_largest_first(x, targets, out):
        top = x.max(1, initial=-np.inf)
        out[:] = np.log(np.exp(x - top[:, None]).sum(1)) + top - x[np.arange(len(x)), targets]

    assert row_of(with_one(KERNELS["cross_entropy"], adds_the_largest_first))["correct"] == "FAIL"


@pytest.mark.parametrize(
    ("count", "more"),
    [
        (lambda seed, samples: PI.reference(seed, samples) + (samples == 100), {}),
        (lambda seed, samples: int(0.7 * samples), {"random": True}),
    ],
)
def test_a_wrong_count_is_found(count, more):
    assert row_of(with_one(PI, count, **more))["correct"] == "FAIL"


def test_a_right_one_is_timed():
    row = row_of(with_one(ADD, np.add))
    assert row["correct"] == "exact" and row["status"] == "timed" and row["median_seconds"] > 0


@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize("wild", ["it", "it end to end", None])
def test_why_a_row_is_unstable_is_told(quiet, wild, monkeypatch, capsys):
    calm, once = wild is None, [1.0, 1.0, 1.0]

    def timed(calls):
        return {name: [1.0, 2.0, 3.0] if name == wild else once for name in calls}, quiet

    monkeypatch.setattr(timing, "LARGEST_SPREAD", 0.1)
    monkeypatch.setattr(timing, "time_undisturbed", timed)
    row = row_of(with_one(ADD, np.add, end_to_end=lambda: bind_with_output(np.add)))
    report(Settings(), [[row]])
    last = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("it "))
    assert row["unstable"] == ("unstable" in last) == (not (quiet and calm))
    assert ("others took" in last) == (not quiet) and ("spread" in last) == (not calm)


@pytest.mark.parametrize("name", sorted({*KERNELS} - {"empty_launch", "transfers"}))  # which numpy has not
def test_nothing_and_one_element_are_timed_too(name):
    rows = [*benchmark.rows(kernel := KERNELS[name], (0, 1), ("numpy",), seed=0)]
    assert len(rows) == 1 + kernel.sized
    for row in rows:
        assert row["status"] == "timed" and row["median_seconds"] > 0, row["size"]
        assert row["size"] or not kernel.sized or (row["bytes"], row["flops"]) == (0, 0)


def test_one_may_refuse_gaps_and_leave_infinities_out():
    def contiguous_and_finite(a, b, out):
        if not a.flags.c_contiguous:
            raise RefusedError("no")
        cleans_nan(a, b, out)

    assert row_of(with_one(ADD, contiguous_and_finite, only_finite=True))["correct"] == "exact"


@pytest.mark.parametrize(
    ("function", "device", "status"),
    [(np.add, "it", "timed"), (misses_the_last, "it", "FAIL: "), (None, "no GPU", "skipped: no such device")],
)
def test_a_row_tells_the_gpu_it_ran_on_or_why_it_was_skipped(function, device, status, monkeypatch):
    monkeypatch.setattr("kernels.cuda.device_name", lambda: "it")

    def build():
        if function is None:
            raise UnavailableError("no such device")
        return bind_with_output(function)

    row = row_of(replace(ADD, implementations=[Implementation(name="it", build=build, device="gpu")]))
    assert row["device"] == device and row["status"].startswith(status)
    assert (row["correct"] is None) == (function is None)


def test_a_gpu_that_makes_no_context_has_rows_that_say_so(monkeypatch):
    """As one whose memory others hold; its name can be read."""

    def refused(*_):
        raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY")

    driver = SimpleNamespace(
        is_available=lambda: True, gpus=[SimpleNamespace(name="it")], jit=lambda function: refused,
        to_device=refused, get_current_device=refused,
    )  # fmt: skip
    monkeypatch.setattr("kernels.cuda.cuda", driver)
    (implementation,) = (each for each in KERNELS["scalar_add"].implementations if each.device == "gpu")
    row = row_of(replace(ADD, implementations=[implementation]))
    assert (row["device"], row["correct"]) == ("it", "FAIL")


def test_what_would_take_minutes_is_skipped():
    assert row_of(with_one(ADD, np.add, largest=99))["status"] == "skipped: too slow above 99 elements"


@pytest.mark.parametrize(("function", "code"), [(np.add, 0), (misses_the_last, 1)])
def test_a_failing_kernel_makes_the_exit_code(function, code, capsys):
    settings = Settings(kernels=("vector_add",), sizes=(100,), json=True)
    assert report(settings, [[row_of(with_one(ADD, function))]]) == code
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["kernel"], row["implementation"], row["size"]) == ("vector_add", "it", 100)
    assert report(settings, [[]]) == 1, "nothing was measured"


def test_relative_errors_and_those_near_zero_against_what_was_cancelled():
    for got, want, error in (
        ([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], 0.0), ([1.0], [2.0], 0.5), ([1.0], [np.nan], math.inf),
        ([np.nan], [1.0], math.inf), ([-np.inf], [np.inf], math.inf), ([1.0], [1.0, 1.0], math.inf),
        ([1e-9], [0.0], math.inf), ([], [], 0.0),
    ):  # fmt: skip
        assert relative_error(np.array(got), np.array(want), least=0.0) == error, (got, want)
    assert relative_error(np.array([1e-9]), np.array([0.0]), least=1.0) == 1e-9


@pytest.mark.parametrize("name", ["vector_add", "layer_norm", "cross_entropy"])
def test_all_arrays_begin_on_a_cache_line_and_hold_what_the_seed_gives(name):
    inputs, output = KERNELS[name].arrays(1000, seed=3)
    plain = KERNELS[name].inputs(1000, np.random.default_rng(3))
    assert all(each.ctypes.data % LINE == 0 and each.flags.c_contiguous for each in (*inputs, output))
    assert all(map(np.array_equal, inputs, plain))
    assert [each.dtype for each in inputs] == [each.dtype for each in plain]
