"""The Ray trainable of a user's own training loop: the loop has a process of its own, which its worker watches from
outside, so that a lease ends even if the loop does not. Neither process imports anything of `model/`."""

import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tune.backend.leased import LeasedTrial, TrialEnvironment
from tune.errors import ROOT
from tune.load import Loop
from tune.loop import Record, Terms, newest_checkpoint, output_of, read_record
from tune.loop_process import BOOT, kill_process_tree
from tune.machine import private_folder
from tune.reports import LEASE_RESERVE_FACTOR, Evaluation, Report, to_row

LOOK_SECONDS = 0.2
"""Seconds between two checks whether the trial should stop."""
LAST_SECONDS = 0.15
"""Seconds at the end of a lease, kept to end a loop by force and to report that."""
CLOSING_SECONDS = 2.0
"""Seconds in which a loop must return after its last report, or LEASE_RESERVE_FACTOR times its longest gap between two
reports, if that is longer."""


class LoopFailed(Exception):
    """A user's loop raised an error; this carries its traceback as text."""


class LoopTrial(LeasedTrial):
    """Trainable that lets a user's loop train to the end of its lease or to its goal, and ends it there, by force if
    need be."""

    def setup(self, config: dict[str, Any], environment: TrialEnvironment, loop: Loop) -> None:
        """Take the first lease. Once a process."""
        self._loop = loop
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._scratch = ExitStack()
        self._begin(self.take_first_lease(config, environment))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next lease, in the loop's warm process if that still lives. Returns True."""
        self._begin(self._take(new_config))
        return True

    def _next_result(self) -> dict[str, Any]:
        """Train until the next report. Returns `report`. LoopFailed: the loop raised an error. OSError: the disk took
        no data, of the loop's or of ours."""
        self._trains = True
        try:
            found = self._next_report()
        finally:
            self._trains = False
        if isinstance(found, Report):
            if found.ended:
                self._note_lease_over()
            return {"report": json.dumps(to_row(found))}
        self._note_lease_over()
        if "refused" in found:
            raise OSError(*found["refused"])
        raise LoopFailed(f"its process said:\n{found['error']}")

    def cleanup(self) -> None:
        """End the loop together with its worker."""
        self._end_process()

    def _begin(self, opened: float) -> None:
        """Tell the loop of its lease, in its process or, where there is none, in a new one."""
        assignment, place = self._assignment, self._environment
        self._until = opened + assignment["seconds"] - LAST_SECONDS
        self._heard = opened
        self._told: Mapping[str, Any] | None = None
        self._folder = place.folder / "checkpoints" / assignment["trial"]
        self._output = place.folder / output_of(assignment["trial"])
        self._terms = Terms(
            trial=assignment["trial"], lease=assignment["lease"], config={**self._loop.fixed, **assignment["config"]},
            folder=str(self._folder), output=str(self._output), ends=self._until,
            metric=self._loop.metric.name, maximize=self._loop.metric.maximize, steps=assignment["steps"],
            training_seconds=assignment["training_seconds"], life=self._loop.life, last=assignment["rung"] is None,
        )  # fmt: skip
        # a process that died since its last lease is not this trial's fault
        self._send_terms(warm=self._process is not None and self._process.poll() is None)

    def _send_terms(self, *, warm: bool) -> None:
        """Tell the loop what its lease is for; warm: in the process that served before, else in a new one."""
        self._warm, self._stopping = warm, False
        if not warm:
            self._end_process()
            self._start_process()
            self._send(self._loop.to_json())
        self._send(dataclasses.asdict(self._terms))

    def _start_process(self) -> None:
        self._line, theirs = socket.socketpair()
        pipe, self._pipe = os.pipe()
        ends = [theirs.fileno(), pipe]
        scratch = self._scratch.enter_context(private_folder())
        self._process = subprocess.Popen(
            [sys.executable, "-c", BOOT, str(self._loop.folder), str(ROOT), *map(str, ends), str(scratch)],
            pass_fds=ends, cwd=self._loop.folder, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        os.close(pipe)
        self._unread = b""

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._line is not None
        with suppress(ConnectionError):  # the next read finds that it died
            self._line.sendall((json.dumps(message) + "\n").encode())

    def _next_report(self) -> Report | Mapping[str, Any]:
        """Return the next report, or the loop's error as its process told it. A loop that fails in a warm process
        before it reports begins again in a new one. If the lease ends first, the loop is ended by force, and the report
        says so."""
        while (left := self._until - time.monotonic()) > 0:
            try:
                message = self._receive(min(left, LOOK_SECONDS))
                if message is None and self._process is not None and self._process.poll() is not None:
                    message = self._receive(0.0)  # its last message may have come meanwhile
                    if message is None:
                        raise ConnectionResetError("the loop's process is gone, and a child of its holds the line")
            except ConnectionError:  # the worker dies too, as one does whose own training crashes
                self._tell_how_it_ended()
                self._end_process()
                os._exit(1)
            if message is None:
                if not self._stopping and self._should_stop():
                    self._stopping = True
                    self._send({"stop": True})
            elif "steps" in message:
                self._told, self._heard = message, time.monotonic()
                self._stopping = False  # say it again: what is said while a process starts may be lost
                report = report_of(message)
                if report.ended:
                    self._close()
                return report
            elif "error" in message and self._warm and self._told is None:
                self._send_terms(warm=False)  # it may do what a process can do but once
            elif "idle" not in message:
                return message
        self._end_process()
        return forced_end_report(self._folder, self._told, time.monotonic() - self._heard)

    def _receive(self, seconds: float) -> Mapping[str, Any] | None:
        """Return what the loop's process says of this lease within so many seconds; None: nothing. ConnectionError: it
        died. What a process says that the loop forked on an earlier lease is dropped."""
        ends = time.monotonic() + seconds
        while True:
            message = self._hear_any(ends)
            if message is None or message["lease"] == self._assignment["lease"]:
                return message

    def _hear_any(self, ends: float) -> Mapping[str, Any] | None:
        assert self._line is not None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._line], [], [], max(0.0, ends - time.monotonic()))
            if not ready:
                return None
            more = self._line.recv(1 << 16)
            if not more:
                raise ConnectionResetError("the loop's process is gone")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        message: Mapping[str, Any] = json.loads(line)
        return message

    def _close(self) -> None:
        """Wait for the loop to return, so that its process can serve again; end one that does not in time, or in which
        it left a thread. A loop that dies now has reported all."""
        assert self._told is not None
        patience = max(CLOSING_SECONDS, LEASE_RESERVE_FACTOR * self._told["gap"])
        until = min(self._until, time.monotonic() + patience)
        with suppress(ConnectionError):
            message = self._receive(until - time.monotonic())
            if message is not None and message.get("idle"):
                return
        self._end_process()

    def _tell_how_it_ended(self) -> None:
        """Append to what the trial printed how the loop's process ended by itself."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired, OSError):  # it only closed the line; or the disk is full
            code = self._process.wait(max(0.0, min(CLOSING_SECONDS, self._until - time.monotonic())))
            how = f"with exit code {code}" if code >= 0 else f"by {signal_name(-code)}"
            with self._output.open("a", encoding="utf-8") as output:
                print(f"its process ended {how}", file=output)

    def _end_others(self) -> None:
        """End the loop, and what it began."""
        if self._process is not None:
            kill_process_tree(self._process.pid)

    def _end_process(self) -> None:
        if self._process is not None:
            self._end_others()
            self._process.wait()
            self._process = None
            os.close(self._pipe)
            self._scratch.close()
        if self._line is not None:
            self._line.close()
            self._line = None


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGKILL, or its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def report_of(message: Mapping[str, Any]) -> Report:
    """Return what a loop told as the search's Report."""
    steps, training = message["steps"], message["training_seconds"]
    return Report(
        steps=steps, tokens=steps, training_seconds=training, step_seconds=training / steps if steps else None,
        seconds={what: seconds for what, seconds in message["seconds"].items() if seconds},
        valid=Evaluation(loss=message["best"]), numbers=message["numbers"], gap=message["gap"], lost=message["lost"],
        ended=message["ended"], checkpoint=None if message["ended"] == "diverged" else message["checkpoint"],
    )  # fmt: skip


def forced_end_report(folder: Path, message: Mapping[str, Any] | None, lost: float) -> Report:
    """Return the report of a loop that was ended by force. message: what it told last on this lease, None for nothing;
    folder: the trial's, with what of that is kept; lost: seconds since."""
    kept = newest_checkpoint(folder)
    record = read_record(kept) if kept else Record()
    ended: Mapping[str, Any] = {"ended": "lease", "checkpoint": str(kept) if kept else None, "seconds": {"lost": lost}}
    if message is None:
        steps, training = record.steps, record.training_seconds
        return Report(steps=steps, tokens=steps, training_seconds=training, numbers={}, **ended)
    return report_of({**message, **ended, "lost": max(0, message["steps"] - record.steps)})
