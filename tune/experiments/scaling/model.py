"""The model of the step, fitted to the rows of the scaling experiment: what it predicts, and of how many devices."""

from collections.abc import Sequence

from model.experiments.step_model import StepModel
from tune.experiments.experiment import Row, Table
from tune.experiments.scaling.tables import steps_of
from tune.experiments.tables import with_interval

PAPER = (4, 8, 16, 64, 256, 1024)
"""Devices for which the model of the step is asked."""


def models(rows: Sequence[Row], leave_out: int | None = None) -> dict[int, StepModel]:
    """Of each number of devices, from all batches but one (its rows a device)."""
    fitted = {}
    for network in [row for row in rows if "alone" in row]:
        count = network["devices"]
        steps = {each // count: row for (on, each), row in steps_of(rows).items() if on == count}
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
        for (count, batch), row in sorted(steps_of(rows).items())
        if count in (model := models(rows, leave_out=batch // count))
    ]


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
    ]
    columns = "devices", "batch a device", "predicted ms", "measured ms", "error"
    return Table(title="A step by latency and bandwidth, its batch left out of the fit", columns=columns, rows=found,
                 note="; ".join(fitted))  # fmt: skip


def on_paper(rows: Sequence[Row]) -> Table:
    """What the model of the most devices says of more."""
    fitted = models(rows)
    if not fitted:
        return Table(title="", columns=(), rows=())
    count, model = max(fitted.items())
    size = next(row["bytes"] for row in rows if row["devices"] == count and "alone" in row)
    batch = max(each // on for on, each in steps_of(rows) if on == count)
    found = []
    for devices in [each for each in PAPER if each > count]:
        seconds, alone = model.step(batch, size, devices), model.step(batch, 0, 1)
        share = alone / seconds
        found.append([str(devices), f"{1e3 * seconds:.1f}", f"{devices * share:,.1f}", f"{share:.0%}"])
    note = f"predictions, not measurements: {batch} rows a device, links as between the {count} here"
    columns = "devices", "ms a step", "speed-up", "efficiency"
    return Table(title="PREDICTED: more devices, the batch a device fixed", columns=columns, rows=found, note=note)
