"""The kernels, measured: as Ray tasks, in this process, or in a study that keeps the rows in a journal and on
TensorBoard, its device-seconds in a ledger.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

from kernels.benchmark import Row
from kernels.command import in_process, report
from kernels.kernel import THREADS
from kernels.registry import KERNELS, asked, check_implementations
from kernels.settings import Settings
from kernels.tasks import (
    ENDING_SECONDS,
    Cluster,
    OverdueError,
    cluster,
    in_tasks,
    peaks_of,
    prepare_environment,
    rows_of,
    takes_gpu,
)
from kernels.timing import TRIES
from tune.errors import UserError
from tune.store.accounting import Ledger
from tune.store.heartbeat import GRACE_SECONDS
from tune.store.journal import Journal

TASK_SECONDS, BUILD_SECONDS, ROW_SECONDS, PEAKS_SECONDS = 4.0, 1.0, 0.5, 15.0
"""Expected on a quiet machine: of a task; of an implementation that is built and held against the reference; of one
that is timed at a size; of the machine's own peaks."""
COLUMNS = (
    *("kernel", "implementation", "size", "dtype", "device", "threads", "status", "compile_milliseconds", "bytes"),
    *("flops", "median_seconds", "end_to_end_seconds", "spread", "unit", "per_second", "share_of_peak", "unstable"),
)
"""Of a row that go into the journal's table `kernels` as they are."""
SCALARS = ("median_seconds", "end_to_end_seconds", "per_second", "gigabytes_per_second", "share_of_peak")
"""Of a row on TensorBoard."""


def run(settings: Settings) -> int:
    """Measure, print, and keep the rows where there is a budget; the exit code. UserError: a setting cannot serve."""
    check_implementations(settings)
    if settings.local:
        return report(settings, in_process(settings))
    prepare_environment()
    import ray

    return report(settings, in_tasks(ray, settings) if settings.budget is None else in_study(ray, settings))


def expected(settings: Settings, name: str) -> float:
    """Seconds of a kernel's task."""
    implementations, sizes = len(asked(settings, name)), len(settings.sizes) if KERNELS[name].sized else 1
    return TASK_SECONDS + implementations * (BUILD_SECONDS + sizes * ROW_SECONDS)


def devices_of(up: Cluster, *, on_gpu: bool) -> int:
    """How many devices a task is charged for: its GPU, and where there is none all cores."""
    return int(on_gpu) if up.gpus else THREADS


def in_study(ray: ModuleType, settings: Settings) -> Iterator[list[Row]]:
    """The rows of each kernel that the budget pays for, kept before they are shown.

    UserError, with nothing written: not even the first is paid for.
    """
    from tune.display import tensorboard

    assert settings.budget is not None
    began = time.monotonic()
    with cluster(ray) as up:
        check_first(settings, up, GRACE_SECONDS)
        settings.out.mkdir(parents=True)
        study = Study(
            settings=settings, up=up, clock=lambda: time.monotonic() - began,
            ledger=Ledger(cap=settings.budget, clock=lambda: time.monotonic() - began),
            journal=Journal(settings.out, new=True), event_file=tensorboard,
        )  # fmt: skip
        try:
            yield from study.rows()
        finally:
            study.close()


def check_first(settings: Settings, up: Cluster, grace: float) -> None:
    """UserError: the budget does not pay for the first kernel. grace: the ledger's, in seconds."""
    first, budget = settings.kernels[0], settings.budget or 0.0
    seconds = expected(settings, first) + 2 * ENDING_SECONDS + grace
    least = devices_of(up, on_gpu=takes_gpu(settings, first)) * seconds + 1
    if budget < least:
        raise UserError(
            f"--budget: '{budget:g}s' does not pay for {first}: write at least {math.ceil(least)}s, "
            "or take fewer --implementations or --sizes"
        )


@dataclass(kw_only=True)
class Study:
    """A study that is written; ledger and journal are on one clock."""

    settings: Settings
    up: Cluster
    clock: Callable[[], float]
    ledger: Ledger
    journal: Journal
    event_file: ModuleType
    _slots: int = 0
    _files: dict[str, Any] = field(default_factory=dict)

    def rows(self) -> Iterator[list[Row]]:
        """Of each kernel, as long as the budget pays for the next."""
        names = self.settings.kernels
        self.journal.note(
            cap_seconds=self.settings.budget, created=time.time(), kernels=names, sizes=self.settings.sizes,
            seed=self.settings.seed,
        )  # fmt: skip
        self._note_peaks(expected(self.settings, names[0]))
        for place, name in enumerate(names):
            on_gpu = takes_gpu(self.settings, name)
            lease = self._lease(expected(self.settings, name), on_gpu=on_gpu)
            if lease is None:
                self._say_not_run(names[place:])
                return
            try:
                with self._charged(name, lease, on_gpu=on_gpu) as found:
                    found += rows_of(self.up, self.settings, name, lease)
            except OverdueError:
                self._say("end", f"{name}: not done after the {lease:.0f} s of its lease")
                continue
            self._draw(found)
            yield found

    def close(self) -> None:
        """Let go of the journal."""
        with self.journal:
            self.journal.note(ended={"spent": self.ledger.spent})

    def _note_peaks(self, beside: float) -> None:
        """The machine's peaks, where the budget pays for them beside the first kernel."""
        lease = self._lease(PEAKS_SECONDS, beside=beside, on_gpu=True)
        if lease is None:
            return
        try:
            with self._charged("peaks", lease, on_gpu=True):
                found = peaks_of(self.up, lease)
        except OverdueError:
            self._say("end", f"peaks: not known after the {lease:.0f} s of their lease")
            return
        if found is None:
            self._say("end", "peaks: others took the machine, so none are known")
        else:
            self.journal.note(peaks={device: asdict(peaks) for device, peaks in found.items()})

    def _lease(self, price: float, *, on_gpu: bool, beside: float = 0.0) -> float | None:
        """Seconds that a task of that price may take; None where the budget does not pay for it, and `beside`."""
        devices = devices_of(self.up, on_gpu=on_gpu)
        if not devices:
            return TRIES * price
        most = float(self.ledger.affordable(None, devices)) - 2 * ENDING_SECONDS - beside
        return min(TRIES * price, most) if price <= most else None

    @contextmanager
    def _charged(self, what: str, lease: float, *, on_gpu: bool) -> Iterator[list[Row]]:
        """Reserve and write down before what runs inside; after it charge, and keep the rows that are given."""
        slots, ends = range(self._slots, self._slots + devices_of(self.up, on_gpu=on_gpu)), self.clock() + lease
        self._slots = slots.stop
        with self.journal.transaction():
            for slot in slots:
                self.ledger.open(slot)
                self.ledger.reserve(slot, lease + ENDING_SECONDS)
                self.journal.insert("slots", {"slot": slot, "opened": self.clock()})
            self._decide("run", f"{what}: a lease of {lease:.0f} s on {len(slots)} devices")
        found: list[Row] = []
        try:
            yield found
        finally:
            with self.journal.transaction():
                for row in found:
                    self.journal.insert("kernels", {"at": self.clock()} | as_record(row))
                now = min(self.clock(), ends + 2 * ENDING_SECONDS)  # the system has ended the task by then
                for slot in slots:
                    seconds = self.ledger.hand_back(slot, now)
                    self.journal.update("slots", slot, {"closed": now})
                    self.journal.insert("charges", {"at": now, "slot": slot, "what": "kernel", "seconds": seconds})

    def _draw(self, found: Sequence[Row]) -> None:
        """On TensorBoard what is right and stable: a run an implementation, over the sizes."""
        for row in found:
            if row["median_seconds"] is not None and not row["unstable"]:
                values = [
                    self.event_file.scalar(f"{row['kernel']}/{name}", row[name])
                    for name in SCALARS
                    if row[name] is not None
                ]
                self._file(row["implementation"]).add(*values, step=row["size"])

    def _file(self, implementation: str) -> Any:
        if implementation not in self._files:
            folder = self.settings.out / "tensorboard" / implementation
            self._files[implementation] = self.event_file.EventFile(folder)
        return self._files[implementation]

    def _say_not_run(self, names: Sequence[str]) -> None:
        left = max(0.0, self.ledger.left)
        reason = f"{left:.0f} s of {self.settings.budget:g} s are left, which do not pay for {names[0]}"
        for name in names:
            self._decide("not run", f"{name}: {reason}")
        print(f"--budget: {reason}; not run: {', '.join(names)}", file=sys.stderr)

    def _say(self, action: str, reason: str) -> None:
        self._decide(action, reason)
        print(reason, file=sys.stderr)

    def _decide(self, action: str, reason: str) -> None:
        self.journal.insert("decisions", {"at": self.clock(), "action": action, "reason": reason})


def as_record(row: Row) -> dict[str, Any]:
    """A row as the journal's table has it; what was not measured is left out."""
    correct = row["correct"]
    return {name: row[name] for name in COLUMNS if row.get(name) is not None} | {
        "shape": json.dumps(row["shape"]),
        "correct": correct if isinstance(correct, str | None) else "close",
        "error": correct if isinstance(correct, float) else None,
        "ratios": json.dumps(row.get("ratios", {})),
        "values_seconds": json.dumps(row.get("values_seconds", [])),
    }
