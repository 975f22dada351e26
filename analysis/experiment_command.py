"""The command behind experiment.py: the pictures of whatever experiment a study is, as PNG and CSV."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from analysis import tables
from analysis.experiments.ablation import main_effects, overfitting, sizes
from analysis.experiments.batch_size import batch_size
from analysis.experiments.data_parallel import ways
from analysis.experiments.estimates import estimates
from analysis.experiments.large_batch import losses
from analysis.experiments.loader import loading
from analysis.experiments.methods import equal_flops, methods_scatter
from analysis.experiments.precision import precisions
from analysis.experiments.scaling import communication, speed_up
from analysis.experiments.stages import stage_bars, stage_pies
from analysis.experiments.transfer import depth, width
from analysis.study import RUNS, Study, newest, open_study
from analysis.style import Picture
from tune.errors import UserError, called

PICTURES: Mapping[str, Sequence[Callable[[Study], Picture]]] = {
    "ablation": (main_effects, sizes, overfitting),
    "methods": (methods_scatter, equal_flops),
    "batch_size": (batch_size,),
    "estimates": (estimates,),
    "loader": (loading,),
    "stages": (stage_pies, stage_bars),
    "precision": (precisions,),
    "transfer": (width, depth),
    "scaling": (speed_up, communication),
    "large_batch": (losses,),
    "data_parallel": (ways,),
}


def draw_experiment(arguments: list[str]) -> None:
    """Draw, save, and say where and what is to be seen, or why not. UserError where nothing can be drawn."""
    parser = tables.parser("experiment", "Draw what an experiment found.", studies="?")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write (default: the study's folder)")
    flags = parser.parse_args(arguments)
    study = open_study(flags.studies or newest(RUNS))
    name = str(study.facts.get("experiment", ""))
    if name not in PICTURES:
        named = f"of {name}" if name else "a search"
        remedy = f"name a study of {', '.join(PICTURES)}; of a search: {called('analysis/report.py')} {study.folder}"
        raise UserError(f"study: {study.name!r} is {named}, of which there is no such picture: {remedy}")
    missing = []
    for draw in PICTURES[name]:
        try:
            picture = draw(study)
        except UserError as error:
            missing.append(error)
            continue
        print(*picture.save(flags.out or study.folder), f"\n{picture.text}")
    if len(missing) == len(PICTURES[name]):
        raise missing[0]
    for why in missing:
        print(why)
