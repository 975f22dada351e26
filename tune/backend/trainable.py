"""The Ray trainable: one process that trains one trial after another, each on a lease, and reports what it used."""

import dataclasses
import json
import math
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray.tune
import torch

from model.config import Config, Data
from model.cost.peak_flops import peak_flops
from model.families import FAMILIES, Family, add
from model.training.memory import MemoryLimit, prepare_process, ran_out
from model.training.time_budget import Segment
from model.training.train import train
from tune.errors import refused
from tune.reports import Report, merge, to_row
from tune.store.heartbeat import (  # fmt: skip
    DRIVER,
    GRACE_SECONDS,
    IDLE,
    WORKING,
    Driver,
    DriverWatch,
    Heart,
    beat,
    end_within,
    last_beat,
    live_on,
    opened_here,
)
from tune.store.heartbeat import boot as this_boot

STOP_FILE = "stop"
"""Where it appears in the study's folder, every trial closes its segment at once."""
LAST_WORDS_SECONDS = 0.2
"""Of the grace, kept for a process to end itself and say so, before the system ends it without a word."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how a study's trials run.

    folder: the study's; device: torch's name for it; threads: of one trial; recipes: by family, what is known of the
    Config of a trial at a point of its space; evaluation_tokens: size of the fixed validation subset, by family;
    report_every: seconds; driver: the process without which no trial goes on; memory_limit: bytes of one trial, None
    for no limit of ours.
    """

    folder: Path
    device: str
    threads: int
    seed: int
    recipes: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]
    evaluation_tokens: Mapping[str, int]
    report_every: float
    driver: Driver
    memory_limit: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Life:
    """A lease as its process has it, on the study's clock: that is so many seconds `ahead` of the monotonic one here.

    idle_since: when the lease had served and its last report was made; None before that.
    """

    trial: str
    lease: int
    ends: float
    ahead: float
    idle_since: float | None = None

    def now(self) -> float:
        """The study's clock."""
        return self.ahead + time.monotonic()


class TrainingTrial(ray.tune.Trainable):
    """Trains what `config["assignment"]` says (an Assignment as a dictionary) to its lease or goal."""

    def setup(
        self, config: dict[str, Any], data: Mapping[str, Data], place: Place, families: Mapping[str, Family]
    ) -> None:
        """Once a process. `data` by family comes out of the object store, shared and read-only; families: a user's."""
        self._data, self._place = data, place
        self._driver = DriverWatch(place.driver, place.folder)
        self._trains, self._turn = False, threading.Lock()
        opened = self._take(config)
        Heart(self._live).start()
        for name, family in families.items():
            add(name, family)
        prepare_process(place.threads)
        self._limit = MemoryLimit(place.memory_limit, torch.device(place.device))
        self._reports = self._train(opened, config["peak_flops"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next lease in the same, warm process."""
        opened = self._take(new_config)
        self._reports.close()
        self._reports = self._train(opened, new_config["peak_flops"])
        return True

    def step(self) -> dict[str, Any]:
        """Train until the next report is due.

        Returns `report`, its row as JSON, of which Ray makes no metrics of its own; or `ran_out`: memory did, and
        smaller parts of a batch do not help; or `refused`: what the disk did not take.
        """
        try:
            report = self._measured(self._train_on())
            if report.ended:
                self._rest()
            return {"report": json.dumps(to_row(report))}
        except Exception as error:
            self._rest()
            if isinstance(error, OSError) and refused(error):
                return {"refused": [error.errno, error.strerror, error.filename]}
            if not ran_out(error):
                raise
            self._limit.lift()
            return {"ran_out": True}

    def _train_on(self) -> Report:
        begun = time.monotonic()
        merged: Report | None = None
        self._trains = True
        try:
            for report in self._reports:
                merged = merge(merged, report)
                if merged.ended or merged.valid or time.monotonic() - begun >= self._place.report_every:
                    break
        finally:
            self._trains = False
        assert merged is not None, "the trial was asked to go on after its end"
        return merged

    def _measured(self, report: Report) -> Report:
        """With what this process knows of its device and of its memory limit."""
        rate = report.tokens_per_second
        return dataclasses.replace(
            report,
            limited_bytes=max(report.memory_bytes, self._limit.counted()),
            peak_flops=self._peak,
            mfu=rate * self._flops_per_token / self._peak if rate else None,
        )

    def cleanup(self) -> None:
        """Nothing is left half-written: checkpoints appear whole or not at all."""
        self._reports.close()

    def _take(self, config: dict[str, Any]) -> float:
        """A lease, with its first sign of life; when it was opened, by this machine's monotonic clock."""
        assignment = self._assignment = config["assignment"]
        opened = opened_here(self._place.folder, assignment["opened"], **config["opened"])
        ends = opened + assignment["seconds"]
        with self._turn:
            ahead = assignment["opened"] - opened
            self._life = Life(trial=assignment["trial"], lease=assignment["lease"], ends=ends + ahead, ahead=ahead)
            end_within(ends + GRACE_SECONDS - time.monotonic())
            with suppress(OSError):
                beat(self._place.folder, self._life.trial, self._life.lease, self._life.now())
        return opened

    def _rest(self) -> None:
        """The lease has served: what comes is the driver's to say."""
        with self._turn:
            self._life = dataclasses.replace(self._life, idle_since=self._life.now())
            live_on()

    def _train(self, opened: float, peak: float | None) -> Generator[Report, None, None]:
        assignment, place = self._assignment, self._place
        family = assignment["family"]
        trained = Config.at(place.recipes[family](assignment["config"]), family=family, seed=place.seed)
        self._flops_per_token = FAMILIES[family].flops_per_token(trained, self._data[family])
        self._peak = peak or peak_flops(trained.precision, place.device)
        self._limit.begin()
        segment = Segment(
            device_seconds=assignment["seconds"] - (time.monotonic() - opened),
            steps=assignment["steps"],
            training_seconds=assignment["training_seconds"],
            micro_batches=assignment["micro_batches"],
            rehearse=place.memory_limit is not None,
            final=assignment["rung"] is None,
            watched=True,
            peak_flops=self._peak,
        )
        return train(
            trained,
            self._data[family],
            segment,
            folder=place.folder / "checkpoints" / assignment["trial"],
            checkpoint=Path(assignment["checkpoint"]) if assignment["checkpoint"] else None,
            evaluation_tokens=place.evaluation_tokens[family],
            device=place.device,
            threads=place.threads,
            stop=self._should_stop,
        )

    def _should_stop(self) -> bool:
        return (self._place.folder / STOP_FILE).exists() or not self._driver.alive()

    def _live(self) -> float:
        """A sign of life; seconds to when the next is due. It is the last where nobody is to hear more of this process:
        its lease is over, or it has none and the driver is silent, both with their graces; or the driver is gone, once
        training is closed and kept.
        """
        with self._turn:
            life, now = self._life, self._life.now()
            left = self._ends(life) - now
            over = left <= 0 or (not self._driver.alive() and not self._trains)
            why = WORKING if self._trains else IDLE
            try:
                if not self._has_next(life):
                    beat(self._place.folder, life.trial, life.lease, now, ended=why if over else None)
            finally:
                if over:
                    os._exit(1)
        return left

    def _ends(self, life: Life) -> float:
        """When this process ends itself if it hears nothing, on the study's clock."""
        if life.idle_since is None:
            return life.ends + GRACE_SECONDS - LAST_WORDS_SECONDS
        if self._place.driver.boot != this_boot():
            return math.inf
        driver = last_beat(self._place.folder, DRIVER)
        return max(life.idle_since, driver.at if driver else -math.inf) + GRACE_SECONDS

    def _has_next(self, life: Life) -> bool:
        """Whether the trial of an idle process has a lease elsewhere by now, whose signs of life are to be read."""
        last = last_beat(self._place.folder, life.trial) if life.idle_since is not None else None
        return last is not None and last.lease > life.lease
