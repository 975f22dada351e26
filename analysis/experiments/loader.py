"""What a loop waits for: batches over the number of processes that load them."""

import pandas as pd

from analysis.study import Study, experiment_rows
from analysis.style import BLUE, GREEN, ORANGE, VERMILION, Picture, axes, bars
from tune.errors import UserError

KINDS = {
    "empty": ("in an empty loop", BLUE, "o", "--"),
    "wait": ("waited for in a running loop", ORANGE, "s", "-"),
    "whole": ("all of a running loop", VERMILION, "D", "-"),
}
OWN = "own"


def loading_table(study: Study) -> pd.DataFrame:
    """Seconds a batch of each source and kind, with the ends of the interval."""
    rows = [row for row in experiment_rows(study, "loader") if row["asked"]["measure"] == "workers"]
    if not rows:
        raise UserError(f"study: {study.name!r} has no numbers of workers yet; go on with it")
    found = [
        {"of": row["asked"]["of"], "source": source["name"], "kind": kind}
        | dict(zip(("seconds", "low", "high"), source[kind], strict=True))
        for row in rows for source in row["sources"] for kind in KINDS
    ]  # fmt: skip
    return pd.DataFrame(found)


def loading(study: Study) -> Picture:
    """Over workers, a panel for each kind of data; lines across: this project's own batches."""
    table = loading_table(study)
    names = list(table["of"].unique())
    figure, plots = axes(columns=len(names), height=3.8)
    for plot, name in zip(plots, names, strict=True):
        rows = table[(table["of"] == name) & (table["source"] != OWN)]
        for kind, (label, color, marker, line) in KINDS.items():
            some = rows[rows["kind"] == kind]
            workers, times, ends = some["source"].astype(int), 1e3 * some["seconds"], 1e3 * bars(some, "seconds")
            plot.errorbar(workers, times, ends, c=color, marker=marker, ls=line, ms=4, capsize=2, label=label)
        own = table[(table["of"] == name) & (table["source"] == OWN) & (table["kind"] == "whole")]
        if len(own):
            plot.axhline(1e3 * own["seconds"].iloc[0], c=GREEN, lw=1.2, ls=":", label="all, with our own batches")
        plot.set(xlabel="workers", ylim=(0, None), xticks=sorted(rows["source"].astype(int).unique()))
        plot.set_title(name, pad=8)
    plots[0].set_ylabel("ms a batch")
    labels = {label: handle for plot in plots for handle, label in zip(*plot.get_legend_handles_labels(), strict=True)}
    figure.legend(labels.values(), labels.keys(), loc="outside upper left", ncols=2)
    return Picture(
        name="loading",
        title="What a loop waits for",
        text="A panel for each kind of data. Bars: 95 % intervals.",
        figure=figure,
        data=table,
    )
