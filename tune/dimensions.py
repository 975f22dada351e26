"""The dimensions of the spaces: their names and values, how a user types them and how a config is labelled.

Standard library only.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tune.errors import UserError

Value = int | float | str
Config = dict[str, Any]  # a value for each dimension of its space; the family stands beside it
Dimensions = Mapping[str, tuple[Value, ...]]

FAMILIES = ("translation", "nanogpt")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
FASTEST_FIRST = ("bf16", "fp16", "tf32", "fp32")
LEAST_HEAD_WIDTH = 4
DIMENSIONS: Dimensions = {
    "d_model": (16, 32, 64, 96, 128, 192, 256, 384, 512),
    "heads": (4, 8, 16, 32),
    "layers": (2, 3, 4, 6, 8, 12, 16),
    "dropout": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    "precision": PRECISIONS,
}
CENTRE: Config = {"d_model": 128, "heads": 4, "layers": 4, "dropout": 0.1}
PARTNERS = {"heads": "d_model", "d_model": "heads"}
HEADS_RULE = f"heads must divide d_model and leave each head a width of at least {LEAST_HEAD_WIDTH}"
SPACES: dict[str, Dimensions] = dict.fromkeys(FAMILIES, DIMENSIONS)
"""Of each family; those of a user's own are added."""
FREED = ("learning_rate", "batch_tokens", "weight_decay")
"""Of the recipe, what --vary can add to a space."""
FREED_TIMES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The recipe's own value: what it is tried at. Powers of two, so that all are as short to write as the recipe's."""
SHORT = {
    "d_model": "d", "heads": "h", "layers": "l", "dropout": "p", "precision": "", "learning_rate": "lr",
    "batch_tokens": "b", "weight_decay": "wd",
}  # fmt: skip
"""How a dimension is named in a label."""


def listed(values: tuple[Value, ...]) -> str:
    """The values as a user types them: `0, 0.1, 0.2`."""
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def merged(spaces: Iterable[Dimensions]) -> dict[str, tuple[Value, ...]]:
    """The dimensions of all of them, each with every value that it has in one."""
    every: dict[str, tuple[Value, ...]] = {}
    for space in spaces:
        for name, values in space.items():
            every[name] = tuple(dict.fromkeys((*every.get(name, ()), *values)))
    return every


def fix_text(fix: Mapping[str, Value]) -> str:
    """The inverse of parse_fix: `precision=bf16,heads=4`."""
    return ",".join(f"{name}={listed((value,))}" for name, value in fix.items())


def parse_fix(text: str) -> dict[str, Value]:
    """`precision=bf16,heads=4` -> {"precision": "bf16", "heads": 4}. UserError: not in the space."""
    fix: dict[str, Value] = {}
    known = merged(SPACES.values())
    for part in text.split(","):
        name, equals, typed = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise UserError(f"--fix: {part!r} names no dimension: there are {', '.join(known)}; write heads=4")
        if name in fix:
            raise UserError(f"--fix: {part!r} fixes {name} a second time: each dimension takes one value; keep one")
        if not equals or not typed:
            raise UserError(f"--fix: {part!r} gives no value: {name} is one of {listed(known[name])}; add =VALUE")
        fix[name] = _parse_value(name, typed, known[name])
    return fix


def _parse_value(name: str, typed: str, values: tuple[Value, ...]) -> Value:
    try:
        wanted: Value = float(typed)
    except ValueError:
        wanted = typed
    for value in values:
        if value in (wanted, typed):
            return value
    rule = f" ({HEADS_RULE})" if name in PARTNERS else ""
    raise UserError(f"--fix: '{name}={typed}' is not in the space{rule}: fix {name} at one of {listed(values)}")


def parse_vary(text: str) -> tuple[str, ...]:
    """`learning_rate,batch_tokens` -> both. UserError: nothing of a recipe that can be freed."""
    names = tuple(part.strip() for part in text.split(","))
    for place, name in enumerate(names):
        if name not in FREED:
            rule = "varies already" if name in merged(SPACES.values()) else "is nothing of a recipe that may vary"
            raise UserError(f"--vary: {name!r} {rule}: choose of {', '.join(FREED)}; write {FREED[0]}")
        if name in names[:place]:
            raise UserError(f"--vary: {text!r} names {name} twice: name each once")
    return names


def freed(names: tuple[str, ...], recipe: Mapping[str, Any]) -> dict[str, tuple[Value, ...]]:
    """The values to try of each of these, with the recipe's own in the middle; a whole number stays one."""
    return {name: tuple(type(recipe[name])(times * recipe[name]) for times in FREED_TIMES) for name in names}


def heads_fit(d_model: Any, heads: Any) -> bool:
    """Do the heads divide the width, and leave each head wide enough to attend with?"""
    return d_model % heads == 0 and d_model // heads >= LEAST_HEAD_WIDTH


def precision_of(config: Mapping[str, Any]) -> str:
    """That of a config; where its space has none it is fp32."""
    precision: str = config.get("precision", "fp32")
    return precision


def label(config: Mapping[str, Value]) -> str:
    """A config in one short, unique phrase: `d128 h4 l4 p.1 bf16`, then what else there is of it."""
    names = [*(name for name in SHORT if name in config), *(name for name in config if name not in SHORT)]
    return " ".join(SHORT.get(name, name) + _short(config[name]) for name in names)


def _short(value: Value) -> str:
    text = f"{value:.15g}" if isinstance(value, float) else str(value)
    return "." + text.removeprefix("0.") if text.startswith("0.") else text
