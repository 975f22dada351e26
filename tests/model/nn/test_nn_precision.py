"""Precision: fp32 master weights, products in the compute dtype, and only what the device does natively."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from model.nn import precision
from model.nn.attention import Attention
from model.nn.precision import (
    PRECISIONS,
    Embedding,
    Linear,
    compute_dtype,
    native_precisions,
    prepare,
    scaler,
    set_compute,
    use_processor_facts,
)


@pytest.fixture(autouse=True)
def switches():
    before = torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.backends.mkldnn.matmul.fp32_precision = before


def small_model():
    return nn.Sequential(Embedding(7, 8), Linear(8, 5))


@pytest.mark.parametrize("name", PRECISIONS)
def test_weights_and_gradients_stay_fp32_and_products_do_not(name):
    model = small_model()
    set_compute(model, name)
    y = model(torch.arange(7))
    assert y.dtype == compute_dtype(name)
    y.float().sum().backward()
    assert {tensor.dtype for p in model.parameters() for tensor in (p, p.grad)} == {torch.float32}


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_a_small_dtype_rounds_and_no_more_and_goes_back(name):
    model = small_model()
    exact = model(torch.arange(7))
    set_compute(model, name)
    rounded = model(torch.arange(7)).float()
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.03, atol=0.03)
    set_compute(model, "fp32")
    assert torch.equal(model(torch.arange(7)), exact)


def test_a_cpu_has_fp32_always_and_never_two_names_for_it():
    names = native_precisions("cpu")
    assert names[0] == "fp32"
    assert "tf32" not in names
    assert list(names) == [name for name in PRECISIONS if name in names]


@pytest.mark.parametrize(
    ("speed_up", "flags", "expected"),
    [
        (2.0, {"avx512_bf16": True}, True),
        (1.1, {"avx512_bf16": True}, False),
        (2.0, {"avx512_fp16": True}, False),
        (2.0, {}, False),
    ],
)
def test_bf16_is_native_where_the_flag_and_the_clock_say_so(monkeypatch, speed_up, flags, expected):
    monkeypatch.setattr(precision, "_speed_up", lambda slow, fast: speed_up)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags, raising=False)
    use_processor_facts({})
    try:
        assert ("bf16" in native_precisions("cpu")) is expected
    finally:
        use_processor_facts({})


def test_what_another_process_found_out_is_not_measured_again(monkeypatch):
    known = precision.processor_facts()
    measured = []
    monkeypatch.setattr(precision, "_FACTS", {})
    monkeypatch.setattr(precision, "_speed_up", lambda slow, fast: measured.append(slow) or 0.0)
    other = {"native": ("fp32", "fp16"), "onednn": not known["onednn"]}
    try:
        use_processor_facts(other)
        assert precision.processor_facts() == other and measured == []
    finally:
        use_processor_facts(known)


@pytest.mark.parametrize(("fast", "expected"), [(True, "bf16"), (False, "ieee")])
def test_onednn_does_fp32_only_where_it_pays_and_then_attention_is_plain(monkeypatch, fast, expected):
    monkeypatch.setattr(precision, "_onednn_fp32_pays", lambda: fast)
    prepare("fp32", "cpu")
    assert torch.backends.mkldnn.matmul.fp32_precision == expected
    model = nn.Sequential(Linear(2, 2), Attention(scale=1, dropout=0))
    set_compute(model, "fp32")
    assert model[1].fused is not fast
    set_compute(model, "bf16")
    assert model[1].fused is False


@pytest.mark.parametrize("most", [2**25, 2**31 - 1], ids=["older glibc", "newer"])
def test_the_heap_keeps_blocks_as_large_as_the_libc_lets_it(monkeypatch, most):
    mmap_threshold, taken = -3, {}

    def mallopt(option, value):
        if option == mmap_threshold and value > most:
            return 0
        taken[option] = value
        return 1

    monkeypatch.setattr(precision, "is_memory_limited", lambda: False)
    monkeypatch.setattr(precision, "ctypes", SimpleNamespace(CDLL=lambda _: SimpleNamespace(mallopt=mallopt)))
    prepare("fp32", "cpu")
    assert taken[mmap_threshold] >= 2**25


def test_fp32_products_stay_fp32():
    prepare("fp32", "cpu")
    x = torch.randn(300, 300)
    exact = x.double() @ x.double()
    assert ((x @ x).double() - exact).norm() < 1e-6 * exact.norm()


def test_the_probe_leaves_the_switch_alone():
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    precision._onednn_fp32_pays.cache_clear()
    precision._onednn_fp32_pays()
    assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"


def test_only_fp16_scales_its_gradients():
    assert [name for name in PRECISIONS if scaler(name, "cpu").is_enabled()] == ["fp16"]


@pytest.mark.parametrize(
    "ask", [compute_dtype, lambda name: prepare(name, "cpu"), lambda name: set_compute(small_model(), name)]
)
def test_an_unknown_precision_lists_the_choices(ask):
    with pytest.raises(ValueError, match="precision: 'fp8' is unknown; choose one of fp32, tf32, bf16, fp16"):
        ask("fp8")


def test_what_is_fast_is_decided_on_one_thread_and_the_threads_are_given_back():
    seen = set()
    torch.set_num_threads(2)
    precision._speed_up(lambda: seen.add(torch.get_num_threads()), lambda: None, limit=0.01)
    assert seen == {1} and torch.get_num_threads() == 2
