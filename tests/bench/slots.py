"""What the engine itself takes: a search of ten thousand trials on a thousand slots, in virtual time and in memory."""

import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.table import Row
from tests.tune.search.alone import Alone

SLOTS = 1000
CAP, SHORT_CAP = 4.8e8, 2e7
"""Device-seconds, of which the ladder makes so many trials; each follows a power law, a tenth diverge."""
ASKED = 60.0
"""CPU seconds of one core, at most, of 10,000 trials."""


def slots(_: Path, *, short: bool) -> Iterator[Row]:
    """CPU seconds, on a tenth and on a hundredth of the slots too. No text is read."""
    for held in (SLOTS, SLOTS // 10, SLOTS // 100):
        search = Alone(seconds=SHORT_CAP if short else CAP, slots=held, diverging=0.1, configs=10**6)
        began = time.process_time()
        search.run()
        seconds, trials = time.process_time() - began, len(search.engine.trials)
        leases = search.rows("SELECT COUNT(*) AS leases FROM leases")[0]["leases"]
        assert search.spent <= search.seconds and len(search.rows("SELECT slot FROM slots")) >= held
        yield Row(
            what=f"{trials:,} trials and {leases:,} leases on {held:,} slots, CPU seconds",
            against="",
            asked=f"< {ASKED:.0f}",
            measured=f"{seconds:.1f}, {1000 * seconds / leases:.2f} ms a lease",
            reached=seconds < ASKED if trials >= 10_000 else None,
        )  # fmt: skip
