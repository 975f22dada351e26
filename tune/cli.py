"""The command line of all entries: flags made from a dataclass of settings, and how a command ends.

A wrong setting ends with one line on stderr and exit code 2, a signal with the code that a shell gives it; a fault of
ours keeps its traceback. Standard library only: what does the work is imported once the flags are right.
"""

import argparse
import io
import logging
import os
import pkgutil
import select
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, NoReturn, TypeVar

from tune.errors import SCRIPTS, UserError, script_command
from tune.flags import Flags, flag_name, flag_of, invalid, is_switch
from tune.machine import can_print, excluded_from_gc
from tune.signals import interruptible

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Flags)


def main(kind: type[Flags], argv: Sequence[str] | None = None) -> int:
    """Do what the flags ask for and return the exit code. SystemExit: --help."""
    _make_streams_serve()
    return run_to_exit_code(lambda: _main(kind, sys.argv[1:] if argv is None else argv), kind.command.on_interrupt)


def _make_streams_serve() -> None:
    """Put /dev/null in place of closed streams, lest a file that is opened later gets their number; let standard output
    write a character that its encoding lacks as an escape."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - it stays open
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _main(kind: type[Flags], argv: Sequence[str]) -> int:
    settings = parse(kind, argv)
    if line := settings.nothing_to_do():
        print(line)
        return 0
    if line := settings.first_line():
        print(line, flush=True)
    with excluded_from_gc():
        command = _command(kind.command.entry_point)
    code: int = command(settings)
    sys.stdout.flush()
    return code


def _command(name: str) -> Callable[[Flags], int]:
    """Return the function `module:name`. UserError: it imports what is not installed."""
    try:
        found: Callable[[Flags], int] = pkgutil.resolve_name(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing in SCRIPTS:
            raise
        remedy = "`. .venv/bin/activate`, or `pip install -r requirements.txt`"
        raise UserError(f"{missing}: not installed for {sys.executable}: {remedy}") from None
    return found


def run_to_exit_code(command: Callable[[], int], on_interrupt: str = "") -> int:
    """Run a command and return its exit code: 2, with one line, for what a user can fix; 128 plus the number after a
    signal.

    on_interrupt: how things stand after a signal, printed where the KeyboardInterrupt does not say it itself.
    """
    try:
        with interruptible():
            return command()
    except UserError as error:
        log.info("refused", exc_info=True)
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        name, _, how = str(error).partition("; ")
        print("; ".join(filter(None, (f"ended by {name or 'SIGINT'}", how or on_interrupt))), file=sys.stderr)
        return 128 + signal.Signals.__members__.get(name, signal.SIGINT)
    except BrokenPipeError:
        if not _reader_gone():
            raise
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is not None or can_print():
            raise
        _print_to_nowhere()
        print(f"standard output: {error.strerror}: make room there, or write to another place", file=sys.stderr)
        return 2


def _reader_gone() -> bool:
    """Whether the reader of our output, such as `head`, has closed the pipe; then the rest goes to /dev/null."""
    pipe = select.poll()
    pipe.register(sys.stdout.fileno(), 0)
    gone = any(event & select.POLLERR for _, event in pipe.poll(0))
    if gone:
        _print_to_nowhere()
    return gone


def _print_to_nowhere() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse(kind: type[F], argv: Sequence[str]) -> F:
    """Return the settings that the flags make. UserError: a flag is wrong, and nothing was written. SystemExit:
    --help."""
    return kind.from_flags(vars(parser(kind).parse_intermixed_args(_joined(kind, argv))))


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are UserErrors, which the caller prints in one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; --help lists the flags")


class TypedOnce(argparse.Action):
    """Stores what was typed for a flag. UserError: it is typed twice, and the second would replace the first."""

    def __call__(self, parser: object, typed: argparse.Namespace, text: Any, flag: str | None = None) -> None:
        if hasattr(typed, self.dest):
            listed = str(self.metavar).endswith(",...")
            raise invalid(self.dest, f"typed twice: {'write both in one, with a comma' if listed else 'keep one'}")
        setattr(typed, self.dest, text)


class JoinRepeats(argparse.Action):
    """Joins what was typed for a flag that repeats, with spaces between."""

    def __call__(self, parser: object, typed: argparse.Namespace, text: Any, flag: str | None = None) -> None:
        setattr(typed, self.dest, f"{getattr(typed, self.dest, '')} {text}".strip())


def parser(kind: type[Flags]) -> argparse.ArgumentParser:
    """Return a parser with one flag for each setting; its result has only what was typed."""
    command = kind.command
    made = Parser(
        prog=script_command(command.script),
        description=command.description,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    apart = {title: made.add_argument_group(title) for title in command.groups}
    place = {name: apart[title] for title, names in command.groups.items() for name in names}
    for setting in _typed(kind):
        flag, into = flag_of(setting), place.get(setting.name, made)
        metavar = flag.metavar or "|".join(flag.choices) or None
        text = (flag.help + _default_text(setting)).replace("%", "%%")
        if flag.nargs:
            count: Any = int(flag.nargs) if flag.nargs.isdigit() else flag.nargs
            optional: dict[str, Any] = {"default": argparse.SUPPRESS} if count == "*" else {}  # else counts as required
            into.add_argument(setting.name, metavar=metavar, help=text, nargs=None if count == 1 else count, **optional)
        elif is_switch(setting):
            into.add_argument(flag_name(setting.name), action="store_true", help=text)
        else:
            action = JoinRepeats if flag.repeats else TypedOnce
            into.add_argument(flag_name(setting.name), metavar=metavar, help=text, action=action)
    made.usage = made.format_usage().removeprefix("usage: ").rstrip().replace("%", "%%")  # else taken for a format
    return made


def _typed(kind: type[Flags]) -> list[Field[Any]]:
    return [each for each in fields(kind) if each.name in (kind.command.flags or kind.__dataclass_fields__)]


def _default_text(setting: Field[Any]) -> str:
    shown = setting.default is not MISSING and setting.default not in (None, (), "")
    return f" (default: {flag_of(setting).format(setting.default)})" if shown and not is_switch(setting) else ""


def _joined(kind: type[Flags], argv: Sequence[str]) -> list[str]:
    """Turn `--budget -1h` into `--budget=-1h`: argparse would take the value for a flag, and not say what is wrong."""
    with_value = {flag_name(each.name) for each in _typed(kind) if not is_switch(each) and not flag_of(each).nargs}
    words: list[str] = []
    for word in argv:
        if words and words[-1] in with_value and word.startswith("-") and not word.startswith("--"):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words
