"""Rows as the estimates experiment leaves them where all that is counted is what is on paper."""

from typing import Any

from model.cost.estimates import STEP_OVER_FORWARD
from model.cost.word_model import WordConfig, block_flops, on_paper, parts, step_bytes
from tests.training_rows import whole

BATCHES = (16, 32, 64, 128, 256)


def row(asked: dict[str, Any], heads: int = 2, **found: Any) -> dict[str, Any]:
    """Of a block with so many heads."""
    return whole(asked, {"d_model": 200, "heads": heads, "layers": 1}, **found)


def step(of: str, batch: int, heads: int = 2) -> dict[str, Any]:
    """Of the block or the model."""
    paper = on_paper(of, WordConfig(), batch)
    return row(
        {"measure": of, "batch": batch}, heads, **paper, forward_flops=paper["paper_forward_flops"],
        step_flops=paper["paper_step_flops"], kept_bytes=paper["paper_kept_bytes"],
        step_bytes=step_bytes(WordConfig(), batch),
    )  # fmt: skip


def parameters() -> dict[str, Any]:
    """With the parameters that the report left out."""
    of = parts(WordConfig())
    left = of["attention's input projection"]
    return row({"measure": "parameters"}, parameters=sum(of.values()), on_paper=of, layered=sum(of.values()) - left,
               left_out=["in_proj_weight", "in_proj_bias"])  # fmt: skip


def nsight() -> dict[str, Any]:
    """Of a GPU that counts two per cent more."""
    counted = [
        [batch, round(1.02 * STEP_OVER_FORWARD * block_flops(WordConfig(), batch)), 10**6 * batch] for batch in BATCHES
    ]
    return row({"measure": "nsight", "batches": list(BATCHES)}, nsight=counted)


def all_rows() -> list[dict[str, Any]]:
    """Every batch of both, and the block with other heads."""
    steps = [step(of, batch) for of in ("block", "model") for batch in BATCHES]
    return [parameters(), *steps, nsight(), *(step("block", BATCHES[0], heads) for heads in (1, 8))]
