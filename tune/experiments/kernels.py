"""Measure the kernels as Ray tasks, one at a time, or in this process; with a budget in a study, which keeps the rows,
shows them on TensorBoard, and makes each kernel a trial on a lease of its ledger."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from kernels.benchmark import KERNELS, Row, check_implementations, measure, measure_peaks, selected_implementations
from kernels.kernel import THREADS, Implementation
from kernels.settings import Settings
from kernels.table import report
from kernels.timing import TRIES
from tune.errors import UserError, disk_error_as_user_error
from tune.store.accounting import Accounting, Hold, Ledger
from tune.store.heartbeat import GRACE_SECONDS, cancel_exit_timer, set_exit_timer
from tune.store.journal import Journal
from tune.units import duration_text

TASK_SECONDS, BUILD_SECONDS, ROW_SECONDS, PEAKS_SECONDS = 4.0, 1.0, 0.5, 15.0
"""Expected seconds on a quiet machine: of a task; of building an implementation and checking it against the reference;
of timing one at a size; of measuring the machine's own peaks."""
ENDING_SECONDS = 0.5
"""Seconds in which a task that is ended should be gone; after them the system ends its process, if nothing else did."""
COLUMNS = (
    *("kernel", "implementation", "size", "dtype", "device", "threads", "status", "compile_milliseconds", "bytes"),
    *("flops", "median_seconds", "end_to_end_seconds", "spread", "unit", "per_second", "share_of_peak", "unstable"),
)
"""Fields of a row that the journal's table `kernels` has as they are."""
SCALARS = ("median_seconds", "end_to_end_seconds", "per_second", "gigabytes_per_second", "share_of_peak")
"""Fields of a row that TensorBoard shows."""
KERNEL = "kernel"
"""The purpose of a task's lease, and what its seconds are charged for."""
Returned = TypeVar("Returned")


class OverdueError(Exception):
    """A task was ended, as its time was over."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Ray that is up, and how many GPUs a task may take: one at most."""

    ray: ModuleType
    gpus: int

    def run(
        self, function: Callable[..., Returned], *arguments: Any, on_gpu: bool, seconds: float | None = None,
        **options: Any,
    ) -> Returned:  # fmt: skip
        """Run a task that takes all cores, so that no two run at a time, and the GPU if it needs it. options: Ray's
        own.

        OverdueError: it was not done after so many seconds, and is gone.
        """
        resources = {"num_cpus": THREADS, "num_gpus": self.gpus * on_gpu, "max_retries": 0}
        ends = None if seconds is None else time.monotonic() + seconds
        waiting = self.ray.remote(**resources, **options)(call_with_deadline).remote(ends, function, *arguments)
        try:
            found: Returned = self.ray.get(waiting, timeout=seconds)
            return found
        except self.ray.exceptions.GetTimeoutError:
            self.ray.cancel(waiting, force=True)
            with suppress(self.ray.exceptions.RayError):
                self.ray.get(waiting, timeout=ENDING_SECONDS)
            raise OverdueError from None
        except self.ray.exceptions.WorkerCrashedError:
            if ends is None or time.monotonic() < ends:
                raise
            raise OverdueError from None


def call_with_deadline(ends: float | None, function: Callable[..., Returned], *arguments: Any) -> Returned:
    """Call a function, in a process that the system ends ENDING_SECONDS after `ends`, a time of this machine's
    monotonic clock, if nothing else did."""
    if ends is not None:
        set_exit_timer(ends + ENDING_SECONDS - time.monotonic())
    try:
        return function(*arguments)
    finally:
        cancel_exit_timer()


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Yield a cluster on a Ray of this process's own, with the GPUs that there are."""
    import ray

    from tune.backend.session import local_ray

    with local_ray(THREADS, None):
        yield Cluster(ray=ray, gpus=int(min(1, ray.cluster_resources().get("GPU", 0))))


def run(settings: Settings) -> int:
    """Measure, print, and with a budget keep the rows; return the exit code. UserError: a setting cannot be used."""
    check_implementations(settings)
    asked = tuple(name for name in settings.kernels if implementations_of(settings, name))
    settings = replace(settings, kernels=asked)  # no lease for one that has nothing to measure
    with nullcontext() if settings.local else cluster() as up:
        if up and settings.budget is not None:
            return report(settings, in_study(up, settings))
        return report(settings, (rows_of(up, settings, name) for name in settings.kernels))


def rows_of(
    cluster: Cluster | None, settings: Settings, name: str, seconds: float | None = None, file: Path | None = None
) -> list[Row]:
    """Return the rows of one kernel, measured in a task, or without a cluster in this process. file: as in measure().
    OverdueError: as in Cluster.run."""
    arguments = name, settings.sizes, settings.implementations, settings.seed, file
    if cluster is None:
        return measure(*arguments)
    return cluster.run(measure, *arguments, on_gpu=takes_gpu(settings, name), seconds=seconds)


def implementations_of(settings: Settings, name: str) -> list[Implementation]:
    """Return the implementations of a kernel that are asked for."""
    return selected_implementations(KERNELS[name], settings.implementations)


def takes_gpu(settings: Settings, name: str) -> bool:
    """Return whether a kernel is to run on a GPU too."""
    return any(each.device == "gpu" for each in implementations_of(settings, name))


def expected(settings: Settings, name: str) -> float:
    """Return the expected seconds of a kernel's task."""
    sizes = len(settings.sizes) if KERNELS[name].sized else 1
    return TASK_SECONDS + len(implementations_of(settings, name)) * (BUILD_SECONDS + sizes * ROW_SECONDS)


def devices_of(cluster: Cluster, *, on_gpu: bool) -> int:
    """Return how many devices a task is charged for: on a machine with a GPU that one if it is used, on others all
    cores."""
    return int(on_gpu) if cluster.gpus else THREADS


def in_study(cluster: Cluster, settings: Settings) -> Iterator[list[Row]]:
    """Yield the rows of each kernel that the budget pays for; they are kept before they are shown.

    UserError, with nothing written: it does not even pay for the first.
    """
    check_first(settings, cluster)
    try:
        settings.out.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"--out: '{settings.out}' cannot be made ({error.strerror}): name another place") from None
    began = time.monotonic()
    remedy = disk_error_as_user_error("another --out, as kernels are measured again")
    with remedy, open_study(cluster, settings, lambda: time.monotonic() - began) as study:
        yield from study.rows()


@contextmanager
def open_study(cluster: Cluster, settings: Settings, clock: Callable[[], float]) -> Iterator["Study"]:
    """Yield a new study in the folder that the settings name."""
    from tune.display import tensorboard

    assert settings.budget is not None
    with Journal(settings.out, new=True) as journal:
        accounting = Accounting(journal, Ledger(cap=settings.budget, clock=clock), clock)
        try:
            yield Study(settings=settings, cluster=cluster, accounting=accounting, event_file=tensorboard)
        finally:
            spent = accounting.ledger.spent
            journal.write_facts(ended={"spent": spent})
            print(f"spent {duration_text(round(spent, 1))} of {duration_text(settings.budget)}", file=sys.stderr)


def check_first(settings: Settings, cluster: Cluster) -> None:
    """Check that the budget pays for the first kernel. UserError: it does not."""
    first, budget = settings.kernels[0], settings.budget or 0.0
    seconds = expected(settings, first) + 2 * ENDING_SECONDS + GRACE_SECONDS
    least = devices_of(cluster, on_gpu=takes_gpu(settings, first)) * seconds + 1
    if budget < least:
        raise UserError(
            f"--budget: '{budget:g}s' does not pay for {first}: write at least {math.ceil(least)}s, "
            "or take fewer --implementations or --sizes"
        )


@dataclass(kw_only=True)
class Study:
    """Study that is being written."""

    settings: Settings
    cluster: Cluster
    accounting: Accounting
    event_file: ModuleType
    _files: dict[str, Any] = field(default_factory=dict)

    def rows(self) -> Iterator[list[Row]]:
        """Yield the rows of each kernel, as long as the budget pays for the next."""
        names = self.settings.kernels
        self.accounting.journal.write_facts(
            cap_seconds=self.settings.budget, created=time.time(), kernels=names, sizes=self.settings.sizes,
            seed=self.settings.seed,
        )  # fmt: skip
        self._note_peaks(math.fsum(expected(self.settings, name) for name in names))
        for place, name in enumerate(names):
            on_gpu = takes_gpu(self.settings, name)
            later = math.fsum(expected(self.settings, other) + 2 * ENDING_SECONDS for other in names[place + 1 :])
            lease = self._lease(expected(self.settings, name), later=later, on_gpu=on_gpu)
            if lease is None:
                self._say_not_run(names[place:])
                return
            file = self.settings.out.resolve() / f"{name}.jsonl"
            try:
                with self._charged(name, lease, on_gpu=on_gpu) as found:
                    found += rows_of(self.cluster, self.settings, name, lease, file)
            except OverdueError:
                text = file.read_text(encoding="utf-8") if file.exists() else ""
                found = [json.loads(line) for line in text.split("\n")[:-1]]  # the last may be torn
                with self.accounting.journal.transaction():
                    self._insert(found)
                had = f"rows that it had: {len(found)}"
                self._say("end", f"{name}: not done after the {lease:.0f} s of its lease; {had}")
            finally:
                file.unlink(missing_ok=True)
            self._draw(found)
            yield found

    def _note_peaks(self, beside: float) -> None:
        """Measure and note the machine's peaks, where the budget pays for them beside all the kernels."""
        lease = self._lease(PEAKS_SECONDS, beside=beside, on_gpu=True)
        if lease is None:
            return
        try:
            with self._charged("peaks", lease, on_gpu=True):
                found = self.cluster.run(measure_peaks, on_gpu=True, seconds=lease, max_calls=1)
        except OverdueError:
            self._say("end", f"peaks: not known after the {lease:.0f} s of their lease")
            return
        if found is None:
            self._say("end", "peaks: others took the machine, so none are known")
        else:
            self.accounting.journal.write_facts(peaks=found)

    def _lease(self, price: float, *, on_gpu: bool, beside: float = 0.0, later: float = 0.0) -> float | None:
        """Return the seconds that a task of that price may take, which leaves what is expected of `later` tasks; None:
        the budget does not pay for it and for `beside`."""
        devices = devices_of(self.cluster, on_gpu=on_gpu)
        if not devices:
            return TRIES * price
        most = self.accounting.ledger.affordable(None, devices) - 2 * ENDING_SECONDS - beside
        return max(price, min(TRIES * price, most - later)) if price <= most else None

    @contextmanager
    def _charged(self, what: str, lease: float, *, on_gpu: bool) -> Iterator[list[Row]]:
        """Reserve seconds and write the trial down before what runs inside; then charge, and keep the rows that were
        added to the list it yields."""
        devices, journal, found = devices_of(self.cluster, on_gpu=on_gpu), self.accounting.journal, list[Row]()
        trial = {"trial": what, "family": KERNEL, "config": json.dumps({"sizes": self.settings.sizes})}
        with journal.transaction():
            journal.insert("trials", trial | {"state": "running", "created": self.accounting.clock()})
            self._decide("run", f"{what}: a lease of {lease:.0f} s on {devices} devices")
            seconds = lease + ENDING_SECONDS
            held = Hold(self.accounting, what, KERNEL, devices=devices, seconds=seconds) if devices else nullcontext()
        state = "failed"
        try:
            with held as hold:
                yield found
                with journal.transaction():
                    self._insert(found)
                    if hold is not None:
                        hold.charge(KERNEL)
                state = "finished"
        finally:
            journal.update("trials", what, {"state": state})

    def _insert(self, found: Sequence[Row]) -> None:
        for row in found:
            self.accounting.journal.insert("kernels", {"at": self.accounting.clock()} | as_record(row))

    def _draw(self, found: Sequence[Row]) -> None:
        """Show the rows that are right and stable on TensorBoard: a run for each implementation, over the sizes."""
        for row in found:
            if row["median_seconds"] is not None and not row["unstable"]:
                if (name := row["implementation"]) not in self._files:
                    self._files[name] = self.event_file.EventFile(self.settings.out / "tensorboard" / name)
                known = {each: row[each] for each in SCALARS if row[each] is not None}
                values = [self.event_file.scalar(f"{row['kernel']}/{each}", known[each]) for each in known]
                self._files[name].add(*values, step=row["size"])

    def _say_not_run(self, names: Sequence[str]) -> None:
        left = max(0.0, self.accounting.ledger.left)
        reason = f"{left:.0f} s of {self.settings.budget:g} s are left, which do not pay for {names[0]}"
        for name in names:
            self._decide("not run", f"{name}: {reason}")
        print(f"--budget: {reason}; not run: {', '.join(names)}", file=sys.stderr)

    def _say(self, action: str, reason: str) -> None:
        self._decide(action, reason)
        print(reason, file=sys.stderr)

    def _decide(self, action: str, reason: str) -> None:
        self.accounting.journal.insert("decisions", {"at": self.accounting.clock(), "action": action, "reason": reason})


def as_record(row: Row) -> dict[str, Any]:
    """Return a row as the journal's table has it, without what was not measured."""
    correct = row["correct"]
    return {name: row[name] for name in COLUMNS if row.get(name) is not None} | {
        "shape": json.dumps(row["shape"]),
        "correct": correct if isinstance(correct, str | None) else "close",
        "error": correct if isinstance(correct, float) else None,
        "ratios": json.dumps(row.get("ratios", {})),
        "values_seconds": json.dumps(row.get("values_seconds", [])),
    }
