"""One trial as a run of TensorBoard's: its curves over tokens, its row of HParams, and what was decided about it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb

from model.bleu import Score
from tune.board import hparams
from tune.board.event_file import EventFile, scalar
from tune.journal import SHARE, Journal

SCALARS = {
    "4 valid/loss": "valid_loss",
    "4 valid/perplexity": "perplexity",
    "4 valid/bits_per_character": "bits_per_character",
    "4 valid/accuracy": "accuracy",
    "5 train/loss": "train_loss",
    "5 train/learning_rate": "learning_rate",
    "5 train/gradient_norm": "gradient_norm",
    "6 speed/tokens_per_second": "tokens_per_second",
    "6 speed/step_seconds": "step_seconds",
    "6 speed/mfu": "mfu",
    "6 speed/memory_bytes": "memory_bytes",
    "7 trial/rung": "rung",
}
"""Each tag and its column of the journal's table `reports`. The groups 1 to 3 are the ledger's."""
ENDED, DEVICE_SECONDS = "7 trial/ended", "7 trial/device_seconds"
BLEU, CHRF = "7 trial/test_bleu", "7 trial/test_chrf"
PARAMETERS, QUOTIENT = "7 trial/parameters", "7 trial/perplexity_per_million"


class TrialRun:
    """The run of one trial in a folder, from its start or from where an earlier run of the study left it.

    begun: its row of HParams.
    """

    def __init__(self, folder: Path, journal: Journal, trial: str, begun: Summary.Value) -> None:
        self._file = EventFile(folder)
        self._journal, self._trial = journal, trial
        told = journal.rows("SELECT tokens FROM reports WHERE trial = ? ORDER BY report DESC LIMIT 1", trial)
        self._tokens = told[0]["tokens"] if told else 0
        self._file.add(begun, step=self._tokens)

    def decided(self, action: str, reason: str, now: float) -> None:
        """A decision about the trial at `now`, on the study's clock."""
        ended = hparams.number_of(reason) if action == "stop" else 0
        values = scalar(ENDED, ended), scalar(DEVICE_SECONDS, self._device_seconds(now))
        said = text_pb("decisions", f"**{action}**: {reason}").value
        self._file.add(*values, *said, step=self._tokens)
        if ended:
            self._file.add(hparams.ended(reason), step=self._tokens)

    def reported(self, row: Mapping[str, Any], now: float) -> None:
        """A row of the journal's table `reports`."""
        if row["tokens"] < self._tokens:
            self._file.rewind(row["tokens"])
        self._tokens = row["tokens"]
        values = {tag: row[column] for tag, column in SCALARS.items() if row.get(column) is not None}
        values |= {DEVICE_SECONDS: self._device_seconds(now), PARAMETERS: self._parameters()}
        if row.get("perplexity") is not None:
            values[QUOTIENT] = row["perplexity"] / (values[PARAMETERS] / 1e6)
        if row["final"]:
            values[ENDED] = hparams.REASONS["decayed"]
        self._file.add(*(scalar(tag, value) for tag, value in values.items()), step=self._tokens)
        if row["final"]:
            self._file.add(hparams.ended("decayed"), step=self._tokens)

    def translated(self, score: Score) -> None:
        """How well the trial translates, after its end."""
        self._file.add(scalar(BLEU, score.bleu), scalar(CHRF, score.chrf), step=self._tokens)

    def _device_seconds(self, now: float) -> float:
        query = f"""
            SELECT TOTAL(IFNULL(charged, (? - leases.opened) * {SHARE})) AS seconds
            FROM leases JOIN slots USING (slot) WHERE trial = ?"""
        return float(self._journal.rows(query, now, self._trial)[0]["seconds"])

    def _parameters(self) -> int:
        return int(self._journal.rows("SELECT parameters FROM trials WHERE trial = ?", self._trial)[0]["parameters"])
