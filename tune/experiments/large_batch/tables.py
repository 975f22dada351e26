"""The tables of the experiment large_batch, beside the published figures."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from model.experiments.intervals import Interval
from model.experiments.rate_rules import RULES
from tune.experiments.experiment import Row, Table
from tune.experiments.large_batch.work import COURSE
from tune.experiments.published import published
from tune.experiments.tables import NOTHING, figure, with_interval

DIVERGED = "diverged"


def tables(rows: Sequence[Row]) -> list[Table]:
    """Those that there are rows for."""
    return [table for table in (losses(rows), noise(rows), orders(rows)) if table.rows]


def trainings(rows: Sequence[Row]) -> dict[tuple[int, str], list[Row]]:
    """The seeds of each multiple of the batch and rule, by size and in the order of the rules."""
    found: dict[tuple[int, str], list[Row]] = {}
    for row in _measured(rows, "training"):
        found.setdefault((row["asked"]["times"], row["asked"]["rule"]), []).append(row)
    return dict(sorted(found.items(), key=lambda each: (each[0][0], list(RULES).index(each[0][1]))))


def epochs(rows: Sequence[Row]) -> dict[bool, list[Row]]:
    """The seeds with set_epoch, and those without."""
    found: dict[bool, list[Row]] = {}
    for row in _measured(rows, "epochs"):
        found.setdefault(row["asked"]["set_epoch"], []).append(row)
    return dict(sorted(found.items(), reverse=True))


def _measured(rows: Sequence[Row], what: str) -> Iterable[Row]:
    return (row for row in rows if row["asked"]["measure"] == what and "skipped" not in row)


def over_seeds(rows: Sequence[Row], value: Callable[[Row], float | None]) -> Interval | None:
    """The mean, and between which two the seeds lie; None where one has none."""
    values = [each for each in map(value, rows) if each is not None]
    return (statistics.fmean(values), min(values), max(values)) if len(values) == len(rows) else None


def told(rows: Sequence[Row], name: str, form: str = "{:.4f}", lacking: str = DIVERGED) -> str:
    """A figure of the rows as people read it."""
    found = over_seeds(rows, lambda row: row[name])
    if found is None:
        return lacking
    return with_interval(found, form) if len(rows) > 1 else form.format(found[0])


def losses(rows: Sequence[Row]) -> Table:
    """What each batch and rule comes to."""
    theirs = _by_times()
    found = []
    for (times, rule), seeds in trainings(rows).items():
        known: dict[str, Any] = theirs.get(times, {}) if rule == "unchanged" else {}
        some = seeds[0]
        found.append([
            f"{some['batch_tokens']:,.0f}", f"x{times}", rule, RULES[rule].optimizer,
            f"{some['config']['learning_rate']:.3g}", f"{some['steps']:,}", told(seeds, "train_loss"),
            told(seeds, "valid_loss"), told(seeds, "accuracy", "{:.1%}"), figure(known.get("average_loss")),
            figure(known.get("train_accuracy_percent"), "{:.1f}%"),
        ])  # fmt: skip
    columns = (
        *("batch, tokens", "times", "rule", "optimizer", "peak rate", "steps", "training loss", "validation loss"),
        *("accuracy", "published loss", "published accuracy"),
    )
    first = next(iter(trainings(rows).values()), [{}])[0]
    note = (
        f"{first.get('samples', 0):,} samples in each. Published: an image classifier, rate unchanged, batches of 128 "
        "on 1 GPU and of 2,048 on 4, accuracy in training. Of several seeds the mean, and the lowest and highest."
    )
    return Table(title="Large batches at equal samples", columns=columns, rows=found, note=note)


def _by_times() -> dict[float, dict[str, float | None]]:
    """The published rows by the multiple of the smallest batch."""
    theirs = published("large_batch")
    small = min(row["batch_size"] or 0.0 for row in theirs)
    return {(row["batch_size"] or 0.0) / small: row for row in theirs}


def noise(rows: Sequence[Row]) -> Table:
    """The gradient noise scale: the batch that it suggests."""
    found = []
    for (times, rule), seeds in trainings(rows).items():
        scale = late_scale(seeds)
        if "noise_scale" in seeds[0]:
            course = [_in_part(seeds, part) for part in range(COURSE)]
            found.append([
                f"x{times}", rule, with_interval(scale, "{:,.0f}"),
                NOTHING if scale is None else f"x{scale[0] / recipe_tokens(rows):.2g}",
                *(NOTHING if part is None else f"{part[0]:,.0f}" for part in course),
            ])  # fmt: skip
    fifths = (f"fifth {part + 1}" for part in range(COURSE))
    columns = "batch", "rule", "late in training", "of the recipe's batch", *fifths
    note = (
        "tr(S) / |G|^2 in tokens, from the gradients of the parts of each batch; of the last half of training, and of "
        "each fifth. A batch of as many needs twice the steps of the largest and twice the tokens of the smallest."
    )
    return Table(title="Gradient noise scale: the batch that is worth it", columns=columns, rows=found, note=note)


def _in_part(seeds: Sequence[Row], part: int) -> Interval | None:
    return over_seeds(seeds, lambda row: row["noise_course"][part])


def late_scale(seeds: Sequence[Row]) -> Interval | None:
    """Of the last half of training: of one seed with the interval over its steps, of several over the seeds."""
    if any(row.get("noise_scale") is None for row in seeds):
        return None
    if len(seeds) == 1:
        return tuple(seeds[0]["noise_scale"])
    return over_seeds(seeds, lambda row: row["noise_scale"][0])


def recipe_tokens(rows: Sequence[Row]) -> float:
    """Of a batch of the recipe's, from any."""
    (times, _), seeds = next(iter(trainings(rows).items()))
    return float(seeds[0]["batch_tokens"] / times)


def orders(rows: Sequence[Row]) -> Table:
    """The same small set, mixed anew in each epoch and not."""
    found = [
        [
            "on" if on else "off", f"{seeds[0]['orders']} in {seeds[0]['asked']['epochs']} epochs",
            f"{seeds[0]['epoch_samples']:,}", told(seeds, "train_loss"), told(seeds, "valid_loss"),
            told(seeds, "accuracy", "{:.1%}"),
        ]
        for on, seeds in epochs(rows).items()
    ]  # fmt: skip
    columns = "set_epoch", "orders", "samples an epoch", "training loss", "validation loss", "accuracy"
    note = (
        "torch's DistributedSampler. It pads to equal shares, 9 samples on 2 ranks to 10: who evaluates with it counts "
        "one twice; here every rank evaluates all."
    )
    return Table(title="A small set again and again: set_epoch on and off", columns=columns, rows=found, note=note)
