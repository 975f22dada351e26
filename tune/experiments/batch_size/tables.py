"""The tables of the batch_size experiment, beside the published figures."""

import math
from collections.abc import Sequence

from tune.experiments.experiment import Row, Table
from tune.experiments.published import published
from tune.experiments.tables import NOTHING, figure
from tune.sizes import bytes_text

MEMORY = "memory_bytes", "tensor_bytes", "paper_bytes"


def tables(rows: Sequence[Row]) -> list[Table]:
    """All that there are rows for."""
    return [table for table in (batches(rows), largest(rows), boundary(rows)) if table.rows]


def by_rows(rows: Sequence[Row]) -> dict[int, Row]:
    """What came of each batch, that of the largest one too where it was timed."""
    found = {row["asked"]["rows"]: row for row in rows if "ended" in row}
    timed = {row["largest"]: row["timed"] for row in rows if "epoch_seconds" in row.get("timed", {})}
    return dict(sorted((found | timed).items()))


def largest_of(rows: Sequence[Row]) -> Row | None:
    """The row of the largest batch."""
    return next((row for row in rows if "largest" in row), None)


def batches(rows: Sequence[Row]) -> Table:
    """Seconds of an epoch and memory by batch, beside the published."""
    ours, theirs = by_rows(rows), {int(row["batch_size"]): row["epoch_seconds"] for row in published("batch_size")}
    found = []
    for batch in sorted(ours | theirs) if ours else []:
        row = ours.get(batch, {})
        known = theirs.get(batch)
        memory = [figure(row.get(name), "{:,.0f}", 1e-6) for name in MEMORY]
        found.append([
            f"{batch:,}", figure(row.get("epoch_seconds"), "{:.1f}"), figure(row.get("share"), "{:.0%}"),
            figure(row.get("epoch_steps"), "{:,.0f}"), figure(row.get("step_seconds"), "{:,.0f}", 1e3), *memory,
            row.get("ended", NOTHING), known if isinstance(known, str) else figure(known, "{:.1f}"),
        ])  # fmt: skip
    columns = (
        *("batch", "epoch s", "of it timed", "steps an epoch", "ms a step", "MB taken", "of tensors", "on paper"),
        *("ended", "published epoch s"),
    )
    note = (
        "A second epoch, without evaluation, each batch in a process of its own. Taken: by the process beyond what it "
        "had before, the heap included. Published: an image classifier on a V100 of 16 GB."
    )
    return Table(title="Seconds of an epoch by batch", columns=columns, rows=found, note=note)


def largest(rows: Sequence[Row]) -> Table:
    """The largest batch as it was found, and as small ones and the search's rule foretell it."""
    row = largest_of(rows)
    if row is None:
        return Table(title="", columns=(), rows=())
    found, fails = row["largest"], row["fails"]
    small = ", ".join(f"{batch:,}" for batch in row.get("foretold_from", ()))
    told = {"found": found, f"foretold from {small} rows": row.get("foretold"), "by the search's rule": row["by_rule"]}
    cells = [
        [what, f"{batch:,}", f"{batch / found - 1:+.1%}" if found and what != "found" else NOTHING]
        for what, batch in told.items() if batch is not None
    ]  # fmt: skip
    if fails is not None:
        note = f"{fails:,} rows do not fit" + ("" if row["resolved"] else "; there was no time to come closer")
    else:
        ended = "an epoch has no more rows" if found == row["epoch_rows"] else "the time was over"
        note = f"memory did not end: {ended}; give a longer text, a larger --budget or a --memory-limit"
    limit = f" within {bytes_text(row['limit_bytes'])}" if math.isfinite(row["limit_bytes"]) else ""
    return Table(title=f"The largest batch{limit}", columns=("", "rows", "of the found one"), rows=cells, note=note)


def boundary(rows: Sequence[Row]) -> Table:
    """All batches that were tried on the way to the largest."""
    row = largest_of(rows)
    tried = row["tried"] if row else []
    found = [[f"{batch:,}", figure(taken, "{:,.0f}", 1e-6), ended] for batch, ended, taken in tried]
    return Table(title="The way to the largest batch", columns=("batch", "MB taken", "ended"), rows=found)
