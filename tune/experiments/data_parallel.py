"""Ways to train on several devices, each compared with DistributedDataParallel's default."""

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kernels.timing import interval
from model.config import Config, Data
from model.training.ddp import ParallelLearner, distance, flat_gradient
from model.training.learner import Learner
from tune.backend.worker_group import Message, TaskContext
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.parallel_timing import Ways, gradient_bytes, least_seconds, plain_steps, undisturbed
from tune.experiments.prices import rank_step_price
from tune.experiments.tables import EMPTY_CELL, marked, noted, with_interval

FIRST_STEPS = 3  # steps before gradients are compared: most are zero at first, and DDP rebuilds its buckets


def ready_learner(config: Config, data: Data, device: torch.device, **options: Any) -> ParallelLearner:
    """Return a learner with these options set, after its first steps. UserError: the backend refuses them, as a
    try shows."""
    try:
        learner = ParallelLearner(config, data, device, **options)
        for _ in range(FIRST_STEPS):
            learner.step(1.0)
    except (TypeError, RuntimeError) as error:
        asked = ", ".join(f"{name} {value}" for name, value in options.items())
        raise UserError(f"{asked}: {dist.get_backend()} refuses it: {str(error).splitlines()[0]}") from error
    return learner


def gradient_distance(learner: Learner, other: Learner) -> float:
    """Return the relative distance of one learner's gradient of a batch from the other's, at the other's weights and
    without dropout."""
    learner.model.load_state_dict(other.model.state_dict())
    return distance(_gradient(learner), _gradient(other))


def _gradient(learner: Learner) -> Tensor:
    learner.model.eval()
    try:
        return flat_gradient(learner, lambda: learner._gradients(learner.batches.any_batch()))
    finally:
        learner.model.train()


def data_parallel(config: Config, data: Data, device: torch.device) -> Learner:
    """Return a learner that uses the devices of all ranks from one process, by torch's DataParallel, its model on
    `device`. UserError: the process does not see a GPU for each of at least two ranks."""
    rule = "one process divides a batch among at least two GPUs of its machine"
    if device.type != "cuda":
        raise UserError(f"DataParallel: there is no GPU here: {rule}")
    count, seen = dist.get_world_size(), torch.cuda.device_count()
    if count < 2 or seen < count:
        raise UserError(f"DataParallel: {seen} GPU for {count} ranks: {rule}")
    learner = Learner(config, data, device)
    others = [place for place in range(count) if place != device.index]
    learner.forward = nn.DataParallel(learner.model, device_ids=[device.index, *others])
    return learner


def first_rank_step(learner: Learner) -> Callable[[], None]:
    """Return a step that only the first rank takes; the others wait on their hosts, so that their devices stay free for
    it."""
    hosts = dist.new_group(backend="gloo")

    def step() -> None:
        if dist.get_rank() == 0:
            learner.step(0.0)
            learner.synchronize()
        dist.barrier(hosts)

    return step


def tables(rows: Sequence[Row]) -> list[Table]:
    """Return one table of all ways, with the reason why a way was skipped."""
    found = [
        [
            name(row), with_interval(row["default_seconds"], "{:.2f}", 1e3),
            with_interval(row["seconds"], "{:.2f}", 1e3), with_interval(row["times"], "{:.3f}") + marked(row),
            f"{row['distance']:.1e}",
        ]
        for row in measured(rows)
    ]  # fmt: skip
    missing = [[name(row), *[EMPTY_CELL] * 4] for row in rows if "skipped" in row]
    columns = "way", "default, ms a step", "this, ms a step", "times as fast", "gradient's distance"
    why = (f"{name(row)} was skipped: {row['skipped']}" for row in rows if "skipped" in row)
    notes = [noted(measured(rows), about(measured(rows))), *why]
    title = "Ways to train on several devices, each in turns with DistributedDataParallel's default"
    note = "\n".join(filter(None, notes))
    return [Table(title=title, columns=columns, rows=[*found, *missing], note=note)]


def measured(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the ways that could be measured."""
    return [row for row in rows if "times" in row]


def name(row: Row) -> str:
    """Return the name of a way, such as `bucket_megabytes 25`."""
    value = row["asked"].get("value")
    return str(row["asked"]["way"]) if value is None or value is True else f"{row['asked']['way']} {value}"


def about(rows: Sequence[Row]) -> str:
    """Return a note on what all ways were measured on."""
    if not rows:
        return ""
    some = rows[0]
    return (f"{some['devices']} ranks on {some['backend']}, {some['rows']} rows a rank, gradients of "
            f"{some['bytes'] / 2**20:.1f} MiB; distance: of the gradient of a batch from the default's, relative; "
            "default: the default against itself, so what its figures differ by means nothing")  # fmt: skip


def work(context: TaskContext, asked: dict[str, Any]) -> Iterator[Message]:
    """Measure one way. UserError: it does not work here."""
    here = context.config, context.data, context.device
    if asked["way"] == "DataParallel":
        other: Learner = data_parallel(*here)
        ways: Ways = {"other": first_rank_step(other)}
    else:
        options = {asked["way"]: asked["value"]} if "value" in asked else {}
        other = ready_learner(*here, **options)
        ways = plain_steps({"other": other})
    default = ready_learner(*here)
    yield Message(kind="start")
    found = gradient_distance(other, default)
    rounds, others = undisturbed(plain_steps({"default": default}) | ways, default, context.seconds_left)
    yield Message(kind="steps", row={
        "parameters": default.parameters, "bytes": gradient_bytes(default), "backend": dist.get_backend(),
        "rows": len(default.batches.any_batch().targets) // default.ranks, "distance": found, "rounds": rounds,
        "default_seconds": interval(itemgetter("default"), rounds),
        "seconds": interval(itemgetter("other"), rounds),
        "times": interval(lambda median: median["default"] / median["other"], rounds), **others,
    })  # fmt: skip


WAYS: tuple[dict[str, Any], ...] = (
    {"way": "default"}, {"way": "DataParallel"},
    *({"way": "bucket_megabytes", "value": size} for size in (1, 5, 25, 100)),
    {"way": "gradient_as_bucket_view", "value": True}, {"way": "static_graph", "value": True},
    *({"way": "compression", "value": kind} for kind in ("bf16", "fp16")),
)  # fmt: skip
"""Ways to compare; the default against itself shows how large a difference is that means nothing."""
NEED_GPUS: tuple[dict[str, Any], ...] = ({"way": "DataParallel"}, {"way": "compression", "value": "bf16"})
"""Ways that CPUs cannot go: gloo does not add up bf16."""
SECONDS, BUILD_SECONDS = 40.0, 8.0
"""Seconds that a way is worth, and those to build two learners and to try the backend."""


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Return a point for each way that these devices can go, on all of them."""
    ways = [way for way in WAYS if devices.kind == "cuda" or way not in NEED_GPUS]
    step = rank_step_price(settings, devices, devices.slots)
    least = BUILD_SECONDS + 2 * (FIRST_STEPS + 1) * step + least_seconds(step, step)
    return [Point(devices=devices.slots, asked=way, seconds=max(SECONDS, least), least_seconds=least) for way in ways]


def line(row: Row) -> str:
    """Return the result of a row in short."""
    return (f"{with_interval(row['times'], '{:.3f}')} times as fast as the default, its gradient "
            f"{row['distance']:.1e} from the default's")  # fmt: skip


DATA_PARALLEL = Experiment(
    name="data_parallel", about="DataParallel and DistributedDataParallel's options, each against its default",
    points=points, work=work, line=line, tables=tables, fewest=2, divides=True,
)  # fmt: skip
