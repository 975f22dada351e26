"""A search whose trials have faults: `python tests/tune/faulty.py FAULTS.json --budget ...`; for tests only.

FAULTS.json is {fault: [trials]}. A trial "hangs" in its thirtieth step, "raises" there, or has a loss that is no number
from there on ("diverges").
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402

from model import learner  # noqa: E402
from tune import cli, ray_run, trial  # noqa: E402

FAULTS = json.loads(Path(sys.argv[1]).read_text())
FROM_STEP = 30


class Faulty(trial.TrainingTrial):
    """Patches the learner of its own process, by the name of the trial that it trains."""

    def setup(self, config: dict[str, Any], **rest: Any) -> None:
        step = learner.Learner.step

        def faulty(trained: learner.Learner, factor: float) -> learner.Step:
            found = next((fault for fault, trials in FAULTS.items() if self._assignment["trial"] in trials), None)
            if trained.steps < FROM_STEP or found is None:
                return step(trained, factor)
            if found == "raises":
                raise ArithmeticError("the flux capacitor\nis empty")
            while found == "hangs":
                time.sleep(1)
            taken = step(trained, factor)
            return learner.Step(loss=taken.loss * torch.nan, gradient_norm=taken.gradient_norm, tokens=taken.tokens)

        learner.Learner.step = faulty  # type: ignore[method-assign]
        super().setup(config, **rest)


if __name__ == "__main__":
    ray_run.TrainingTrial = Faulty  # type: ignore[misc]
    sys.exit(cli.main(sys.argv[2:]))
