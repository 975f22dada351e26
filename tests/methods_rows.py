"""Rows as the experiments `methods` and `stages` leave them, by a rule that is easy to follow by hand."""

import json
from typing import Any

METHODS = "baseline", "smaller batch", "accumulation", "SGD", "mixed precision", "full precision"
SHAPES = {"nothing": (128, 4, 4), "heads": (128, 8, 4), "layers": (128, 4, 8), "d_model": (256, 4, 4)}
SECONDS = {"smaller batch": 0.5, "accumulation": 1.5, "mixed precision": 0.8}
LOSS = {"smaller batch": 0.1, "SGD": 0.3, "mixed precision": 0.001}
STAGES = "data", "forward", "loss and backward", "optimizer", "evaluation", "rest"


def whole(asked: dict[str, Any], config: dict[str, Any], **found: Any) -> dict[str, Any]:
    """What all rows have."""
    key = json.dumps([1, asked, config], sort_keys=True)
    return {"key": key, "devices": 1, "asked": asked, "config": config, "start_up_seconds": 9.0} | found


def method_row(
    method: str, doubled: str, checkpointing: str = "off", *, shape: tuple[int, int, int] | None = None, seed: int = 0,
    **changes: Any,
) -> dict[str, Any]:  # fmt: skip
    """A method on a shape; checkpointing takes a third more time and half the memory."""
    d_model, heads, layers = shape or SHAPES[doubled]
    again = checkpointing == "on"
    size = layers / 4 * (d_model / 128) ** 2
    found = {
        "parameters": int(8e5 * size), "steps": 2_000, "tokens": 768_000 if method == "smaller batch" else 1_536_000,
        "seconds": 100 * size * SECONDS.get(method, 1.0) * (4 / 3 if again else 1.0), "train_loss": 1.6,
        "valid_loss": 1.8 - 0.02 * (size - 1) + LOSS.get(method, 0.0) + 0.002 * seed,
        "accuracy": 0.5, "flops_per_token": 5e6 if doubled == "equal FLOPs" else 5e6 * size,
        "memory_bytes": 4e7 * size / (2 if again else 1), "allocations_a_step": 12_000.0,
    }  # fmt: skip
    asked = {"method": method, "doubled": doubled, "checkpointing": checkpointing, "steps": 2_000}
    config = {"d_model": d_model, "heads": heads, "layers": layers} | ({"seed": seed} if seed else {})
    return whole(asked, config, **(found | changes))


def method_rows() -> list[dict[str, Any]]:
    """Every method and shape, with and without checkpointing, and two shapes of equal cost."""
    found = [method_row(each, doubled, on) for on in ("off", "on") for doubled in SHAPES for each in METHODS]
    equal = [method_row("baseline", "equal FLOPs", shape=(184, 4, 2), valid_loss=1.75),
             method_row("baseline", "equal FLOPs", shape=(88, 4, 8), valid_loss=1.85)]  # fmt: skip
    return found + equal


def stage_row(way: str, precision: str, scale: float) -> dict[str, Any]:
    """Stages of 1, 2, 3 ... seconds times `scale`."""
    stages = {stage: scale * seconds for seconds, stage in enumerate(STAGES, start=1)}
    return whole({"way": way, "steps": 100}, {"precision": precision}, steps=100, stages=stages)


def stage_rows() -> list[dict[str, Any]]:
    """Ours is twice as fast, and in bf16 four times."""
    return [stage_row("before", "fp32", 1.0), stage_row("after", "fp32", 0.5), stage_row("after", "bf16", 0.25)]
