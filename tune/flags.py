"""A flag: how a setting is typed, read and shown, and the one line that says what is wrong; the forms that are more
than a number. Standard library only.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass
from pathlib import Path
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


BUILTIN = "builtin"
AUTO = "auto"


def parse_families(text: str) -> dict[str, float]:
    """`translation=70,nanogpt=30` -> {"translation": 0.7, "nanogpt": 0.3}; names alone share alike."""
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
    """The inverse of parse_families, to ten digits."""
    return ",".join(f"{name}={100 * share:.10g}" for name, share in shares.items())


def parse_sharing(text: str) -> int | str:
    """`2` -> 2; `auto` as it is."""
    try:
        return AUTO if text == AUTO else int(text)
    except ValueError:
        raise UserError(f"{text!r} is no number of trials: write 2, or auto") from None


def parse_path(text: str) -> Path:
    """Absolute, because trials run elsewhere and a study is resumed from anywhere."""
    if not text:
        raise UserError("'' is no path: name a file or folder, or leave the flag out")
    return in_utf8(Path(os.path.expanduser(text)).absolute())


def in_utf8(path: Path) -> Path:
    """The path. UserError: it is no UTF-8, in which a study keeps the paths that it names."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"{str(path)!a} is not in UTF-8: rename it, or take another place") from None
    return path


def parse_corpus(text: str) -> Path | str:
    """The path of a file; `builtin`, and a dataset of the hub such as `hub:ID`, as they are."""
    return text if text == BUILTIN or text.startswith("hub:") else parse_path(text)
