"""Flags made of the settings' fields, and how a wrong one ends: one line on stderr, exit code 2, nothing written."""

import argparse
import logging
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, NoReturn, TypeVar

from tune.errors import UserError, called
from tune.flags import flag_name, flag_of, invalid, is_switch
from tune.settings import Settings
from tune.signals import interruptible

ABOUT = "Find the best small Transformer that a fixed number of device-hours can buy."
log = logging.getLogger(__name__)
S = TypeVar("S", bound=Settings)


class Parser(argparse.ArgumentParser):
    """argparse, with errors that the caller turns into one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; --help lists the flags")


def parser() -> argparse.ArgumentParser:
    """One flag for each field of Settings; only flags that were given appear in the result."""
    made = Parser(prog=called("tune/run.py"), description=ABOUT, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    add_flags(made, fields(Settings))
    return made


def add_flags(made: argparse.ArgumentParser, settings: Iterable[Field[Any]]) -> None:
    """A flag for each of these settings."""
    for setting in settings:
        flag = flag_of(setting)
        if is_switch(setting):
            made.add_argument(flag_name(setting.name), action="store_true", help=flag.about)
        else:
            form = flag.form or "|".join(flag.choices)
            made.add_argument(flag_name(setting.name), metavar=form, help=flag.about + _default_text(setting))


def _default_text(setting: Field[Any]) -> str:
    shown = setting.default is not MISSING and setting.default not in (None, ())
    return f" (default: {flag_of(setting).show(setting.default)})" if shown else ""


def parse(argv: Sequence[str]) -> Settings:
    """Settings from flags. UserError: one line, nothing written. SystemExit: --help."""
    return settings_of(Settings, vars(parser().parse_args(joined(argv))))


def settings_of(kind: type[S], typed: dict[str, Any], experiment: str | None = None) -> S:
    """Settings of a kind from what was typed; `experiment`: that the study is of. UserError as above."""
    if "resume" in typed:
        return kind.of_study(typed.pop("resume"), experiment=experiment, **typed)
    if "budget" not in typed:
        raise invalid("budget", "missing: a study needs a cap; write --budget 8h")
    settings = kind(**typed)
    settings.new_folder()
    return settings


def joined(argv: Sequence[str]) -> list[str]:
    """`--budget -1h` as `--budget=-1h`: argparse would take the value for a flag, and not say what is wrong with it."""
    with_value = {flag_name(setting.name) for setting in fields(Settings) if not is_switch(setting)}
    words: list[str] = []
    for word in argv:
        if words and words[-1] in with_value and word.startswith("-") and not word.startswith("--"):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def main(argv: Sequence[str] | None = None) -> int:
    """Run a search; its exit code, or 2 for a wrong setting. Ray and torch come only once the settings are right."""
    return told_in_words(lambda: _main(sys.argv[1:] if argv is None else argv))


def told_in_words(command: Callable[[], int]) -> int:
    """A command's exit code: 2, with one line, for what a user can put right; after a signal as a shell tells of it.

    A fault of ours keeps its traceback.
    """
    try:
        with interruptible():
            return command()
    except UserError as error:
        log.info("refused", exc_info=True)
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        name, _, then = str(error).partition("; ")
        print(f"ended by {name or 'SIGINT'}; {then or 'nothing was written'}", file=sys.stderr)
        return 128 + signal.Signals.__members__.get(name, signal.SIGINT)


def _main(argv: Sequence[str]) -> int:
    """As above. UserError: a setting that cannot serve, or a disk that cannot be written on."""
    settings = parse(argv)
    settings.check_files()
    if settings.plan:
        return _plan(settings)
    if over := settings.nothing_to_do():
        print(over)
        return 0
    return _search(settings)


def _plan(settings: Settings) -> int:
    """0, with the plan printed. UserError: a setting that cannot serve."""
    from tune.dry_run import make_plan, plan_lines

    for line in plan_lines(make_plan(settings)):
        print(line)
    return 0


def _search(settings: Settings) -> int:
    """The search's exit code. UserError: a setting that cannot serve, or a disk that cannot be written on."""
    from tune.study import run_study

    return run_study(settings).exit_code
