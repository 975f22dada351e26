"""What each rank does for the experiment data_parallel: steps of one way and of the default, in turns."""

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import torch.distributed as dist

from model.experiments.intervals import interval
from model.experiments.levers import FirstRankStep, data_parallel, gradient_distance, ready_learner
from model.experiments.parallel_timing import Ways, gradient_bytes, in_turns, plain_steps
from model.learner import Learner
from tune.distributed import Place, Said


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Measure one way. UserError: it cannot be gone here."""
    here = place.config, place.data, place.device
    if asked["way"] == "DataParallel":
        other: Learner = data_parallel(*here)
        ways: Ways = {"other": FirstRankStep(other)}
    else:
        levers = {asked["way"]: asked["value"]} if "value" in asked else {}
        other = ready_learner(*here, **levers)
        ways = plain_steps({"other": other})
    default = ready_learner(*here)
    yield Said(what="start")
    found = gradient_distance(other, default)
    rounds = in_turns(plain_steps({"default": default}) | ways, default, place.left)
    yield Said(what="steps", row={
        "parameters": default.parameters, "bytes": gradient_bytes(default), "backend": dist.get_backend(),
        "rows": len(default.batches.some().targets), "distance": found, "rounds": rounds,
        "default_seconds": interval(itemgetter("default"), rounds),
        "seconds": interval(itemgetter("other"), rounds),
        "times": interval(lambda median: median["default"] / median["other"], rounds),
    })  # fmt: skip
