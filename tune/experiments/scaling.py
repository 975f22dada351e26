"""One configuration on 1, 2, 4 ... devices: how much faster it is, what that costs, and where the rest of the time
goes."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from kernels.timing import interval
from model.training.ddp import ParallelLearner, agreement, make_learner, ranks
from model.training.learner import Learner
from model.training.time_budget import warm_up
from tune.backend.worker_group import Message, TaskContext
from tune.devices import Devices
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table, by_measure
from tune.experiments.parallel_timing import (
    Rounds,
    accumulations,
    gradient_bytes,
    least_seconds,
    steps,
    undisturbed,
)
from tune.experiments.prices import rank_step_price
from tune.experiments.tables import figure, marked, noted, with_interval
from tune.experiments.training import batch_rows, of_rows, train_with_checkpoints
from tune.published import published, published_speed_ups
from tune.rows import pairs, steps_of, times_as_fast

COUNTS = (1, 2, 4, 8)
"""Numbers of parts in which gradients are accumulated."""
FIRST_STEPS = 3
"""Steps before gradients are compared: at first most of them are zero."""


def ring(count: int) -> float:
    """Return how many times the bytes pass each link of a ring of so many ranks: nccl-tests' bus factor."""
    return 2 * (count - 1) / count


def tables(rows: Sequence[Row]) -> list[Table]:
    """Return the tables of steps, of accumulation, and of trainings."""
    steps = steps_of(rows)
    of_steps = [weak(steps), strong(steps), communication(steps), bandwidth(steps)]
    return [*of_steps, accumulation(rows), training(rows), start_up(rows)]


def on_several(steps: dict[tuple[int, int], Row]) -> dict[tuple[int, int], Row]:
    """Return the rows on more devices than one, in order."""
    return {key: row for key, row in sorted(steps.items()) if key[0] > 1}


def weak(steps: dict[tuple[int, int], Row]) -> Table:
    """Return the table of weak scaling: the batch a device is fixed."""
    theirs, recomputed = published_steps(), published_speed_ups()
    rows = []
    for batch, single, row in pairs(steps, weak=True):
        key = row["devices"], batch
        known = theirs.get(key, {})
        beside = known.get("epoch_seconds"), recomputed.get(key), known.get("speed_up")
        rows.append([
            str(row["devices"]), str(batch), *speed(row), *gain(single, row, weak=True),
            figure(beside[0]), *(figure(each, "{:.2f}") for each in beside[1:]),
        ])  # fmt: skip
    columns = *("devices", "batch a device", *SPEED, *GAIN), "published epoch s", "its speed-up", "as printed"
    note = (
        "published: GPUs under DataParallel, an image classifier; its speed-up: T_1 / T_n of its epochs; as printed, "
        "it is about 2 - T_n / T_1"
    )
    note = noted(steps.values(), note)
    return Table(title="Weak scaling: the batch a device is fixed", columns=columns, rows=rows, note=note)


def published_steps() -> dict[tuple[float, float], Row]:
    """Return the report's rows by devices and batch a device."""
    return {(row["devices"], row["batch_size_per_device"]): row for row in published("scaling")}


def strong(steps: dict[tuple[int, int], Row]) -> Table:
    """Return the table of strong scaling: the batch of all devices together is fixed."""
    rows = [
        [str(row["devices"]), str(batch), *speed(row), *gain(single, row, weak=False)]
        for batch, single, row in pairs(steps, weak=False)
    ]
    columns, title = ("devices", "batch in all", *SPEED, *GAIN), "Strong scaling: the batch in all is fixed"
    return Table(title=title, columns=columns, rows=rows, note=noted(steps.values()))


SPEED = "ms a step", "epoch s", "tokens a second"
GAIN = "speed-up", "efficiency"


def speed(row: Row) -> list[str]:
    """Return the cells of the columns SPEED; a disturbed row is marked."""
    step, tokens = row["step_seconds"], row["tokens_per_second"]
    return [
        with_interval(step, "{:.1f}", 1e3) + marked(row),
        f"{step[0] * row['epoch_steps']:.1f}",
        f"{tokens[0]:,.0f}",
    ]


def gain(single: Row, row: Row, *, weak: bool) -> list[str]:
    """Return the cells of the columns GAIN."""
    if row is single:
        return ["1", "100%"]
    times = times_as_fast(single, row, weak=weak)
    return [with_interval(times, "{:.2f}"), f"{times[0] / row['devices']:.0%}"]


def communication(steps: dict[tuple[int, int], Row]) -> Table:
    """Return the table of the communication in a step."""
    rows, several = [], on_several(steps)
    for (count, batch), row in several.items():
        names = "step_seconds", "unsynced_seconds", "communication_seconds", "overlapped_seconds"
        parts = [figure(row[name][0], "{:.1f}", 1e3) for name in names]
        parts[0] += marked(row)
        exposed = with_interval(row["exposed_seconds"], "{:.1f}", 1e3)
        identity, estimate = with_interval(row["identity"], "{:.3f}"), as_reported(steps, count, batch)
        rows.append([str(count), str(batch), *parts, exposed, identity, figure(estimate, "{:.1f}", 1e3)])
    columns = (
        *("devices", "batch in all", "step", "unsynced", "communication", "overlapped", "exposed"),
        *("unsynced + exposed, of step", "by report's formula"),
    )
    note = (
        "communication: from the begin of the first bucket's to the end of the last one's, by "
        "DistributedDataParallel's logger. By the report's formula, T_n - T_1 / n of an epoch, here for a step: an "
        "estimate, and no communication time"
    )
    note = noted(several.values(), note)
    return Table(title="Communication in a step, ms", columns=columns, rows=rows, note=note)


def as_reported(steps: dict[tuple[int, int], Row], count: int, batch: int) -> float | None:
    """Return the seconds a step of communication by the report's formula: what an epoch on n devices takes beyond an
    n-th of one on one device, which is what a step takes beyond one with the same batch a device there; None: the
    latter was not measured."""
    single = steps.get((1, batch // count))
    return None if single is None else float(steps[count, batch]["step_seconds"][0] - single["step_seconds"][0])


def bandwidth(steps: dict[tuple[int, int], Row]) -> Table:
    """Return the table of the bandwidth: the gradients' bytes over the seconds of communication."""
    rows, theirs, several = [], published_steps(), on_several(steps)
    for (count, batch), row in several.items():
        names = "algorithm_bandwidth", "bus_bandwidth", "alone_bus_bandwidth"
        known = theirs.get((count, batch / count), {}).get("bandwidth_gb_per_second")
        rates = [figure(row[name][0], "{:.3f}", 1e-9) for name in names]
        rates[0] += marked(row)
        share = with_interval(row["share_of_alone"], "{:.2f}")
        rows.append([str(count), str(batch), f"{row['bytes']:,}", *rates, share, figure(known)])
    columns = "devices", "batch in all", "bytes a step", "algorithm", "bus", "bus, alone", "share of alone", "published"
    note = "bus: 2 (n - 1) / n times the bytes, as nccl-tests count; alone: one all-reduce of as many bytes"
    note = noted(several.values(), note)
    return Table(title="Bandwidth, GB/s", columns=columns, rows=rows, note=note)


def accumulation(rows: Sequence[Row]) -> Table:
    """Return the table of steps on several batches."""
    found, equal = [], {row["devices"]: dict(row["accumulated"]) for row in rows if "accumulated" in row}
    for row in rows:
        for count, seconds in row.get("row_seconds", ()):
            faster, exposed = dict(row["gain"])[count], dict(row["exposed_share"])[count]
            distance = equal.get(row["devices"], {}).get(count)
            found.append([
                str(row["devices"]), str(row["rows"]), str(count), with_interval(seconds, "{:.3f}", 1e3) + marked(row),
                with_interval(faster, "{:.2f}"), f"{exposed[0]:.1%}", figure(distance, "{:.1e}"),
            ])  # fmt: skip
    columns = "devices", "batch in all", "batches a step", "ms a row", "times as fast", "exposed", "gradient's distance"
    note = "distance of the accumulated gradient from that of the same batch in one part"
    note = noted((row for row in rows if "row_seconds" in row), note)
    return Table(title="Accumulation without synchronization", columns=columns, rows=found, note=note)


def training(rows: Sequence[Row]) -> Table:
    """Return the table of trainings on the same batches on one device and on more."""
    found = [
        [
            str(row["devices"]), str(row["rows"]), f"{row['steps']:,}", figure(row["train_loss"], "{:.4f}"),
            figure(row["valid_loss"], "{:.5f}"), figure(row["accuracy"], "{:.1%}"), f"{row['training_seconds']:.1f}",
        ]
        for row in rows if "valid_loss" in row
    ]  # fmt: skip
    columns = "devices", "batch in all", "steps", "training loss", "validation loss", "accuracy", "s"
    return Table(title="Training on the same batches, without dropout", columns=columns, rows=found)


def start_up(rows: Sequence[Row]) -> Table:
    """Return the table of the seconds until the processes can work, once for each number of devices."""
    seconds = {row["devices"]: row["start_up_seconds"] for row in rows if "start_up_seconds" in row}
    found = [[str(count), f"{each:.1f}", f"{count * each:.1f}"] for count, each in seconds.items()]
    columns = "devices", "s", "device-seconds charged"
    return Table(title="Start-up of the processes", columns=columns, rows=found, note="in no figure above")


def measure_steps(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Time steps with and without communication, and the communication alone."""
    learner = make_learner(of_rows(context.config, context.data, asked["rows"]), context.data, context.device)
    yield Message(kind="start")
    rounds, others = undisturbed(steps(learner), learner, context.seconds_left)
    yield Message(kind="steps", row=step_row(learner, rounds) | others)


def step_row(learner: Learner, rounds: Rounds) -> Row:
    """Return the figures of a step, and on several ranks those of its communication."""
    batch = learner.batches.any_batch()
    row: Row = {
        "parameters": learner.parameters, "tokens": batch.tokens, "epoch_steps": len(learner.batches), "rounds": rounds,
        "step_seconds": interval(itemgetter("step"), rounds),
        "tokens_per_second": interval(lambda median: batch.tokens / median["step"], rounds),
    }  # fmt: skip
    return row | communication_row(gradient_bytes(learner), rounds) if ranks() > 1 else row


def communication_row(size: int, rounds: Rounds) -> Row:
    """Return the figures of the communication in a step, as DistributedDataParallel's logger tells of it. identity: the
    share of a step that one without communication and the exposed communication make up, which should be 1.

    communication: from the begin of the first bucket's to the end of the last one's.
    """
    whole, hidden, alone = "step communication", "step overlapped", f"all_reduce {size}"
    passed = ring(ranks())
    figures: dict[str, Callable[[Any], Any]] = {
        "unsynced_seconds": itemgetter("unsynced"),
        "communication_seconds": itemgetter(whole),
        "overlapped_seconds": itemgetter(hidden),
        "exposed_seconds": lambda median: median[whole] - median[hidden],
        "identity": lambda median: (median["unsynced"] + median[whole] - median[hidden]) / median["step"],
        "algorithm_bandwidth": lambda median: size / median[whole],
        "bus_bandwidth": lambda median: passed * size / median[whole],
        "alone_bus_bandwidth": lambda median: passed * size / median[alone],
        "share_of_alone": lambda median: median[alone] / median[whole],
    }
    return {"bytes": size} | {name: interval(figure, rounds) for name, figure in figures.items()}


def measure_gradients(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Compare the gradients of all ranks with each other, and with those of the whole batch on one."""
    learner = make_learner(context.config, context.data, context.device)
    assert isinstance(learner, ParallelLearner), "one device has nobody to agree with"
    yield Message(kind="start")
    for _ in range(FIRST_STEPS):
        learner.step(1.0)
    yield Message(kind="steps", row={"parameters": learner.parameters, **agreement(learner)})


def measure_accumulation(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Time steps on one or several of the recipe's batches: seconds of a row, and how much of a step is exposed
    communication."""
    learner = make_learner(context.config, context.data, context.device)
    yield Message(kind="start")
    rounds, others = undisturbed(accumulations(learner, COUNTS), learner, context.seconds_left)
    rows = batch_rows(context.config, context.data)

    def row_seconds(count: int) -> Callable[[Any], Any]:
        return lambda median: median[f"accumulate {count}"] / (count * rows)

    def faster(count: int) -> Callable[[Any], Any]:
        return lambda median: row_seconds(1)(median) / row_seconds(count)(median)

    def exposed(count: int) -> Callable[[Any], Any]:
        step = f"accumulate {count}"
        return lambda median: (median[f"{step} communication"] - median[f"{step} overlapped"]) / median[step]

    figures = {"row_seconds": row_seconds, "gain": faster, "exposed_share": exposed}
    row = {name: [(count, interval(each(count), rounds)) for count in COUNTS] for name, each in figures.items()}
    yield Message(kind="steps", row={"parameters": learner.parameters, "rows": rows, "rounds": rounds} | row | others)


def measure_training(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Train for some steps with checkpoints: on the same batches with any number of devices and without dropout, so to
    the same loss."""
    config = dataclasses.replace(context.config, dropout=0.0)
    learner = make_learner(config, context.data, context.device)
    yield Message(kind="start")
    row = yield from train_with_checkpoints(
        learner, context.seconds_left, steps=asked["steps"], every=asked["every"], folder=context.folder,
        factor=lambda step: warm_up(step, config.warm_up_steps),
    )  # fmt: skip
    yield Message(kind="evaluation", row=row | {"rows": batch_rows(config, context.data)})


work = functools.partial(by_measure, {
    "steps": measure_steps, "gradients": measure_gradients, "accumulation": measure_accumulation,
    "training": measure_training,
})  # fmt: skip


BATCHES = (32, 128, 512)
"""Rows of the batches, as in the published report."""
SECONDS = {"steps": 100.0, "gradients": 15.0, "accumulation": 60.0, "training": 60.0}
BUILD_SECONDS = 10.0
"""Seconds to build a learner and for what is done once."""
TRAINING_STEPS, CHECKPOINT_STEPS = 200, 50


def counts(slots: int) -> list[int]:
    """Return the numbers of devices to measure on: 1, 2, 4 ... and all of them."""
    return [*(2**power for power in range(slots.bit_length()) if 2**power < slots), slots]


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Return points for each batch on one device, and on more of them for that batch on each and that batch on all of
    them together."""
    return [point for count in counts(devices.slots) for point in points_of(count, devices, settings)]


def points_of(count: int, devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Return the points on so many devices."""
    rows = sorted({batch * each for batch in BATCHES for each in (1, count) if batch >= count})
    steps: list[dict[str, Any]] = [{"measure": "steps", "rows": each} for each in rows]
    training: dict[str, Any] = {"measure": "training", "steps": TRAINING_STEPS, "every": CHECKPOINT_STEPS}
    asked = [*steps, training]
    if count > 1:
        asked = [{"measure": "gradients"}, *steps, {"measure": "accumulation"}, training]
    found = []
    for each in asked:
        step = rank_step_price(settings, devices, count, rows=each.get("rows"))
        least = BUILD_SECONDS + least_of(each["measure"], count, step)
        seconds = max(SECONDS[each["measure"]], least)
        found.append(Point(devices=count, asked=each, seconds=seconds, least_seconds=least))
    return found


def least_of(measure: str, count: int, step: float) -> float:
    """Return the seconds that a measure needs at least on so many devices, with steps of so many seconds."""
    if measure == "steps":
        return least_seconds(*([step] if count == 1 else [step, step, 0.0]))  # unsynced ones too, and all-reduce
    if measure == "accumulation":
        return least_seconds(*(each * step for each in COUNTS))
    if measure == "gradients":
        return (FIRST_STEPS + 4 + count) * step  # whole, in 2, 4 and 8 parts, and all ranks' parts on one
    return (TRAINING_STEPS + CHECKPOINT_STEPS) * step  # no stretch begins that might not end


def line(row: Row) -> str:
    """Return the result of a row in short."""
    if "step_seconds" in row:
        beside = f", with {row['others_cores']:.1f} cores taken by others" if row["disturbed"] else ""
        return f"{with_interval(row['step_seconds'], '{:.1f}', 1e3)} ms a step{beside}"
    if "gain" in row:
        return f"4 at a time take a row {with_interval(dict(row['gain'])[4], '{:.2f}')} times as fast as 1"
    if "valid_loss" in row:
        return f"validation loss {figure(row['valid_loss'], '{:.4f}')} after {row['steps']} steps"
    equal = "bit-equal" if row["bit_equal"] else "NOT equal"
    return f"gradients are {equal} on all ranks, {row['against_whole_batch']:.1e} from the whole batch's on one"


SCALING = Experiment(
    name="scaling", about="one configuration on 1, 2, 4 ... devices: speed-up, communication, accumulation",
    points=points, work=work, line=line, tables=tables, any_family=True,
)  # fmt: skip
