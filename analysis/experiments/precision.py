"""The experiment on precisions: curves over steps and over seconds."""

import pandas as pd

from analysis import tables as formats
from analysis.study import Study, experiment_rows
from analysis.style import BLUE, GREEN, MARKERS, ORANGE, PURPLE, Picture, axes, legend_above, log_axis

COLORS = {"fp32": BLUE, "tf32": PURPLE, "bf16": ORANGE, "fp16": GREEN}
COLUMNS = ("steps", "tokens", "seconds", "loss", "valid_loss")


def curves_table(study: Study) -> pd.DataFrame:
    """A row for each point of each curve; loss: while training, nats a token."""
    tables = [
        pd.DataFrame(row["curve"], columns=COLUMNS).assign(**row["config"])
        for row in experiment_rows(study, "precision")
    ]
    return pd.concat(tables, ignore_index=True).astype({"valid_loss": float})


def precisions(study: Study) -> Picture:
    """Loss while training as lines, validation loss as marks, by precision and seed."""
    table = curves_table(study)
    figure, plots = axes(1, 2, height=3.6)
    for place, (precision, color) in enumerate(COLORS.items()):
        for number, (_, curve) in enumerate(table[table["precision"] == precision].groupby("seed")):
            valid = curve.dropna(subset="valid_loss")
            for plot, along in zip(plots, ("steps", "seconds"), strict=True):
                plot.plot(curve[along], curve["loss"], c=color, lw=1, label=precision if number == 0 else None)
                plot.scatter(valid[along], valid["valid_loss"], s=22, color=color, marker=MARKERS[place % len(MARKERS)])
    low, high = table["valid_loss"].min(), table["valid_loss"].max()
    for plot, along in zip(plots, ("steps", "seconds in steps"), strict=True):
        log_axis(plot.yaxis, [low, high], formats.plain)
        plot.set(xlabel=along, xlim=(0, None))
    plots[0].set_ylabel("nats a token")
    legend_above(plots[0])
    ends = table.dropna(subset="valid_loss").sort_values("steps").groupby(["precision", "seed"]).tail(1)
    said = [
        f"{precision} {rows['valid_loss'].mean():.4f} after {rows['seconds'].mean():.0f} s"
        for precision, rows in ends.groupby("precision")
    ]
    return Picture(
        name="precisions",
        title="One configuration in each precision",
        text=f"Validation loss at the end, mean over seeds: {'; '.join(said)}. Lines: while training.",
        figure=figure,
        data=table,
    )
