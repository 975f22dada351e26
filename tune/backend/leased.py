"""The base of every process that trains trials, whatever it trains: it holds a lease, gives signs of life, and ends
itself when its lease is over or its driver is gone."""

import dataclasses
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tune.errors import is_disk_error
from tune.machine import excluded_from_gc

with excluded_from_gc():
    import ray.tune

from tune.store.heartbeat import (
    DRIVER,
    GRACE_SECONDS,
    IDLE,
    WORKING,
    DriverWatch,
    HeartbeatThread,
    Process,
    cancel_exit_timer,
    machine_boot_id,
    opened_monotonic,
    read_heartbeat,
    set_exit_timer,
    write_heartbeat,
)

STOP_FILE = "stop"
"""Name of a file; once it is in the study's folder, every trial closes its segment at once."""
LAST_WORDS_SECONDS = 0.2
"""Seconds of the grace kept for a process to end itself with a last sign of life, before the system ends it without
one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialEnvironment:
    """Where and how a study's trials run.

    folder: the study's; device: torch's name for it; threads: of one trial; recipes: by family, a function from a point
    of its space to what is known of a trial's Config there; evaluation_tokens: by family, the size of the fixed
    validation subset; report_every: seconds between two reports; driver: the process without which no trial goes on;
    memory_limit: bytes of one trial, None for no limit of ours; deterministic: whether a GPU takes only kernels that
    repeat bit for bit; listed: whether trials are of a list, trained for their learning curves; processor: what the
    driver measured of the processor where trials share it, as model.nn.precision.use_processor_facts takes it.
    """

    folder: Path
    device: str
    threads: int
    seed: int
    recipes: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]
    evaluation_tokens: Mapping[str, int]
    report_every: float
    driver: Process
    memory_limit: int | None
    deterministic: bool = False
    listed: bool = False
    processor: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class LeasedTrial(ray.tune.Trainable):
    """Trainable that holds one lease after another; each comes as `config["assignment"]`, an Assignment as a
    dictionary.

    _held_until: the lease's end on the study's clock, which is `_ahead` of this machine's monotonic one; _idle_since:
    when the lease had ended and its last report was made, None before that.
    """

    _idle_since: float | None = None

    def take_first_lease(self, config: dict[str, Any], environment: TrialEnvironment) -> float:
        """Take the first lease, and give signs of life from now on; return when it was opened, as `_take`. Once a
        process."""
        self._environment = environment
        self._driver = DriverWatch(environment.driver, environment.folder)
        self._trains, self._turn = False, threading.Lock()
        opened = self._take(config)
        HeartbeatThread(self._live).start()
        return opened

    def _take(self, config: dict[str, Any]) -> float:
        """Take a lease, and give its first sign of life; return when it was opened, by this machine's monotonic
        clock."""
        assignment = config["assignment"]
        opened = opened_monotonic(self._environment.folder, assignment["opened"], **config["opened"])
        ends = opened + assignment["seconds"]
        with self._turn:
            self._assignment, self._idle_since = assignment, None
            self._ahead = assignment["opened"] - opened
            self._held_until = ends + self._ahead
            set_exit_timer(ends + GRACE_SECONDS - time.monotonic())
            with suppress(OSError):
                write_heartbeat(self._environment.folder, assignment["trial"], assignment["lease"], self._now())
        return opened

    def step(self) -> dict[str, Any]:
        """Train until the next report. Returns what `_next_result` does; or `refused`, the error of a disk that took no
        data: the lease is over, and nothing trains on."""
        try:
            return self._next_result()
        except OSError as error:
            if not is_disk_error(error):
                raise
            self._end_others()
            self._note_lease_over()
            return {"refused": [error.errno, error.strerror, error.filename]}

    def _next_result(self) -> dict[str, Any]:
        """Train until the next report. Returns `report`, its row as JSON, of which Ray makes no metrics of its own.
        OSError: a disk takes no data."""
        raise NotImplementedError

    def _note_lease_over(self) -> None:
        """Note that the lease has ended with its last report: from now on the process waits for the driver."""
        with self._turn:
            self._idle_since = self._now()
            cancel_exit_timer()

    def _should_stop(self) -> bool:
        return (self._environment.folder / STOP_FILE).exists() or not self._driver.is_alive()

    def _live(self) -> float:
        """Give a sign of life; return the seconds until this process ends itself: the thread calls again by then.

        It ends itself here if nobody is to hear more of it: its lease is over, or it has none and the driver is silent,
        both after their graces; or the driver is gone, once training is closed and kept.
        """
        with self._turn:
            held, now = self._assignment, self._now()
            left = self._own_end() - now
            over = left <= 0 or (not self._driver.is_alive() and not self._trains)
            ended = None if not over else WORKING if self._trains else IDLE
            try:
                if not self._has_next():
                    write_heartbeat(self._environment.folder, held["trial"], held["lease"], now, ended=ended)
            finally:
                if over:
                    with suppress(Exception):
                        self._end_others()
                    os._exit(1)
        return left

    def _end_others(self) -> None:
        """End the processes that this one began."""

    def _now(self) -> float:
        """Return the time on the study's clock."""
        return self._ahead + time.monotonic()

    def _own_end(self) -> float:
        """Return when this process ends itself if it hears nothing, on the study's clock."""
        if self._idle_since is None:
            return self._held_until + GRACE_SECONDS - LAST_WORDS_SECONDS
        driver = read_heartbeat(self._environment.folder, DRIVER)
        if self._environment.driver.boot != machine_boot_id() and (driver is None or driver.at == driver.said):
            return math.inf  # a silence may be the network's
        return max(self._idle_since, driver.at if driver else -math.inf) + GRACE_SECONDS

    def _has_next(self) -> bool:
        """Return whether the trial of this idle process has a lease elsewhere by now, whose signs of life must not be
        overwritten."""
        last = None if self._idle_since is None else read_heartbeat(self._environment.folder, self._assignment["trial"])
        return last is not None and last.lease > self._assignment["lease"]
