"""Trials under a memory limit that some of them cannot keep to: predicted, cut into parts, and none runs out twice.

What is known of memory is on the safe side, so two trials are made to take more than that: one with whole batches, one
always.
"""

import json
from collections import Counter
from collections.abc import Iterator

from tests.soak.accounts import adds_up, number, rows, spent
from tests.soak.bench import Bench, Row
from tests.soak.faults import FAULTY
from tests.soak.search import Search

CAP_SECONDS, SHORT_CAP_SECONDS = 360, 90
FAULTS = {"outgrows": ["t002"], "bursts": ["t003"]}
LIMIT = "260MB"
"""Between what the smallest and the largest of nanoGPT's trials need, so that some must be cut and some refused."""
LOST_SHARE = 0.02


def measure(bench: Bench) -> Iterator[Row]:
    """One row."""
    cap = SHORT_CAP_SECONDS if bench.short else CAP_SECONDS
    study = bench.study("memory")
    told = bench.study("memory.json")
    told.write_text(json.dumps(FAULTS))
    search = Search(
        bench.observer, "--budget", f"{cap}s", "--families", "nanogpt", "--memory-limit", LIMIT, "--out", study,
        script=(FAULTY, told),
    )  # fmt: skip
    code = search.finish()
    refused = rows(study, "SELECT trial, reason FROM trials WHERE reason LIKE 'memory: needs about %'")
    launched = {row["trial"] for row in rows(study, "SELECT trial FROM leases")}
    cut = rows(study, "SELECT DISTINCT trial FROM memory WHERE micro_batches > 1 AND measured IS NOT NULL")
    ran_out = rows(study, "SELECT DISTINCT trial, lease, slot FROM memory JOIN leases USING (lease, trial) "
                   "WHERE measured IS NULL")  # fmt: skip
    again = [trial for trial, times in Counter(row["trial"] for row in ran_out).items() if times > 1]
    used_again = [row for row in ran_out if number(
        study, "SELECT COUNT(*) FROM leases WHERE slot = ? AND lease > ?", row["slot"], row["lease"]
    )]  # fmt: skip
    hopeless = "SELECT trial FROM trials WHERE reason LIKE 'memory: ran out%'"
    lost = number(study, f"SELECT TOTAL(seconds) FROM charges WHERE trial IN ({hopeless})")
    start_up = number(study, "SELECT AVG(seconds) FROM charges WHERE what = 'start'")
    lost += len(ran_out) * start_up
    yield Row(
        what="out of memory",
        asked="predicted before launch; a part that fits is found; nothing runs out twice; its process is not used "
        f"again; <= {100 * LOST_SHARE:.0f} % of the cap lost",
        measured=f"limit {LIMIT}: {len(refused)} refused, {len(cut)} cut, {len(ran_out)} ran out, {len(again)} of them "
        f"twice; {len(used_again)} processes used again; {100 * lost / cap:.1f} % of the cap lost; spent "
        f"{spent(study):.1f} of {cap} s",
        kept=code == 0 and adds_up(study) and spent(study) <= cap and not {row["trial"] for row in refused} & launched
        and bool(refused) and bool(cut) and not again and not used_again and lost <= LOST_SHARE * cap,
        details=[*refused, *ran_out, {"start-up": start_up}],
    )  # fmt: skip
