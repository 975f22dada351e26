"""A search on a GPU that is none: `python tests/tune/pretended.py --budget ... --trials-per-gpu 2`; for tests only.

Ray is told of one GPU and gives each trial its part of it; what a trial computes it computes on a CPU core.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path[0] = str(Path(__file__).resolve().parents[2])

from tune import assembly, cli, study  # noqa: E402
from tune.backend.leased import TrialEnvironment  # noqa: E402
from tune.devices import Devices  # noqa: E402
from tune.settings import Settings  # noqa: E402

GPU = Devices(
    kind="cuda", count=1, model="a GPU that is none", precisions=("fp32",), cores=8, memory_bytes=40_000_000_000
)
EVALUATION_TOKENS = 4_096


def one_gpu(settings: Settings) -> Devices:
    """Whatever there is."""
    return GPU


def on_a_core(*about: Any) -> TrialEnvironment:
    """As it was made, but for the device."""
    made = assembly.make_trial_environment(*about)
    tokens = dict.fromkeys(made.evaluation_tokens, EVALUATION_TOKENS)
    return dataclasses.replace(made, device="cpu", memory_limit=None, evaluation_tokens=tokens)


if __name__ == "__main__":
    with patch.multiple(study, find_devices=one_gpu, make_trial_environment=on_a_core):
        sys.exit(cli.main(Settings, sys.argv[1:]))
