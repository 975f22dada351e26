"""Ways to train: what each takes and where it ends; and what shapes of equal cost come to."""

import pandas as pd

from analysis.study import Study, experiment_rows
from analysis.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, Picture, axes, legend_above, log_axis
from tune.errors import UserError

COLORS = {
    "baseline": BLACK, "smaller batch": ORANGE, "accumulation": SKY, "SGD": VERMILION, "mixed precision": GREEN,
    "full precision": PURPLE,
}  # fmt: skip
SHAPES = {"nothing": "o", "heads": "s", "layers": "^", "d_model": "D"}
EQUAL = "equal FLOPs"


def methods_table(study: Study) -> pd.DataFrame:
    """A row for each method, shape and form of checkpointing: the means over the seeds."""
    rows = experiment_rows(study, "methods")
    table = pd.DataFrame({
        **{name: [row["asked"][name] for row in rows] for name in ("method", "doubled", "checkpointing")},
        **{name: [row["config"][name] for row in rows] for name in ("d_model", "heads", "layers")},
        "flops": [row["flops_per_token"] * row["tokens"] for row in rows],
        **{name: [row[name] for row in rows] for name in ("seconds", "memory_bytes", "valid_loss", "accuracy")},
    })  # fmt: skip
    keys = ["method", "doubled", "checkpointing", "d_model", "heads", "layers"]
    return table.groupby(keys, sort=False).mean().reset_index()


def methods_scatter(study: Study) -> Picture:
    """Seconds and memory against loss: a colour for each method, a marker for each shape."""
    table = methods_table(study)
    table = table[table["doubled"].isin(SHAPES)].reset_index(drop=True)
    figure, plots = axes(columns=2, height=4.2)
    for plot, (name, factor, unit) in zip(
        plots, (("seconds", 1.0, "s of steps"), ("memory_bytes", 1e-6, "peak MB")), strict=True
    ):
        for row in table.to_dict("records"):
            color, filled = COLORS[row["method"]], row["checkpointing"] == "off"
            plot.scatter(row[name] * factor, row["valid_loss"], marker=SHAPES[row["doubled"]], s=30,
                         facecolor=color if filled else "none", edgecolor=color, linewidth=1.1)  # fmt: skip
        log_axis(plot.xaxis, table[name] * factor, lambda value: f"{value:g}")
        plot.set_xlabel(unit)
    plots[0].set_ylabel("validation loss, nats")
    for method in (each for each in COLORS if (table["method"] == each).any()):
        plots[0].scatter([], [], color=COLORS[method], marker="o", s=30, label=method)
    for doubled in (each for each in SHAPES if (table["doubled"] == each).any()):
        name = "as it is" if doubled == "nothing" else f"{doubled} doubled"
        plots[1].scatter([], [], color=BLACK, marker=SHAPES[doubled], s=30, label=name)
    if (table["checkpointing"] == "on").any():
        plots[1].scatter([], [], facecolor="none", edgecolor=BLACK, s=30, label="checkpointing")
    for plot in plots:
        legend_above(plot, columns=2)
    best = table.loc[table["valid_loss"].idxmin()]
    return Picture(
        name="methods",
        title="What each way to train takes, and where it ends",
        text=f"The least loss is {best['valid_loss']:.3f}: {best['method']}, {best['doubled']} doubled, in "
        f"{best['seconds']:.0f} s with {best['memory_bytes'] / 1e6:.0f} MB.",
        figure=figure,
        data=table,
    )


def equal_flops(study: Study) -> Picture:
    """Losses of shapes that cost the same, and of what is doubled at its own cost."""
    table = methods_table(study)
    table = table[(table["method"] == "baseline") & (table["checkpointing"] == "off")].reset_index(drop=True)
    first = table[table["doubled"] == "nothing"]
    if first.empty or len(table) < 2:
        raise UserError(f"study: {study.name!r} has too few shapes of the baseline yet; go on with it")
    table["times"] = table["flops"] / float(first["flops"].iloc[0])
    table = table.sort_values(["times", "layers"], ignore_index=True)
    same = table["doubled"].isin(("nothing", "heads", EQUAL)).to_numpy()
    figure, (plot,) = axes(height=1.3 + 0.32 * len(table))
    for chosen, color, label in ((same, BLUE, "equal FLOPs"), (~same, VERMILION, "dearer")):
        plot.scatter(table["valid_loss"][chosen], table.index[chosen], s=40, color=color, label=label)
    named = [
        f"d_model {row.d_model}, heads {row.heads}, layers {row.layers}: {row.times:.2f}" for row in table.itertuples()
    ]
    plot.set(yticks=table.index, yticklabels=named, xlabel="validation loss, nats", ylim=(len(table) - 0.4, -0.6))
    plot.set_ylabel("shape: FLOPs, of the first")
    legend_above(plot)
    best = table.loc[table["valid_loss"][same].idxmin()]
    gain = float(first["valid_loss"].iloc[0]) - best["valid_loss"]
    return Picture(
        name="equal-flops",
        title="Shapes of equal cost",
        text=f"At equal FLOPs d_model {best['d_model']}, heads {best['heads']}, layers {best['layers']} has the least "
        f"loss, {gain:.3f} nats below the first one's.",
        figure=figure,
        data=table,
    )
