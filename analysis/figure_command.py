"""The commands behind front.py, curves.py and effects.py: pictures of each family, as PNG and CSV."""

from collections.abc import Callable, Sequence
from pathlib import Path

from analysis import tables
from analysis.plots.dimensions import effects
from analysis.plots.search import curve, curves, front, parallel
from analysis.study import Results, open_studies
from analysis.style import Picture
from tune.errors import UserError

Draw = Callable[[Results, str], Picture]


def draw_front(arguments: list[str]) -> None:
    save_pictures(arguments, "front", "Draw size against perplexity: the front, and the fitted curve.", (front, curve))


def draw_curves(arguments: list[str]) -> None:
    save_pictures(arguments, "curves", "Draw the learning curves by rung, with stops marked.", (curves,))


def draw_effects(arguments: list[str]) -> None:
    summary = "Draw the effect of each dimension with intervals, its importance, and all configurations at once."
    save_pictures(arguments, "effects", summary, (effects, parallel))


def save_pictures(arguments: list[str], entry: str, summary: str, draws: Sequence[Draw]) -> None:
    """Draw, save, and say where and what is to be seen. UserError where nothing can be drawn."""
    parser = tables.parser(entry, summary)
    parser.add_argument("--family", help="this family only")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="where to write (default: here)")
    flags = parser.parse_args(arguments)
    results = Results(studies=open_studies(flags.studies))
    families = sorted(results.trials["family"].unique())
    if flags.family is not None and flags.family not in families:
        raise UserError(f"--family: {flags.family!r} is not in the study: there are {', '.join(families)}")
    for family in families if flags.family is None else [flags.family]:
        for draw in draws:
            picture = draw(results, family)
            print(*picture.save(flags.out), f"\n{picture.text}")
