"""Batches of 1, 4 and 16 times the recipe's at equal samples, under four rules for the learning rate, LARS (You et al.
2017, arXiv:1708.03888) among them; set_epoch on and off; and the gradient noise scale, which tells how large a batch is
worth it (McCandlish et al. 2018, arXiv:1812.06162).

The noise scale is tr(S) / |G|^2: the variance of one token's gradient, summed over the weights, over the squared norm
of the mean gradient. A batch of that many tokens needs twice the steps of a very large one, and twice the tokens of a
very small one. Both are estimated without bias from the gradients of a batch and of its parts (appendix A), which
training computes anyway: on several ranks each rank's before communication, on one device those of two halves.
"""

import functools
import math
import statistics
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.timing import RESAMPLES
from model.config import Config, Data, family_recipe
from model.data.batches import IGNORED, Batch
from model.training.checkpoint import Saved
from model.training.ddp import ParallelLearner, make_learner, mean_over_ranks, ranks, train_on_sampled
from model.training.learner import Learner, Step
from model.training.muon import begin_moments
from model.training.time_budget import warm_up
from tune.arithmetic import Interval
from tune.backend.worker_group import Message, TaskContext
from tune.devices import Devices
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table, by_measure
from tune.experiments.prices import rank_step_price
from tune.experiments.tables import EMPTY_CELL, figure, grouped, over_seeds, with_interval
from tune.experiments.training import batch_rows, of_rows, train_with_checkpoints
from tune.published import published
from tune.recipe import batch_scaled_fields

BASE_RATE = 0.05  # chosen from .01 to .1 on nanoGPT with the recipe's batch
WEIGHT_DECAY = 5e-4  # as in LARS's paper


def take_lars(learner: Learner, rate: float) -> None:
    """Make a learner that begins use LARS: a step moves a matrix by `rate` times its norm, however large its gradient
    is.

    Of the paper's two factors, rate and trust, only the product counts for matrices; gains and biases, which have
    neither trust ratio nor decay, take the rate as it is, so the trust is 1 here.
    """
    from pytorch_optimizer import LARS  # it imports half of what there is

    group = {"params": list(learner.model.parameters()), "peak_rate": rate}
    learner.optimizer = LARS([group], lr=rate, weight_decay=WEIGHT_DECAY, momentum=0.9, trust_coefficient=1.0)
    begin_moments(learner.optimizer)


GRADUAL_SHARE = 5 / 90
"""Share of the training in which the rate grows from the small batch's to the large one's: 5 of 90 epochs in Goyal et
al."""
LONGEST_WARM_UP = 0.2
"""Largest share of a training that is warm-up, which short ones reach."""


@dataclass(frozen=True, kw_only=True)
class RateRule:
    """Rule for the learning rate of a large batch. power: the peak rate grows with the batch's multiple to this power;
    gradual: whether it grows from the small batch's rate, after the warm-up."""

    power: float
    gradual: bool = False
    optimizer: str = "AdamW"

    def rate(self, base: float, times: int) -> float:
        """Return the peak rate of a batch so many times as large."""
        return base * times**self.power

    def factor(self, step: int, *, steps: int, times: int, warm_up_steps: int, decay_share: float) -> float:
        """Return the share of the peak rate at a step: warm-up over the small batch's samples, decay at the end. steps:
        of the whole training."""
        warm = max(1, round(min(warm_up_steps / times, LONGEST_WARM_UP * steps)))
        share = warm_up(step, warm) * min(1.0, (steps - step) / (decay_share * steps))
        return share * self._grown(step - warm, steps, times) if self.gradual else share

    def _grown(self, after: int, steps: int, times: int) -> float:
        """Return the share of the large batch's rate, which grows from the small one's to all of it; after: steps since
        the warm-up."""
        small = times**-self.power
        return small + (1 - small) * min(1.0, max(0.0, (after + 1) / (GRADUAL_SHARE * steps)))


RULES = {
    "unchanged": RateRule(power=0.0),
    "linear": RateRule(power=1.0, gradual=True),
    "square root": RateRule(power=0.5),
    "LARS": RateRule(power=0.5, optimizer="LARS"),
}
"""Rules for the rate. linear: Goyal et al. 2017 (arXiv:1706.02677); square root: for Adam, Malladi et al. 2022
(arXiv:2205.10287)."""


PARTS = 2  # parts of a batch on one device
SEEN = "seen"
"""Name, among a checkpoint's tensors, of what a WatchedLearner has seen."""


class WatchedLearner(Learner):
    """A Learner that keeps what each step's gradients tell of their noise."""

    def __init__(self, config: Config, data: Data, device: torch.device, micro_batches: int = PARTS):
        super().__init__(config, data, device, micro_batches)
        self._squares: list[Tensor] = []  # squared norms of the current part's gradients, one a tensor
        self._parts: list[Tensor] = []  # of each part: squared norm of the mean gradient, and 1 / tokens
        self._seen: list[Tensor] = []  # a row a step: means over the parts, then the whole batch's
        for parameter in self.parameter_names:
            parameter.register_hook(self._note)

    def step(self, factor: float) -> Step:
        scale = self.scaler.get_scale()
        taken = super().step(factor)
        small, fewness = torch.stack(self._parts).mean(0)
        whole = torch.tensor(1 / taken.tokens, device=self.device)
        self._seen.append(torch.stack([small / scale**2, fewness, taken.gradient_norm**2, whole]))
        return taken

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a Learner and what was seen so far, the mean of all ranks; all ranks must call it
        together."""
        seen = {SEEN: mean_over_ranks(torch.stack(self._seen))} if self._seen else {}
        return super().tensors() | seen

    def restore(self, saved: Saved) -> None:
        """Restore a Learner's state and what was seen."""
        super().restore(saved)
        self._seen = list(saved.tensors[SEEN].to(self.device)) if SEEN in saved.tensors else []

    def estimates(self) -> tuple[np.ndarray, np.ndarray]:
        """Return |G|^2 and tr(S) at each step so far, (steps,) each; all ranks must call it together."""
        if not self._seen:
            return np.empty(0), np.empty(0)
        seen = mean_over_ranks(torch.stack(self._seen)).cpu().double().numpy()
        return unbiased(*seen.T)

    def _note(self, gradient: Tensor) -> None:
        self._squares.append(gradient.detach().square().sum())

    def _by_parts(self, batch: Batch) -> Tensor:
        self._parts.clear()
        return super()._by_parts(batch)

    def _backward(self, batch: Batch, share: Tensor | None = None) -> Tensor:
        self._squares.clear()
        loss = super()._backward(batch, share)
        weight = torch.ones((), device=self.device) if share is None else share
        tokens = (batch.targets != IGNORED).sum()
        self._parts.append(torch.stack([torch.stack(self._squares).sum() / weight**2, 1 / tokens]))
        return loss


class WatchedParallelLearner(WatchedLearner, ParallelLearner):
    """WatchedLearner of one of several ranks: the parts that are compared are the ranks' parts of the batch."""

    def __init__(self, config: Config, data: Data, device: torch.device):
        super().__init__(config, data, device, micro_batches=1)


def watched_learner(config: Config, data: Data, device: torch.device) -> WatchedLearner:
    """Return a watched learner; where there are other ranks, one that learns together with them."""
    return WatchedParallelLearner(config, data, device) if ranks() > 1 else WatchedLearner(config, data, device)


def unbiased(small: Any, fewness: Any, big: Any, whole: Any) -> tuple[Any, Any]:
    """Return unbiased estimates of |G|^2 and tr(S), numbers or arrays of them.

    small, big: squared norms of the mean gradients of a part and of the whole batch; fewness, whole: one over their
    tokens. The square of a mean over b tokens is |G|^2 + tr(S) / b on average.
    """
    noise = (small - big) / (fewness - whole)
    return big - noise * whole, noise


def noise_scale(signal: np.ndarray, noise: np.ndarray) -> Interval | None:
    """Return tr(S) / |G|^2 in tokens, each averaged over the steps, with its interval by the bootstrap over them.

    None: the noise hides the gradient, as the estimate of |G|^2 is not positive.
    """
    if not (len(signal) and signal.mean() > 0):
        return None
    drawn = np.random.default_rng(0).integers(len(signal), size=(RESAMPLES, len(signal)))
    means = np.stack([signal[drawn].mean(1), noise[drawn].mean(1)])
    ratios = np.divide(means[1], means[0], out=np.full(RESAMPLES, np.inf), where=means[0] > 0)
    low, high = np.quantile(ratios, (0.025, 0.975), method="nearest")
    return float(noise.mean() / signal.mean()), float(low), float(high)


DIVERGED = "diverged"


def trainings(rows: Sequence[Row]) -> dict[tuple[int, str], list[Row]]:
    """Return the rows of each multiple of the batch and rule, one a seed, by size and in the order of the rules."""
    found = grouped(_measured(rows, "training"), lambda row: (row["asked"]["times"], row["asked"]["rule"]))
    return dict(sorted(found.items(), key=lambda each: (each[0][0], list(RULES).index(each[0][1]))))


def epochs(rows: Sequence[Row]) -> dict[bool, list[Row]]:
    """Return the rows with set_epoch, one a seed, and those without."""
    found = grouped(_measured(rows, "epochs"), lambda row: bool(row["asked"]["set_epoch"]))
    return dict(sorted(found.items(), reverse=True))


def _measured(rows: Sequence[Row], what: str) -> Iterable[Row]:
    return (row for row in rows if row["asked"]["measure"] == what and "skipped" not in row)


def figure_over_seeds(rows: Sequence[Row], name: str, form: str = "{:.4f}") -> str:
    """Return a figure over the seeds as text, or that one of them diverged."""
    values = [row[name] for row in rows]
    return DIVERGED if None in values else over_seeds(values, form)


def losses(rows: Sequence[Row]) -> Table:
    """Return the table of what each batch and rule reaches."""
    theirs = published("large_batch")
    small = min(row["batch_size"] for row in theirs)
    by_times = {row["batch_size"] / small: row for row in theirs}
    found = []
    for (times, rule), seeds in trainings(rows).items():
        known: dict[str, Any] = by_times.get(times, {}) if rule == "unchanged" else {}
        some = seeds[0]
        found.append([
            f"{some['batch_tokens']:,.0f}", f"x{times}", rule, RULES[rule].optimizer,
            f"{some['config']['learning_rate']:.3g}", f"{some['steps']:,}", figure_over_seeds(seeds, "train_loss"),
            figure_over_seeds(seeds, "valid_loss"), figure_over_seeds(seeds, "accuracy", "{:.1%}"),
            figure(known.get("average_loss")), figure(known.get("train_accuracy_percent"), "{:.1f}%"),
        ])  # fmt: skip
    columns = (
        *("batch, tokens", "times", "rule", "optimizer", "peak rate", "steps", "training loss", "validation loss"),
        *("accuracy", "published loss", "published accuracy"),
    )
    first = next(iter(trainings(rows).values()), [{}])[0]
    note = (
        f"{first.get('samples', 0):,} samples in each. Published: an image classifier, rate unchanged, batches of 128 "
        "on 1 GPU and of 2,048 on 4, accuracy in training. 95 % intervals over seeds."
    )
    return Table(title="Large batches at equal samples", columns=columns, rows=found, note=note)


def noise(rows: Sequence[Row]) -> Table:
    """Return the table of the gradient noise scale: the batch that it suggests."""
    found, of_recipe = [], [seeds[0]["batch_tokens"] / times for (times, _), seeds in trainings(rows).items()]
    for (times, rule), seeds in trainings(rows).items():
        scales = [row["noise_scale"] for row in seeds]
        seen = None not in scales  # whether every seed has a noise scale
        courses = zip(*(row["noise_course"] for row in seeds), strict=True)
        late = [scale[0] for scale in scales] if seen else []
        own = with_interval(scales[0], "{:,.0f}") if len(scales) == 1 else over_seeds(late, "{:,.0f}")
        found.append([
            f"x{times}", rule, own, f"x{statistics.fmean(late) / of_recipe[0]:.2g}" if seen else EMPTY_CELL,
            *(EMPTY_CELL if None in part else over_seeds(part, "{:,.0f}") for part in courses),
        ])  # fmt: skip
    fifths = (f"fifth {part + 1}" for part in range(COURSE))
    columns = "batch", "rule", "late in training", "of the recipe's batch", *fifths
    note = (
        "tr(S) / |G|^2 in tokens, from the gradients of the parts of each batch; of the last half of training, and of "
        "each fifth; intervals over seeds, of one over its steps. A batch of as many needs twice the steps of the "
        "largest and twice the tokens of the smallest."
    )
    return Table(title="Gradient noise scale: the batch that is worth it", columns=columns, rows=found, note=note)


def orders(rows: Sequence[Row]) -> Table:
    """Return the table of trainings on the same small set, shuffled anew in each epoch and not."""
    found = [
        [
            "on" if on else "off", f"{seeds[0]['orders']} in {seeds[0]['asked']['epochs']} epochs",
            f"{seeds[0]['epoch_samples']:,}", figure_over_seeds(seeds, "train_loss"),
            figure_over_seeds(seeds, "valid_loss"), figure_over_seeds(seeds, "accuracy", "{:.1%}"),
        ]
        for on, seeds in epochs(rows).items()
    ]  # fmt: skip
    columns = "set_epoch", "orders", "samples an epoch", "training loss", "validation loss", "accuracy"
    note = (
        "torch's DistributedSampler. It pads to equal shares, 9 samples on 2 ranks to 10: who evaluates with it counts "
        "one twice; here every rank evaluates all."
    )
    return Table(title="A small set again and again: set_epoch on and off", columns=columns, rows=found, note=note)


EVALUATION_TOKENS = 32_768
SAVES = 8
"""Checkpoints of a training; its training loss is the mean since the last but one."""
EPOCHS, EPOCH_BATCHES = 10, 32
"""Epochs over the small set, and batches in each."""
COURSE = 5
"""Parts of a training, for each of which the noise scale is told."""


def measure_training(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Train with a batch so many times the recipe's, at a rate by a rule; yield the row, with the noise of the
    gradients."""
    own, times = context.config, asked["times"]
    rows = times * batch_rows(replace(own, batch_tokens=own.batch_tokens // times), context.data)
    learner = watched_learner(of_rows(own, context.data, rows), context.data, context.device)
    rule = asked["rule"]
    if RULES[rule].optimizer == "LARS":
        take_lars(learner, context.config.learning_rate)
    yield Message(kind="start")
    row = yield from by_rule(learner, context, rule, asked, context.folder / rule)
    yield Message(kind="evaluation", row=row | measure_noise(learner))


def measure_epochs(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Train for several epochs over a small set, shuffled anew in each or not; yield the row."""
    learner = make_learner(context.config, context.data, context.device)
    batches = train_on_sampled(learner, EPOCH_BATCHES, set_epoch=asked["set_epoch"])
    yield Message(kind="start")
    name = f"set_epoch {asked['set_epoch']}"
    row = yield from by_rule(learner, context, "unchanged", asked | {"times": 1}, context.folder / name)
    orders = {batches.order(epoch).tobytes() for epoch in range(asked["epochs"])}
    yield Message(kind="evaluation", row=row | {"orders": len(orders), "epoch_samples": batches.order(0).size})


def by_rule(
    learner: Learner, context: TaskContext, rule: str, asked: dict[str, Any], folder: Path
) -> Generator[Message, None, Row]:
    """Train to the end, at a rate by a rule; return the row. UserError: there was less time."""
    config, steps = context.config, asked["steps"]
    factor = functools.partial(
        RULES[rule].factor, steps=steps, times=asked["times"], warm_up_steps=config.warm_up_steps,
        decay_share=config.decay_share,
    )  # fmt: skip
    row = yield from train_with_checkpoints(
        learner, context.seconds_left, steps=steps, every=math.ceil(steps / SAVES), factor=factor, folder=folder,
        evaluation_tokens=EVALUATION_TOKENS,
    )  # fmt: skip
    samples = learner.steps * batch_rows(learner.config, context.data)
    return row | {"samples": samples, "batch_tokens": learner.tokens / learner.steps}


def measure_noise(learner: WatchedLearner) -> Row:
    """Return the noise scale in tokens over the last half of training, and over each of its COURSE parts."""
    signal, measure_noise = learner.estimates()
    half = len(signal) // 2
    parts = zip(*(np.array_split(each, COURSE) for each in (signal, measure_noise)), strict=True)
    course = [noise_scale(*part) for part in parts]
    return {
        "noise_scale": noise_scale(signal[half:], measure_noise[half:]),
        "noise_course": [None if each is None else each[0] for each in course],
    }


work = functools.partial(by_measure, {"training": measure_training, "epochs": measure_epochs})


TIMES = (1, 16, 4)
STEPS = 1600
"""Steps with the recipe's batch; a batch k times as large takes 1 / k as many."""
MARGIN = 1.5
"""Factor of a training's seconds over its price, as one that is cut short counts for nothing."""
CLOSING_SECONDS = 6.0
"""Seconds to build the model and to evaluate it."""


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Return all points of one seed, then of the next; with the recipe's own batch no rule changes AdamW's rate, so one
    is enough."""
    recipe, most = recipe_of(settings), max(TIMES)
    steps = most * max(1, round(settings.scale * STEPS / most))
    found = []
    for seed in range(settings.seed, settings.seed + settings.seeds):
        for times in TIMES:
            for name, rule in RULES.items():
                if times == 1 and name not in ("unchanged", "LARS"):
                    continue
                base = BASE_RATE if rule.optimizer == "LARS" else recipe["learning_rate"]
                asked = {"measure": "training", "rule": name, "times": times, "steps": steps // times}
                found.append(point(
                    devices, settings, asked,
                    batch_tokens=times * recipe["batch_tokens"], learning_rate=rule.rate(base, times), seed=seed,
                ))  # fmt: skip
        epochs = max(2, round(settings.scale * EPOCHS))
        for on in (True, False):
            asked = {"measure": "epochs", "set_epoch": on, "epochs": epochs, "steps": epochs * EPOCH_BATCHES}
            found.append(point(devices, settings, asked, batch_tokens=recipe["batch_tokens"], seed=seed))
    return found


def recipe_of(settings: ExperimentSettings) -> dict[str, Any]:
    """Return the family's recipe with what --set changes, and with the learning rate that follows from its batch as in
    a search."""
    given = {**settings.recipe, **settings.set}
    own = family_recipe(settings.family, given.get("architecture"))
    both = {name: own[name] for name in ("batch_tokens", "learning_rate")}
    return {**own, **batch_scaled_fields(both, given), **given}


def point(devices: Devices, settings: ExperimentSettings, asked: dict[str, Any], **config: Any) -> Point:
    """Return the point of so many steps of a configuration, at the price of each device's part of a batch."""
    config = {"optimizer": "adamw", **config}
    step = rank_step_price(settings, devices, devices.slots, tokens=config["batch_tokens"])
    seconds = CLOSING_SECONDS + MARGIN * asked["steps"] * step
    return Point(devices=devices.slots, asked=asked, seconds=seconds, least_seconds=seconds, config=config)


def line(row: Row) -> str:
    """Return the result of a row in short."""
    if row["valid_loss"] is None:
        return "diverged"
    return f"validation loss {row['valid_loss']:.4f}, accuracy {row['accuracy']:.1%} after {row['steps']:,} steps"


LARGE_BATCH = Experiment(
    name="large_batch", about="batches x1, x4, x16 at equal samples: rules for the rate, LARS, noise scale, set_epoch",
    points=points, work=work, line=line, tables=lambda rows: [losses(rows), noise(rows), orders(rows)],
    sets=("optimizer",), reads=("scale", "seeds"), divides=True,
)  # fmt: skip
