"""The experiments that there are, what one would do here, and the command behind experiment.py."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from tune.cli import Parser, add_flags, joined, settings_of, told_in_words
from tune.devices import find_devices
from tune.errors import UserError, called
from tune.experiments.ablation import ABLATION
from tune.experiments.base import (
    NAMES,
    Experiment,
    ExperimentSettings,
    affordable_share,
    crews,
    price,
    survey,
    winner_of,
)
from tune.experiments.batch_size import BATCH_SIZE
from tune.experiments.data_parallel import DATA_PARALLEL
from tune.experiments.estimates import ESTIMATES
from tune.experiments.large_batch import LARGE_BATCH
from tune.experiments.loader import LOADER
from tune.experiments.methods import METHODS
from tune.experiments.precision import PRECISION
from tune.experiments.scaling import SCALING
from tune.experiments.stages import STAGES_OF_A_TRAINING
from tune.experiments.transfer import TRANSFER
from tune.flags import invalid, parse_families, parse_path
from tune.units import duration_text

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for each in (
        ABLATION, METHODS, BATCH_SIZE, ESTIMATES, LOADER, STAGES_OF_A_TRAINING, PRECISION, TRANSFER,
        SCALING, LARGE_BATCH, DATA_PARALLEL,
    )
}  # fmt: skip


def list_lines(experiments: Iterable[Experiment]) -> Iterator[str]:
    """One line each, with the least that it takes and what it is worth."""
    for each in experiments:
        settings = ExperimentSettings(budget=1.0, families={each.families[0]: 1.0})
        points = each.points(find_devices(settings), settings)
        least, worth = (duration_text(round(price(points, some))) for some in (0.0, 1.0))
        yield f"{each.name:14} {each.about}; {least} to {worth} here"


def plan_lines(experiment: Experiment, settings: ExperimentSettings) -> Iterator[str]:
    """A line for each point, with its seconds on each device."""
    grounds = survey(experiment, settings)
    share = affordable_share(grounds.points, settings.budget)
    yield f"{experiment.name} on {grounds.devices.slots} x {grounds.devices.name}"
    for group in crews(grounds.points):
        for point in group:
            yield f"{point.devices} x {point.text}: {point.given(share):.0f} s"
    yield f"about {duration_text(round(price(grounds.points, share)))} of {duration_text(settings.budget)}"


ABOUT = "Repeat an experiment of the published reports, under a cap of device-hours."


def parser() -> argparse.ArgumentParser:
    """Only flags that were given appear in the result."""
    made = Parser(
        prog=called("tune/experiment.py"), description=ABOUT, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )  # fmt: skip
    made.add_argument("name", nargs="?", metavar="NAME", help="the experiment; --list names them")
    made.add_argument("--list", action="store_true", help="name the experiments, and what each is worth here")
    add_flags(made, [each for each in fields(ExperimentSettings) if each.name in NAMES])
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run an experiment; its exit code, or 2 for a wrong flag. Ray and torch come only once the flags are read."""
    return told_in_words(lambda: run(vars(parser().parse_args(joined(sys.argv[1:] if argv is None else argv)))))


def of_winner(name: str, typed: dict[str, Any]) -> dict[str, Any]:
    """What was typed, and the rest from the winner of the study that --of names. UserError: it cannot be had."""
    if name != SCALING.name:
        raise invalid("of", f"{typed['of']!r} is for {SCALING.name}: leave it out of {name}")
    if "fix" in typed:
        raise invalid("fix", f"{typed['fix']!r} is not for --of, whose winner has its configuration: leave one out")
    families = parse_families(typed["families"]) if "families" in typed else SCALING.families
    winner = winner_of(parse_path(typed["of"]), tuple(families))
    return winner | typed | {"families": winner["families"]}


def run(typed: dict[str, Any]) -> int:
    """The exit code. UserError: something that was typed cannot serve."""
    from tune.experiments.conduct import run_experiment

    if typed.pop("list", False):
        print(*list_lines(EXPERIMENTS.values()), sep="\n")
        return 0
    name = str(typed.pop("name", ""))
    if name not in EXPERIMENTS:
        raise UserError(f"NAME: {name!r} is no experiment: write one of {', '.join(EXPERIMENTS)}")
    if "resume" not in typed:
        typed = of_winner(name, typed) if "of" in typed else {"families": EXPERIMENTS[name].families[0]} | typed
    settings = settings_of(ExperimentSettings, typed, experiment=name)
    settings.check_files()
    if not settings.plan:
        return run_experiment(EXPERIMENTS[name], settings)
    print(*plan_lines(EXPERIMENTS[name], settings), sep="\n")
    return 0
