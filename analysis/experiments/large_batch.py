"""What a large batch costs at equal samples, by the rule for its rate."""

import numpy as np
import pandas as pd

from analysis import tables
from analysis.study import Study, experiment_rows, over_seeds
from analysis.style import (
    BLUE,
    GREY,
    MARKERS,
    ORANGE,
    OVER_SEEDS,
    SKY,
    VERMILION,
    Picture,
    axes,
    bars,
    legend_above,
    log_axis,
)
from tune.errors import UserError

COLORS = {"unchanged": VERMILION, "linear": ORANGE, "square root": BLUE, "LARS": SKY}


def losses_table(study: Study) -> pd.DataFrame:
    """Of each batch and rule its mean validation loss over the seeds, with the interval; NaN where one diverged."""
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
    return over_seeds(table, ["rule", "times"], ["loss", "batch_tokens", "noise_scale"])


def losses(study: Study) -> Picture:
    """Loss over the batch, a line for each rule; the dotted line is the noise scale of the smallest batch."""
    table = losses_table(study)
    figure, (plot,) = axes()
    small = table[(table["times"] == 1) & (table["rule"] == "unchanged")]
    for place, (rule, color) in enumerate(COLORS.items()):
        own = table[(table["rule"] == rule) & table["loss"].notna()]
        rows = own if rule in ("unchanged", "LARS") else pd.concat([small, own])
        rows = rows.sort_values("times")
        if len(own):
            plot.errorbar(rows["batch_tokens"], rows["loss"], bars(rows, "loss"), c=color, label=rule, capsize=2, ms=4,
                          marker=MARKERS[place])  # fmt: skip
    scale = small["noise_scale"].mean()
    if np.isfinite(scale):
        plot.axvline(scale, c=GREY, lw=1, ls=":", label="gradient noise scale")
    shown = [*table["batch_tokens"], *([scale] if np.isfinite(scale) else [])]
    log_axis(plot.xaxis, shown, tables.number)
    plot.set(xlabel="tokens a batch", ylabel="validation loss, nats a token")
    legend_above(plot, columns=3)
    return Picture(
        name="large-batch",
        title="Large batches at equal samples",
        text=f"A line for each rule for the rate, from the recipe's batch. What diverged is not drawn. {OVER_SEEDS}",
        figure=figure,
        data=table,
    )
