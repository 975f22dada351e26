"""FLOPs on paper against FLOPs as they were counted, by the report's formula and by the right one."""

import pandas as pd

from analysis import tables
from analysis.study import Study, experiment_rows, published
from analysis.style import BLACK, BLUE, GREY, ORANGE, SKY, VERMILION, Picture, axes, legend_above, log_axis
from tune.errors import UserError

HEADS = 2
"""Of the report's block."""
RIGHT, REPORTS = "right", "report's"
STYLES = {
    (RIGHT, "FlopCounterMode"): (BLUE, "o", "full"),
    (RIGHT, "Nsight Compute"): (SKY, "s", "full"),
    (RIGHT, "published"): (BLACK, "x", "full"),
    (REPORTS, "FlopCounterMode"): (VERMILION, "o", "none"),
    (REPORTS, "Nsight Compute"): (ORANGE, "s", "none"),
    (REPORTS, "published"): (BLACK, "+", "full"),
}
"""Colour, marker and filling by formula and by who measured."""


def estimates_table(study: Study) -> pd.DataFrame:
    """A row for each formula, batch and way to measure. UserError where the block was not measured."""
    rows = experiment_rows(study, "estimates")
    blocks = {row["asked"]["batch"]: row for row in rows
              if row["asked"]["measure"] == "block" and row["config"]["heads"] == HEADS}  # fmt: skip
    if not blocks:
        raise UserError(f"study: {study.name!r} has no block of estimates yet; go on with it")
    measured = {
        "FlopCounterMode": {batch: row["step_flops"] for batch, row in blocks.items()},
        "Nsight Compute": {batch: flops for row in rows for batch, flops, _ in row.get("nsight", ())},
        "published": published("estimates").set_index("batch_size")["measured_flops"].to_dict(),
    }
    formulas = {RIGHT: "paper_step_flops", REPORTS: "paper_reported_flops"}
    return pd.DataFrame([
        {"formula": formula, "by": by, "batch": batch, "estimated": float(row[name]), "measured": float(found[batch])}
        for formula, name in formulas.items() for by, found in measured.items()
        for batch, row in sorted(blocks.items()) if batch in found
    ])  # fmt: skip


def estimates(study: Study) -> Picture:
    """Measured against estimated; on the line both are equal."""
    table = estimates_table(study)
    figure, (plot,) = axes(height=4.4)
    ends = [table["estimated"].min(), table["measured"].max()]
    plot.plot(ends, ends, c=GREY, lw=1, label="measured = estimated")
    for (formula, by), (color, marker, filling) in STYLES.items():
        rows = table[(table["formula"] == formula) & (table["by"] == by)]
        if len(rows):
            plot.plot(rows["estimated"], rows["measured"], c=color, marker=marker, fillstyle=filling, ls="", ms=7,
                      label=f"{formula} formula, {by}")  # fmt: skip
    plot.set(xlabel="FLOPs on paper", ylabel="FLOPs of a training step, measured")
    log_axis(plot.xaxis, table["estimated"], tables.short_count)
    log_axis(plot.yaxis, table["measured"], tables.short_count)
    legend_above(plot, columns=2)
    return Picture(
        name="estimates",
        title="FLOPs on paper and measured",
        text="A point for each batch. The report's formula is of a forward pass; measured are training steps.",
        figure=figure,
        data=table,
    )
