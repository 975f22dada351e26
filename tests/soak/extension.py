"""A cap extended: paused and finished trials are taken up and not retrained; less than was spent is refused."""

import json
from collections.abc import Iterator
from pathlib import Path

from model.training.checkpoint import BEFORE_DECAY, STATE
from tests.soak.accounts import adds_up, number, rows, spent, taken_up
from tests.soak.bench import Bench, Row
from tests.soak.search import Search

CAP_SECONDS, TOTAL_SECONDS = 60, 150
SHORT_CAP_SECONDS, SHORT_TOTAL_SECONDS = 44, 84
SAME_SECONDS = 0.2
"""Of training: so near are two readings of one moment of a trial's life."""


def measure(bench: Bench) -> Iterator[Row]:
    """One row."""
    cap, total = (SHORT_CAP_SECONDS, SHORT_TOTAL_SECONDS) if bench.short else (CAP_SECONDS, TOTAL_SECONDS)
    study = bench.study("extended")
    code = Search(
        bench.observer, "--budget", f"{cap}s", "--families", "nanogpt", "--devices", "1", "--out", study
    ).finish()
    winner = rows(study, "SELECT trial, lease FROM reports WHERE final")[0]
    before_decay = training_seconds(study, winner["trial"])
    leases_before = int(number(study, "SELECT MAX(lease) FROM leases"))
    trials_before = {row["trial"] for row in rows(study, "SELECT trial FROM trials")}

    refused = Search(bench.observer, "--resume", study, "--budget", f"{cap // 2}s")
    is_refused = refused.finish() == 2 and refused.printed.count("\n") == 1 and "--budget" in refused.printed
    again = Search(bench.observer, "--resume", study, "--budget", f"{total}s")
    code += again.finish()

    later = [lease for lease in taken_up(study) if lease["lease"] > leases_before]
    old = [lease for lease in later if lease["trial"] in trials_before]
    winners = [lease for lease in old if lease["trial"] == winner["trial"]]
    went_on = winners[0]["began"] if winners else None
    as_asked = went_on is not None and abs(went_on - before_decay) <= SAME_SECONDS
    retrained = [lease["trial"] for lease in old if lease["began"] < SAME_SECONDS]
    decayed = any(lease["decayed"] for lease in later)
    yield Row(
        what="cap extended",
        asked="paused and finished trials are taken up, not retrained; the winner goes on from before its decay; less "
        "than spent is refused",
        measured=f"{cap} to {total} s: {len({lease['trial'] for lease in old})} old trials taken up, {len(retrained)} "
        f"retrained; the winner went on from {went_on or 0:.1f} s, its decay began at {before_decay:.1f} s; less was "
        f"{'refused' if is_refused else 'NOT refused'}; spent {spent(study):.1f} s",
        kept=code == 0 and as_asked and not retrained and decayed and is_refused and spent(study) <= total
        and adds_up(study),
        details=[{"winner": winner["trial"], "before decay": before_decay, "later": later, "said": refused.printed}],
    )  # fmt: skip


def training_seconds(study: Path, trial: str) -> float:
    """Of a trial's life, in the checkpoint from before its decay."""
    state = json.loads((study / "checkpoints" / trial / BEFORE_DECAY / STATE).read_text())
    return float(state["pace"]["training_seconds"])
