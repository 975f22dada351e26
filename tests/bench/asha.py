"""Ray's own ASHA on our training: one family, one device, a time budget; recipe and suggestions are the search's own.

python tests/bench/asha.py --data $DATA --family nanogpt --budget 10m --seed 23
"""

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import tune  # noqa: F401 - it makes Ray's settings, before anything imports Ray

# isort: split
import ray.tune
import torch
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler

from model.config import RECIPES, Data
from model.training import monitor
from model.training.time_budget import Segment
from model.training.train import train
from tests.bench.contenders import PAIRS, TEXT
from tune.assembly import make_engine
from tune.backend.session import local_ray
from tune.devices import find_devices
from tune.recipe import SMALLEST_EVALUATION_TOKENS
from tune.reports import Report
from tune.search_context import SearchContext, make_search_context
from tune.search_space import label
from tune.settings import Settings
from tune.store.journal import Journal
from tune.units import parse_duration

REDUCTION = 2
"""The best in the replay (docs/log.md)."""
MAX_T_SHARE = 0.25
"""Of the budget: several trials may come to their ends."""
GRACE_SHARE = 1 / 20
"""Of max_t."""
REPORTS = 100
"""In max_t, as far as evaluations take no more than 2 % of it: ASHA hears of a rung soon after it."""


def trial(config: dict[str, Any], data: Data, seconds: float) -> None:
    """A trial as ASHA wants it: its decay ends at max_t, and it tells its loss all the way."""
    torch.set_num_threads(1)
    monitor.CURVE_POINTS = REPORTS
    segment = Segment(device_seconds=seconds, final=True)
    spent = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for report in train(
            config["config"]["whole"], data, segment, folder=Path(folder),
            evaluation_tokens=SMALLEST_EVALUATION_TOKENS,
        ):  # fmt: skip
            spent += sum(report.seconds.values())
            if report.valid is not None:
                ray.tune.report(told(report, spent))


def told(report: Report, spent: float) -> dict[str, Any]:
    """A report as ASHA and the ranking below want it."""
    assert report.valid is not None
    return {
        "loss": report.valid.loss, "seconds": spent, "steps": report.steps,
        "whole_loss": report.whole.loss if report.whole else None,
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
        self.configs[trial.trial_id] = trial.config["config"]["point"]
        self.reports.setdefault(trial.trial_id, []).append(result)

    def best(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The configuration with the lowest loss of those at their ends, on the whole split, and that report; where
        none is, of any report on the subset."""
        pairs = [(trial, report) for trial, reports in self.reports.items() for report in reports]
        ended = [pair for pair in pairs if pair[1]["whole_loss"] is not None]
        trial, report = min(ended or pairs, key=lambda pair: float(pair[1]["whole_loss" if ended else "loss"]))
        return self.configs[trial], report


def suggestions(context: SearchContext, family: str) -> Callable[[], dict[str, Any]]:
    """Configurations as a search suggests them before it has results, one after the other."""
    with Journal(None, new=True) as journal:
        suggester = make_engine(context, journal, []).families[family].suggestions
    count = itertools.count(1)
    return lambda: suggester.suggest(f"t{next(count)}")


def search(context: SearchContext, family: str, max_t_share: float) -> Heard:
    """ASHA with a max_t of so much of the budget until that is over; Ray itself starts beside them."""
    heard, suggest, budget = Heard(), suggestions(context, family), context.settings.budget
    seconds = max_t_share * budget
    trainable = ray.tune.with_parameters(trial, data=context.data[family], seconds=seconds)

    def suggested() -> dict[str, Any]:
        point = suggest()
        return {"point": point, "whole": context.config(family, point)}

    scheduler = AsyncHyperBandScheduler(
        time_attr="seconds", max_t=seconds, grace_period=seconds * GRACE_SHARE, reduction_factor=REDUCTION
    )
    with local_ray(cpus=1, gpus=0), tempfile.TemporaryDirectory(prefix="asha-") as scratch:
        ray.tune.Tuner(
            ray.tune.with_resources(trainable, {"CPU": 1}),
            param_space={"config": ray.tune.sample_from(lambda _: suggested())},
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
    parser.add_argument("--family", choices=RECIPES, required=True)
    parser.add_argument("--budget", type=parse_duration, required=True)
    parser.add_argument("--max-t", type=float, default=MAX_T_SHARE, help="share of the budget (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args(arguments)
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    settings = Settings(
        budget=flags.budget, families={flags.family: 1.0}, devices=1, seed=flags.seed, search="prior",
        translation_corpus=str(flags.data / PAIRS), text_corpus=str(flags.data / TEXT),
    )  # fmt: skip
    context = make_search_context(settings, find_devices(settings))
    heard = search(context, flags.family, flags.max_t)
    config, report = heard.best()
    ends = sum(reports[-1]["whole_loss"] is not None for reports in heard.reports.values())
    loss, where = (report["loss"], ", before its end") if report["whole_loss"] is None else (report["whole_loss"], "")
    test = "not measured" if report["test_loss"] is None else f"{report['test_loss']:.3f}"
    print(
        f"{flags.family} seed {flags.seed}: {len(heard.reports)} trials, {ends} to their ends; best {label(config)}: "
        f"validation loss {loss:.3f} after {report['seconds']:.0f} s and {report['steps']:,} steps"
        f"{where}, test loss {test}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
