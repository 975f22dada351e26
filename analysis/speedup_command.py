"""The command behind speedup.py: pictures of the scaling experiment, as PNG and CSV."""

from pathlib import Path

from analysis import tables
from analysis.experiments.scaling import communication, speed_up
from analysis.study import RUNS, newest, open_study


def draw_speed_up(arguments: list[str]) -> None:
    """Draw, save, and say where and what is to be seen. UserError where nothing can be drawn."""
    parser = tables.parser("speedup", "Draw what more devices gain, and what of a step is communication.", studies="?")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="where to write (default: here)")
    flags = parser.parse_args(arguments)
    study = open_study(flags.studies or newest(RUNS))
    for draw in (speed_up, communication):
        picture = draw(study)
        print(*picture.save(flags.out), f"\n{picture.text}")
