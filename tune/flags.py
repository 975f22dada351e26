"""Flags: how a setting is typed, read and shown, and the one line that says what is wrong with it; forms of values that
are more than a number; and what the settings of all commands have in common. Standard library only.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, cast

from tune.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Flag:
    """How a setting is typed: its help, its `metavar` in the usage line, and the functions from text to value and back.

    nargs: argparse's, of a positional argument: `1`, `2`, `?`, `*` or `+`; empty: it is typed with a flag.
    repeats: it may be typed several times, which means the same as all at once with spaces between.
    """

    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    nargs: str = ""
    repeats: bool = False
    parse: Callable[[str], Any] = str
    format: Callable[[Any], str] = str
    stored: bool = True  # in study.json
    on_resume: bool = False  # may differ from the study's own with --resume


def flag_field(help: str, *, default: Any = MISSING, default_factory: Any = MISSING, **rest: Any) -> Any:
    """Return a dataclass field that is typed as a flag."""
    metadata = {"flag": Flag(help=help, **rest)}
    return field(default=default, default_factory=default_factory, metadata=metadata)


def flag_of(setting: Field[Any]) -> Flag:
    """Return the flag that a field is typed as."""
    flag: Flag = setting.metadata["flag"]
    return flag


def is_switch(setting: Field[Any]) -> bool:
    """Whether a setting is typed without a value."""
    return isinstance(setting.default, bool)


def flag_name(name: str) -> str:
    """skip_bad_lines -> `--skip-bad-lines`"""
    return f"--{name.replace('_', '-')}"


def flag_words(stored: Mapping[str, str | bool], flags: Sequence[str] = ()) -> list[str]:
    """{"seed": "3", "plan": True, "patient": False} -> `--seed 3 --plan`, as words; flags: the only settings to take,
    if any are named."""
    words: list[str] = []
    for name, value in stored.items():
        if value is not False and (name in flags or not flags):
            words += [flag_name(name)] if value is True else [flag_name(name), str(value)]
    return words


def invalid(name: str, sentence: str) -> UserError:
    """Return the error of one setting, under its flag's name."""
    return UserError(f"{flag_name(name)}: {sentence}")


@contextmanager
def under_flag(name: str, before: str = "") -> Iterator[None]:
    """Turn a UserError raised inside into the error of one setting, with `before` in front of its text."""
    try:
        yield
    except UserError as error:
        raise invalid(name, f"{before}{error}") from None


NUMBERS: Mapping[Any, str] = {int: "is not a whole number: write one, such as 1", float: "is not a number: write 0.5"}


def parse_setting(setting: Field[Any], text: str | bool | list[str]) -> Any:
    """Return the value of a setting from what was typed, a tuple if in several places. UserError: under the flag's
    name, the text is none of its values."""
    if isinstance(text, bool):
        return text
    if isinstance(text, list):
        return tuple(parse_setting(setting, each) for each in text)
    parse = flag_of(setting).parse
    try:
        return parse(text)
    except ValueError as error:
        sentence = f"{text!r} {NUMBERS[parse]}" if parse in NUMBERS else str(error)
        raise error if sentence.startswith("--") else invalid(setting.name, sentence) from None


def as_typed(name: str, value: object) -> str:
    """Return a value from a settings file as its flag is typed once: `{heads: 4}` as `heads=4`, `[a, b]` as `a,b`."""
    if isinstance(value, dict):
        if name == "space":
            return json.dumps({str(key): each for key, each in value.items()}, default=str)
        between = " " if name == "range" else ","
        return between.join(f"{key}={as_typed(name, each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ",".join(as_typed(name, each) for each in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def words_of(setting: Field[Any], value: object) -> str:
    """Return a value from a file, or a list or mapping in Python, as it is typed."""
    several = isinstance(value, list | tuple) and flag_of(setting).repeats
    return " ".join(as_typed(setting.name, each) for each in (cast(list[object], value) if several else [value]))


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: its script, its description, and its entry point, the function `module:name` that does it.

    The function gets the settings and returns the exit code; its module is imported only once all flags are right.
    flags: the settings that are typed; empty: all. on_interrupt: how things stand after a signal, printed where the
    function's KeyboardInterrupt does not say it. groups: settings that --help shows apart, by title.
    """

    script: str
    description: str
    entry_point: str
    flags: tuple[str, ...] = ()
    on_interrupt: str = ""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The settings of an entry: one field a flag, with its default. UserError: a value that is none of its choices."""

    command: ClassVar[Command]

    def __post_init__(self) -> None:
        for each in fields(self):
            choices, value = flag_of(each).choices, getattr(self, each.name)
            for one in value if isinstance(each.default, tuple) else (value,):
                if choices and one not in choices:
                    raise invalid(each.name, f"{one!r} is not known: choose from {', '.join(choices)}")

    @classmethod
    def from_flags(cls, typed: Mapping[str, Any]) -> Self:
        """Make settings of what was typed, by name; the rest has its default. UserError: a setting without a default
        was not typed, or a text is wrong."""
        known = {each.name: each for each in fields(cls)}
        for name in (each for each in known if each not in typed):
            if known[name].default is known[name].default_factory is MISSING:
                raise invalid(name, f"missing: write {flag_name(name)} {flag_of(known[name]).metavar}")
        return cls(**{name: parse_setting(known[name], text) for name, text in typed.items()})

    def first_line(self) -> str | None:
        """Return the line to print before anything slow is imported or prepared; None: there is none."""
        return None

    def nothing_to_do(self) -> str | None:
        """Return a line that says that there is nothing to do; None where there is something."""
        return None


BUILTIN = "builtin"
AUTO = "auto"


def parse_each(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Return a parser of values with commas between them, each once."""
    return lambda text: tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",")))


def parse_families(text: str) -> dict[str, float]:
    """`translation=70,nanogpt=30` -> {"translation": 0.7, "nanogpt": 0.3}; names without shares have equal ones."""
    shares: dict[str, float] = {}
    parts = text.split(",")
    for part in parts:
        name, _, per_cent = (piece.strip() for piece in part.partition("="))
        if name in shares:
            raise UserError(f"{text!r} names {name} twice: give each family once")
        try:
            shares[name] = float(per_cent) / 100 if "=" in text else 1 / len(parts)
        except ValueError:
            raise UserError(
                f"{part!r} gives no share: either every family has one or none; write translation=70,nanogpt=30"
            ) from None
    return shares


def families_text(shares: Mapping[str, float]) -> str:
    """Return the inverse of parse_families, to ten digits."""
    return ",".join(f"{name}={100 * share:.10g}" for name, share in shares.items())


def parse_gain(text: str) -> float:
    """`0.002/h` -> .002"""
    number, _, unit = text.partition("/")
    try:
        gain = float(number)
    except ValueError:
        gain = math.nan
    if unit != "h" or not 0 <= gain < math.inf:
        raise UserError(f"{text!r} is no gain: write nats a device-hour, 0 or more, such as 0.002/h")
    return gain


def gain_text(gain: float) -> str:
    """Return the inverse of parse_gain."""
    return f"{gain!r}/h"


def parse_sharing(text: str) -> int | str:
    """`2` -> 2; `auto` stays."""
    try:
        return AUTO if text == AUTO else int(text)
    except ValueError:
        raise UserError(f"{text!r} is no number of trials: write 2, or auto") from None


def parse_path(text: str) -> Path:
    """Return the absolute path, because trials run elsewhere and a study is resumed from anywhere, without `..`, as its
    last part is a name. UserError: it is empty, of a folder that is gone, or not UTF-8, in which a study keeps its
    paths."""
    if not text:
        raise UserError("'' is no path: name a file or folder, or leave the flag out")
    try:
        path = Path(os.path.expanduser(text)).absolute()
        path = Path(os.path.realpath(path)) if ".." in path.parts else path
    except OSError as error:
        raise UserError(f"{text!r} is of the present folder, which is gone ({error.strerror}): go to another") from None
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"{str(path)!a} is not in UTF-8: rename it, or take another place") from None
    return path


def parse_paths(text: str) -> tuple[Path, ...]:
    """`runs/one,runs/two` -> both paths, absolute. UserError: one is named twice."""
    paths = tuple(parse_path(part.strip()) for part in text.split(","))
    if twice := [path for place, path in enumerate(paths) if path in paths[:place]]:
        raise UserError(f"{text!r} names '{twice[0]}' twice: name each once")
    return paths


def paths_text(paths: Sequence[Path]) -> str:
    """Return the inverse of parse_paths."""
    return ",".join(map(str, paths))


def parse_corpus(text: str) -> Path | str:
    """Return the path of a file; `builtin`, and a dataset of the hub such as `hub:ID`, stay."""
    return text if text == BUILTIN or text.startswith("hub:") else parse_path(text)
