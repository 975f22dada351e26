"""One configuration in each precision: curves, final quality, seconds, memory and utilisation."""

import math
from collections.abc import Callable, Sequence

from model.nn.precision import PRECISIONS
from tune.devices import Devices
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.lists import training_points
from tune.experiments.tables import MIB, by_seed, grouped, over_seeds, signed, step_ratios
from tune.published import published

BASE = "fp32"
Pairs = Sequence[tuple[Row, Row]]
"""The row of a precision and fp32's, for each seed that both were trained with."""
SAVED_SECONDS, GAINED_ACCURACY = 14.0, 0.006
"""What mixed precision saved and gained in the published report on RoBERTa-base, which has no figure for its memory."""


def report_seconds() -> float:
    """Return the seconds of all stages of that report."""
    return math.fsum(row["seconds"] for row in published("stages"))


def by_precision(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the trainings of each precision, one a seed."""
    found = grouped(rows, lambda row: row["config"]["precision"])
    return {precision: found[precision] for precision in PRECISIONS if precision in found}


def tables(rows: Sequence[Row]) -> list[Table]:
    """Return the tables of each precision's rows."""
    found = by_precision(rows)
    return [quality_table(found), cost_table(found), against(found)]


def figure_over_seeds(rows: Sequence[Row], name: str, form: str, factor: float = 1.0) -> str:
    """Return a figure of the rows, one a seed, as text."""
    return over_seeds((row[name] for row in rows), form, factor)


def quality_table(found: dict[str, list[Row]]) -> Table:
    """Return the table of the final quality of each precision."""
    cells = [
        [
            precision, str(len(rows)), f"{rows[0]['steps']:,}", figure_over_seeds(rows, "trained_loss", "{:.4f}"),
            figure_over_seeds(rows, "valid_loss", "{:.4f}"), figure_over_seeds(rows, "accuracy", "{:.2f}", 100),
            figure_over_seeds(rows, "bits_per_character", "{:.4f}"),
        ]
        for precision, rows in found.items()
    ]  # fmt: skip
    columns = "", "seeds", "steps", "training loss", "validation loss", "accuracy, %", "bits a character"
    note = "Nats a token, without dropout, on fixed samples of both splits; 95 % intervals over seeds"
    return Table(title="What each precision learned", columns=columns, rows=cells, note=note)


def cost_table(found: dict[str, list[Row]]) -> Table:
    """Return the table of what each precision cost."""
    by_step = counted([row for rows in found.values() for row in rows])
    cells = [
        [
            precision, figure_over_seeds(rows, "training_seconds", "{:.1f}"),
            figure_over_seeds(rows, "step_seconds", "{:.1f}", 1e3),
            over_seeds((row["tokens"] / row["training_seconds"] for row in rows), "{:,.0f}"),
            figure_over_seeds(rows, "device_seconds", "{:.1f}"),
            over_seeds((memory(row, by_step) for row in rows), "{:,.0f}", 1 / MIB),
            figure_over_seeds(rows, "mfu", "{:.1f}", 100),
        ]
        for precision, rows in found.items()
    ]  # fmt: skip
    columns = "", "s in steps", "ms a step", "tokens a second", "device-seconds", "memory, MiB", "MFU, %"
    note = f"Memory: {MEMORY}. MFU: of what products of matrices reach here in that precision."
    return Table(title="What each precision took", columns=columns, rows=cells, note=note)


MEMORY = "of text what a step held at most, else what the process took more, less where it had worked before"


def counted(rows: Sequence[Row]) -> bool:
    """Return whether the bytes that a step held are known of all rows: only then are they used."""
    return all(row.get("step_bytes") for row in rows)


def memory(row: Row, by_step: bool) -> float:
    """Return the bytes of a step, or of the process."""
    return max(1.0, float(row["step_bytes" if by_step else "memory_bytes"]))


def faster(pairs: Pairs) -> list[float]:
    """Return the shares of fp32's step seconds that are saved: by steps that were timed in turns with a plain one, as a
    busy machine slows both alike; where there are none, by whole trainings."""
    ratios = step_ratios(pairs) or [row["training_seconds"] / base["training_seconds"] for row, base in pairs]
    return [1 - ratio for ratio in ratios]


def added(name: str) -> Callable[[Pairs], list[float]]:
    return lambda pairs: [row[name] - base[name] for row, base in pairs]


def lighter(pairs: Pairs) -> list[float]:
    """Return the shares of fp32's memory that are saved."""
    by_step = counted([row for pair in pairs for row in pair])
    return [1 - memory(row, by_step) / memory(base, by_step) for row, base in pairs]


AGAINST: dict[str, tuple[Callable[[Pairs], list[float]], str, float]] = {
    "s saved, %": (faster, "{:+.1f}", 100), "validation loss": (added("valid_loss"), "{:+.4f}", 1),
    "points of accuracy": (added("accuracy"), "{:+.2f}", 100), "memory saved, %": (lighter, "{:+.1f}", 100),
}  # fmt: skip


def against(found: dict[str, list[Row]]) -> Table:
    """Return the table of each precision against fp32 with the same seed, and of what the report says."""
    cells = []
    for precision, rows in found.items():
        pairs = by_seed(rows, found.get(BASE, ()))
        if precision != BASE and pairs:
            told = (over_seeds(of(pairs), form, factor, signed) for of, form, factor in AGAINST.values())
            cells.append([precision, *told])
    if cells:
        saved = 100 * SAVED_SECONDS / report_seconds()
        cells.append(["published: mixed", f"{saved:+.1f}", "-", f"{100 * GAINED_ACCURACY:+.2f}", "less"])
    note = (
        "Paired by seed, with 95 % intervals over seeds; seconds of a step, in turns with a plain one's if so timed. "
        "Published: mixed precision, 14 s of its stages' 240"
    )
    return Table(title=f"Against {BASE}", columns=("", *AGAINST), rows=cells, note=note)


FULL_STEPS = 2000
"""Steps of each training at a scale of 1: as in nanoGPT's recipe for a CPU."""
LEAST_STEPS = 20


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Return a point for each precision that the device has, with each seed."""
    steps = max(LEAST_STEPS, round(settings.scale * FULL_STEPS))
    return training_points(
        devices, settings, [({"precision": each}, steps) for each in PRECISIONS if each in devices.precisions]
    )


PRECISION = Experiment(
    name="precision", about="fp32, tf32, bf16 and fp16: curves, final quality, seconds, memory, utilisation",
    points=points, tables=tables, sets=("precision",),
)  # fmt: skip
