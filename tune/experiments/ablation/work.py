"""What a rank does for the ablation: one training; of two ranks the second only keeps its core free for the first."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from model.parallel import ranks
from tune.distributed import Place, Said
from tune.experiments.whole_training import train_whole


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Train the configuration; `on` and `threads` say on what, where another device than the point's is compared."""
    if ranks() > 1 and dist.get_rank() > 0:
        return iter(())
    on = torch.device(asked["on"]) if "on" in asked else None
    name = "-".join(str(value) for value in asked.values()).replace(" ", "-")
    return train_whole(place, name, steps=asked["steps"], device=on, threads=asked.get("threads", 1))
