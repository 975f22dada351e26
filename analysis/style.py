"""Pictures: figure, data and legend in one; and the style that all of them share."""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, MultipleLocator, NullLocator
from numpy.typing import ArrayLike
from PIL import Image

from analysis import tables
from analysis.spending import CHARGE_KINDS
from tune.reports import MOST_OF_LOG
from tune.store.queries import DECAY, END
from tune.units import duration_text

# Okabe and Ito's palette, which colour-blind people can tell apart too
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
)  # fmt: skip
GREY = "#8A8A8A"
CHARGE_COLORS = dict(zip(CHARGE_KINDS, (BLUE, ORANGE, YELLOW, GREEN, SKY, GREY, VERMILION), strict=True))
LAST = {DECAY: "after the decay", END: "the end"}
MARKERS = "osD^vPX*"
MANY = 2000  # points above which they are drawn as pixels, which keeps a page small
MARGIN = 0.06  # of an axis, on each side
WIDE = 10.0  # largest over smallest number from which a linear axis would press numbers together
LEAST_MARGIN = 1.05
MOST_OF_LINEAR = 1e300  # most that a linear axis shows, beside its negative: their distance is a float
WIDTH = 6.4  # inches; a phone shows it at about half of that
DPI = 150
MOST_BYTE_TICKS = 5
COLORS = 256  # in a PNG, which is then a third as large
TIME_STEPS = [1, 2, 5, 10, 20, 30, *(60 * n for n in (1, 2, 5, 10, 20, 30)), *(3600 * n for n in (1, 2, 4, 8, 24, 96))]

matplotlib.rcParams.update(
    {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.edgecolor": "#666666",
        "grid.color": "#E4E4E4",
        "grid.linewidth": 0.7,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "svg.hashsalt": "ration",
        "text.parse_math": False,  # a name may have dollars in it
        "figure.constrained_layout.use": True,
    }
)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture. name: stem of its files; text: its legend in words; data: what was drawn.

    hover: axes, x and y of points on them, and a text for each, which a page shows where one points at it.
    """

    name: str
    title: str
    text: str
    figure: Figure
    data: pd.DataFrame
    hover: tuple[Axes, ArrayLike, ArrayLike, Sequence[str]] | None = None

    def __post_init__(self) -> None:
        """Lay out the figure once, not again for each format; savefig would draw it twice to do so."""
        lay_out(self.figure)
        self.figure.set_layout_engine("none")
        self.figure.dpi = DPI

    def save(self, folder: Path) -> list[Path]:
        """Write the PNG and the CSV, and make the folder. UserError: they cannot be written."""
        stem = re.sub(r"[^\w.-]", "_", self.name)  # a family's name may be anything, `../` too
        drawn, image = io.BytesIO(), io.BytesIO()
        FigureCanvasAgg(self.figure).print_png(drawn)
        few_colors = Image.open(drawn).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
        few_colors.save(image, format="png", optimize=True)
        table = self.data.to_csv(index=False).encode()
        return [
            tables.write_file(folder / f"{stem}.png", image.getvalue()),
            tables.write_file(folder / f"{stem}.csv", table),
        ]

    def points(self) -> list[tuple[float, float, str]]:
        """Return the points and texts of `hover`, as shares of the picture's width and height from its upper left
        corner; about MANY at most."""
        if self.hover is None:
            return []
        plot, x, y, texts = self.hover
        places = plot.transData.transform(np.column_stack((np.asarray(x, float), np.asarray(y, float))))
        across, up = (places / self.figure.bbox.size).T
        found = zip(across.round(4).tolist(), (1 - up).round(4).tolist(), texts, strict=True)
        return list(found)[:: 1 + len(texts) // MANY]

    def svg(self) -> str:
        """Return the picture as SVG for a page; equal for equal data."""
        text = io.StringIO()
        FigureCanvasSVG(self.figure).print_svg(text, metadata={"Date": None})
        return text.getvalue()


def new_figure(rows: int = 1, columns: int = 1, *, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with its axes, of WIDTH; height in inches."""
    figure = Figure(figsize=(WIDTH, height))
    plots = list(figure.subplots(rows, columns, squeeze=False).flat)
    for plot in plots:
        plot.margins(0.05, 0.08)
    return figure, plots


def lay_out(figure: Figure) -> None:
    """Place a figure's axes, as drawing it would."""
    if engine := figure.get_layout_engine():
        with suppress(ValueError):  # as in drawing: what cannot be laid out stays where it is
            engine.execute(figure)


def level_styles(found: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return colour and marker of each level, from `rung 0` to the decay or a loop's end: darker is further."""
    rungs = sorted((level for level in found if level not in LAST), key=lambda level: int(level.split()[1]))
    shades = matplotlib.colormaps["viridis"](np.linspace(0.78, 0.1, max(len(rungs), 2)))
    styles = {
        rung: (matplotlib.colors.to_hex(shade), MARKERS[number % (len(MARKERS) - 1)])
        for number, (rung, shade) in enumerate(zip(rungs, shades, strict=False))
    }
    return styles | {level: (VERMILION, "*") for level in LAST if level in found}


def level_text(level: str) -> str:
    return LAST.get(level, level)


def at_level(level: str) -> str:
    """Return a level with its preposition: at rung 2, after the decay"""
    text = level_text(level)
    return text if text.startswith("after") else f"at {text}"


def time_ticks(axis: Axis) -> None:
    """Give a linear axis of seconds round times. Call it after drawing."""
    low, high = axis.get_view_interval()
    step = next((step for step in TIME_STEPS if (high - low) / step <= 7), TIME_STEPS[-1])
    axis.set_major_locator(MultipleLocator(step))
    axis.set_major_formatter(lambda value, _: duration_text(value))


def legend_above(plot: Axes, handles: Sequence[Artist] | None = None, *, columns: int = 7, length: float = 1.3) -> None:
    """Put the legend above the axes, where it hides nothing, in as many columns as fit. Call it after drawing.

    length: of a line in it, in font sizes; twice as long where lines differ in their dashes.
    """
    shown = plot.get_legend_handles_labels()[0] if handles is None else list(handles)
    spec, figure = plot.get_subplotspec(), plot.get_figure(root=True)
    assert spec is not None and figure is not None
    lay_out(figure)  # only then is it known where the axes begin
    column = figure.bbox.width / spec.get_gridspec().ncols
    end = column * (plot.bbox.x0 // column + 1)
    for count in range(columns, 0, -1):
        legend = plot.legend(
            handles=shown, loc="lower left", bbox_to_anchor=(0, 1), ncols=count, columnspacing=1, handlelength=length
        )
        if legend.get_window_extent().x1 <= end:
            return


def stacked_bars(plot: Axes, table: pd.DataFrame, colors: Mapping[str, str], height: float) -> np.ndarray:
    """Draw a bar for each row, labelled at the left, with these columns end to end; the first row is on top. Return
    where each bar ends."""
    places, ends = np.arange(len(table)), np.zeros(len(table))
    for column, color in colors.items():
        plot.barh(places, table[column], left=ends, color=color, label=column, height=height)
        ends = ends + table[column].to_numpy(float)
    plot.set(yticks=places, yticklabels=table.index, ylim=(len(table) - 0.4, -0.6))
    plot.grid(axis="y", visible=False)
    return ends


OVER_SEEDS = "Bars: 95 % intervals over seeds, where there are several."


def error_bar_lengths(table: pd.DataFrame, of: str) -> np.ndarray:
    """Return how far the interval `low` to `high` reaches below and above a column, as errorbar() takes it."""
    return np.abs(table[["low", "high"]].to_numpy().T - table[of].to_numpy())


def byte_axis(axis: Axis, values: ArrayLike) -> None:
    """Make an axis a logarithmic one of bytes, with ticks that are round in the unit of their labels."""
    log_axis(axis, values, tables.short_memory)
    axis.set_major_locator(FixedLocator(byte_ticks(*axis.get_view_interval())))


def byte_ticks(low: float, high: float) -> list[float]:
    """Return ticks: powers of two at equal distances; in a narrow range multiples of one, such as 96, 112 and 128
    MiB."""
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    if len(powers) > 2:
        apart = math.ceil(len(powers) / MOST_BYTE_TICKS)
        return [2.0**power for power in powers if power % apart == 0]
    step = 2.0 ** math.ceil(math.log2((high - low) / MOST_BYTE_TICKS))
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def drawable(values: pd.Series) -> pd.Series:
    """Return the numbers of a user's loop, which may be any floats, such that an axis can hold them."""
    return values.clip(-MOST_OF_LINEAR, MOST_OF_LINEAR)


def number_axis(axis: Axis, values: pd.Series, *, log: bool = False) -> None:
    """Make a vertical axis logarithmic if asked for, or if the values are far apart; else a linear one that holds them,
    labelled as people write numbers."""
    if log or is_wide(values):
        log_axis(axis, values, tables.short_number)
        return
    low, high = float(values.min()), float(values.max())
    margin = MARGIN * (high - low) or MARGIN * abs(high) or MARGIN
    axis.axes.set_ylim(low - margin, high + margin)
    axis.set_major_formatter(lambda value, _: tables.short_number(value))


def is_wide(values: pd.Series) -> bool:
    """Whether numbers are so far apart that a logarithmic axis shows them better."""
    return bool(values.min() > 0 and values.max() >= WIDE * values.min())


def log_axis(axis: Axis, values: ArrayLike, text: Callable[[float], str]) -> None:
    """Make an axis a logarithmic one that holds the values, with few ticks, all labelled as people write numbers."""
    low, high = np.clip([np.min(values), np.max(values)], 1 / MOST_OF_LOG, MOST_OF_LOG).tolist()
    margin = max((high / low) ** MARGIN, LEAST_MARGIN)
    limits = low / margin, high * margin
    name = "x" if axis is axis.axes.xaxis else "y"
    axis.axes.set(**{f"{name}lim": limits})  # first, as a scale sets limits of its own, which of one value are equal
    axis.axes.set(**{f"{name}scale": "log"})
    decades = np.log10(limits[1] / limits[0])
    subs = (1.0,) if decades > 2.5 else (1.0, 3.0) if decades > 1.5 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs) if decades > 0.8 else MaxNLocator(4))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: text(value))
