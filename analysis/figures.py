"""The command behind plot.py: pictures of studies, as PNG and CSV, with their legends in words."""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import geometric_mean

import pandas as pd

from analysis import tables
from analysis.experiments.ablation import ALONG, SHOWN, learning, main_effects, minutes, overfitting, sizes
from analysis.experiments.costs import batch_size, estimates, loading, stage_bars, stage_pies
from analysis.experiments.kernels import roofline
from analysis.experiments.scaling import communication, losses, speed_up, ways
from analysis.experiments.trainings import draw_losses_over_rates, lives, methods_scatter, precisions, shapes
from analysis.plots.dimensions import effects
from analysis.plots.search import curves, front, parallel_coordinates, progress, size_curve
from analysis.ranking import ranking, where_measured_text, winner
from analysis.settings import PlotSettings
from analysis.spending import spending
from analysis.study import RUNS, Results, Study, families, newest_study, open_kernels, open_studies, open_study
from analysis.style import Picture
from tune.errors import UserError, script_command
from tune.search_space import label
from tune.store.queries import TRAINED_TRIALS_QUERY, measured_text
from tune.table_text import Table
from tune.units import counted

FAMILY_PICTURES: Mapping[str, Sequence[Callable[[Results, str], Picture]]] = {
    "front": (front, size_curve),
    "curves": (curves,),
    "effects": (effects, parallel_coordinates),
}
WIDTH_AND_DEPTH = ("d_model", "layers"), ("layers", "d_model")
LEARNING = [partial(learning, what=what, along=along) for what in SHOWN for along in ALONG]
PICTURES: Mapping[str, Sequence[Callable[[Study], Picture]]] = {
    "ablation": (main_effects, sizes, minutes, *LEARNING),
    "overfitting": (overfitting, *LEARNING),
    "methods": (methods_scatter, shapes),
    "batch_size": (batch_size,),
    "estimates": (estimates,),
    "loader": (loading,),
    "stages": (stage_pies, stage_bars),
    "precision": (precisions,),
    "transfer": [partial(draw_losses_over_rates, axis=axis, other=other) for axis, other in WIDTH_AND_DEPTH],
    "scaling": (speed_up, communication),
    "large_batch": (losses,),
    "data_parallel": (ways,),
    "curves": (lives,),
}


def plot(settings: PlotSettings) -> int:
    """Draw and save pictures, and print where and what is drawn. UserError: nothing can be drawn."""
    here = settings.out or Path()
    if settings.what in FAMILY_PICTURES:
        results = Results(studies=open_studies(settings.studies))
        if settings.what == "front" and results.measure.is_loop_metric:
            rule = f"goes by {results.measure.name}: no size is known of it, so it has no front; draw curves or effects"
            raise UserError(f"study: a training loop of your own {rule}")
        named = families(results, settings.family)
        draw_all([partial(draw, results, family) for family in named for draw in FAMILY_PICTURES[settings.what]], here)
    elif settings.what == "compare":
        first, second = open_studies(settings.studies)
        compare(first, second, settings)
    elif settings.what == "roofline":
        save(roofline(open_kernels(*settings.studies or [newest_study(RUNS, kernels=True)])), here)
    else:
        study = open_study(*settings.studies or [newest_study(RUNS)])
        draw_all(pictures_of(study), settings.out or study.folder)
    return 0


def save(picture: Picture, folder: Path) -> None:
    """Write a picture, and print where and what is drawn."""
    print(*picture.save(folder), f"\n{picture.text}")


def pictures_of(study: Study) -> list[Callable[[], Picture]]:
    """Return the pictures of a study of an experiment. UserError: it has none, or the study is a search."""
    name = str(study.facts.get("experiment", ""))
    if name not in PICTURES:
        named = f"of {name}" if name else "a search"
        report = f"{script_command('analysis/report.py')} {shlex.quote(str(study.folder))}"
        remedy = f"name a study of {', '.join(PICTURES)}; of a search: {report}"
        raise UserError(f"study: {study.name!r} is {named}, of which there is no such picture: {remedy}")
    return [partial(draw, study) for draw in PICTURES[name]]


def draw_all(pictures: Sequence[Callable[[], Picture]], folder: Path) -> None:
    """Save the pictures that can be drawn, and print why the others cannot. UserError: none can."""
    missing = []
    for draw in pictures:
        try:
            picture = draw()
        except UserError as error:
            missing.append(error)
        else:
            save(picture, folder)
    if len(missing) == len(pictures) > 0:
        raise missing[0]
    for why in dict.fromkeys(map(str, missing)):
        print(why)


def compare(first: Study, second: Study, settings: PlotSettings) -> None:
    """Print what differs, and draw the best so far of each family that both have; in a format such as --csv only
    print."""
    studies = first, second
    names = ["", first.name, second.name]
    found = [Table(title=f"{first.name} and {second.name}", columns=names, rows=list(comparison_rows(*studies)))]
    found += trainings(first, second)
    if settings.format:
        print(settings.render(found))
        return
    for each in found:
        tables.draw(each, fold=names[1:])
        print()
    both = [set(study.facts.get("families", {})) for study in studies]
    for family in sorted(both[0] & both[1]):
        try:
            picture = progress(Results(studies=studies), family)
        except UserError as reason:
            print(f"{family}: not drawn: {reason}")
            continue
        picture_files = picture.save(settings.out or Path())
        print(*picture_files, f"\n{family}: {picture.text}")


def comparison_rows(first: Study, second: Study) -> Iterator[tuple[str, ...]]:
    """Yield rows of three cells: settings that differ, what was spent, and of each family the text and the winner."""
    both = (first, second)
    settings = [study.facts.get("settings", {}) for study in both]
    for name in sorted({*settings[0], *settings[1]}):
        values = [str(each.get(name, "default")) for each in settings]
        if values[0] != values[1]:
            yield f"--{name.replace('_', '-')}", *values
    yield "device", first.device, second.device
    yield "spent", *(tables.duration(spending(study).spent) for study in both)
    results = [Results(studies=[study]) for study in both]
    rankings = [ranking(each) for each in results]
    yield "trials", *(str(len(table)) for table in rankings)
    for family in sorted({*rankings[0]["family"], *rankings[1]["family"]}):
        yield f"{family}: text", *(text(study, family) for study in both)
        windows = [study.judged_context(family) for study in both]
        if any(windows):
            yield f"{family}: judged context", *(str(window or tables.EMPTY_CELL) for window in windows)
        pools = [table[table["family"] == family] for table in rankings]
        best = [None if pool.empty else winner(each, pool) for each, pool in zip(results, pools, strict=True)]
        on = [None if row is None or "on_whole" not in row else measured_text(row) for row in best]
        yield f"{family}: reached", *(tables.EMPTY_CELL if row is None else where_measured_text(row) for row in best)
        yield f"{family}: winner", *(tables.EMPTY_CELL if row is None else row["config"] for row in best)
        kinds = {
            **{each.measure.column: tables.number for each in results},
            **{"test_perplexity": tables.number, "bits_per_character": tables.number},
            **{"parameters": tables.count, "device_seconds": tables.duration},
        }
        for column, write in kinds.items():
            if any(row is not None and column in row for row in best):
                name = column.replace("_", " ")
                if column in ("perplexity", "bits_per_character") and None not in on and on[0] != on[1]:
                    name = f"{name}, not of the same tokens"
                elif "perplexity" in column or column == "bits_per_character":
                    alike = windows[0] == windows[1] or any(row is None for row in best)
                    name = name if alike else f"{name}, not in the same context"
                cells = (write(row[column]) if row is not None and column in row else tables.EMPTY_CELL for row in best)
                yield f"{family}: {name}", *cells


def trainings(first: Study, second: Study) -> Iterator[Table]:
    """Yield a table of the trainings that two lists have in common, of equal recipes: how fast each was, and its
    device-seconds."""
    one, other = (training_speeds(study) for study in (first, second))
    both = one.index.intersection(other.index, sort=False)
    recipes = [{name: each | {"why": None} for name, each in study.facts.get("recipes", {}).items()}
               for study in (first, second)]  # fmt: skip
    if both.empty or any("experiment" not in study.facts for study in (first, second)) or recipes[0] != recipes[1]:
        return
    ratios = other.loc[both] / one.loc[both]
    rows = []
    for training in both:
        _, config, steps, _ = training
        of_each = [[each.loc[training][what] for each in (one, other, ratios)] for what in one]
        rows.append([label(json.loads(config)), f"{steps:,}", *map(tables.number, chain(*of_each))])
    means = [tables.number(geometric_mean(ratios[what])) for what in one]
    names = [cell for what in one for cell in (f"{what}, {first.name}", f"{what}, {second.name}", f"{what}, ratio")]
    yield Table(
        title=f"{counted(len(both), 'training')} that both have",
        columns=["configuration", "steps", *names],
        rows=[*rows, ["geometric mean", "", "", "", means[0], "", "", means[1]]],
        note=f"Ratios are {second.name} over {first.name}.",
    )


def training_speeds(study: Study) -> pd.DataFrame:
    """Return, by family, configuration, steps and tokens, what was trained whole: tokens a second of its steps, and
    device-seconds."""
    table = study.read(TRAINED_TRIALS_QUERY)
    configs = table["config"].map(lambda config: json.dumps(json.loads(config), sort_keys=True))
    found = {"tokens/s": table["tokens"] / table["training_seconds"], "device-s": table["device_seconds"]}
    by = [table["family"], configs, table["steps"], table["tokens"]]
    return pd.DataFrame(found).groupby(by, sort=False).mean()


def text(study: Study, family: str) -> str:
    """Return a family's corpus as text, such that different ones differ."""
    corpus = study.corpus(family)
    if "vocabulary" not in corpus:
        return str(corpus.get("name", tables.EMPTY_CELL))
    words = f"vocabulary of {corpus['vocabulary']:,}"
    return f"{corpus.get('name', '?')} {str(corpus.get('sha256', ''))[:8]}, {words}"
