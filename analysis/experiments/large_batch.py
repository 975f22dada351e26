"""What a large batch costs at equal samples, by the rule for its rate."""

import numpy as np
import pandas as pd

from analysis import tables
from analysis.study import Study, experiment_rows
from analysis.style import BLUE, GREY, MARKERS, ORANGE, SKY, VERMILION, Picture, axes, legend_above, log_axis
from tune.errors import UserError

COLORS = {"unchanged": VERMILION, "linear": ORANGE, "square root": BLUE, "LARS": SKY}


def losses_table(study: Study) -> pd.DataFrame:
    """Of each batch and rule that did not diverge: mean, lowest and highest validation loss over the seeds."""
    rows = [row for row in experiment_rows(study, "large_batch") if row["asked"]["measure"] == "training"]
    if not rows:
        raise UserError(f"study: {study.name!r} has no training of large_batch yet; go on with it")
    table = pd.DataFrame({
        "rule": [row["asked"]["rule"] for row in rows],
        "times": [row["asked"]["times"] for row in rows],
        "batch_tokens": [row["batch_tokens"] for row in rows],
        "loss": [row["valid_loss"] for row in rows],
        "noise_scale": [(row.get("noise_scale") or [np.nan])[0] for row in rows],
    }).astype({"loss": float})  # fmt: skip
    by = table.groupby(["rule", "times"], sort=False)
    found = by.agg(
        batch_tokens=("batch_tokens", "first"), loss=("loss", "mean"), low=("loss", "min"), high=("loss", "max"),
        noise_scale=("noise_scale", "mean"), seeds=("loss", "count"),
    )  # fmt: skip
    return found[found["seeds"] > 0].reset_index()


def losses(study: Study) -> Picture:
    """Loss over the batch, a line for each rule; the dotted line is the noise scale of the smallest batch."""
    table = losses_table(study)
    figure, (plot,) = axes()
    small = table[(table["times"] == 1) & (table["rule"] == "unchanged")]
    for place, (rule, color) in enumerate(COLORS.items()):
        own = table[table["rule"] == rule]
        rows = own if rule in ("unchanged", "LARS") else pd.concat([small, own])
        rows = rows.sort_values("times")
        if len(own):
            ends = np.abs(rows[["low", "high"]].to_numpy().T - rows["loss"].to_numpy())
            plot.errorbar(rows["batch_tokens"], rows["loss"], ends, c=color, label=rule, capsize=2, ms=4,
                          marker=MARKERS[place])  # fmt: skip
    scale = small["noise_scale"].mean()
    if np.isfinite(scale):
        plot.axvline(scale, c=GREY, lw=1, ls=":", label="gradient noise scale")
    shown = [*table["batch_tokens"], *([scale] if np.isfinite(scale) else [])]
    log_axis(plot.xaxis, shown, tables.number)
    plot.set(xlabel="tokens a batch", ylabel="validation loss, nats a token")
    legend_above(plot, columns=3)
    best = table.loc[table[table["times"] == table["times"].max()]["loss"].idxmin()]
    return Picture(
        name="large-batch",
        title="Large batches at equal samples",
        text=f"With {best['batch_tokens']:,.0f} tokens a batch {best['rule']!r} ends lowest: {best['loss']:.3f} nats"
        + (f", {best['loss'] - small['loss'].iloc[0]:+.3f} against the recipe's batch." if len(small) else "."),
        figure=figure,
        data=table,
    )
