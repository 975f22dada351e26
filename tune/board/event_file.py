"""An event file of TensorBoard's, written so that no end of the process loses what was said.

Whole records are appended and nothing is held open: a writer with a thread and an open file for each trial comes to its
limit at a thousand trials, and a kill loses what waits in its queue.
"""

import io
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

VERSION = "brain.Event:2"


def scalar(tag: str, value: float) -> Summary.Value:
    """One number."""
    return Summary.Value(tag=tag, simple_value=value)


class EventFile:
    """A new file in `folder`, which is made; files of one folder are one run to TensorBoard, the oldest first.

    To its page the first start in a run is the run's own, and each later one a step back.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        begins_run = not any(folder.iterdir())
        now = time.time()
        self._path = folder / f"events.out.tfevents.{now:017.6f}.ration"
        self._append(Event(wall_time=now, file_version=VERSION))
        if begins_run:
            self.rewind(0)

    def add(self, *values: Summary.Value, step: int, at: float | None = None) -> None:
        """Write values of one step; `at` in seconds since 1970, now where it is None."""
        self._append(Event(wall_time=time.time() if at is None else at, step=step, summary=Summary(value=values)))

    def rewind(self, step: int) -> None:
        """Let TensorBoard forget what was written from `step` on: it was done again."""
        log = SessionLog(status=SessionLog.START)
        self._append(Event(wall_time=time.time(), step=step, session_log=log))

    def _append(self, event: Event) -> None:
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        with self._path.open("ab") as file:
            file.write(record.getvalue())
