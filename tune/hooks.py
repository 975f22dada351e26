"""Who watches a search: the screen, one line a decision, and TensorBoard."""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from tune.duration import duration_text
from tune.planner import Planner
from tune.space import label

BUDGET_LINE_SECONDS = 30.0

SCALARS = {
    "1 valid/loss": "valid_loss",
    "1 valid/perplexity": "perplexity",
    "1 valid/bits_per_character": "bits_per_character",
    "1 valid/accuracy": "accuracy",
    "2 train/loss": "train_loss",
    "2 train/learning_rate": "learning_rate",
    "2 train/gradient_norm": "gradient_norm",
    "3 speed/tokens_per_second": "tokens_per_second",
    "3 speed/step_seconds": "step_seconds",
    "3 speed/memory_bytes": "memory_bytes",
}


class Screen:
    """One line a decision with its reason, and a line on the budget now and then."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._next_budget_line = time.monotonic() + BUDGET_LINE_SECONDS

    def decided(self, planner: Planner, trial: str | None, action: str, reason: str) -> None:
        """t003 nanogpt d128 h4 l4 p.1 bf16: promote: place 1 of 5 at rung 0"""
        record = planner.trials.get(trial or "")
        who = f"{trial} {record.family} {label(record.config)}" if record else "slot"
        self._write(f"{_clock(planner.books.clock())} {who}: {action}: {reason}")

    def reported(self, planner: Planner, trial: str, row: Mapping[str, Any]) -> None:
        """The result of a rung or of a last stretch; and the budget, when it was not shown for a while."""
        if row["rung"] is not None or row["final"]:
            where = "after its decay" if row["final"] else f"at rung {row['rung']}"
            family = planner.trials[trial].family
            result = f"perplexity {row['perplexity']:.4g} after {row['steps']:,} steps"
            self._write(f"{_clock(planner.books.clock())} {trial} {family} {where}: {result}")
        if time.monotonic() >= self._next_budget_line:
            self._next_budget_line = time.monotonic() + BUDGET_LINE_SECONDS
            self._write(budget_line(planner))


def budget_line(planner: Planner) -> str:
    """What is spent, reserved and left, and who runs."""
    ledger = planner.books.ledger
    money = f"spent {_whole(ledger.spent)} of {duration_text(ledger.cap)} ({100 * ledger.spent / ledger.cap:.0f} %)"
    rest = f"reserved {_whole(ledger.reserved)}, left {_whole(max(0.0, ledger.left))}"
    return (
        f"{_clock(planner.books.clock())} budget: {money}, {rest}; running: {', '.join(planner.running) or 'nothing'}"
    )


class TensorBoard:
    """Each trial's scalars over tokens, its HParams from its start, and one run for the ledger over device-seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, SummaryWriter] = {}
        self._ledger = SummaryWriter(str(folder / "ledger"))
        self._best: dict[str, float] = {}

    def decided(self, planner: Planner, trial: str | None, action: str, reason: str) -> None:
        """A trial that starts gets its HParams at once, so that no end can lose them."""
        if trial is not None and trial not in self._writers:
            record = planner.trials[trial]
            self._writers[trial] = SummaryWriter(str(self._folder / record.family / f"{trial} {label(record.config)}"))
            self._write_hparams(trial, {"family": record.family, **record.config})
        self._write_ledger(planner)

    def reported(self, planner: Planner, trial: str, row: Mapping[str, Any]) -> None:
        """Scalars over tokens."""
        writer = self._writers[trial]
        for tag, column in SCALARS.items():
            if row.get(column) is not None:
                writer.add_scalar(tag, row[column], row["tokens"])
        if row.get("perplexity") is not None:
            self._write_metrics(writer, row)
            family = planner.trials[trial].family
            self._best[family] = min(row["valid_loss"], self._best.get(family, math.inf))
        self._write_ledger(planner)

    def close(self) -> None:
        """Write out what is buffered."""
        for writer in (*self._writers.values(), self._ledger):
            writer.close()

    def _write_hparams(self, trial: str, config: Mapping[str, Any]) -> None:
        metrics = {f"hparam/{name}": math.nan for name in ("perplexity", "bits_per_character")}
        writer = self._writers[trial]
        for summary in hparams(dict(config), metrics):
            writer._get_file_writer().add_summary(summary)
        writer.flush()

    def _write_metrics(self, writer: SummaryWriter, row: Mapping[str, Any]) -> None:
        for name in ("perplexity", "bits_per_character"):
            writer.add_scalar(f"hparam/{name}", row[name], row["tokens"])

    def _write_ledger(self, planner: Planner) -> None:
        ledger = planner.books.ledger
        at = int(ledger.spent)
        for name, value in {
            "spent": ledger.spent,
            "reserved": ledger.reserved,
            "left": ledger.left,
            "running": len(planner.running),
        }.items():
            self._ledger.add_scalar(f"budget/{name}", value, at)
        for family, loss in self._best.items():
            self._ledger.add_scalar(f"best so far/{family}", loss, at)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"[{minutes // 60}:{minutes % 60:02d}:{rest:02d}]"


def _whole(seconds: float) -> str:
    return duration_text(round(seconds))
