"""A share of the peak is of the products that a model needs, on a peak that products of matrices reach."""

import time

import pytest
import torch

from model.config import Config, build_model, pad_of
from model.cost.estimates import flops_per_token
from model.cost.peak_flops import SECONDS, flops_on, peak_flops, peak_on
from model.data.dataset import PairData, TextData
from model.nn.precision import native


def test_a_peak_is_no_less_than_a_product_reaches_and_is_soon_known() -> None:
    began = time.process_time()
    peak = peak_flops("fp32", "cpu")
    assert time.process_time() - began < 10 * SECONDS * torch.get_num_threads()
    x = torch.randn(512, 512)
    began = time.perf_counter()
    for _ in range(20):
        x @ x
    assert peak > 0.8 * 20 * 2 * 512**3 / (time.perf_counter() - began)


@pytest.mark.skipif("bf16" not in native("cpu"), reason="this CPU has no bf16")
def test_a_fast_dtype_has_a_higher_peak() -> None:
    assert peak_flops("bf16", "cpu") > 1.1 * peak_flops("fp32", "cpu")


def test_threads_are_the_processs_again_afterwards() -> None:
    threads = torch.get_num_threads()
    assert peak_on(1, "fp32", "cpu") > 1e8 and torch.get_num_threads() == threads


def test_a_text_is_as_long_as_its_context(small_text: Config, text_data: TextData) -> None:
    model = build_model(small_text, vocabulary=text_data.vocabulary, pad=0)
    assert flops_on(small_text, text_data) == flops_per_token(model.config, target=small_text.context)


def test_every_pair_counts_by_its_own_length(small_pairs: Config, pair_data: PairData) -> None:
    """And so padding counts for nothing: all weights but the encoder's are used once a target token."""
    model = build_model(small_pairs, vocabulary=pair_data.vocabulary, pad=pad_of(pair_data))
    lengths = pair_data.valid.lengths.tolist()
    whole = sum(target * flops_per_token(model.config, target=target, source=source) for source, target in lengths)
    assert flops_on(small_pairs, pair_data) == pytest.approx(whole / sum(target for _, target in lengths))
    longest = max(lengths, key=sum)
    assert flops_on(small_pairs, pair_data) < flops_per_token(model.config, target=longest[1], source=longest[0])
