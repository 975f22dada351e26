"""What a user's training loop calls in a search: its configuration, its checkpoint, reports, and whether to end.

    import tune.loop as ration

Outside of a search the loop trains as ever: `config` returns its defaults, `checkpoint` None, `done` False, and
`report` does nothing. Standard library only; a process that runs a user's loop imports nothing of `model/`.
"""

import json
import math
import os
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tune.errors import is_disk_error
from tune.machine import sync_folder, write_folder_whole
from tune.reports import LEASE_RESERVE_FACTOR, Ended

Save = Callable[[Path], object]
TRAVEL_SECONDS = 1.0
"""Least seconds between two reports that leave the process while the lease goes on."""
SAVE_SHARE = 0.01
"""Largest share of the training since the last checkpoint that another one inside a lease may take."""
FIRST_SAVE_SECONDS = 0.05
"""Assumed seconds of a checkpoint before any was timed."""
MOST_KEPT_BACK = 1 / 8
"""Largest share of a lease that is kept for its last checkpoint, until the lease has timed one itself."""
MOST_STEPS = 10**12 - 1
"""Most steps of a trial: the names of its checkpoints have 12 digits for them."""
SAVE_SECONDS = 60.0
"""Training seconds after which another checkpoint is wanted; after a new best it is wanted sooner."""
RECORD = "ration.json"
"""File in each checkpoint that says where the trial was then."""


def output_of(trial: str) -> str:
    """Return the path in a study's folder of the file with what a trial prints."""
    return f"output/{trial}.txt"


class StopLoop(BaseException):
    """Ends a loop that reports although its lease is over."""


def config(**defaults: Any) -> dict[str, Any]:
    """Return these defaults, with the values of this trial's configuration in their places; outside of a search the
    defaults alone.

    ValueError: the space varies a dimension that has no default here.
    """
    if _lease is None:
        return defaults
    if unknown := [name for name in _lease.terms.config if name not in defaults]:
        raise ValueError(f"config: the space varies {unknown[0]!r}, which has no default here: write {unknown[0]}=...")
    _lease.asked = True
    _lease.end_setup()
    return {**defaults, **_lease.terms.config}


def checkpoint() -> Path | None:
    """Return the folder that `save` filled last, from which this trial goes on; None where it begins."""
    if _lease is None:
        return None
    _lease.end_setup()
    return _lease.checkpoint


def done() -> bool:
    """Whether to end now: the lease is over, or the goal is reached. What was saved last is kept."""
    return _lease is not None and (threading.current_thread() in _left_over or _lease.is_over())


def report(*, step: int | None = None, save: Save | None = None, **numbers: Any) -> None:
    """Report how good the trial is now: the search's metric among `numbers`, and others, which are kept beside it.

    step: steps that the trial has done in its whole life, such as epoch + 1 after an epoch, never fewer than before
    (default: one more than before); save: fills an empty folder, from which `checkpoint` lets the trial go on, and has
    written all of it when it returns (wait for an asynchronous save); it is called only where it is worth its time,
    that of the last report also after the loop has returned. ValueError: the metric is missing or no number; the step
    is not whole, too large, or goes back; or the loop does not know its configuration.
    """
    if _lease is not None:
        if threading.current_thread() in _left_over:
            raise StopLoop
        _lease.report(numbers, step, save)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a lease is for: a trial, its configuration, its folder of checkpoints, and when the lease ends by the
    monotonic clock.

    steps, training_seconds: of the trial's life, at which the lease is to end (None: not by that); life: steps after
    which the trial is complete; last: it is the trial's last lease; output: the file for what the trial prints; lease:
    its number, which is sent with each message.
    """

    trial: str
    lease: int
    config: Mapping[str, Any]
    folder: str
    output: str
    ends: float
    metric: str
    maximize: bool
    steps: int | None = None
    training_seconds: float | None = None
    life: float | None = None
    last: bool = False


class Lease:
    """A trial's lease, inside the process of a user's loop; `send` sends a message to the worker outside.

    save_seconds: what the last checkpoint took, on this lease or the one before: by it a checkpoint is cheap or not,
    and so much is kept back for the last one; asked: whether the loop knows its configuration.
    """

    def __init__(
        self, terms: Terms, send: Callable[[dict[str, Any]], None], stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic, *, save_seconds: float = FIRST_SAVE_SECONDS,
    ) -> None:  # fmt: skip
        self.terms, self._send, self._stopped, self._clock = terms, send, stopped, clock
        self._began = self._since = clock()
        self._begun, self.over, self.saving = False, False, False
        self._sent = -math.inf
        self._seconds = {"start": 0.0, "steps": 0.0, "checkpoint": 0.0}
        self._unsaved: Save | None = None
        self._offers_few = False
        """Whether a report came without a save."""
        self.checkpoint = newest_checkpoint(Path(terms.folder))
        self.asked = self.checkpoint is not None  # what it saved may have its configuration
        self._start = self._saved = self._here = read_record(self.checkpoint) if self.checkpoint else Record()
        """Where the trial was when the lease began, was at its last checkpoint, and is."""
        self.save_seconds = self._start.save_seconds or save_seconds
        self._kept_back = min(self.save_seconds, MOST_KEPT_BACK * (terms.ends - self._began))

    def end_setup(self) -> None:
        """End the setup here, unless training has begun: the seconds until now are those of the start."""
        if not self._begun:
            self._since = self._clock()
            self._seconds["start"] = self._since - self._began

    def is_over(self) -> bool:
        """Whether the lease is over; from here on time counts as training."""
        self.end_setup()
        self._begun = True
        return self.over

    def report(self, numbers: Mapping[str, Any], step: int | None, save: Save | None, *, always: bool = False) -> None:
        """Report as the module's `report` does; always: save, whatever it costs. StopLoop: the lease was over
        before."""
        if self.over:
            raise StopLoop
        if not self.asked:
            rule = "call ration.config(...) first, or name FILE:function"
            raise ValueError(f"report: the loop never asked for its configuration: {rule}")
        loss, known = self._metric(numbers), {name: number(value) for name, value in numbers.items()}
        steps = self._count_steps(step)
        now = self._clock()  # after reading the numbers: a device may still have to compute them
        self._begun, between = True, now - self._since
        self._seconds["steps"] += between
        before, sound = self._here, math.isfinite(loss)
        improved = sound and loss < before.best
        self._here = Record(
            steps=steps, training_seconds=before.training_seconds + between, gap=max(before.gap, between),
            best=loss if improved else before.best, loss=loss,
            numbers={name: value for name, value in known.items() if value is not None and math.isfinite(value)},
        )  # fmt: skip
        self._offers_few = self._offers_few or save is None
        ended = self._end_reason(now)
        if save is not None and sound and (always or ended is not None or self._is_worth_saving(improved)):
            self._save(save)
        else:
            self._unsaved = save
        self._send_report(now, ended)
        self._since = self._clock()

    def on_return(self) -> None:
        """Tell the worker that the loop ended by itself. ValueError: it never reported."""
        if self.over:
            return
        if not math.isfinite(self._here.loss):
            raise ValueError("the loop returned without a report: call ration.report(...) in it")
        if self._unsaved is not None:
            try:
                self._save(self._unsaved)
            except Exception as error:  # what it saves may be gone with the loop: the last checkpoint stays
                full = isinstance(error, OSError) and is_disk_error(error)
                if full or (self.checkpoint is None and not isinstance(error, FileNotFoundError)):
                    raise
                traceback.print_exc()
                self.saving = False
        self._send_report(self._clock(), "returned")

    def _metric(self, numbers: Mapping[str, Any]) -> float:
        """Return the metric as the search has it, low is good. ValueError: it is missing, or no number."""
        name = self.terms.metric
        if name not in numbers:
            there = ", ".join(map(repr, numbers)) or "nothing"
            rule = "report it, or begin a search that names another: a study keeps its metric"
            raise ValueError(f"report: {name!r} is the metric, and here is {there}: {rule}")
        if (value := number(numbers[name])) is None:
            raise ValueError(f"report: {name} is {numbers[name]!r:.60}, which is no number: report a number")
        return -value if self.terms.maximize else value

    def _count_steps(self, step: int | None) -> int:
        before = self._here.steps
        count = before + 1.0 if step is None else number(step)
        if count is None or not count.is_integer():
            raise ValueError(f"report: step {step!r:.60} is no whole number: count optimizer steps")
        steps = int(count)
        if steps > MOST_STEPS:
            raise ValueError(f"report: step {steps} is none: there are at most {MOST_STEPS:,}")
        if steps < before:
            rule = "steps are those of the trial's whole life: restore them with the rest of the checkpoint"
            raise ValueError(f"report: step {steps} comes after step {before}: {rule}")
        return steps

    def _end_reason(self, now: float) -> Ended | None:
        """Return how the lease ends at this report; None: it goes on."""
        terms, here, further = self.terms, self._here, self._here.steps > self._start.steps
        if not math.isfinite(here.loss):
            return "returned" if math.isfinite(here.best) else "diverged"
        if terms.life is not None and here.steps >= terms.life:
            return "returned"
        if further and terms.steps is not None and here.steps >= terms.steps:
            return "final" if terms.last else "rung"
        if further and terms.training_seconds is not None and here.training_seconds >= terms.training_seconds:
            return "rung"
        if terms.ends - now < LEASE_RESERVE_FACTOR * (here.gap + self._kept_back):
            return "final" if terms.last and further else "lease"
        return "stopped" if now - self._sent >= TRAVEL_SECONDS and self._stopped() else None

    def _is_worth_saving(self, improved: bool) -> bool:
        """Whether a save is wanted, and cheap enough. Of a loop that offers one only at some reports each is wanted, as
        the last report may offer none."""
        since = self._here.training_seconds - self._saved.training_seconds
        wanted = improved or self._offers_few or since >= SAVE_SECONDS
        return wanted and self.save_seconds <= SAVE_SHARE * since

    def _save(self, save: Save) -> None:
        """Write a checkpoint, whole or not at all; of the others only the one with the best metric is kept. OSError:
        the disk takes no more, also where `save` raises another error for that."""
        began, folder = self._clock(), Path(self.terms.folder)
        name = f"step-{self._here.steps:012d}"
        there = [path.name for path in folder.glob("step-*[0-9]") if path.name.startswith(name)]
        again = 1 + int(max(there)[len(name) + 1 :] or 0) if there else 0  # the one before stays until this is whole
        place = folder / (f"{name}-{again:06d}" if again else name)

        def fill(new: Path) -> None:
            save(new)
            without_links(new)
            sync_folder(new)  # so that what this takes is in the record
            record = replace(self._here, save_seconds=self._clock() - began)
            (new / RECORD).write_text(json.dumps(vars(record)), encoding="utf-8")

        self.saving = True
        write_folder_whole(place, fill)
        kept = {place, best_checkpoint(folder)}
        for other in folder.glob("step-*"):
            if other not in kept:
                shutil.rmtree(other, ignore_errors=True)
        self.saving, self._unsaved, self.checkpoint = False, None, place
        self._saved = self._here
        self.save_seconds = self._kept_back = self._clock() - began
        self._seconds["checkpoint"] += self.save_seconds

    def _send_report(self, now: float, ended: Ended | None) -> None:
        """Send a report to the worker, at most once in TRAVEL_SECONDS while the lease goes on."""
        self.over = ended is not None
        if not self.over and now - self._sent < TRAVEL_SECONDS:
            return
        kept, here = newest_checkpoint(Path(self.terms.folder)) if self.over else None, self._here
        self._send(
            {
                "lease": self.terms.lease, "steps": here.steps, "training_seconds": here.training_seconds,
                "best": here.best, "numbers": here.numbers, "gap": here.gap, "lost": here.steps - self._saved.steps,
                "seconds": dict(self._seconds), "ended": ended, "checkpoint": str(kept) if kept else None,
            }
        )  # fmt: skip
        self._sent = now
        self._seconds = dict.fromkeys(self._seconds, 0.0)


_lease: Lease | None = None
_left_over: frozenset[threading.Thread] = frozenset()


def set_current_lease(lease: Lease | None, left_over: Collection[threading.Thread] = ()) -> None:
    """Set the lease that this process works on; None: on none. left_over: threads that are still at work for an earlier
    one, whose reports do not count."""
    global _lease, _left_over
    _lease, _left_over = lease, frozenset(left_over)


def current_lease() -> Lease | None:
    """Return the lease that this process works on; None: on none."""
    return _lease


def number(value: object) -> float | None:
    """Return a number of any library as a float; None where it is no number, such as a text."""
    if isinstance(value, str | bytes | Mapping) or value is None:
        return None
    with suppress(TypeError, ValueError, RuntimeError, OverflowError):
        one = hasattr(value, "item") and not hasattr(value, "mask")  # what is masked is no number
        return float(value.item() if one else value)  # type: ignore[attr-defined, arg-type]
    return None


@dataclass(frozen=True, kw_only=True)
class Record:
    """Where a trial was when it was saved. gap: longest seconds between two reports; best, loss: its best metric so far
    and the one at the checkpoint, as the search has them: low is good; save_seconds: what saving took; numbers: all
    that it reported then."""

    steps: int = 0
    training_seconds: float = 0.0
    gap: float = 0.0
    best: float = math.inf
    loss: float = math.inf
    save_seconds: float = 0.0
    numbers: dict[str, float] = field(default_factory=dict)


def without_links(folder: Path) -> None:
    """Replace the links in a checkpoint by copies of what they lead to, as a study holds no links. Links that lead
    nowhere, or to a folder that they are in, are removed; links inside a copied folder are left out."""
    for link in [path for path in folder.rglob("*") if path.is_symlink()]:
        real = Path(os.path.realpath(link))
        link.unlink()
        if real.is_dir() and not link.is_relative_to(real):
            shutil.copytree(real, link, ignore=_links)
        elif real.is_file():
            shutil.copyfile(real, link)


def _links(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder, name).is_symlink()]


def read_record(checkpoint: Path) -> Record:
    """Read the record of a checkpoint. OSError, ValueError, TypeError: it is damaged."""
    found = Record(**json.loads((checkpoint / RECORD).read_text(encoding="utf-8")))
    sound = found.steps >= 0 and min(found.training_seconds, found.gap, found.save_seconds) >= 0.0
    if not (sound and all(map(math.isfinite, dict(found.numbers).values()))):
        raise ValueError(f"{checkpoint} has a damaged {RECORD}")
    return found


def intact_checkpoints(folder: Path) -> dict[Path, Record]:
    """Return the undamaged checkpoints of a trial with their records, the oldest first."""
    found: dict[Path, Record] = {}
    for path in sorted(folder.glob("step-*[0-9]")):
        with suppress(OSError, ValueError, TypeError, RecursionError):
            found[path] = read_record(path)
    return found


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint from which a trial goes on; None: there is none."""
    return max(intact_checkpoints(folder), default=None)


def best_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint with the best metric; None: there is none."""
    found = intact_checkpoints(folder)
    return min(found, key=lambda path: found[path].loss, default=None)
