"""The ledger as a run of TensorBoard's, over device-seconds: what the cap bought so far."""

import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.plugins.text.summary_v2 import text_pb
from torch.utils.tensorboard.summary import custom_scalars

from tune.board import hparams
from tune.board.event_file import EventFile, scalar
from tune.board.standings import picture, table
from tune.dimensions import Dimensions
from tune.journal import Journal
from tune.planner import Planner
from tune.queries import best_so_far, ranking
from tune.settings import Settings

PICTURE_SHARE = 0.005
"""Of the device-seconds spent so far, what drawing may have taken: it keeps a core from its trial."""
FIRST_PICTURE_SECONDS = 0.4
"""The price of a picture before one was drawn."""
BUDGET, BEST, RUNGS = "1 budget", "2 best so far", "3 rungs"
AXIS = "Steps are device-seconds; on the relative axis they read as device-hours."


class LedgerRun:
    """The run `ledger`: the account, each family's best so far and its front, how many trials completed each rung.

    The best so far is the first of the ranking; its loss is that of the subset, which all have.
    """

    def __init__(self, folder: Path, journal: Journal, settings: Settings, dimensions: Dimensions) -> None:
        self._file, self._journal = EventFile(folder / "ledger"), journal
        self._best = best_so_far(journal)
        self._completed: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._drawing, self._picture_price = 0.0, FIRST_PICTURE_SECONDS
        query = "SELECT DISTINCT family, trial, rung FROM reports JOIN trials USING (trial) WHERE rung IS NOT NULL"
        for row in journal.rows(query):
            self._completed[row["family"]][row["rung"]].add(row["trial"])
        said = "\n".join(f"| {name} | `{value}` |" for name, value in settings.stored().items())
        about = text_pb("settings", f"{AXIS}\n\n| setting | value |\n|---|---|\n{said}").value
        layout = custom_scalars(charts(list(settings.families))).value
        self._file.add(*about, *layout, hparams.columns(dimensions, settings.families), step=0)

    def write(self, planner: Planner) -> None:
        """The account as it stands."""
        ledger = planner.books.ledger
        account = {"spent": ledger.spent, "reserved": ledger.reserved, "left": ledger.left}
        values = {f"{BUDGET}/{name}": seconds for name, seconds in account.items()}
        values[f"{BUDGET}/running"] = len(planner.running)
        values |= {f"{BEST}/{family}": row["subset_loss"] for family, row in self._best.items()}
        for family, rungs in self._completed.items():
            values |= {f"{RUNGS}/{family} rung {rung}": len(trials) for rung, trials in sorted(rungs.items())}
        numbers = (scalar(tag, value) for tag, value in values.items())
        self._file.add(*numbers, step=int(ledger.spent), at=ledger.spent)

    def reported(self, planner: Planner, trial: str, row: Mapping[str, Any]) -> None:
        """A row of the journal's table `reports`. A new leader's front is drawn, if that is cheap."""
        family, spent = planner.trials[trial].family, planner.books.ledger.spent
        if row["rung"] is not None:
            self._completed[family][row["rung"]].add(trial)
        if self._leads(family, row) and self._drawing + self._picture_price <= PICTURE_SHARE * spent:
            self._show(family, int(spent))
        self.write(planner)

    def close(self, planner: Planner) -> None:
        """The fronts and the final ranking."""
        self.write(planner)
        for family in self._best:
            self._show(family, int(planner.books.ledger.spent))

    def ended(self, trial: str) -> None:
        """A trial is over: where it was a best so far and failed, another is."""
        if trial in [row["trial"] for row in self._best.values()]:
            self._best = best_so_far(self._journal)

    def _leads(self, family: str, row: Mapping[str, Any]) -> bool:
        """Whether with a row of reports there is a new best so far; the ranking is asked only where there may be."""
        if row["rung"] is None and not row["final"]:
            return False
        best = self._best.get(family)
        if best is not None and not row["final"] and row["trial"] != best["trial"]:
            behind = row["rung"] == best["rung"] and row["perplexity"] >= best["subset_perplexity"]
            if best["final"] or row["rung"] < best["rung"] or behind:
                return False
        self._best = best_so_far(self._journal)
        return self._best.get(family, best) != best

    def _show(self, family: str, step: int) -> None:
        began = time.process_time()
        rows = [row for row in ranking(self._journal, by="quotient") if row["family"] == family]
        drawn = [picture(family, rows)] if any(row["level"] is not None for row in rows) else []
        self._file.add(*drawn, *text_pb(f"ranking/{family}", table(rows)).value, step=step)
        self._picture_price = time.process_time() - began
        self._drawing += self._picture_price


def charts(families: list[str]) -> dict[str, dict[str, list[Any]]]:
    """The layout of the custom scalars: the account, the best losses, how far trials came."""
    budget = {
        "device-seconds": ["Multiline", [f"{BUDGET}/(spent|reserved|left)"]],
        "running trials": ["Multiline", [f"{BUDGET}/running"]],
    }
    best = {"validation loss (nats a token)": ["Multiline", [f"{BEST}/.*"]]}
    rungs = {f"{family}: trials that completed it": ["Multiline", [f"{RUNGS}/{family} .*"]] for family in families}
    return {"budget": budget, "best so far": best, "rungs": rungs}
