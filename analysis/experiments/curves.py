"""Learning curves at a constant rate, a line for each configuration, and what each decay gave."""

import json

import matplotlib
import numpy as np
import pandas as pd

from analysis import tables as formats
from analysis.study import Study, experiment_rows
from analysis.style import Picture, axes, log_axis
from tune.errors import UserError

KINDS = ("valid", "averaged", "decayed")
FIRST_SHARE = 0.02
"""Of the longest life: what came before is not shown."""


def lives_table(study: Study) -> pd.DataFrame:
    """A row for each loss of the longest life of each configuration. UserError where none was lived yet."""
    steps, lives = dict[str, float](), dict[str, dict]()
    for row in experiment_rows(study, "curves"):
        name = json.dumps(row["config"])
        if "step_seconds" in row:
            steps[name] = min(row["step_seconds"], steps.get(name, np.inf))
        elif name not in lives or row["asked"]["seconds"] > lives[name]["asked"]["seconds"]:
            lives[name] = row
    if not lives:
        raise UserError(f"study: {study.name!r} has measured no life yet; go on with it")
    found = [
        {
            "parameters": row["parameters"], **row["config"], "kind": kind,
            "seconds": report * row["steps_per_report"] * steps[name], "loss": loss,
        }
        for name, row in lives.items() for kind in KINDS
        for report, loss in enumerate(row.get(f"{kind}_loss", ()), 1) if loss is not None
    ]  # fmt: skip
    return pd.DataFrame(found).sort_values(["parameters", "kind", "seconds"], ignore_index=True)


def lives(study: Study) -> Picture:
    """Loss over seconds of training, coloured by size; marks: after a decay."""
    table = lives_table(study)
    shown = table[table["seconds"] >= FIRST_SHARE * table["seconds"].max()]
    figure, (plot,) = axes(height=4.2)
    sizes = sorted(table["parameters"].unique())
    for size, color in zip(sizes, matplotlib.colormaps["viridis"](np.linspace(0.95, 0.05, len(sizes))), strict=True):
        of_size = shown[shown["parameters"] == size]
        for kind, look in (("valid", {"lw": 1.2}), ("decayed", {"marker": "o", "ms": 4, "ls": "none"})):
            line = of_size[of_size["kind"] == kind]
            label = formats.plain(size) if kind == "valid" and size in (sizes[0], sizes[-1]) else None
            plot.plot(line["seconds"], line["loss"], c=color, label=label, **look)
    log_axis(plot.xaxis, shown["seconds"], formats.plain)
    plot.set(xlabel="seconds of training", ylabel="validation loss, nats a token")
    plot.legend(title="parameters")
    return Picture(
        name="curves", title="Learning curves at a constant rate", figure=figure, data=table,
        text="The darker, the larger. Lines: at the constant rate; points: after a decay that ends there.",
    )  # fmt: skip
