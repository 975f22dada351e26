"""Rows as the experiments leave them that train configurations to their ends, of losses that are known."""

import json
import math
from collections.abc import Callable
from typing import Any

STEPS = 100


def row(asked: dict[str, Any], config: dict[str, Any], loss: float, **found: Any) -> dict[str, Any]:
    """What all have."""
    key = json.dumps([1, asked, config], sort_keys=True)
    steps, parameters = asked["steps"], 1000 * config.get("d_model", 100) + config["seed"]
    curve = [[steps * part // 4, 10 * steps * part, part, loss + 4 - part, loss + 4 - part] for part in range(1, 5)]
    return {
        "key": key, "devices": 1, "asked": asked, "config": config, "start_up_seconds": 9.0, "steps": steps,
        "tokens": 1000 * steps, "epochs": steps / 50, "parameters": parameters, "train_loss": loss - 0.1,
        "loss_while_training": loss + 0.1, "valid_loss": loss, "accuracy": 0.4, "perplexity": math.exp(loss),
        "nats_per_word": 1.5 * loss, "bits_per_character": 0.5 * loss, "bleu": 10.0, "chrf": 20.0, "sentences": 64,
        "training_seconds": 60.0, "step_seconds": 0.6, "device_seconds": 70.0, "tokens_per_second": 1000.0 * steps / 60,
        "memory_bytes": 30 * parameters, "process_bytes": 40 * parameters,
        "paper_bytes": 28 * parameters, "stored_bytes": 4 * parameters, "mfu": 0.3,
        "peak_flops": 1e11, "micro_batches": 1, "curve": curve, "threads": 1, "kind": "cpu",
    } | found  # fmt: skip


def ended(told: dict[str, Any]) -> dict[str, Any]:
    """The same, as the journal tells of a trial of a list."""
    own = {"trained_loss": told["train_loss"], "train_loss": told["loss_while_training"]}
    return told | own | {"lowest_loss": told["valid_loss"], "lowest_at": 1.0}


def ablated(points: list[Any], loss: Callable[..., float]) -> list[dict[str, Any]]:
    """Of the ablation's trainings, each with the loss of its configuration and seed."""
    return [ended(row(point.asked, dict(point.config), loss(**point.config))) for point in points]


def precise(losses: dict[str, list[float]], seconds: dict[str, float]) -> list[dict[str, Any]]:
    """Of the precisions, their losses by seed."""
    return [
        ended(row({"steps": STEPS}, {"precision": precision, "seed": seed}, loss, training_seconds=seconds[precision]))
        for precision, of_seeds in losses.items()
        for seed, loss in enumerate(of_seeds)
    ]
