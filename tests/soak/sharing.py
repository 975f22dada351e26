"""Two trials on one GPU: Ray's own parts of it, real processes, and each charged half of the time it held."""

from collections.abc import Iterator
from pathlib import Path

from tests.soak.accounts import OFF_SECONDS, number, rows
from tests.soak.bench import Bench, Row
from tests.soak.search import Search

PRETENDED = Path(__file__).resolve().parents[1] / "tune" / "pretended.py"
CAP_SECONDS, SHORT_CAP_SECONDS = 120, 50
EACH = 2
USED_SHARE = 0.9
HALF = "SELECT COUNT(*) FROM leases WHERE ABS(charged - (closed - opened) / ?) > 0.01"


def measure(bench: Bench) -> Iterator[Row]:
    """One row."""
    cap, study = SHORT_CAP_SECONDS if bench.short else CAP_SECONDS, bench.study("sharing")
    search = Search(
        bench.observer, "--budget", f"{cap}s", "--families", "nanogpt", "--trials-per-gpu", str(EACH), "--out", study,
        script=(PRETENDED,),
    )  # fmt: skip
    code = search.finish()
    bench.observer.look()
    held = bench.observer.trials(search.driver)  # since each said so: what it imports before needs no GPU
    seen = sum(each.served_until - each.worked for each in held if each.worked is not None) / EACH
    query = f"SELECT SUM((closed - opened) / {EACH}) FROM slots WHERE slot IN (SELECT slot FROM leases)"
    charged, wrong = number(study, "SELECT SUM(seconds) FROM charges"), number(study, HALF, EACH)
    off = number(study, query) - seen
    at_once = most_at_once(study)
    yield Row(
        what="GPU shared",
        asked=f"{EACH} trials at once on the one GPU that Ray knows of, each charged 1/{EACH} of what it held; "
        f"spent <= cap, >= {USED_SHARE:.0%} used; the account within 1 s a slot of what the operating system saw",
        measured=f"{at_once} at once; {wrong:.0f} leases charged otherwise; spent {charged:.1f} of {cap} s; "
        f"off by {off:+.2f} s",
        kept=code == 0 and at_once == EACH and not wrong and USED_SHARE * cap <= charged <= cap
        and abs(off) <= OFF_SECONDS * EACH,
    )  # fmt: skip


def most_at_once(study: Path) -> int:
    """Leases that were open together."""
    leases = rows(study, "SELECT opened, closed FROM leases")
    return max(sum(one["opened"] <= each["opened"] < one["closed"] for one in leases) for each in leases)
