"""A flag: how a setting is typed, read and shown, and the one line that says what is wrong; standard library only."""

from collections.abc import Callable
from dataclasses import Field, dataclass
from typing import Any

from tune.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Flag:
    """How a setting is typed: its help, `form` in the usage line, and the way from text to value and back."""

    about: str
    form: str = ""
    choices: tuple[str, ...] = ()
    parse: Callable[[str], Any] = str
    show: Callable[[Any], str] = str
    stored: bool = True  # kept in study.json
    on_resume: bool = False  # may differ from the study's own


def typed(about: str, **rest: Any) -> dict[str, Flag]:
    """The metadata of a field that is typed as a flag."""
    return {"flag": Flag(about=about, **rest)}


def flag_of(setting: Field[Any]) -> Flag:
    """The flag that a field is typed as."""
    return setting.metadata["flag"]


def is_switch(setting: Field[Any]) -> bool:
    """Is it typed without a value?"""
    return isinstance(setting.default, bool)


def flag_name(name: str) -> str:
    """skip_bad_lines -> `--skip-bad-lines`"""
    return f"--{name.replace('_', '-')}"


def invalid(name: str, sentence: str) -> UserError:
    """The error of one setting, under its flag's name."""
    return UserError(f"{flag_name(name)}: {sentence}")


def parse_setting(setting: Field[Any], text: str | bool) -> Any:
    """The value of a setting from what was typed. UserError under the flag's name."""
    if isinstance(text, bool):
        return text
    parse = flag_of(setting).parse
    try:
        return parse(text)
    except ValueError as error:
        sentence = f"{text!r} is not a whole number: write 1 or another" if parse is int else str(error)
        raise error if sentence.startswith("--") else invalid(setting.name, sentence) from None
