"""Methods to train nanoGPT on several shapes, batches at equal steps and at equal samples, and shapes of equal cost;
and how the report ranks them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from model.cost import estimates
from model.nn.gpt import GPTConfig
from model.nn.precision import upstream_precision
from tune.devices import Devices
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.lists import training_points
from tune.experiments.tables import EMPTY_CELL, by_seed, figure, grouped, over_seeds, signed, step_ratios
from tune.published import published
from tune.rows import middle

REPORT: Mapping[str, Any] = {"architecture": "nanogpt", "d_model": 128, "heads": 4, "layers": 4, "dropout": 0.0}
"""The report's architecture and shape, as nanoGPT trains it on a CPU."""
SHAPE = {name: value for name, value in REPORT.items() if name != "architecture"}
DOUBLED = ("nothing", "heads", "layers", "d_model")
CONTEXT, VOCABULARY, ROWS = 64, 65, 12
"""Context, vocabulary of tiny shakespeare, and rows of a batch; another text's vocabulary changes the FLOPs by
little."""
BASELINE, FULL, MIXED = "baseline", "full precision", "mixed precision"
SMALLER, LARGER, ACCUMULATION, SGD = "smaller batch", "larger batch", "accumulation", "SGD"

MEMORY = "peak", "allocations"

Shape = Mapping[str, Any]
Published = Mapping[str, float | None]


def gpt_config(shape: Shape) -> GPTConfig:
    """Return the model's config of a shape, on the report's text."""
    sizes = {name: shape[name] for name in ("d_model", "heads", "layers")}
    return GPTConfig(vocabulary=VOCABULARY, context=CONTEXT, architecture=REPORT["architecture"], **sizes)


def flops(shape: Shape) -> float:
    """Return the training FLOPs of a token."""
    return estimates.flops_per_token(gpt_config(shape), target=CONTEXT)


def parameters(shape: Shape) -> float:
    return estimates.parameters(gpt_config(shape))


LAYERS_TIMES = (0.25, 0.5, 2.0)
"""Layers, as multiples of the report's, of the shapes that are as large as its own or cost as much."""
STEPS = 2_000
LEAST_STEPS = 20
PARTS = 4
"""Parts of a batch whose gradients are accumulated."""
BATCHES = (6, 12, 32)
"""Rows of the batches; the report trains with ROWS, and its smaller batch is the first."""
SGD_RATE = 0.3
"""Learning rate of SGD: after 500 steps of the report's shape as good as .1 and far better than 1; with 3 it
diverges."""
RECIPE = {"architecture": REPORT["architecture"]}


def doubled(what: str) -> dict[str, Any]:
    """Return the report's shape with this dimension twice as large."""
    return {**SHAPE, what: 2 * SHAPE[what]} if what in SHAPE else dict(SHAPE)


def alike(size: Callable[[Shape], float]) -> list[dict[str, Any]]:
    """Return other shapes of the report's size: fewer layers, and wider; more layers, and narrower."""
    return [of_size(size, max(1, round(times * SHAPE["layers"]))) for times in LAYERS_TIMES]


def of_size(size: Callable[[Shape], float], layers: int) -> dict[str, Any]:
    """Return the shape with so many layers and, of all widths that its heads divide, the one whose size is the closest
    to the report's."""
    widths = range(SHAPE["heads"], 4 * SHAPE["d_model"] + 1, SHAPE["heads"])
    made = ({**SHAPE, "layers": layers, "d_model": width} for width in widths)
    return min(made, key=lambda each: abs(size(each) - size(SHAPE)))


def ways(devices: Devices) -> list[Mapping[str, Any]]:
    """Return what each method changes of a configuration. The first is the baseline of all others, with the precision
    that upstream takes on the device; only precisions that the device has are used."""
    upstream = {"precision": upstream_precision(devices.precisions)}
    mixed = next(({"precision": each} for each in ("bf16", "fp16") if each in devices.precisions), upstream)
    found = [
        upstream, {"precision": "fp32"}, mixed, {**upstream, "batch_tokens": BATCHES[0] * CONTEXT},
        {**upstream, "micro_batches": PARTS}, {**upstream, "optimizer": "sgd", "learning_rate": SGD_RATE},
    ]  # fmt: skip
    return [way for place, way in enumerate(found) if way not in found[:place]]


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Return points for every method on every shape, with activations kept and recomputed; for batches of equal steps
    and of equal samples; for shapes of equal FLOPs and of equal parameters."""
    steps = max(LEAST_STEPS, round(settings.scale * STEPS))
    first, *others = ways(devices)
    asked = [
        ({**doubled(what), **way, **again}, steps)
        for again in ({}, {"checkpointing": True})
        for what in DOUBLED
        for way in (first, *others)
    ]
    for rows in BATCHES:
        batch = {"batch_tokens": rows * CONTEXT} if rows != ROWS else {}
        asked += [({**SHAPE, **first, **batch}, count) for count in (steps, round(steps * ROWS / rows))]
    asked += [({**shape, **first}, steps) for size in (flops, parameters) for shape in alike(size)]
    dropout = {"dropout": settings.fix.get("dropout", SHAPE["dropout"])}
    asked = [({**config, **dropout}, count) for config, count in asked]
    once = [each for place, each in enumerate(asked) if each not in asked[:place]]
    return training_points(devices, replace(settings, set={**RECIPE, **settings.set}), once)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Trainings of a configuration for so many steps. rows: one for each seed."""

    config: Shape
    steps: int
    rows: Sequence[Row]

    @property
    def method(self) -> str:
        """The method's name in the report, whose baseline has upstream's precision: on a CPU full precision."""
        batch = self.config.get("batch_tokens", ROWS * CONTEXT)
        if "optimizer" in self.config or "micro_batches" in self.config:
            return SGD if "optimizer" in self.config else ACCUMULATION
        if batch != ROWS * CONTEXT:
            return SMALLER if batch < ROWS * CONTEXT else LARGER
        return {"fp32": FULL, "tf32": BASELINE}.get(self.config["precision"], MIXED)

    @property
    def doubled(self) -> str | None:
        """The dimension of the report's shape that is doubled, or `nothing`; None: it is another shape."""
        times = {name: self.config[name] / SHAPE[name] for name in DOUBLED[1:]}
        other = [name for name in times if times[name] != 1]
        return "nothing" if not other else other[0] if len(other) == 1 and times[other[0]] == 2 else None

    @property
    def checkpointing(self) -> bool:
        return bool(self.config.get("checkpointing"))

    @property
    def batch(self) -> int:
        """Rows of a batch."""
        return int(self.config.get("batch_tokens", ROWS * CONTEXT)) // CONTEXT

    @property
    def shape(self) -> str:
        """The shape in words."""
        if self.doubled is None:
            return f"d_model {self.config['d_model']}, layers {self.config['layers']}"
        return "as it is" if self.doubled == "nothing" else f"{self.doubled} doubled"

    @property
    def name(self) -> str:
        """The method, and on which shape."""
        return self.method if self.doubled == "nothing" else f"{self.method}, {self.shape}"

    @property
    def published(self) -> Published:
        """The report's figures for this method and shape; empty: it has none."""
        return published_runs().get((self.method, str(self.doubled)), {})

    def mean(self, name: str) -> float:
        """Return the mean of a figure over the seeds."""
        return fmean(row[name] for row in self.rows)

    @property
    def seconds(self) -> float:
        """Seconds of all steps, each taken to be as long as the median one."""
        return self.steps * median(row["step_seconds"] for row in self.rows)

    @property
    def peak(self) -> float | None:
        """Most bytes held at once; None: no lease paid for counting."""
        return middle(row["step_bytes"] for row in self.rows)

    @property
    def allocations(self) -> float | None:
        """Allocations of all steps; None: no lease paid for counting."""
        counted = middle(row["step_allocations"] for row in self.rows)
        return None if counted is None else self.steps * counted


def runs_of(rows: Sequence[Row]) -> list[Run]:
    """Return the runs of the rows, sorted by checkpointing, shape and method."""

    def of(row: Row) -> tuple[str, int]:
        config = {name: value for name, value in row["config"].items() if name != "seed"}
        return json.dumps(config, sort_keys=True), row["steps"]

    found = [Run(config=json.loads(key), steps=steps, rows=some) for (key, steps), some in grouped(rows, of).items()]
    return sorted(found, key=lambda run: (run.checkpointing, run.shape, run.method))


def grid(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of the report's grid: methods on shapes, all for as many steps."""
    steps = next((run.steps for run in runs if "batch_tokens" not in run.config), 0)
    return [run for run in runs if run.doubled and run.method != LARGER and run.steps == steps]


def pairs(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Return each method's run with that of its shape in upstream's precision, both without checkpointing."""
    plain = {(run.method, run.doubled): run for run in grid(runs) if not run.checkpointing}
    bases = {shape: plain.get((BASELINE, shape), plain.get((FULL, shape))) for _, shape in plain}
    found = [(run, bases[shape]) for (_, shape), run in plain.items()]
    return [(run, base) for run, base in found if base is not None and base is not run]


def checkpointed(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Return each run with checkpointing, and the same one without."""
    plain = {(run.method, run.doubled): run for run in grid(runs) if not run.checkpointing}
    found = [(run, plain.get((run.method, run.doubled))) for run in grid(runs) if run.checkpointing]
    return [(run, other) for run, other in found if other is not None]


def scores(taken: Sequence[tuple[float, float, float]]) -> list[float]:
    """Return loss - max(seconds) / seconds - max(memory) / memory of each run: the lower, the better.

    The report prints accuracy in the place of the loss, but its order is the ascending one of scores with the loss, and
    with allocations as the memory.
    """
    most = [max(each) for each in zip(*taken, strict=True)]
    return [loss - most[1] / seconds - most[2] / memory for loss, seconds, memory in taken]


def published_runs() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the report's rows by method and what is doubled, in the order in which it ranks them."""
    return {(row["method"], row["doubled"]): row for row in published("methods")}


def published_scores() -> dict[tuple[str, str], float]:
    """Return the scores of the report's own rows, in their order."""
    theirs = published_runs()
    taken = [(row["loss_at_2000"], row["seconds"], row["allocations"]) for row in theirs.values()]
    return dict(zip(theirs, scores(taken), strict=True))


def ranks(values: Sequence[float]) -> list[int]:
    """Return the rank of each value; 1 is the smallest's."""
    order = sorted(values)
    return [order.index(value) + 1 for value in values]


THEIRS = "published: nanoGPT on a laptop's CPU, with checkpointing throughout"
IN_TURNS = "A step: its seconds, each in turns with the plain training of its shape, eager"
TIMED = "s: the middle step times all steps, of trainings side by side on this machine"


def tables(rows: Sequence[Row]) -> list[Table]:
    """Return the tables of the runs that the rows are of."""
    runs = runs_of(rows)
    return [measured(runs), against(runs), checkpointing(runs), ranking(runs), batches(runs), shapes(runs)]


def measured(runs: Sequence[Run]) -> Table:
    """Return the table of what each run took and reached."""
    rows = [
        [
            run.name, "on" if run.checkpointing else "off", f"{run.rows[0]['parameters']:,}", f"{run.seconds:.1f}",
            figure(run.peak, "{:.1f}", 1e-6), figure(run.allocations, "{:,.0f}"), loss_text(run),
            f"{run.mean('accuracy'):.1%}", figure(run.published.get("seconds")),
            figure(run.published.get("allocations"), "{:,.0f}"), figure(run.published.get("loss_at_2000"), "{:.4f}"),
        ]
        for run in grid(runs)
    ]  # fmt: skip
    columns = (
        *("method", "checkpointing", "parameters", "s", "peak MB", "allocations", "loss", "accuracy"),
        *("published s", "allocations", "loss"),
    )
    note = (
        f"{TIMED}. Peak and allocations: of a few steps taken again, by memray on a CPU, allocations a step times the "
        f"steps; loss and accuracy: on a sample of the validation split, with 95 % intervals over seeds. {THEIRS}."
    )
    steps = grid(runs)[0].steps if rows else 0
    return Table(title=f"Methods, after {steps:,} steps", columns=columns, rows=rows, note=note)


def loss_text(run: Run) -> str:
    """Return the loss as text, with its interval over the seeds where there are several."""
    return over_seeds((row["valid_loss"] for row in run.rows), "{:.4f}" if len(run.rows) == 1 else "{:.3f}")


def added(run: Run, base: Run, form: str = "{:+.4f}") -> str:
    """Return what a run adds to its base's loss as text, over the seeds that both have."""
    found = [row["valid_loss"] - other["valid_loss"] for row, other in by_seed(run.rows, base.rows)]
    return over_seeds(found, form if len(found) == 1 else "{:+.3f}", interval=signed)


def quotient(one: float | None, other: float | None) -> str:
    return EMPTY_CELL if one is None or other is None else f"{one / other:.2f}"


def ratios(run: Run, other: Run) -> list[str]:
    """Return as text the ratios of a step's seconds, over the seeds that both have, of the peak and of allocations."""
    steps = over_seeds(step_ratios(by_seed(run.rows, other.rows)), "{:.2f}")
    return [steps, *(quotient(getattr(run, name), getattr(other, name)) for name in MEMORY)]


def against(runs: Sequence[Run]) -> Table:
    """Return the table of each method beside the baseline on the same shape, and the report's beside its full
    precision."""
    rows = []
    for run, base in pairs(runs):
        theirs, first = run.published, published_runs().get((FULL, str(run.doubled)), {})
        loss, from_loss = theirs.get("loss_at_2000"), first.get("loss_at_2000")
        rows.append([
            run.name, *ratios(run, base), added(run, base),
            *(quotient(theirs.get(name), first.get(name)) for name in ("seconds", "allocations")),
            EMPTY_CELL if loss is None or from_loss is None else f"{loss - from_loss:+.4f}",
        ])  # fmt: skip
    columns = "method", "a step", "peak", "allocations", "loss", "published s", "allocations", "loss"
    note = (
        "Times those of the same shape in the precision that upstream takes (on a CPU the full one), of losses the "
        f"difference between equal seeds, with 95 % intervals. {IN_TURNS}. Published: times those of full precision."
    )
    return Table(title="Against the baseline, without checkpointing", columns=columns, rows=rows, note=note)


def checkpointing(runs: Sequence[Run]) -> Table:
    """Return the table of each run with checkpointing against the same without."""
    rows = [[run.name, *ratios(run, plain), added(run, plain, "{:+.1e}")] for run, plain in checkpointed(runs)]
    columns = "method", "a step", "peak", "allocations", "loss"
    note = f"Each block keeps its input only; times those without, of losses the difference. {IN_TURNS}."
    return Table(title="Activation checkpointing", columns=columns, rows=rows, note=note)


def ranking(every: Sequence[Run]) -> Table:
    """Return the table of the ranking by the report's formula, the best first, beside the scores and ranks of the
    report's own rows and their printed ranks. Only runs with checkpointing are ranked, as there, or if there are none,
    all."""
    counted = [run for run in grid(every) if run.peak is not None and run.allocations is not None]
    runs, theirs = [run for run in counted if run.checkpointing] or counted, published_scores()
    recomputed = dict(zip(theirs, ranks(list(theirs.values())), strict=True))
    printed = {key: place for place, key in enumerate(theirs, start=1)}
    ours, by_peak = (
        scores([(run.mean("valid_loss"), run.seconds, getattr(run, memory)) for run in runs]) if runs else []
        for memory in ("allocations", "peak")
    )
    rows = []
    for place, score, peak, run in sorted(
        zip(ranks(ours), ours, ranks(by_peak), runs, strict=True), key=lambda each: each[0]
    ):
        key = run.method, str(run.doubled)
        beside = figure(theirs.get(key), "{:.2f}"), figure(recomputed.get(key)), figure(printed.get(key))
        rows.append([run.name, f"{score:.2f}", str(place), str(peak), *beside])
    columns = "method", "score", "rank", "by peak", "published score", "its rank", "rank as printed"
    note = (
        "Score: loss - max(seconds) / seconds - max(allocations) / allocations, the lower the better; by peak: with "
        "the peak of memory for allocations. The report prints accuracy for the loss; its order is that of its losses. "
        "All with checkpointing, as there, if measured, and of which memory was counted."
    )
    return Table(title="Ranking by the report's formula", columns=columns, rows=rows, note=note)


def batches(every: Sequence[Run]) -> Table:
    """Return the table of smaller and larger batches of the report's shape, at equal steps and at equal samples."""
    methods = BASELINE, FULL, SMALLER, LARGER
    runs = [run for run in every if run.doubled == "nothing" and not run.checkpointing and run.method in methods]
    base = next((run for method in methods for run in runs if run.method == method and run.batch == ROWS), None)
    if base is None or not any(run.batch != ROWS for run in runs):
        return Table(title="", columns=(), rows=())
    rows = [
        [
            str(run.batch), f"{run.steps:,}", f"{run.steps * run.batch:,}", f"{run.seconds:.1f}",
            figure(run.peak, "{:.1f}", 1e-6), loss_text(run), added(run, base), f"{run.mean('accuracy'):.1%}",
        ]
        for run in sorted(runs, key=lambda run: (run.batch, run.steps))
        if run.batch != ROWS or run is base
    ]  # fmt: skip
    columns = "rows", "steps", "samples", "s", "peak MB", "loss", f"beyond that of {ROWS}", "accuracy"
    note = f"{TIMED}. All at one learning rate, at equal steps, as in the report, and at equal samples."
    return Table(title="Batches", columns=columns, rows=rows, note=note)


def shapes(every: Sequence[Run]) -> Table:
    """Return the table of the shapes that cost as much as the report's or are as large, beside those with one dimension
    doubled."""
    own = [run for run in every if run.method in (BASELINE, FULL) and not run.checkpointing]
    runs = [run for run in own if run.method == BASELINE] or own
    base = next((run for run in runs if run.doubled == "nothing"), None)
    if base is None or all(run.doubled for run in runs):
        return Table(title="", columns=(), rows=())
    rows = [
        [
            run.shape, *(str(run.config[name]) for name in ("d_model", "heads", "layers")),
            f"{run.rows[0]['parameters']:,}", f"{parameters(run.config) / parameters(base.config):.3f}",
            f"{flops(run.config) * run.rows[0]['tokens']:.3g}", f"{flops(run.config) / flops(base.config):.3f}",
            f"{run.seconds:.1f}", loss_text(run), EMPTY_CELL if run is base else added(run, base),
            f"{run.mean('accuracy'):.1%}",
        ]
        for run in sorted(runs, key=lambda run: (run is not base, flops(run.config), run.config["layers"]))
    ]  # fmt: skip
    columns = (
        *("shape", "d_model", "heads", "layers", "parameters", "of the first's", "FLOPs", "of the first's", "s"),
        *("loss", "difference", "accuracy"),
    )
    note = f"{TIMED}. FLOPs of the training and ratios of parameters on paper, model/cost/estimates.py."
    return Table(title="Shapes of equal FLOPs and of equal parameters", columns=columns, rows=rows, note=note)


METHODS = Experiment(
    name="methods", about="ways to train nanoGPT, batches, shapes of equal cost: seconds, memory, allocations, loss",
    points=points, tables=tables, families=("nanogpt",), recipe=RECIPE,
    sets=("batch_tokens", "context", "architecture"),
)  # fmt: skip
