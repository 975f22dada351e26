"""Rows as the estimates experiment leaves them where all that is counted is what is on paper."""

import json
from typing import Any

from model.cost.estimates import TRAINING
from tune.experiments.word_model import (
    WordConfig,
    block_flops,
    block_kept_bytes,
    model_flops,
    model_kept_bytes,
    parts,
    reported_flops,
    step_bytes,
)

BATCHES = (16, 32, 64, 128, 256)


def row(asked: dict[str, Any], heads: int = 2, **found: Any) -> dict[str, Any]:
    """What all rows have."""
    config = {"d_model": 200, "heads": heads, "layers": 1}
    key = json.dumps([1, asked, config])
    return {"key": key, "devices": 1, "asked": asked, "config": config, "start_up_seconds": 9.0} | found


def step(of: str, batch: int, heads: int = 2) -> dict[str, Any]:
    """Of the block or the model."""
    config = WordConfig()
    forward = (block_flops if of == "block" else model_flops)(config, batch)
    kept = (block_kept_bytes if of == "block" else model_kept_bytes)(config, batch)
    paper: dict[str, Any] = {
        "paper_forward_flops": forward, "paper_step_flops": TRAINING * forward, "paper_kept_bytes": kept,
    } | ({"paper_reported_flops": reported_flops(config, batch)} if of == "block"
         else {"paper_step_bytes": step_bytes(config, batch)})  # fmt: skip
    return row(
        {"measure": of, "batch": batch}, heads, **paper, forward_flops=forward, step_flops=TRAINING * forward,
        profiled_flops=round(1.01 * TRAINING * forward), kept_bytes=kept, step_bytes=step_bytes(config, batch),
        step_seconds=[0.01 * batch] * 3,
    )  # fmt: skip


def parameters() -> dict[str, Any]:
    """With the parameters that the report left out."""
    of = parts(WordConfig())
    left = of["attention's input projection"]
    return row({"measure": "parameters"}, parameters=sum(of.values()), on_paper=of, layered=sum(of.values()) - left,
               left_out=["in_proj_weight", "in_proj_bias"])  # fmt: skip


def nsight() -> dict[str, Any]:
    """Of a GPU that counts two per cent more."""
    counted = [[batch, round(1.02 * TRAINING * block_flops(WordConfig(), batch)), 10**6 * batch] for batch in BATCHES]
    return row({"measure": "nsight", "batches": list(BATCHES)}, nsight=counted)


def all_rows() -> list[dict[str, Any]]:
    """Every batch of both, and the block with other heads."""
    steps = [step(of, batch) for of in ("block", "model") for batch in BATCHES]
    return [parameters(), *steps, nsight(), *(step("block", BATCHES[0], heads) for heads in (1, 8))]
