"""Rows as the batch_size experiment leaves them, of a machine with so many bytes a row beside some fixed ones."""

from typing import Any

from tests.training_rows import whole

FIXED, EACH, LIMIT = 100_000_000, 2_000_000, 2_000_000_000
ESTIMATE_FACTOR = 1.25
"""Times the estimated memory a row takes."""


def outcome(rows: int) -> dict[str, Any]:
    """Of a batch."""
    taken = FIXED + EACH * rows
    if taken > LIMIT:
        return {"ended": "out of memory", "free_bytes": None, "seconds": 3.0}
    return {
        "ended": "fits", "free_bytes": None, "seconds": 4.0, "memory_bytes": taken,
        "tensor_bytes": taken / ESTIMATE_FACTOR, "parameters": 10_000,
        "epoch_steps": 16_000 // rows, "step_seconds": rows / 800, "ready_seconds": 3.0 + rows / 200,
        "epoch_seconds": 40.0 + 64 / rows, "share": 1.0,
    }  # fmt: skip


def batch(rows: int) -> dict[str, Any]:
    """A batch by itself."""
    found = {"paper_bytes": EACH * rows / ESTIMATE_FACTOR, "limit_bytes": LIMIT}
    return whole({"rows": rows, "share": 1.0, "limit": "2GB"}, {}, **found, **outcome(rows))


def largest() -> dict[str, Any]:
    """Memory holds 950 rows."""
    all_of_them = {rows: outcome(rows) for rows in (32, 128, 512, 950, 955, 2048)}
    tried = [[rows, each["ended"], each.get("memory_bytes")] for rows, each in all_of_them.items()]
    return whole(
        {"largest": True, "share": 1.0, "limit": "2GB"}, {}, largest=950, fails=955, epoch_rows=16_000, resolved=True,
        limit_bytes=LIMIT, by_rule=800, foretold=960, foretold_from=[32, 128, 512], tried=tried,
        timed=outcome(950) | {"paper_bytes": EACH * 950 / ESTIMATE_FACTOR},
    )  # fmt: skip


def all_rows() -> list[dict[str, Any]]:
    """Those of the published report, and the largest."""
    return [*(batch(rows) for rows in (32, 128, 512, 2048, 8192)), largest()]
