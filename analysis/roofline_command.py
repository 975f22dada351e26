"""The command behind roofline.py: one picture of a study of kernels, as PNG and CSV."""

from pathlib import Path

from analysis import tables
from analysis.experiments.kernels import roofline
from analysis.study import RUNS, newest, open_kernels


def draw_roofline(arguments: list[str]) -> None:
    """Draw, save, and say where and what is to be seen. UserError where nothing can be drawn."""
    parser = tables.parser("roofline", "Draw what kernels reach under the roofs of the machine.", studies="?")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="where to write (default: here)")
    flags = parser.parse_args(arguments)
    picture = roofline(open_kernels(flags.studies or newest(RUNS, kernels=True)))
    print(*picture.save(flags.out), f"\n{picture.text}")
