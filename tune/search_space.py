"""The search space: the dimensions with their names and values, which configurations are valid, how a user narrows it
and how a configuration is labelled; standard library only.
"""

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import Any

from tune.errors import UserError

Value = int | float | str
Config = dict[str, Value]  # a value for each dimension of its space; the family stands beside it
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
PER_LAYER = {"nanogpt": 12, "translation": 28}
"""Weights of a layer over d_model squared, of the families of which that is known."""
ASPECT = 64.0
"""d_model over layers, as GPT-2 has it."""
WIDER = (768, 1024, 1280, 1536, 2048)
"""Widths beyond the reports': a space has as many of them as its cap trains models for."""
PARTNERS = {"heads": "d_model", "d_model": "heads", "context": "batch_tokens", "batch_tokens": "context"}
"""What of a dimension is valid depends on the other one."""
HEADS_RULE = f"heads must divide d_model and leave each head a width of at least {LEAST_HEAD_WIDTH}"
SPACES: dict[str, Dimensions] = dict.fromkeys(FAMILIES, DIMENSIONS)
"""Of each family; those of a user's own are added."""
FREED = ("learning_rate", "batch_tokens", "weight_decay", "context")
"""Of the recipe, what --vary can add to a space."""
ROWS = 3
"""Of a batch, at least: it is the least that was tried (768 tokens at a context of 256)."""
LEAST_CONTEXT = 8
FREED_TIMES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The recipe's own value: what it is tried at. Powers of two, so that all are as short to write as the recipe's."""
SHORT = {
    "d_model": "d", "heads": "h", "layers": "l", "dropout": "p", "precision": "", "learning_rate": "lr",
    "batch_tokens": "b", "weight_decay": "wd", "context": "c",
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
    rule = f" ({HEADS_RULE})" if name in ("heads", "d_model") else ""
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


def freed(names: tuple[str, ...], recipe: Mapping[str, Any], longest: float = math.inf) -> dict[str, tuple[Value, ...]]:
    """The values to try of each of these, the recipe's own among them; a whole number stays one.

    A context is its own times a power of two, at most `longest` unless that is its own; of contexts and batches those
    are left out that fit none of the others.
    """
    values = {name: tuple(type(recipe[name])(times * recipe[name]) for times in FREED_TIMES) for name in names}
    contexts, batches = (values.get(name, (recipe.get(name, 0),)) for name in ("context", "batch_tokens"))
    rows = least_rows(recipe)
    if "context" in values:
        own = recipe["context"]
        most = max(own, min(longest, max(batches) // rows))
        whole = (each for each in contexts if max(each, own) % min(each, own) == 0)
        values["context"] = contexts = tuple(each for each in whole if LEAST_CONTEXT <= each <= most)
    if "batch_tokens" in values:
        values["batch_tokens"] = tuple(each for each in batches if each >= rows * min(contexts))
    return values


def least_rows(recipe: Mapping[str, Any]) -> int:
    """Those that a batch has at least: ROWS, unless the recipe's own has fewer, as it was set."""
    if not {"context", "batch_tokens"} <= recipe.keys():
        return 0
    return max(1, min(ROWS, int(recipe["batch_tokens"]) // int(recipe["context"])))


def wider(space: "Space", weights: float) -> Dimensions:
    """Where so many weights in its layers are more than its models have, its widths and those of WIDER, until models
    twice as large can be had; nothing where they are not, or its width is fixed."""
    widths, deepest = space.dimensions["d_model"], max(space.dimensions["layers"])

    def most() -> float:
        return layer_weights(space.family, {"d_model": max(widths), "layers": deepest})

    if most() >= weights or "d_model" in space.fix:
        return {}
    for width in WIDER:
        if most() < 2 * weights:
            widths = (*widths, width)
    return {"d_model": widths}


def layer_weights(family: str, config: Mapping[str, Value]) -> float:
    """Those of a model's layers, which stand for its size."""
    return PER_LAYER[family] * float(config["d_model"]) ** 2 * float(config["layers"])


def seedless(config: Mapping[str, Value]) -> Config:
    """What a trial has of its space: one that was trained anew has a seed beside it."""
    return {name: value for name, value in config.items() if name != "seed"}


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


@dataclass(frozen=True, kw_only=True)
class Space:
    """The valid configs of one family on one kind of device. UserError: none.

    vary: dimensions beside the family's; own: the recipe's values of these, which are tried first.
    """

    family: str
    precisions: tuple[str, ...]  # those the device does natively, each a different arithmetic
    fix: Mapping[str, Value] = field(default_factory=dict)
    vary: Dimensions = field(default_factory=dict)
    own: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.family not in SPACES:
            raise UserError(f"--families: {self.family!r} is no family: there are {' and '.join(SPACES)}; name one")
        assert self.precisions and set(self.precisions) <= set(PRECISIONS), self.precisions
        for name, values in self.dimensions.items():
            if not values:
                raise self._without(name)
        if not self._shapes:
            raise UserError(f"--fix: {fix_text(self.fix)!r} leaves no valid point: {HEADS_RULE}; {self._remedy()}")

    def _without(self, name: str) -> UserError:
        """The error for a dimension that has no value left."""
        if name == "precision":
            there = listed(self.precisions)
            if name not in self.fix:
                rule = f"of {self.family!r} has no precision that is native to this device"
                return UserError(f"--families: the space {rule}: native are {there}; leave the family out")
            return UserError(
                f"--fix: 'precision={self.fix[name]}' is not native to this device: native are {there}; "
                "fix one of these or leave precision out"
            )
        values = listed(SPACES[self.family][name])
        return UserError(
            f"--fix: '{fix_text({name: self.fix[name]})}' is not in the space of {self.family}: fix one of {values}"
        )

    def _remedy(self) -> str:
        every, heads, d_model = SPACES[self.family], self.fix.get("heads"), self.fix.get("d_model")
        if heads is None or d_model is None:
            return "fix less"
        widths = listed(tuple(d for d in every["d_model"] if heads_fit(d, heads)))
        few_enough = listed(tuple(h for h in every["heads"] if heads_fit(d_model, h)))
        return f"with heads={heads} fix d_model at {widths}, with d_model={d_model} fix heads at {few_enough}"

    @property
    def whole(self) -> "Space":
        """With every precision, and nothing fixed."""
        return replace(self, precisions=PRECISIONS, fix={})

    @cached_property
    def dimensions(self) -> dict[str, tuple[Value, ...]]:
        """What is left to choose from in each dimension: one value where it is fixed."""
        every = {**SPACES[self.family], **self.vary}
        if "precision" in every:
            every["precision"] = tuple(each for each in every["precision"] if each in self.precisions)
        return {
            name: tuple(value for value in values if name not in self.fix or value == self.fix[name])
            for name, values in every.items()
        }

    def _choices(self, name: str, config: Config) -> tuple[Value, ...]:
        """What a dimension has to offer once some others are chosen."""
        values, partner = self.dimensions[name], PARTNERS.get(name)
        if partner not in self.dimensions:
            return values
        partners = (config[partner],) if partner in config else self.dimensions[partner]
        pairs = {value: [{name: value, partner: other} for other in partners] for value in values}
        return tuple(value for value in values if any(map(self._fit, pairs[value])))

    def _fit(self, pair: Mapping[str, Any]) -> bool:
        """Whether two that depend on each other are valid together."""
        if "heads" in pair:
            return heads_fit(**pair)
        enough: bool = pair["batch_tokens"] >= least_rows(self.own) * pair["context"]
        return enough

    def _grown(self, config: Config, names: list[str]) -> Iterator[Config]:
        """The config with every valid choice in these dimensions too."""
        if not names:
            yield config
            return
        for value in self._choices(names[0], config):
            yield from self._grown({**config, names[0]: value}, names[1:])

    @cached_property
    def _shapes(self) -> list[Config]:
        """What can be chosen together in the dimensions that depend on each other."""
        return list(self._grown({}, [name for name in self.dimensions if name in PARTNERS]))

    @property
    def count(self) -> int:
        """The number of valid configs."""
        free = (values for name, values in self.dimensions.items() if name not in PARTNERS)
        return len(self._shapes) * prod(map(len, free))

    def configs(self) -> Iterator[Config]:
        """Every valid config once, the first value of each dimension first, always in the same order."""
        return self._grown({}, list(self.dimensions))

    def sample(self, rng: random.Random) -> Config:
        """One valid config: each width equally likely, then each of the heads that fit it, then each of the rest."""
        config: Config = {}
        for name in self.dimensions:
            config[name] = rng.choice(self._choices(name, config))
        return config

    def uniform(self, rng: random.Random) -> Config:
        """One of configs(), all equally likely."""
        shape = rng.choice(self._shapes)
        return {name: shape[name] if name in shape else rng.choice(self.dimensions[name]) for name in self.dimensions}

    def contains(self, config: Mapping[str, Value]) -> bool:
        """Is this one of configs()?"""
        left = self.dimensions
        if set(config) != set(left) or any(config[name] not in values for name, values in left.items()):
            return False
        return all(config[name] in self._choices(name, dict(config)) for name in PARTNERS if name in left)

    def drawn(self, chosen: Mapping[str, Value]) -> Config:
        """What a sampler chose of each dimension that is not fixed, with the others."""
        return {name: {**chosen, **self.fix}[name] for name in self.dimensions}

    def default(self) -> Config:
        """The valid config the fewest steps away from CENTRE, in the fastest native precision.

        Where neither CENTRE nor the recipe says anything of a dimension its middle value is meant.
        """
        every, native = {**SPACES[self.family], **self.vary}, self.dimensions.get("precision", ())
        centre = {name: values[(len(values) - 1) // 2] for name, values in every.items()}
        centre |= {name: value for name, value in {**CENTRE, **self.own}.items() if value in every.get(name, ())}
        centre |= {"precision": next(each for each in FASTEST_FIRST if each in native)} if native else {}

        def steps_away(name: str, value: Value) -> int:
            return abs(every[name].index(value) - every[name].index(centre[name]))

        def distance(shape: Config) -> int:
            return sum(steps_away(name, value) for name, value in shape.items())

        nearest = min(self._shapes, key=distance)
        config = dict(nearest)
        for name in self.dimensions.keys() - PARTNERS.keys():
            config[name] = min(self.dimensions[name], key=partial(steps_away, name))
        return {name: config[name] for name in self.dimensions}
