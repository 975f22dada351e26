"""A share of the peak is of the products that a model needs, on a peak that products of matrices reach."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from model.config import Config, build_model, pad_of
from model.cost.estimates import flops_per_token
from model.cost.peak_flops import PRODUCTS, SECONDS, SIZES, peak_flops
from model.data.dataset import PairData, TextData
from model.families import FAMILIES
from model.nn.precision import on_threads, prepare


def test_a_peak_is_of_the_fastest_product_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of this thread that moves by other steps each time that it is read; what passes meanwhile is nothing
    to it."""
    prepare("fp32", torch.device("cpu"))  # measures, once a process, what pays here
    moments = itertools.accumulate(itertools.cycle((0.004, 0.002, 0.01, 0.005)))
    passed = itertools.count(step=SECONDS / 4)
    clocks = {"thread_time": lambda: next(moments), "monotonic": lambda: next(passed)}
    monkeypatch.setattr("model.cost.peak_flops.time", SimpleNamespace(**clocks))
    with on_threads(1):
        assert peak_flops("fp32", "cpu") == pytest.approx(PRODUCTS["cpu"] * 2 * SIZES["cpu"] ** 3 / 0.002)


def test_a_text_is_as_long_as_its_context(small_text: Config, text_data: TextData) -> None:
    model = build_model(small_text, vocabulary=text_data.vocabulary, pad=0)
    found = FAMILIES["nanogpt"].flops_per_token(small_text, text_data)
    assert found == flops_per_token(model.config, target=small_text.context)


def test_every_pair_counts_by_its_own_length(small_pairs: Config, pair_data: PairData) -> None:
    """And so padding counts for nothing: all weights but the encoder's are used once a target token."""
    model = build_model(small_pairs, vocabulary=pair_data.vocabulary, pad=pad_of(pair_data))
    lengths = pair_data.valid.lengths.tolist()
    whole = sum(target * flops_per_token(model.config, target=target, source=source) for source, target in lengths)
    found = FAMILIES["translation"].flops_per_token(small_pairs, pair_data)
    assert found == pytest.approx(whole / sum(target for _, target in lengths))
    longest = max(lengths, key=sum)
    assert found < flops_per_token(model.config, target=longest[1], source=longest[0])
