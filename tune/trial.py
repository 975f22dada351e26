"""The Ray trainable: one process that trains one trial after another, each on a lease, and reports what it used."""

import dataclasses
import json
import math
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import ray.tune

from model.config import Config, Data
from model.process import prepare_process
from model.training import Progress, Stretch, train
from tune.heartbeats import beat, started

STOP_FILE = "stop"
"""Where it appears in the study's folder, every trial closes its stretch at once."""
HAND_OVER_SECONDS = 0.5
"""Kept back of each lease for the way of the last report to the driver."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how a study's trials run.

    folder: the study's; device: torch's name for it; threads: of one trial; evaluation_tokens: size of the fixed
    validation subset, by family; report_every: seconds; driver: the process without which no trial goes on.
    """

    folder: Path
    device: str
    threads: int
    seed: int
    evaluation_tokens: Mapping[str, int]
    report_every: float
    driver: int


def boot() -> str:
    """This machine since its start: where it is the same, so is the monotonic clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class TrainingTrial(ray.tune.Trainable):
    """Trains what `config["assignment"]` says (a tune.records.Assignment as a dictionary) to its lease or goal."""

    def setup(self, config: dict[str, Any], data: Mapping[str, Data], place: Place) -> None:
        """Once a process. `data` by family comes out of the object store, shared and read-only."""
        self._data, self._place = data, place
        prepare_process(place.threads)
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next lease in the same, warm process."""
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Train until the next report is due. Returns the report as JSON: the fields of model.training.Progress."""
        begun = time.monotonic()
        merged: Progress | None = None
        for progress in self._progress:
            merged = merge(merged, progress)
            self._beat()
            if merged.ended or merged.valid or time.monotonic() - begun >= self._place.report_every:
                break
        assert merged is not None, "the trial was asked to go on after its end"
        return {"report": json.dumps(as_report(merged))}

    def cleanup(self) -> None:
        """Nothing is left half-written: checkpoints appear whole or not at all."""
        self._progress.close()

    def _begin(self, config: dict[str, Any]) -> None:
        self._assignment = config["assignment"]
        self._progress = self._train(config["boot"], config["opened_monotonic"])

    def _train(self, driver_boot: str, opened: float) -> Generator[Progress, None, None]:
        assignment, place = self._assignment, self._place
        self._opened = opened if boot() == driver_boot else time.monotonic()
        family = assignment["family"]
        stretch = Stretch(
            device_seconds=assignment["seconds"] - (time.monotonic() - self._opened) - HAND_OVER_SECONDS,
            steps=assignment["steps"],
            training_seconds=assignment["training_seconds"],
            final=assignment["rung"] is None,
        )
        return train(
            Config(family=family, seed=place.seed, **assignment["config"]),
            self._data[family],
            stretch,
            folder=place.folder / "checkpoints" / assignment["trial"],
            checkpoint=Path(assignment["checkpoint"]) if assignment["checkpoint"] else None,
            evaluation_tokens=place.evaluation_tokens[family],
            device=place.device,
            threads=place.threads,
            stop=self._should_stop,
        )

    def _should_stop(self) -> bool:
        return (self._place.folder / STOP_FILE).exists() or started(self._place.driver) is None

    def _beat(self) -> None:
        assignment = self._assignment
        at = assignment["opened"] + time.monotonic() - self._opened
        beat(self._place.folder, assignment["trial"], assignment["lease"], at)


def merge(before: Progress | None, after: Progress) -> Progress:
    """Two progresses in a row as one: seconds add up, measurements stay, all else is the later one's."""
    if before is None:
        return after
    seconds = {
        what: before.seconds.get(what, 0.0) + after.seconds.get(what, 0.0) for what in before.seconds | after.seconds
    }
    return dataclasses.replace(
        after, seconds=seconds, valid=after.valid or before.valid, test=after.test or before.test
    )


def as_report(progress: Progress) -> dict[str, Any]:
    """A progress as plain values; what is not finite becomes None, as JSON and SQLite want it."""
    return {name: _plain(value) for name, value in dataclasses.asdict(progress).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
