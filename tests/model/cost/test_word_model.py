"""A published report's word-level model: what is on paper of it is what it has and does."""

import dataclasses

import pytest
import torch

from model.cost.estimates import STEP_OVER_FORWARD
from model.cost.memory_estimate import counted_flops, held_bytes, kept_bytes, most_bytes, sum_ncu_counters
from model.cost.word_model import (
    WordConfig,
    WordModel,
    block_flops,
    block_kept_bytes,
    block_training,
    model_flops,
    model_kept_bytes,
    model_training,
    parts,
    reported_flops,
    step_bytes,
)

CPU = torch.device("cpu")
SMALL = WordConfig(vocabulary=50, length=9, d_model=24, heads=3, feed_forward=40, layers=2)
WIDE = WordConfig(vocabulary=4000, length=20, d_model=64, heads=4, feed_forward=64)


@pytest.mark.parametrize("config", [SMALL, WIDE, WordConfig()], ids=str)
def test_parameters_are_exact(config):
    assert sum(parts(config).values()) == sum(weights.numel() for weights in WordModel(config).parameters())


def test_the_model_looks_at_no_later_word():
    model, words = WordModel(SMALL).eval(), torch.randint(SMALL.vocabulary, (2, SMALL.length))
    changed = words.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % SMALL.vocabulary
    before, after = model(words), model(changed)
    assert torch.allclose(before[:, :5], after[:, :5], atol=1e-5)
    assert not torch.allclose(before[:, 5:], after[:, 5:], atol=1e-5)


@pytest.mark.parametrize(("config", "batch"), [(SMALL, 2), (WIDE, 3), (dataclasses.replace(SMALL, heads=8), 2)])
def test_flops_are_exact_and_heads_cancel(config, batch):
    block, model = block_training(config, batch, CPU), model_training(config, batch, CPU)
    assert counted_flops(block.forward) == block_flops(config, batch)
    assert counted_flops(block) == STEP_OVER_FORWARD * block_flops(config, batch)
    assert counted_flops(model) == STEP_OVER_FORWARD * model_flops(config, batch)


def test_the_reports_formula_is_of_a_forward():
    config = WordConfig()
    assert reported_flops(config, 16) == 2 * 16 * 7 * 35 * 200 * 200
    assert 1 < reported_flops(config, 16) / block_flops(config, 16) < 1.2


@pytest.mark.parametrize(("config", "batch"), [(SMALL, 8), (WIDE, 16), (WordConfig(vocabulary=500), 4)])
def test_kept_tensors_are_those_on_paper(config, batch):
    block, model = block_training(config, batch, CPU), model_training(config, batch, CPU)
    assert kept_bytes(block.model, block.forward) == pytest.approx(block_kept_bytes(config, batch), rel=0.02)
    assert kept_bytes(model.model, model.forward) == pytest.approx(model_kept_bytes(config, batch), rel=0.02)


def test_a_step_holds_what_is_on_paper():
    training = model_training(WIDE, 32, CPU)
    training()
    taken = held_bytes(training.model, training.optimizer) + most_bytes(training, CPU)
    assert taken == pytest.approx(step_bytes(WIDE, 32), rel=0.05)


NCU = [
    "==PROF== Connected to process 7", '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"',
    '"0","gemm","smsp__sass_thread_inst_executed_op_ffma_pred_on.sum","inst","1,000"',
    '"0","gemm","smsp__sass_thread_inst_executed_op_fadd_pred_on.sum","inst","30"',
    '"1","add","smsp__sass_thread_inst_executed_op_fmul_pred_on.sum","inst","4"',
    '"1","add","dram__bytes.sum","byte","512"',
]  # fmt: skip


def test_a_fused_multiplication_and_addition_is_two():
    assert sum_ncu_counters(NCU) == (2 * 1000 + 30 + 4, 512)
    with pytest.raises(ValueError, match="it saw no kernel"):
        sum_ncu_counters(NCU[:1])
