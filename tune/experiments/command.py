"""The command behind experiment.py: which experiment, its flags, and how a wrong one ends."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields

from tune.cli import Parser, add_flags, joined, settings_of, told_in_words
from tune.errors import UserError, called
from tune.experiments.settings import NAMES, ExperimentSettings

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


def run(typed: dict[str, str | bool]) -> int:
    """The exit code. UserError: something that was typed cannot serve."""
    from tune.experiments.plan import list_lines, plan_lines
    from tune.experiments.registry import EXPERIMENTS
    from tune.experiments.study import run_experiment

    if typed.pop("list", False):
        print(*list_lines(EXPERIMENTS.values()), sep="\n")
        return 0
    name = str(typed.pop("name", ""))
    if name not in EXPERIMENTS:
        raise UserError(f"NAME: {name!r} is no experiment: write one of {', '.join(EXPERIMENTS)}")
    if "resume" not in typed:
        typed.setdefault("families", EXPERIMENTS[name].families[0])
    settings = settings_of(ExperimentSettings, typed, of=name)
    settings.check_files()
    if not settings.plan:
        return run_experiment(EXPERIMENTS[name], settings)
    print(*plan_lines(EXPERIMENTS[name], settings), sep="\n")
    return 0
