"""Batches of 1, 4 and 16 times the recipe's at equal samples, under four rules for the rate; set_epoch on and off."""

from typing import Any

from model.config import RECIPES
from model.experiments.lars import BASE_RATE
from model.experiments.rate_rules import RULES
from tune.devices import Devices
from tune.experiments.experiment import Experiment, Point, Row
from tune.experiments.large_batch.tables import tables
from tune.experiments.large_batch.work import EPOCH_BATCHES, EPOCHS, work
from tune.experiments.settings import ExperimentSettings

TIMES = (1, 16, 4)
STEPS = 1600
"""With the recipe's batch; those of a batch k times as large are 1 / k as many."""
STEP_SECONDS = {"cpu": (0.03, 1.2e-4), "cuda": (0.012, 1e-6)}
"""Of the default configuration: what a step takes however small, and each token of a device."""
CLOSING_SECONDS = 6.0
"""To build the model, to evaluate it."""


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """All of one seed, then of the next; with the recipe's own batch no rule changes AdamW's rate."""
    recipe = RECIPES[settings.family]
    most = max(TIMES)
    steps = most * max(1, round(settings.scale * STEPS / most))
    found = []
    for seed in range(settings.seed, settings.seed + settings.seeds):
        for times in TIMES:
            for name, rule in RULES.items():
                if times == 1 and name not in ("unchanged", "LARS"):
                    continue
                base = BASE_RATE if rule.optimizer == "LARS" else recipe["learning_rate"]
                found.append(point(
                    devices, {"measure": "training", "rule": name, "times": times, "steps": steps // times},
                    batch_tokens=times * recipe["batch_tokens"], learning_rate=rule.rate(base, times), seed=seed,
                ))  # fmt: skip
        epochs = max(2, round(settings.scale * EPOCHS))
        for on in (True, False):
            asked = {"measure": "epochs", "set_epoch": on, "epochs": epochs, "steps": epochs * EPOCH_BATCHES}
            found.append(point(devices, asked, batch_tokens=recipe["batch_tokens"], seed=seed))
    return found


def point(devices: Devices, asked: dict[str, Any], **config: Any) -> Point:
    """So many steps of a configuration, at the price that they should have."""
    fixed, token = STEP_SECONDS[devices.kind]
    seconds = CLOSING_SECONDS + asked["steps"] * (fixed + config["batch_tokens"] / devices.slots * token)
    return Point(devices=devices.slots, asked=asked, seconds=seconds, least=seconds, config=config)


def line(row: Row) -> str:
    """What came out, in short."""
    if row["valid_loss"] is None:
        return "diverged"
    return f"validation loss {row['valid_loss']:.4f}, accuracy {row['accuracy']:.1%} after {row['steps']:,} steps"


LARGE_BATCH = Experiment(
    name="large_batch", about="batches x1, x4, x16 at equal samples: rules for the rate, LARS, noise scale, set_epoch",
    points=points, work=work, line=line, tables=tables,
)  # fmt: skip
