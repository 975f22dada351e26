"""One configuration in each precision: curves, final quality, seconds, memory and utilisation."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from model.config import Config
from model.nn.precision import PRECISIONS, native
from tune.backend.worker_group import Place, Said
from tune.devices import Devices
from tune.errors import UserError
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.parallel_timing import Interval, mean_interval
from tune.experiments.tables import figure, published, signed, with_interval
from tune.experiments.whole_training import Prices, at_most, train_whole

BASE = "fp32"
MIB = 2**20
SHARES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
SAVED_SECONDS, GAINED_ACCURACY = 14.0, 0.006
"""By mixed precision, in the published report on RoBERTa-base, which has no figure for its memory."""


def report_seconds() -> float:
    """Of all stages of that report."""
    return math.fsum(row["seconds"] for row in published("stages"))


def by_precision(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows that were measured, one a seed."""
    found: dict[str, list[Row]] = {}
    for precision in PRECISIONS:
        if of_it := [row for row in rows if "valid_loss" in row and row["config"]["precision"] == precision]:
            found[precision] = of_it
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    """All that there are rows for."""
    found = by_precision(rows)
    made = [learned(found), took(found), against(found), curves(found), skipped(rows)]
    return [table for table in made if table.rows]


def spread(rows: Sequence[Row], name: str, form: str, factor: float = 1.0) -> str:
    """The mean over the seeds, with its interval where there are several."""
    values = [row[name] for row in rows]
    whole = mean_interval(values)
    return figure(statistics.fmean(values), form, factor) if whole is None else with_interval(whole, form, factor)


def learned(found: dict[str, list[Row]]) -> Table:
    """The final quality of each precision."""
    cells = [
        [
            precision, str(len(rows)), f"{rows[0]['steps']:,}", spread(rows, "train_loss", "{:.4f}"),
            spread(rows, "valid_loss", "{:.4f}"), spread(rows, "accuracy", "{:.2f}", 100),
            spread(rows, "bits_per_character", "{:.4f}"),
        ]
        for precision, rows in found.items()
    ]  # fmt: skip
    columns = "", "seeds", "steps", "training loss", "validation loss", "accuracy, %", "bits a character"
    note = "Nats a token, without dropout, on fixed samples of both splits; 95 % intervals over seeds"
    return Table(title="What each precision learned", columns=columns, rows=cells, note=note)


def took(found: dict[str, list[Row]]) -> Table:
    """What each precision cost."""
    cells = [
        [
            precision, spread(rows, "training_seconds", "{:.1f}"), spread(rows, "step_seconds", "{:.1f}", 1e3),
            spread(rows, "tokens_per_second", "{:,.0f}"), spread(rows, "device_seconds", "{:.1f}"),
            spread(rows, "memory_bytes", "{:,.0f}", 1 / MIB), spread(rows, "mfu", "{:.1f}", 100),
        ]
        for precision, rows in found.items()
    ]  # fmt: skip
    columns = "", "s in steps", "ms a step", "tokens a second", "device-seconds", "memory, MiB", "MFU, %"
    note = "Memory: tensors alive at once. MFU: of what products of matrices reach here in that precision."
    return Table(title="What each precision took", columns=columns, rows=cells, note=note)


def paired(found: dict[str, list[Row]], precision: str, of: Callable[[Row, Row], float]) -> list[float]:
    """A figure of each seed that both this precision and fp32 were trained with: of(fp32's row, its row)."""
    bases = {row["config"]["seed"]: row for row in found.get(BASE, ())}
    return [of(bases[row["config"]["seed"]], row) for row in found[precision] if row["config"]["seed"] in bases]


def faster(base: Row, row: Row) -> float:
    """Seconds saved of fp32's, as a share."""
    return 1 - row["training_seconds"] / base["training_seconds"]


def added(name: str) -> Callable[[Row, Row], float]:
    return lambda base, row: row[name] - base[name]


def lighter(base: Row, row: Row) -> float:
    """Memory saved of fp32's, as a share."""
    return 1 - row["memory_bytes"] / base["memory_bytes"]


AGAINST: dict[str, tuple[Callable[[Row, Row], float], str, float]] = {
    "s saved, %": (faster, "{:+.1f}", 100), "validation loss": (added("valid_loss"), "{:+.4f}", 1),
    "points of accuracy": (added("accuracy"), "{:+.2f}", 100), "memory saved, %": (lighter, "{:+.1f}", 100),
}  # fmt: skip


def against(found: dict[str, list[Row]]) -> Table:
    """Each precision against fp32 with the same seed, and the report's words."""
    cells = []
    for precision in found:
        pairs = {name: paired(found, precision, of) for name, (of, _, _) in AGAINST.items()}
        if precision != BASE and all(pairs.values()):
            cells.append([precision, *(difference(pairs[name], *AGAINST[name][1:]) for name in AGAINST)])
    if cells:
        saved = 100 * SAVED_SECONDS / report_seconds()
        cells.append(["published: mixed", f"{saved:+.1f}", "-", f"{100 * GAINED_ACCURACY:+.2f}", "less"])
    note = "Paired by seed, with 95 % intervals over seeds. Published: mixed precision, 14 s of its stages' 240"
    return Table(title=f"Against {BASE}", columns=("", *AGAINST), rows=cells, note=note)


def difference(values: list[float], form: str, factor: float) -> str:
    """With its interval over the seeds where there are several."""
    whole = mean_interval(values)
    return figure(statistics.fmean(values), form, factor) if whole is None else signed(whole, form, factor)


def curves(found: dict[str, list[Row]]) -> Table:
    """Losses while training, at shares of the steps."""
    cells = []
    for precision, rows in found.items():
        steps, _, _, losses, _ = zip(*rows[0]["curve"], strict=True)
        cells.append([precision, *(f"{loss:.3f}" for loss in np.interp(np.multiply(SHARES, steps[-1]), steps, losses))])
    columns = "", *(f"{share:.0%}" for share in SHARES)
    return Table(title="Loss while training, at shares of the steps, of the first seed", columns=columns, rows=cells)


def skipped(rows: Sequence[Row]) -> Table:
    """What has no figures, and why."""
    cells = [[row["config"]["precision"], row["skipped"]] for row in rows if "skipped" in row]
    return Table(title="Not measured", columns=("", "because"), rows=cells)


def conclusions(rows: Sequence[Row]) -> list[str]:
    """What held and what did not."""
    found = by_precision(rows)
    return [said for precision in found if precision != BASE for said in _against(found, precision)]


def _against(found: dict[str, list[Row]], precision: str) -> Iterator[str]:
    saved, losses, points, memory = (paired(found, precision, of) for of, _, _ in AGAINST.values())
    if not losses:
        return
    seconds, less = 100 * statistics.fmean(saved), 100 * statistics.fmean(memory)
    yield (f"{precision} takes {abs(seconds):.0f} % {'less' if seconds > 0 else 'more'} time than {BASE} (the report: "
           f"{100 * SAVED_SECONDS / report_seconds():.0f} % less) and {abs(less):.0f} % "
           f"{'less' if less > 0 else 'more'} memory (the report: less).")  # fmt: skip
    yield (f"Its validation loss is {statistics.fmean(losses):+.4f} from {BASE}'s, "
           f"{verdict(mean_interval(losses), [row['valid_loss'] for row in found[BASE]])}; its accuracy "
           f"{100 * statistics.fmean(points):+.2f} points (the report: {100 * GAINED_ACCURACY:+.1f}).")  # fmt: skip


def verdict(whole: Interval | None, bases: Sequence[float]) -> str:
    """Whether a difference is more than seeds make."""
    if whole is None:
        return "of one seed, which tells no difference from noise: give --seeds 5"
    told = "which these seeds do not tell from noise" if whole[1] <= 0 <= whole[2] else "which is more than noise"
    between, deviation = f"{whole[1]:+.4f} to {whole[2]:+.4f}", statistics.stdev(bases)
    return f"{told} (95 % interval {between}; {BASE}'s seeds have a standard deviation of {deviation:.4f})"


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Train in the precision of the configuration. UserError: the device does not have it."""
    precision = place.config.precision
    if precision not in native(place.device):
        raise UserError(lacking(precision, place.device))
    yield from train_whole(place, precision, steps=asked["steps"])


def lacking(precision: str, device: torch.device) -> str:
    """Why a precision cannot be measured here."""
    if precision == "tf32" and device.type == "cpu":
        return "tf32 is a mode of a GPU's products: on a CPU it would be fp32"
    return f"this {device.type.upper()} has no fast {precision}: it has {', '.join(native(device))}"


FULL_STEPS = 2000
"""Of each training at a scale of 1: as in nanoGPT's recipe for a CPU."""
LEAST_STEPS = 20
REFUSAL_SECONDS = 1.0
"""What it takes to say that a device lacks a precision."""


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Each precision once, then again with each further seed; those that the device lacks say why, once."""
    steps, prices, found = max(LEAST_STEPS, round(settings.scale * FULL_STEPS)), Prices(devices), []
    for seed in range(settings.seed, settings.seed + settings.seeds):
        for precision in PRECISIONS:
            config: dict[str, Any] = {"precision": precision, "seed": seed}
            if precision in devices.precisions:
                least = prices.whole(Config(family=settings.family, **{**settings.fix, **config}), steps)
            elif seed == settings.seed:
                least = REFUSAL_SECONDS
            else:
                continue
            found.append(Point(devices=1, asked={"steps": steps}, config=config, seconds=at_most(least), least=least))
    return found


def line(row: Row) -> str:
    """What came out, in short."""
    return (
        f"validation loss {row['valid_loss']:.4f}, accuracy {row['accuracy']:.2%}, {row['training_seconds']:.1f} s in "
        f"steps, {row['memory_bytes'] / 2**20:,.0f} MiB, MFU {row['mfu']:.0%}"
    )


PRECISION = Experiment(
    name="precision", about="fp32, tf32, bf16 and fp16: curves, final quality, seconds, memory, utilisation",
    points=points, work=work, line=line, tables=tables, conclusions=conclusions, sets=("precision",),
)  # fmt: skip
