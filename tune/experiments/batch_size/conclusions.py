"""What the rows of the batch_size experiment come to, in a few sentences."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from tune.experiments.batch_size.tables import by_rows, largest_of
from tune.experiments.experiment import Row
from tune.experiments.published import published
from tune.sizes import bytes_text

WITHIN = 0.10
"""Asked of the prediction."""


def conclusions(rows: Sequence[Row]) -> list[str]:
    """What held and what did not."""
    return list(chain(_epochs(rows), _memory(rows), _largest(rows)))


def _epochs(rows: Sequence[Row]) -> list[str]:
    ours = {batch: row["epoch_seconds"] for batch, row in by_rows(rows).items() if "epoch_seconds" in row}
    if len(ours) < 2:
        return []
    theirs = {row["batch_size"]: row["epoch_seconds"] for row in published("batch_size")}
    known = {batch: seconds for batch, seconds in theirs.items() if isinstance(seconds, float)}
    first, fastest = min(ours), min(ours, key=lambda batch: ours[batch])
    if fastest == first:
        return [f"Larger batches save nothing here: an epoch is fastest with {first} rows."]
    told = f"An epoch is fastest with {fastest:,} rows: {ours[first] / ours[fastest]:.2f} times as fast as with {first}"
    times = known[min(known)] / known[max(known)]
    return [f"{told}; published: {times:.1f} times from {min(known):.0f} to {max(known):,.0f}, on a GPU that small "
            "batches leave idle."]  # fmt: skip


def _memory(rows: Sequence[Row]) -> list[str]:
    fitting = {batch: row for batch, row in by_rows(rows).items() if "memory_bytes" in row}
    taken = {batch: row["memory_bytes"] for batch, row in fitting.items()}
    if len(taken) < 2:
        return []
    each, fixed = np.polyfit(list(taken), list(taken.values()), 1)
    return [f"Memory explains where it ends: a step takes {bytes_text(fixed)} and {each / 1e6:.2f} MB a row, so that "
            f"four times the batch takes nearly four times as much. {_on_paper(list(fitting.values()))}"]  # fmt: skip


def _on_paper(rows: Sequence[Row]) -> str:
    """What is on paper against the tensors, and against what the process took with them."""
    tensors, whole = (
        [row[name] / row["paper_bytes"] for row in rows] for name in ("tensor_bytes", "memory_bytes")
    )  # fmt: skip
    return (f"Tensors take {min(tensors):.2f} to {max(tensors):.2f} times what is on paper, the process with its heap "
            f"{min(whole):.2f} to {max(whole):.2f} times.")  # fmt: skip


def _largest(rows: Sequence[Row]) -> list[str]:
    row = largest_of(rows)
    if row is None:
        return []
    if row["fails"] is None:
        ended = "an epoch has no more" if row["largest"] == row["epoch_rows"] else "the time was over"
        return [f"Memory did not end: {row['largest']:,} rows fit, and {ended}; give a longer text, a larger --budget "
                "or a --memory-limit."]  # fmt: skip
    where = f"of {bytes_text(row['limit_bytes'])} the largest batch that fits is {row['largest']:,} rows"
    said = f"{where}, and {row['fails']:,} do not."
    if "foretold" not in row or not row["largest"]:
        return [said[0].upper() + said[1:]]
    foretold, by_rule = (row[name] / row["largest"] - 1 for name in ("foretold", "by_rule"))
    small = ", ".join(str(batch) for batch in row["foretold_from"])
    held = f"within {WITHIN:.0%}" if abs(foretold) <= WITHIN else f"NOT within {WITHIN:.0%}"
    unresolved = "" if row["resolved"] else "; there was no time to come closer"
    return [f"{said[0].upper()}{said[1:-1]}{unresolved}. What batches of {small} took foretells "
            f"{row['foretold']:,} ({foretold:+.1%}, {held}); the search's rule, without any run, "
            f"{row['by_rule']:,} ({by_rule:+.0%}: {'too many' if by_rule > 0 else 'on the safe side'})."]  # fmt: skip
