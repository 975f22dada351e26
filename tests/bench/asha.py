"""Ray's own ASHA on our training: one family, one device, a time budget, random configurations of the same space.

python tests/bench/asha.py --data $DATA --family nanogpt --budget 10m --seed 23
"""

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import tune  # noqa: F401 - it makes Ray's settings, before anything imports Ray

# isort: split
import ray.tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler

from model.config import FAMILIES, Config, Data
from model.nn.precision import native
from model.training import train as training
from model.training.memory import prepare_process
from model.training.time_budget import Segment
from model.training.train import train
from tests.bench.contenders import pairs, text
from tune.backend.session import local_ray
from tune.recipe import SMALLEST_EVALUATION_TOKENS, parse_set
from tune.reports import Report
from tune.search_space import Space, label
from tune.units import parse_duration

REDUCTION = 2
"""The best in the replay (RESULTS.md, "The peers' settings")."""
LIFE_SHARE = 0.25
"""Of the budget, the life of a trial that is never stopped (max_t): several may come to their ends."""
GRACE_SHARE = 1 / 20
"""Of a life."""
REPORTS = 100
"""In a life, as far as evaluations take no more than 2 % of it: ASHA hears of a rung soon after it."""


def life(config: dict[str, Any], data: Data, recipe: Mapping[str, Any], seconds: float) -> None:
    """A trial as ASHA wants it: its decay ends where its life does, and it tells its loss all the way."""
    prepare_process(1)
    training.CURVE_POINTS = REPORTS
    segment = Segment(device_seconds=seconds, final=True)
    spent = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for report in train(
            Config(**recipe, **config["point"]), data, segment, folder=Path(folder),
            evaluation_tokens=SMALLEST_EVALUATION_TOKENS,
        ):  # fmt: skip
            spent += sum(report.seconds.values())
            if report.valid is not None:
                ray.tune.report(told(report, spent))


def told(report: Report, spent: float) -> dict[str, Any]:
    """A report as ASHA and the ranking below want it."""
    assert report.valid is not None
    return {
        "loss": report.valid.loss, "seconds": spent, "whole": report.whole is not None, "steps": report.steps,
        "test_loss": report.test.loss if report.test else None,
    }  # fmt: skip


@dataclass(eq=False)
class Heard(ray.tune.Callback):
    """The reports of each trial, as they come."""

    reports: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Keep it."""
        self.configs[trial.trial_id] = trial.config["point"]
        self.reports.setdefault(trial.trial_id, []).append(result)

    def best(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The configuration with the lowest loss of any report, and that report."""
        trial, report = min(
            ((trial, report) for trial, reports in self.reports.items() for report in reports),
            key=lambda pair: float(pair[1]["loss"]),
        )
        return self.configs[trial], report


def search(
    family: str, data: Data, budget: float, seconds: float, seed: int, recipe: Mapping[str, float]
) -> Heard:  # fmt: skip
    """ASHA with lives of so many seconds until those of the budget are over; Ray itself starts beside them."""
    chance, heard = random.Random(seed), Heard()
    space = Space(family=family, precisions=native("cpu"))
    trainable = ray.tune.with_parameters(
        life, data=data, recipe={**recipe, "family": family, "seed": seed}, seconds=seconds
    )
    scheduler = AsyncHyperBandScheduler(
        time_attr="seconds", max_t=seconds, grace_period=seconds * GRACE_SHARE, reduction_factor=REDUCTION
    )
    with local_ray(slots=1, gpus=0), tempfile.TemporaryDirectory(prefix="asha-") as scratch:
        ray.tune.Tuner(
            ray.tune.with_resources(trainable, {"CPU": 1}),
            param_space={"point": ray.tune.sample_from(lambda _: space.sample(chance))},
            tune_config=ray.tune.TuneConfig(
                metric="loss", mode="min", scheduler=scheduler, num_samples=-1, time_budget_s=budget,
                max_concurrent_trials=1, reuse_actors=True,
            ),
            run_config=ray.tune.RunConfig(storage_path=scratch, name="asha", verbose=0, callbacks=[heard]),
        ).fit()  # fmt: skip
    return heard


def main(arguments: list[str]) -> int:
    """Search, and print one line on what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--budget", type=parse_duration, required=True)
    parser.add_argument("--life", type=float, default=LIFE_SHARE, help="share of the budget (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", type=parse_set, default={}, help="of the recipe, as the search's --plan tells it")
    flags = parser.parse_args(arguments)
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    data = pairs(flags.data) if flags.family == "translation" else text(flags.data)
    heard = search(flags.family, data, flags.budget, flags.life * flags.budget, flags.seed, flags.set)
    config, report = heard.best()
    ends = sum(reports[-1]["whole"] for reports in heard.reports.values())
    test = "not measured" if report["test_loss"] is None else f"{report['test_loss']:.3f}"
    print(
        f"{flags.family} seed {flags.seed}: {len(heard.reports)} trials, {ends} to their ends; best {label(config)}: "
        f"validation loss {report['loss']:.3f} after {report['seconds']:.0f} s and {report['steps']:,} steps"
        f"{'' if report['whole'] else ', before its end'}, test loss {test}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
