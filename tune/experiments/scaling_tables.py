"""The tables of the scaling experiment, and the model of a step that is fitted to its rows: compute that grows with the
rows, communication by latency and bandwidth.

A ring of n ranks passes 2 (n - 1) messages one after the other, of 1/n of the bytes each (Patarasuk and Yuan 2009,
"Bandwidth optimal all-reduce algorithms for clusters of workstations").
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tune.experiments.base import Row, Table
from tune.experiments.parallel_timing import ratio
from tune.experiments.tables import figure, with_interval
from tune.published import PUBLISHED, published, read
from tune.table_rules import speed_ups


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """Seconds: `fixed` a step and `row` for each row; `latency` a message, and bytes a second of one link.

    exposed: the share of its communication that a step waits for.
    """

    fixed: float
    row: float
    latency: float
    bandwidth: float
    exposed: float

    @classmethod
    def fitted(
        cls,
        *,
        compute: Mapping[int, float],
        alone: Mapping[int, float],
        exposed: Mapping[int, float],
        size: int,
        ranks: int,
    ) -> Self:
        """From seconds as measured on these ranks.

        compute: of a step without communication, by its rows; alone: of the communication of so many bytes and nothing
        else; exposed: what a step waits for communication, by its rows, with gradients of `size` bytes.
        """
        fixed, row = _line(compute)
        rest, byte = _line(alone)
        messages, passed = ring(ranks)
        made = cls(fixed=fixed, row=row, latency=rest / messages, bandwidth=passed / byte, exposed=1.0)
        share = float(np.median(list(exposed.values()))) / made.communication(size, ranks)
        return cls(fixed=fixed, row=row, latency=made.latency, bandwidth=made.bandwidth, exposed=share)

    def communication(self, size: int, ranks: int) -> float:
        """Seconds in which so many ranks add up so many bytes."""
        messages, passed = ring(ranks)
        return messages * self.latency + passed * size / self.bandwidth

    def step(self, rows: int, size: int, ranks: int) -> float:
        """Seconds of a step with so many rows on each rank."""
        return self.fixed + self.row * rows + self.exposed * self.communication(size, ranks)


def ring(ranks: int) -> tuple[int, float]:
    """Messages one after the other, and the share of the bytes that pass each link: nccl-tests' bus factor."""
    return 2 * (ranks - 1), 2 * (ranks - 1) / ranks


def _line(values: Mapping[int, float]) -> tuple[float, float]:
    """Intercept and slope, neither below zero, by least squares of the relative errors."""
    x, y = np.array(list(values), dtype=float), np.array(list(values.values()))
    columns = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
    intercept, slope = np.linalg.lstsq(columns, np.ones_like(y), rcond=None)[0]
    if intercept < 0:
        return 0.0, float((x / y).sum() / ((x / y) ** 2).sum())
    return float(intercept), float(slope)


DATA_PARALLEL = "published: GPUs under DataParallel, an image classifier"


def tables(rows: Sequence[Row]) -> list[Table]:
    """All that there are rows for."""
    steps = steps_of(rows)
    made = [weak(steps), strong(steps), communication(steps), bandwidth(steps), accumulation(rows)]
    return [table for table in (*made, training(rows), start_up(rows), prediction(rows)) if table.rows]


def steps_of(rows: Sequence[Row]) -> dict[tuple[int, int], Row]:
    """Those of steps, by devices and rows of the batch."""
    return {(row["devices"], row["asked"]["rows"]): row for row in rows if "step_seconds" in row}


def pairs(steps: dict[tuple[int, int], Row], *, weak: bool) -> list[tuple[int, Row, Row]]:
    """The batch, on one device and on more of them: the same a device (weak scaling), or the same in all (strong)."""
    singles = {batch: row for (count, batch), row in steps.items() if count == 1}
    return [
        (batch, single, steps[count, batch * (count if weak else 1)])
        for count in sorted({count for count, _ in steps})
        for batch, single in singles.items()
        if (count, batch * (count if weak else 1)) in steps
    ]


def weak(steps: dict[tuple[int, int], Row]) -> Table:
    """The batch a device is fixed."""
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
    note = f"{DATA_PARALLEL}; its speed-up: T_1 / T_n of its epochs; as printed, it is about 2 - T_n / T_1"
    note = noted(steps.values(), note)
    return Table(title="Weak scaling: the batch a device is fixed", columns=columns, rows=rows, note=note)


def published_steps() -> dict[tuple[float, float], Row]:
    """The report's rows by devices and batch a device."""
    return {(row["devices"], row["batch_size_per_device"]): row for row in published("scaling")}


def published_speed_ups() -> dict[tuple[float, float], float]:
    """What the report's own epochs come to: seconds on one device over those on so many, with that batch on each."""
    found = zip(published_steps(), speed_ups(read(PUBLISHED / "scaling.csv")), strict=True)
    return {key: times for key, times in found if times is not None}


def strong(steps: dict[tuple[int, int], Row]) -> Table:
    """The batch of all devices together is fixed."""
    rows = [
        [str(row["devices"]), str(batch), *speed(row), *gain(single, row, weak=False)]
        for batch, single, row in pairs(steps, weak=False)
    ]
    columns, title = ("devices", "batch in all", *SPEED, *GAIN), "Strong scaling: the batch in all is fixed"
    return Table(title=title, columns=columns, rows=rows, note=noted(steps.values()))


def marked(row: Row) -> str:
    """After a figure that was measured, twice where there was time, while others had the machine."""
    return " *" if row.get("disturbed") else ""


def noted(rows: Iterable[Row], note: str = "") -> str:
    """A note, and what the mark means, where a row has it, with how much others had."""
    taken = [row["others_cores"] for row in rows if row.get("disturbed")]
    mark = f"*: others took up to {max(taken):.1f} cores, also when it was measured again" if taken else ""
    return "; ".join(filter(None, (note, mark)))


SPEED = "ms a step", "epoch s", "tokens a second"
GAIN = "speed-up", "efficiency"


def speed(row: Row) -> list[str]:
    """What SPEED names; a row that was disturbed is marked."""
    step, tokens = row["step_seconds"], row["tokens_per_second"]
    return [
        with_interval(step, "{:.1f}", 1e3) + marked(row),
        f"{step[0] * row['epoch_steps']:.1f}",
        f"{tokens[0]:,.0f}",
    ]


def speed_up(single: Row, row: Row, *, weak: bool) -> Any:
    """How many times as fast as one device, with its interval: as many tokens a second."""
    times = ratio(single["rounds"]["step"], row["rounds"]["step"])
    return tuple(row["tokens"] / single["tokens"] * each for each in times) if weak else times


def gain(single: Row, row: Row, *, weak: bool) -> list[str]:
    if row is single:
        return ["1", "100%"]
    times = speed_up(single, row, weak=weak)
    return [with_interval(times, "{:.2f}"), f"{times[0] / row['devices']:.0%}"]


def communication(steps: dict[tuple[int, int], Row]) -> Table:
    """What of a step it is."""
    rows = []
    for (count, batch), row in sorted(steps.items()):
        if count == 1:
            continue
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
    note = noted((row for (count, _), row in steps.items() if count > 1), note)
    return Table(title="Communication in a step, ms", columns=columns, rows=rows, note=note)


def as_reported(steps: dict[tuple[int, int], Row], count: int, batch: int) -> float | None:
    """Seconds a step by the report's formula: what an epoch takes beyond its n-th part on one device."""
    row, single = steps[count, batch], steps.get((1, batch // count))
    if single is None:
        return None
    once, many = (each["step_seconds"][0] * each["epoch_steps"] for each in (single, row))
    return float(many - once / count) / row["epoch_steps"]


def bandwidth(steps: dict[tuple[int, int], Row]) -> Table:
    """What the gradients' bytes make of the communication's seconds."""
    theirs = published_steps()
    rows = []
    for (count, batch), row in sorted(steps.items()):
        if count > 1:
            names = "algorithm_bandwidth", "bus_bandwidth", "alone_bus_bandwidth"
            known = theirs.get((count, batch / count), {}).get("bandwidth_gb_per_second")
            rates = [figure(row[name][0], "{:.3f}", 1e-9) for name in names]
            rates[0] += marked(row)
            share = with_interval(row["share_of_alone"], "{:.2f}")
            rows.append([str(count), str(batch), f"{row['bytes']:,}", *rates, share, figure(known)])
    columns = "devices", "batch in all", "bytes a step", "algorithm", "bus", "bus, alone", "share of alone", "published"
    note = "bus: 2 (n - 1) / n times the bytes, as nccl-tests count; alone: one all-reduce of as many bytes"
    note = noted((row for (count, _), row in steps.items() if count > 1), note)
    return Table(title="Bandwidth, GB/s", columns=columns, rows=rows, note=note)


def accumulation(rows: Sequence[Row]) -> Table:
    """Several batches a step."""
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
    """The same batches on one device and on more."""
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
    """What it takes until the processes can work, once for each number of devices."""
    seconds = {row["devices"]: row["start_up_seconds"] for row in rows if "start_up_seconds" in row}
    found = [[str(count), f"{each:.1f}", f"{count * each:.1f}"] for count, each in seconds.items()]
    columns = "devices", "s", "device-seconds charged"
    return Table(title="Start-up of the processes", columns=columns, rows=found, note="in no figure above")


CONTENDED = 1.1
"""Times that a step without communication may take of one device's with as many rows, where ranks do not contend for
cores or memory."""


def contention(rows: Sequence[Row]) -> dict[int, float]:
    """Of each number of devices, the median over the batches of how many times that is."""
    steps = steps_of(rows)
    times: dict[int, list[float]] = {}
    for _, single, row in pairs(steps, weak=True):
        if row["devices"] > 1:
            times.setdefault(row["devices"], []).append(row["unsynced_seconds"][0] / single["step_seconds"][0])
    return {count: float(np.median(each)) for count, each in times.items()}


def models(rows: Sequence[Row], leave_out: int | None = None) -> dict[int, StepModel]:
    """Of each number of devices whose ranks do not contend, from all batches but one (its rows a device).

    Rows that were disturbed are no ground for it.
    """
    fitted, contended = {}, contention(rows)
    for network in [row for row in rows if "alone" in row and not row.get("disturbed")]:
        count = network["devices"]
        if contended.get(count, 1.0) > CONTENDED:
            continue
        steps = {each // count: row for (on, each), row in quiet_steps(rows).items() if on == count}
        known = {each: row for each, row in steps.items() if each != leave_out}
        if len(known) > 1:
            fitted[count] = StepModel.fitted(
                compute={each: row["unsynced_seconds"][0] for each, row in known.items()},
                exposed={each: row["exposed_seconds"][0] for each, row in known.items()},
                alone={size: seconds[0] for size, seconds in network["alone"]}, size=network["bytes"], ranks=count,
            )  # fmt: skip
    return fitted


def predicted(rows: Sequence[Row]) -> list[tuple[int, int, float, Row]]:
    """Devices, rows a device, the step's seconds as predicted from all other batches, and as measured."""
    return [
        (count, batch // count, model[count].step(batch // count, row["bytes"], count), row)
        for (count, batch), row in sorted(quiet_steps(rows).items())
        if count in (model := models(rows, leave_out=batch // count))
    ]


def quiet_steps(rows: Sequence[Row]) -> dict[tuple[int, int], Row]:
    """Those that nobody disturbed."""
    return {key: row for key, row in steps_of(rows).items() if not row.get("disturbed")}


def prediction(rows: Sequence[Row]) -> Table:
    """The model of the step, each batch left out once."""
    found = [
        [
            str(count), str(batch), f"{1e3 * seconds:.1f}", with_interval(row["step_seconds"], "{:.1f}", 1e3),
            f"{seconds / row['step_seconds'][0] - 1:+.1%}",
        ]
        for count, batch, seconds, row in predicted(rows)
    ]  # fmt: skip
    fitted = [
        f"{count} devices: {1e3 * model.fixed:.2f} ms a step + {1e6 * model.row:.1f} us a row, "
        f"{1e6 * model.latency:.0f} us a message, {model.bandwidth / 1e9:.2f} GB/s, {model.exposed:.0%} of it exposed"
        for count, model in models(rows).items()
    ] + [
        f"{count} devices: none, as their ranks contend: without communication a step takes {times:.2f} times one's"
        for count, times in contention(rows).items() if times > CONTENDED
    ]  # fmt: skip
    columns = "devices", "batch a device", "predicted ms", "measured ms", "error"
    return Table(title="A step by latency and bandwidth, its batch left out of the fit", columns=columns, rows=found,
                 note="; ".join(fitted))  # fmt: skip
