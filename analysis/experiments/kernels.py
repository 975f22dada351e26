"""A roofline (Williams, Waterman and Patterson 2009): what kernels reach, and what the machine allows at most."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import tables
from analysis.study import Study
from analysis.style import (  # fmt: skip
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
    Picture,
    legend_above,
    log_axis,
    new_figure,
)
from tune.errors import UserError
from tune.units import counted

COLORS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, BLACK, GREY)
PANEL_INCHES = 4.2
PARALLEL = "-parallel"
"""Suffix of an implementation's form on all threads, which has the colour of the other form."""
LABELS = 100.0
"""How many times the highest rate the axis reaches, to leave room for the names above."""
BEYOND = 100.0
"""How many times the largest intensity the axis reaches, so that the roofs of products are in the picture."""


def roofline(study: Study) -> Picture:
    """Draw a panel for each device and number of threads, with the largest size of each kernel that was timed.

    UserError: nothing with arithmetic and memory traffic was timed.
    """
    table = roofline_table(study)
    panels = [rows for _, rows in table.groupby(["device", "threads"], sort=True)]
    figure, plots = new_figure(len(panels), height=PANEL_INCHES * len(panels))
    names = dict.fromkeys(table["implementation"].str.removesuffix(PARALLEL))
    styles = {name: (COLORS[place % len(COLORS)], MARKERS[place % len(MARKERS)]) for place, name in enumerate(names)}
    for plot, rows in zip(plots, panels, strict=True):
        _draw(plot, study, rows, styles)
    return Picture(
        name="roofline",
        title="What kernels reach",
        text="Grey: the roof, of memory's bandwidth and of products of matrices. Copies do no arithmetic: they are the "
        "roof, and what lies in the caches passes it. Kernels that memory does not bound are left out, and so are "
        "unstable rows.",
        figure=figure,
        data=table,
    )


def roofline_table(study: Study) -> pd.DataFrame:
    """Return rows of kernel, implementation, size, device, threads, intensity (FLOP a byte), rate and roof (FLOP/s)."""
    table = study.read(
        """SELECT kernel, implementation, size, device, COALESCE(threads, 0) AS threads, bytes, flops, median_seconds
           FROM kernels WHERE median_seconds > 0 AND NOT unstable AND bytes > 0 AND flops > 0
           ORDER BY row"""
    )
    if table.empty:
        rule = "no row with arithmetic and traffic was timed without disturbance"
        raise UserError(f"kernels: {rule}: measure them again on an idle machine, or with a larger --budget")
    table = table[table["size"] == table.groupby("kernel")["size"].transform("max")]
    table = table.assign(intensity=table["flops"] / table["bytes"], rate=table["flops"] / table["median_seconds"])
    roofs = [_roof(study, row["device"], row["threads"], row["intensity"]) for row in table.to_dict("records")]
    columns = ["kernel", "implementation", "size", "device", "threads", "intensity", "rate", "roof"]
    return table.assign(roof=roofs)[columns]


def _peaks(study: Study, device: str, threads: int) -> tuple[float, dict[str, float]]:
    """Return bytes a second (NaN where not measured), and FLOP/s of matrix products by precision."""
    peaks, many = study.facts.get("peaks", {}).get(device, {}), str(threads or 1)
    products = {name: rates.get(many) for name, rates in peaks.get("flops_per_second", {}).items()}
    bandwidth = float(peaks.get("bytes_per_second", {}).get(many, np.nan))
    return bandwidth, {name: float(rate) for name, rate in products.items() if rate is not None}


def _roof(study: Study, device: str, threads: int, intensity: float) -> float:
    """Return the FLOP/s that bandwidth and the fastest products allow; NaN where the bandwidth was not measured."""
    bandwidth, products = _peaks(study, device, threads)
    return min(intensity * bandwidth, max(products.values(), default=np.inf))


def _draw(plot: Axes, study: Study, rows: pd.DataFrame, styles: Mapping[str, tuple[str, str]]) -> None:
    device, threads = rows[["device", "threads"]].iloc[0]
    at = np.geomspace(rows["intensity"].min() / 2, rows["intensity"].max() * BEYOND, 200)
    bandwidth, products = _peaks(study, device, threads)
    allowed = at * bandwidth
    if not np.isnan(bandwidth):
        plot.plot(at, np.minimum(allowed, max(products.values(), default=np.inf)), c=GREY, lw=1.4)
        unit = f"{tables.count(bandwidth)}B/s"
        plot.annotate(unit, (at[0], allowed[0]), textcoords="offset points", xytext=(6, -9), fontsize=8)
    for precision, rate in products.items():
        start = rate / bandwidth if rate < allowed[-1] else at[0]
        plot.hlines(rate, start, at[-1], color=GREY, lw=1.4)
        plot.annotate(
            f"{precision} products", (at[-1], rate), textcoords="offset points", xytext=(0, 3), ha="right", fontsize=8
        )
    for name, own in rows.groupby("implementation", sort=False):
        color, marker = styles[str(name).removesuffix(PARALLEL)]
        plot.scatter(own["intensity"], own["rate"], s=26, c=color, marker=marker, label=name, zorder=3)
    log_axis(plot.xaxis, at, tables.short_number)
    highest = max([rows["rate"].max() * LABELS, *products.values()])
    log_axis(plot.yaxis, [rows["rate"].min(), highest], tables.short_count)
    for intensity, own in rows.groupby("intensity"):
        highest = np.nanmax([own["rate"].max(), own["roof"].max()])
        plot.annotate(
            "\n".join(dict.fromkeys(own["kernel"])), (float(intensity), highest), textcoords="offset points",
            xytext=(0, 6), rotation=90, fontsize=7, ha="center",
        )  # fmt: skip
    plot.set(xlabel="FLOP a byte of memory traffic", ylabel="FLOP/s")
    where = f"{device}, {counted(int(threads), 'thread')}" if threads else device
    plot.text(0.99, 0.03, where, transform=plot.transAxes, ha="right", fontsize=9)
    legend_above(plot, columns=4)
