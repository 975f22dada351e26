"""A search whose trials have faults: `python tests/tune/faulty.py FAULTS.json --budget ...`; for tests only.

FAULTS.json is {fault: trial}. A trial "hangs" in its thirtieth step, "raises"
there, or has a loss that is no number from there on ("diverges"). One "outgrows" what is known of its memory with whole
batches.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402

from model.training import learner  # noqa: E402
from tune import cli, study  # noqa: E402
from tune.backend import trainable  # noqa: E402
from tune.settings import Settings  # noqa: E402

FAULTS = json.loads(Path(sys.argv[1]).read_text())
FROM_STEP = 30
OUTGROWN_BYTES = 350_000_000


def fault(trial: str) -> str | None:
    """What is wrong with a trial, if anything is."""
    return next((kind for kind, named in FAULTS.items() if named == trial), None)


class Faulty(trainable.TrainingTrial):
    """Patches the learner of its own process, by the name of the trial that it trains."""

    def setup(self, config: dict[str, Any], **rest: Any) -> None:
        step = learner.Learner.step

        def faulty(trained: learner.Learner, factor: float) -> learner.Step:
            found = fault(self._assignment["trial"])
            if trained.steps < FROM_STEP or found is None:
                return step(trained, factor)
            if found == "raises":
                raise ArithmeticError("the flux capacitor\nis empty")
            while found == "hangs":
                time.sleep(1)
            taken = step(trained, factor)
            if found != "diverges":
                return taken
            return learner.Step(loss=taken.loss * torch.nan, gradient_norm=taken.gradient_norm, tokens=taken.tokens)

        by_parts = learner.Learner._by_parts

        def hungry(trained: learner.Learner, batch: Any) -> torch.Tensor:
            outgrows = fault(self._assignment["trial"]) == "outgrows"
            held = torch.ones(OUTGROWN_BYTES // trained.micro_batches, dtype=torch.uint8) if outgrows else None
            gradients = by_parts(trained, batch)
            del held
            return gradients

        learner.Learner.step = faulty  # type: ignore[method-assign]
        learner.Learner._by_parts = hungry  # type: ignore[method-assign]
        super().setup(config, **rest)


if __name__ == "__main__":
    with patch.object(study, "TrainingTrial", Faulty):
        sys.exit(cli.main(Settings, sys.argv[2:]))
