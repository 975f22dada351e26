"""The tables of the estimates experiment, beside the published figures."""

from collections.abc import Sequence

import numpy as np

from tune.experiments.experiment import Row, Table
from tune.experiments.published import published
from tune.experiments.tables import figure, with_interval

REPORTED_PARAMETERS = 13_466_278
REPORTED_SLOPES = "2.84 from two points, 2.67 from five"
HEADS = 2
"""Of the report's block."""
MFLOP, MEGABYTE, MILLISECONDS = "{:,.1f}", "{:,.2f}", "{:.1f}"


def tables(rows: Sequence[Row]) -> list[Table]:
    """All that there are rows for."""
    made = [parameters(rows), flops(rows), slopes(rows), memory(rows), heads(rows)]
    return [table for table in made if table.rows]


def of(rows: Sequence[Row], what: str, heads: int = HEADS) -> list[Row]:
    """The rows of the block or of the whole model, by batch."""
    found = [row for row in rows if row["asked"]["measure"] == what and "step_flops" in row]
    return sorted((row for row in found if row["config"]["heads"] == heads), key=lambda row: row["asked"]["batch"])


def nsight(rows: Sequence[Row]) -> dict[int, tuple[int, int]]:
    """FLOPs and bytes of traffic by batch, of a GPU's own counters."""
    return {batch: (flops, traffic) for row in rows for batch, flops, traffic in row.get("nsight", ())}


def theirs() -> dict[int, dict[str, float]]:
    """The report's figures by batch."""
    return {int(row["batch_size"] or 0): {name: each or 0.0 for name, each in row.items()}
            for row in published("estimates")}  # fmt: skip


def parameters(rows: Sequence[Row]) -> Table:
    """By parts."""
    found = []
    for row in rows:
        if "layered" in row:
            found = [[name, f"{count:,}"] for name, count in row["on_paper"].items()]
            left = row["parameters"] - row["layered"]
            found += [["all, on paper", f"{sum(row['on_paper'].values()):,}"], ["all, in the model",
                      f"{row['parameters']:,}"], ["the report's", f"{REPORTED_PARAMETERS:,}"]]  # fmt: skip
            found.append([f"{left:,} fewer, without {', '.join(row['left_out'])}", f"{row['layered']:,}"])
    return Table(title="Parameters of the word-level model", columns=("part", "parameters"), rows=found)


def flops(rows: Sequence[Row]) -> Table:
    """Of a training step of the block."""
    found = []
    for row in of(rows, "block"):
        batch = row["asked"]["batch"]
        known, gpu = theirs().get(batch, {}), nsight(rows).get(batch, (None, None))
        counts = row["paper_reported_flops"], row["paper_forward_flops"], row["forward_flops"], row["paper_step_flops"]
        measured = row["step_flops"], row["profiled_flops"], gpu[0], known.get("measured_flops")
        cells = [figure(each, MFLOP, 1e-6) for each in (*counts, *measured)]
        share = figure(known.get("measured_flops"), "{:.3f}", 1 / row["paper_step_flops"])
        found.append([str(batch), *cells, share])
    columns = (
        *("batch", "report's formula", "forward on paper", "counted", "step on paper", "counted", "by profiler"),
        *("by Nsight", "published, by Nsight", "of step on paper"),
    )
    note = (
        "The report's formula: batch x 7 x 35 x 200 x 200 multiplications. On paper: 8 S D^2 + 4 S^2 D + 4 S D F a row "
        "forward, three times as many a step. Counted: FlopCounterMode, with attention as plain products; the "
        "profiler adds what goes element by element."
    )
    return Table(title="FLOPs of the encoder block, in millions", columns=columns, rows=found, note=note)


def slope(estimated: Sequence[float], measured: Sequence[float]) -> float | None:
    """Of the line through the points by least squares; None of one point."""
    return float(np.polyfit(estimated, measured, 1)[0]) if len(estimated) > 1 else None


def slopes_of(rows: Sequence[Row]) -> dict[str, tuple[list[float], list[float], list[float]]]:
    """By what was measured: the report's formula, the right one and the measurement over batches."""
    block = of(rows, "block")
    by_batch = {row["asked"]["batch"]: row for row in block}

    def against(measured: dict[int, float], paper: str) -> tuple[list[float], list[float], list[float]]:
        both = [batch for batch in by_batch if batch in measured]
        reported, right = ([by_batch[batch][name] for batch in both] for name in ("paper_reported_flops", paper))
        return reported, right, [measured[batch] for batch in both]

    def column(name: str) -> dict[int, float]:
        return {batch: row[name] for batch, row in by_batch.items()}

    gpu = {batch: float(counted) for batch, (counted, _) in nsight(rows).items()}
    reported = {batch: row["measured_flops"] for batch, row in theirs().items()}
    series = {
        "forward, FlopCounterMode": against(column("forward_flops"), "paper_forward_flops"),
        STEP: against(column("step_flops"), "paper_step_flops"),
        "step, profiler": against(column("profiled_flops"), "paper_step_flops"),
        "step, Nsight Compute": against(gpu, "paper_step_flops"),
        PUBLISHED: against(reported, "paper_step_flops"),
    }
    return {name: each for name, each in series.items() if each[2]}


STEP, PUBLISHED = "step, FlopCounterMode", "published, Nsight Compute"


def slopes(rows: Sequence[Row]) -> Table:
    """Of measured against estimated FLOPs."""
    found = [
        [name, *(figure(each, "{:.3f}") for each in (slope(reported[:2], measured[:2]), slope(reported, measured),
                                                    slope(right, measured)))]
        for name, (reported, right, measured) in slopes_of(rows).items()
    ]  # fmt: skip
    whole = of(rows, "model")
    if len(whole) > 1:
        right = slope([row["paper_step_flops"] for row in whole], [row["step_flops"] for row in whole])
        found.append(["step of the whole model, FlopCounterMode", "-", "-", figure(right, "{:.3f}")])
    columns = "measured", "report's formula, two batches", "all batches", "right formula"
    note = f"The report: {REPORTED_SLOPES}. Its first estimate is rounded down: 313 for 313.6 million."
    return Table(title="Slope of measured FLOPs against estimated", columns=columns, rows=found, note=note)


def memory(rows: Sequence[Row]) -> Table:
    """Of the block and of the whole model, and the seconds of a step."""
    found = []
    for what in ("block", "model"):
        for row in of(rows, what):
            batch, most = row["asked"]["batch"], row.get("paper_step_bytes")
            kept = [figure(row[name], MEGABYTE, 1e-6) for name in ("paper_kept_bytes", "kept_bytes")]
            step = [figure(each, MEGABYTE, 1e-6) for each in (most, row["step_bytes"])]
            rate = figure(row["paper_step_flops"] / row["step_seconds"][0], "{:,.0f}", 1e-9)
            traffic = theirs().get(batch, {}).get("measured_dram_kilobytes") if what == "block" else None
            gpu = nsight(rows).get(batch, (None, None))[1] if what == "block" else None
            found.append([
                what, str(batch), *kept, times(row["kept_bytes"], row["paper_kept_bytes"]), *step,
                times(row["step_bytes"], most), with_interval(row["step_seconds"], MILLISECONDS, 1e3), rate,
                figure(gpu, MEGABYTE, 1e-6), figure(traffic, MEGABYTE, 1e-3),
            ])  # fmt: skip
    columns = (
        *("of", "batch", "kept on paper", "kept", "times", "step on paper", "step", "times", "ms a step", "GFLOP/s"),
        *("DRAM by Nsight", "published"),
    )
    note = (
        "Kept: tensors that forward saves for backward. Step: the most that is held at once, of the model with AdamW. "
        "DRAM: what passes to and from memory, which is no size; the report's at a batch of 128 looks misprinted."
    )
    return Table(title="Memory in MB, and time", columns=columns, rows=found, note=note)


def times(measured: float, paper: float | None) -> str:
    return figure(None if paper is None else measured / paper, "{:.3f}")


def heads(rows: Sequence[Row]) -> Table:
    """The same block with more heads and with fewer."""
    blocks = [row for row in rows if row["asked"]["measure"] == "block" and "step_flops" in row]
    counts = sorted({row["config"]["heads"] for row in blocks})
    found = [
        [str(count), figure(row["step_flops"], MFLOP, 1e-6), times(row["step_flops"], row["paper_step_flops"])]
        for count in counts for row in of(rows, "block", count)[:1]
    ]  # fmt: skip
    columns = "heads", "MFLOP of a step, counted", "of those on paper"
    return Table(title="Heads cancel in the block", columns=columns, rows=found if len(found) > 1 else [])
