"""The experiment on precisions: curves over steps and over seconds."""

from analysis import tables as formats
from analysis.study import Study, learning_curves, mean_curves
from analysis.style import (
    BLUE,
    GREEN,
    MARKERS,
    ORANGE,
    OVER_SEEDS,
    PURPLE,
    Picture,
    axes,
    bars,
    legend_above,
    log_axis,
)

COLORS = {"fp32": BLUE, "tf32": PURPLE, "bf16": ORANGE, "fp16": GREEN}
MEANS = ("valid_loss", "train_loss", "training_seconds", "tokens")


def precisions(study: Study) -> Picture:
    """Loss while training as lines, validation loss as marks, by precision: means over seeds."""
    table = mean_curves(learning_curves(study), ["precision"], MEANS)
    figure, plots = axes(1, 2, height=3.6)
    for (precision, color), marker in zip(COLORS.items(), MARKERS, strict=False):
        curve = table[table["precision"] == precision]
        valid = curve.dropna(subset="valid_loss")
        for plot, along in zip(plots, ("steps", "training_seconds"), strict=True):
            if len(curve):
                plot.plot(curve[along], curve["train_loss"], c=color, lw=1, label=precision)
            plot.errorbar(valid[along], valid["valid_loss"], bars(valid, "valid_loss"), c=color, fmt=marker, ms=5)
    low, high = table["valid_loss"].min(), table["valid_loss"].max()
    for plot, along in zip(plots, ("steps", "seconds in steps"), strict=True):
        log_axis(plot.yaxis, [low, high], formats.plain)
        plot.set(xlabel=along, xlim=(0, None))
    plots[0].set_ylabel("nats a token")
    legend_above(plots[0])
    return Picture(
        name="precisions",
        title="One configuration in each precision",
        text=f"Lines: loss while training; marks: validation loss; both means over seeds. {OVER_SEEDS}",
        figure=figure,
        data=table,
    )
