"""The experiment on precisions: curves over steps and over seconds."""

from analysis import tables as formats
from analysis.study import Study, learning_curves
from analysis.style import BLUE, GREEN, MARKERS, ORANGE, PURPLE, Picture, axes, legend_above, log_axis

COLORS = {"fp32": BLUE, "tf32": PURPLE, "bf16": ORANGE, "fp16": GREEN}
COLUMNS = ("trial", "precision", "seed", "steps", "tokens", "training_seconds", "train_loss", "valid_loss")


def precisions(study: Study) -> Picture:
    """Loss while training as lines, validation loss as marks, by precision and seed."""
    table = learning_curves(study)[[*COLUMNS]]
    figure, plots = axes(1, 2, height=3.6)
    for place, (precision, color) in enumerate(COLORS.items()):
        for number, (_, curve) in enumerate(table[table["precision"] == precision].groupby("seed")):
            valid = curve.dropna(subset="valid_loss")
            for plot, along in zip(plots, ("steps", "training_seconds"), strict=True):
                plot.plot(curve[along], curve["train_loss"], c=color, lw=1, label=precision if number == 0 else None)
                plot.scatter(valid[along], valid["valid_loss"], s=22, color=color, marker=MARKERS[place % len(MARKERS)])
    low, high = table["valid_loss"].min(), table["valid_loss"].max()
    for plot, along in zip(plots, ("steps", "seconds in steps"), strict=True):
        log_axis(plot.yaxis, [low, high], formats.plain)
        plot.set(xlabel=along, xlim=(0, None))
    plots[0].set_ylabel("nats a token")
    legend_above(plots[0])
    ends = table.dropna(subset="valid_loss").sort_values("steps").groupby(["precision", "seed"]).tail(1)
    said = [
        f"{precision} {rows['valid_loss'].mean():.4f} after {rows['training_seconds'].mean():.0f} s"
        for precision, rows in ends.groupby("precision")
    ]
    return Picture(
        name="precisions",
        title="One configuration in each precision",
        text=f"Validation loss at the end, mean over seeds: {'; '.join(said)}. Lines: while training.",
        figure=figure,
        data=table,
    )
