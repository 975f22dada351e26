"""Rows as the experiments `methods` and `stages` leave them, by a rule that is easy to follow by hand."""

from typing import Any

from tests.training_rows import row, whole

METHODS: dict[str, dict[str, Any]] = {
    "full precision": {}, "smaller batch": {"batch_tokens": 384}, "accumulation": {"micro_batches": 4},
    "SGD": {"optimizer": "sgd", "learning_rate": 0.3}, "mixed precision": {"precision": "bf16"},
}  # fmt: skip
SHAPES = {"nothing": (128, 4, 4), "heads": (128, 8, 4), "layers": (128, 4, 8), "d_model": (256, 4, 4)}
SECONDS = {"smaller batch": 0.5, "accumulation": 1.5, "mixed precision": 0.8}
LOSS = {"smaller batch": 0.1, "SGD": 0.3, "mixed precision": 0.001}
STEPS = 2_000
STAGES = "data", "forward", "loss and backward", "optimizer", "evaluation", "rest"


def method_row(
    method: str, shape: tuple[int, int, int] = SHAPES["nothing"], again: bool = False, *, seed: int = 0,
    steps: int = STEPS, **changes: Any,
) -> dict[str, Any]:  # fmt: skip
    """A method on a shape; checkpointing takes a third more time and half the memory."""
    d_model, heads, layers = shape
    size = layers / 4 * (d_model / 128) ** 2
    seconds = 0.05 * size * SECONDS.get(method, 1.0) * (4 / 3 if again else 1.0)
    sizes = {"d_model": d_model, "heads": heads, "layers": layers, "dropout": 0.0, "precision": "fp32", "seed": seed}
    config = sizes | METHODS[method] | ({"checkpointing": True} if again else {})
    found = {
        "tokens": steps * config.get("batch_tokens", 768), "step_seconds": seconds, "training_seconds": steps * seconds,
        "parameters": int(8e5 * size), "step_bytes": 4e7 * size / (2 if again else 1), "step_allocations": 12_000.0,
        "step_ratio": SECONDS.get(method, 1.0) * (4 / 3 if again else 1.0),
    }  # fmt: skip
    loss = 1.8 - 0.02 * (size - 1) + LOSS.get(method, 0.0) + 0.002 * seed
    return row({"steps": steps}, config, loss, **(found | changes))


def method_rows() -> list[dict[str, Any]]:
    """Every method and shape, with and without checkpointing, half the batch for as many samples, and two shapes of
    equal cost."""
    found = [method_row(each, shape, again) for again in (False, True) for shape in SHAPES.values() for each in METHODS]
    batch = method_row("smaller batch", steps=2 * STEPS, valid_loss=1.7)
    equal = [method_row("full precision", (184, 4, 2), valid_loss=1.75),
             method_row("full precision", (88, 4, 8), valid_loss=1.85)]  # fmt: skip
    return [*found, batch, *equal]


def stage_row(way: str, precision: str, scale: float) -> dict[str, Any]:
    """Stages of 1, 2, 3 ... seconds times `scale`."""
    stages = {stage: scale * seconds for seconds, stage in enumerate(STAGES, start=1)}
    return whole({"way": way, "steps": 100}, {"precision": precision}, steps=100, stages=stages)


def stage_rows() -> list[dict[str, Any]]:
    """Ours is twice as fast, and in bf16 four times."""
    return [stage_row("before", "fp32", 1.0), stage_row("after", "fp32", 0.5), stage_row("after", "bf16", 0.25)]


def disturbed_rows() -> list[dict[str, Any]]:
    """Of three seeds, all of 11 seconds, each with another stage that took long."""
    return [
        whole({"way": "after"}, {"precision": "fp32", "seed": seed},
              stages={stage: 6.0 if place == seed else 1.0 for place, stage in enumerate(STAGES)})
        for seed in range(3)
    ]  # fmt: skip
