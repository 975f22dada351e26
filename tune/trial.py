"""The Ray trainable: one process that trains one trial after another, each on a lease, and reports what it used."""

import dataclasses
import json
import math
import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import ray.tune
import torch

from model.config import Config, Data
from model.families import FAMILIES, add
from model.family import Family
from model.memory import MemoryLimit, ran_out
from model.peak import peak_flops
from model.process import prepare_process
from model.training import Progress, Stretch, train
from tune.disk import refused
from tune.heartbeats import DRIVER, Driver, DriverWatch, Heart, beat, last_beat
from tune.heartbeats import boot as this_boot

STOP_FILE = "stop"
"""Where it appears in the study's folder, every trial closes its stretch at once."""
HAND_OVER_SECONDS = 0.5
"""Kept back of each lease for the way of the last report to the driver."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how a study's trials run.

    folder: the study's; device: torch's name for it; threads: of one trial; evaluation_tokens: size of the fixed
    validation subset, by family; report_every: seconds; driver: the process without which no trial goes on;
    memory_limit: bytes of one trial, None for no limit of ours.
    """

    folder: Path
    device: str
    threads: int
    seed: int
    evaluation_tokens: Mapping[str, int]
    report_every: float
    driver: Driver
    memory_limit: int | None


class TrainingTrial(ray.tune.Trainable):
    """Trains what `config["assignment"]` says (a tune.records.Assignment as a dictionary) to its lease or goal."""

    def setup(
        self, config: dict[str, Any], data: Mapping[str, Data], place: Place, families: Mapping[str, Family]
    ) -> None:
        """Once a process. `data` by family comes out of the object store, shared and read-only; families: a user's."""
        self._data, self._place = data, place
        for name, family in families.items():
            add(name, family)
        prepare_process(place.threads)
        self._driver = DriverWatch(place.driver, place.folder)
        self._trains = False
        self._limit = MemoryLimit(place.memory_limit, torch.device(place.device))
        self._begin(config)
        Heart(self._live).start()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next lease in the same, warm process."""
        self._progress.close()
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Train until the next report is due.

        Returns `report` as JSON: the fields of model.training.Progress; `limited_bytes`, what counts against the memory
        limit; `flops_per_token` of training and `peak_flops` of the device. Or no more than `ended` where memory ran
        out and smaller parts of a batch do not help. Or it returns `refused`: what the disk did not take.
        """
        try:
            report = as_report(self._train_on())
            report["limited_bytes"] = max(report["memory_bytes"], self._limit.counted())
            return {"report": json.dumps(report | self._arithmetic)}
        except Exception as error:
            if isinstance(error, OSError) and refused(error):
                return {"refused": [error.errno, error.strerror, error.filename]}
            if not ran_out(error):
                raise
            self._limit.lift()
            return {"report": json.dumps({"ended": "memory"})}

    def _train_on(self) -> Progress:
        begun = time.monotonic()
        merged: Progress | None = None
        self._trains = True
        try:
            for progress in self._progress:
                merged = merge(merged, progress)
                if merged.ended or merged.valid or time.monotonic() - begun >= self._place.report_every:
                    break
        finally:
            self._trains = False
        assert merged is not None, "the trial was asked to go on after its end"
        return merged

    def cleanup(self) -> None:
        """Nothing is left half-written: checkpoints appear whole or not at all."""
        self._progress.close()

    def _begin(self, config: dict[str, Any]) -> None:
        self._assignment = config["assignment"]
        opened = opened_here(self._place.folder, self._assignment["opened"], **config["opened"])
        self._progress = self._train(opened, config["peak_flops"])

    def _train(self, opened: float, peak: float | None) -> Generator[Progress, None, None]:
        assignment, place = self._assignment, self._place
        self._life = assignment["trial"], assignment["lease"], assignment["opened"] - opened
        family = assignment["family"]
        trained = Config.at(assignment["config"], family=family, seed=place.seed)
        self._arithmetic = {
            "flops_per_token": FAMILIES[family].flops_per_token(trained, self._data[family]),
            "peak_flops": peak or peak_flops(trained.precision, place.device),
        }
        self._limit.begin()
        stretch = Stretch(
            device_seconds=assignment["seconds"] - (time.monotonic() - opened) - HAND_OVER_SECONDS,
            steps=assignment["steps"],
            training_seconds=assignment["training_seconds"],
            micro_batches=assignment["micro_batches"],
            rehearse=place.memory_limit is not None,
            final=assignment["rung"] is None,
            peak_flops=self._arithmetic["peak_flops"],
        )
        return train(
            trained,
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
        return (self._place.folder / STOP_FILE).exists() or not self._driver.alive()

    def _live(self) -> None:
        """A sign of life. Where the driver is gone it is the last, once the process's training is closed and kept."""
        trial, lease, clock = self._life
        try:
            beat(self._place.folder, trial, lease, clock + time.monotonic())
        finally:
            if not self._driver.alive() and not self._trains:
                os._exit(1)


def opened_here(folder: Path, opened: float, *, boot: str, monotonic: float) -> float:
    """When a lease was opened, on this machine's monotonic clock.

    Of another machine's clocks none is ours: there the driver's last sign of life tells the study's own time.
    """
    if boot == this_boot():
        return monotonic
    driver = last_beat(folder, DRIVER)
    return time.monotonic() - max(0.0, driver["at"] - opened if driver else 0.0)


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
