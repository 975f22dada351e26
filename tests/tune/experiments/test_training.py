"""A training of all ranks with checkpoints, as experiments have it."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model.families import FAMILIES, Family
from tune.errors import UserError
from tune.experiments.training import trained


@pytest.mark.parametrize(
    ("space", "smaller"),
    [
        (FAMILIES["nanogpt"].space, "a larger --budget, or begin anew with a smaller --fix d_model or layers"),
        (
            {"width": (8, 16), "blocks": (1, 2), "gate": ("relu", "gelu"), "learning_rate": (0.1, 0.2)},
            "a larger --budget, or begin anew with a smaller --fix width or blocks",
        ),
        ({"learning_rate": (0.1, 0.2)}, "a larger --budget"),
    ],
)
def test_who_has_too_little_time_is_told_the_sizes_of_the_family_that_it_is(
    tmp_path: Path, space: Mapping[str, Any], smaller: str
) -> None:
    family = type("Own", (Family,), {"space": space})()
    learner: Any = SimpleNamespace(steps=0, family=family, device=torch.device("cpu"))
    with pytest.raises(UserError) as told:
        list(trained(learner, lambda: -1.0, steps=8, every=4, factor=lambda step: 1.0, folder=tmp_path))
    assert str(told.value) == f"steps: there was time for 0 of 8: go on with --resume and {smaller}"
