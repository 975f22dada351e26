"""What the process does for the experiment on precisions: one training, or the reason why there is none."""

from collections.abc import Iterator
from typing import Any

import torch

from model.precision import native
from tune.distributed import Place, Said
from tune.errors import UserError
from tune.experiments.whole_training import train_whole


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Train in the precision of the configuration. UserError: the device does not have it."""
    precision = place.config.precision
    if precision not in native(place.device):
        raise UserError(lacking(precision, place.device))
    yield from train_whole(place, precision, steps=asked["steps"])


def lacking(precision: str, device: torch.device) -> str:
    """Why a precision cannot be measured here."""
    if precision == "tf32" and device.type == "cpu":
        return "tf32 is a mode of a GPU's products: on a CPU it would be fp32"
    return f"this {device.type.upper()} has no fast {precision}: it has {', '.join(native(device))}"
