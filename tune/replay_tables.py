"""Recorded learning curves: the JSON-lines tables and a study's own journal."""

import json
import math
import sqlite3
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

KEYS = ("config", "parameters", "seconds_per_report", "valid_loss")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One configuration trained to its end: losses in nats, one a report (NaN: not finite), and what a report cost."""

    config: dict[str, Any]
    parameters: int
    seconds_per_report: float
    losses: tuple[float, ...]
    steps_per_report: float = 1.0
    memory_bytes: float | None = None

    @property
    def seconds(self) -> float:
        """Device-seconds to its end."""
        return self.seconds_per_report * len(self.losses)

    @cached_property
    def sound(self) -> int:
        """Reports before the first loss that is not finite."""
        return next((count for count, loss in enumerate(self.losses) if not math.isfinite(loss)), len(self.losses))

    @cached_property
    def best(self) -> tuple[float, ...]:
        """The lowest loss up to each report (inf before the first finite one)."""
        low, best = math.inf, []
        for loss in self.losses:
            low = min(low, loss) if math.isfinite(loss) else low
            best.append(low)
        return tuple(best)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Configurations that a search may choose from."""

    name: str
    curves: tuple[Curve, ...]

    @property
    def exhaustive(self) -> float:
        """Device-seconds of all configurations to their ends."""
        return sum(curve.seconds for curve in self.curves)

    @property
    def best_loss(self) -> float:
        """The lowest loss of any report."""
        return min(curve.best[-1] for curve in self.curves)


def load(path: Path) -> list[Table]:
    """The tables in a file: one of a JSON-lines file, one a family of a journal. ValueError where it is neither."""
    try:
        with path.open("rb") as file:
            journal = file.read(16) == b"SQLite format 3\0"
        tables = from_journal(path) if journal else [from_lines(path)]
    except OSError as error:
        raise ValueError(
            f"table: '{path}' cannot be read ({error.strerror}); name a .jsonl table or a study's journal.db"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"table: '{path}' is not UTF-8 text; name a .jsonl table or a study's journal.db") from error
    for table in tables:
        if not table.curves or not math.isfinite(table.best_loss):
            raise ValueError(f"table: '{path}' has no curve with a finite loss; replay needs at least one")
    return tables


def from_lines(path: Path) -> Table:
    """One JSON object a line, each a configuration."""
    curves = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            curves.append(_curve(line, f"table: '{path}' line {number}"))
    if not curves:
        raise ValueError(f"table: '{path}' is empty; one JSON object a line is needed, with {', '.join(KEYS)}")
    return Table(name=path.stem, curves=tuple(curves))


def _curve(line: str, where: str) -> Curve:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where} is not JSON ({error.msg}); write one object a line with {', '.join(KEYS)}"
        ) from error
    missing = [key for key in KEYS if not isinstance(row, dict) or key not in row]
    if missing:
        raise ValueError(f"{where} has no {missing[0]}; each line needs {', '.join(KEYS)}")
    try:
        losses = tuple(math.nan if loss is None else float(loss) for loss in row["valid_loss"])
        seconds, parameters, steps = (
            float(row["seconds_per_report"]),
            int(row["parameters"]),
            float(row.get("steps_per_report", 1.0)),
        )
        memory = None if row.get("memory_mb") is None else float(row["memory_mb"]) * 1e6
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where} holds something that is not a number ({error})") from error
    if not losses or not 0 < seconds < math.inf or not isinstance(row["config"], dict):
        raise ValueError(f"{where} needs a config object, at least one loss and seconds_per_report above 0")
    return Curve(
        config=row["config"],
        parameters=parameters,
        seconds_per_report=seconds,
        losses=losses,
        steps_per_report=steps,
        memory_bytes=memory,
    )


def from_journal(path: Path) -> list[Table]:
    """A study's trials as curves, one table a family: losses interpolated between reports, seconds for steps."""
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            trials = connection.execute(
                "SELECT trial, family, config, parameters FROM trials ORDER BY trial"
            ).fetchall()
            reports = connection.execute(
                "SELECT trial, training_seconds, valid_loss, memory_bytes FROM reports "
                "WHERE valid_loss IS NOT NULL AND training_seconds > 0 ORDER BY report"
            ).fetchall()
    except sqlite3.Error as error:
        raise ValueError(
            f"table: '{path}' is not a study's journal ({error}); name the journal.db of a study's folder"
        ) from error
    points: dict[str, list[tuple[float, float]]] = {}
    memory: dict[str, float] = {}
    for trial, seconds, loss, used in reports:
        if not points.get(trial) or seconds > points[trial][-1][0]:
            points.setdefault(trial, []).append((seconds, loss))
        memory[trial] = max(memory.get(trial, 0.0), used or 0.0)
    families: dict[str, list[Curve]] = {}
    for trial, family, config, parameters in trials:
        if trial in points:
            step = min(seconds for (seconds, _) in points[trial])
            families.setdefault(family, []).append(
                Curve(
                    config=json.loads(config),
                    parameters=parameters or 0,
                    seconds_per_report=step,
                    losses=_even(points[trial], step),
                    steps_per_report=step,
                    memory_bytes=memory[trial] or None,
                )
            )
    if not families:
        raise ValueError(
            f"table: '{path}' has no trial with a validation loss; replay needs a study that has measured some"
        )
    return [
        Table(name=f"{path.parent.name}-{family}", curves=tuple(curves)) for family, curves in sorted(families.items())
    ]


def _even(points: list[tuple[float, float]], step: float) -> tuple[float, ...]:
    """Losses at step, 2 step, ... up to the last point, interpolated."""
    losses, place = [], 0
    for count in range(1, round(points[-1][0] / step) + 1):
        at = count * step
        while place < len(points) - 1 and points[place][0] < at - 1e-9:
            place += 1
        (after, high), (before, low) = points[place], points[max(place - 1, 0)]
        share = 1.0 if after <= before else min(1.0, max(0.0, (at - before) / (after - before)))
        losses.append(low + (high - low) * share)
    return tuple(losses)
