"""The search space: dimensions with their names and values, which configurations are valid, how a user narrows the
space, and how a configuration is labelled; standard library only.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import Any, cast

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
"""By family, the weights of a layer over d_model squared; a user's own family is not there, as that is not known."""
ASPECT = 64.0
"""d_model over layers, as GPT-2 has it."""
EXTRA_WIDTHS = (768, 1024, 1280, 1536, 2048)
"""Widths beyond the reports': a space has as many of them as its cap can train models for."""
COUPLED_DIMENSIONS = ("d_model", "heads", "layers", "context", "batch_tokens")
"""Dimensions whose valid values depend on one another."""
HEADS_RULE = f"heads must divide d_model and leave each head an even width of at least {LEAST_HEAD_WIDTH}"
LIMITS = {"d_model": (8, 65536), "heads": (1, 1024), "layers": (1, 1024), "dropout": (0.0, 0.95)}
"""Least and largest value of the built-in families' dimensions that a user may ask for."""
SPACES: dict[str, Dimensions] = dict.fromkeys(FAMILIES, DIMENSIONS)
"""The dimensions of each family; a user's own families are added."""
VARIABLE_RECIPE_FIELDS = ("learning_rate", "batch_tokens", "weight_decay", "context")
"""Fields of the recipe that --vary can add to a space."""
ROWS = 3
"""Least rows of a batch: fewer were never tried (768 tokens at a context of 256)."""
LEAST_CONTEXT = 8
FREED_TIMES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors on the recipe's own value that a freed field is tried at: powers of two, so that all are as short to write as
the recipe's."""
SHORT = {
    "d_model": "d", "heads": "h", "layers": "l", "dropout": "p", "precision": "", "learning_rate": "lr",
    "batch_tokens": "b", "weight_decay": "wd", "context": "c",
}  # fmt: skip
"""Short names of dimensions in labels."""
DIGITS = 4
"""Significant digits of a number from a range: more would make no difference, and be hard to read."""
LARGEST_SEED = 2**32 - 1
"""Largest seed that NumPy takes."""
PARTS = 10_000
"""Most values as which a range of fractions counts."""


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """A dimension of a search space: values to choose from; or, where there are none, numbers from low to high, whole
    ones or not, uniform in their logarithm or not. when: it exists only where each of these dimensions has one of these
    values."""

    values: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    log: bool = False
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    @cached_property
    def count(self) -> float:
        """Return the number of values that `all_values` returns."""
        return len(self.values) or (self.high - self.low + 1 if self.whole else len(self.all_values()))

    def contains(self, value: object) -> bool:
        """Whether this is one of its values."""
        if self.values:
            return any(type(value) is type(each) and value == each for each in self.values)
        kinds = (int,) if self.whole else (int, float)
        return type(value) in kinds and self.low <= cast(float, value) <= self.high

    def draw(self, rng: random.Random) -> Value:
        """Draw one of its values."""
        if self.values:
            return rng.choice(self.values)
        if not self.log:
            return (
                rng.randint(int(self.low), int(self.high))
                if self.whole
                else self.nearest_value(rng.uniform(self.low, self.high))
            )
        half = 0.5 if self.whole else 0.0
        return self.nearest_value(math.exp(rng.uniform(math.log(self.low - half), math.log(self.high + half))))

    def nearest_value(self, number: float) -> Value:
        """Return a number as the nearest value of the range."""
        rounded = round(number) if self.whole else float(f"{number:.{DIGITS}g}")
        value = min(max(rounded, self.low), self.high)
        return int(value) if self.whole else float(value)

    @property
    def middle(self) -> Value:
        """Return the middle value, which is tried first."""
        if self.values:
            return self.values[(len(self.values) - 1) // 2]
        return self.nearest_value(math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2)

    def values_among(self, known: tuple[Value, ...]) -> tuple[Value, ...]:
        """Return its values; for a range its ends, and the known values between. Whole where the known ones are."""
        whole = all(isinstance(value, int) for value in known)
        if self.values:
            return tuple(int(value) if whole and isinstance(value, float) else value for value in self.values)
        kind = int if whole else float
        inside = (value for value in known if not isinstance(value, str) and self.low <= value <= self.high)
        return tuple(sorted({kind(self.low), *inside, kind(self.high)}))

    def all_values(self) -> Sequence[Value]:
        """Return all of its values; for a range of fractions PARTS evenly spread ones, as far as DIGITS tell them
        apart."""
        if self.values or self.whole:
            return self.values or range(int(self.low), int(self.high) + 1)
        parts = ((PARTS - 1 - part, part) for part in range(PARTS))
        return list(dict.fromkeys(self.nearest_value((a * self.low + b * self.high) / (PARTS - 1)) for a, b in parts))

    def to_json(self) -> dict[str, object]:
        """Return the dimension as plain data, from which own_space.dimension makes it again."""
        low, high = (int(each) if self.whole else each for each in (self.low, self.high))
        values: dict[str, object] = {"values": list(self.values)} if self.values else {"low": low, "high": high}
        log: dict[str, object] = {"log": True} if self.log else {}
        when: dict[str, object] = {name: list(each) for name, each in self.when.items()}
        return values | log | ({"when": when} if when else {})


def values_text(values: tuple[Value, ...]) -> str:
    """Return values as a user types them: `0, 0.1, 0.2`; with all digits that they have."""
    short = (f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return ", ".join(
        str(value) if isinstance(value, float) and float(text) != value else text
        for value, text in zip(values, short, strict=True)
    )


def merge_dimensions(spaces: Iterable[Dimensions]) -> dict[str, tuple[Value, ...]]:
    """Return the dimensions of all spaces, each with every value that it has in any."""
    every: dict[str, tuple[Value, ...]] = {}
    for space in spaces:
        for name, values in space.items():
            every[name] = tuple(dict.fromkeys((*every.get(name, ()), *values)))
    return every


def fix_text(fix: Mapping[str, Value]) -> str:
    """Return the inverse of parse_fix: `precision=bf16,heads=4`."""
    return ",".join(f"{name}={values_text((value,))}" for name, value in fix.items())


def parse_fix(text: str) -> dict[str, Value]:
    """`precision=bf16,heads=4` -> {"precision": "bf16", "heads": 4}. UserError: not in the space."""
    fix: dict[str, Value] = {}
    known = merge_dimensions(SPACES.values())
    for part in text.split(","):
        name, equals, typed = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise UserError(f"--fix: {part!r} names no dimension: there are {', '.join(known)}; write heads=4")
        if name in fix:
            raise UserError(f"--fix: {part!r} fixes {name} a second time: each dimension takes one value; keep one")
        if not equals or not typed:
            raise UserError(f"--fix: {part!r} gives no value: {name} is one of {values_text(known[name])}; add =VALUE")
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
    raise UserError(f"--fix: '{name}={typed}' is not in the space{rule}: fix {name} at one of {values_text(values)}")


def check_range(family: str, name: str, dimension: Dimension) -> None:
    """Check what a user gave for a dimension of a family, if it has that. UserError: it cannot have such values."""
    if dimension.when:
        raise UserError(f"{name!r} depends on another dimension: that is of a loop of your own; leave `when` out")
    known = SPACES[family].get(name)
    if known is None:
        return
    words = [value for value in known if isinstance(value, str)]
    values = dimension.values or (dimension.low, dimension.high)
    if name == "precision" and (odd := [value for value in values if value not in words]):
        raise UserError(f"'{name}={values_text((odd[0],))}' is no precision: choose of {values_text(known)}")
    own = {type(value) for value in known}
    if not own <= {int, float}:
        return
    kinds, what = ((int,), "whole numbers") if own == {int} else ((int, float), "numbers")
    least, most = LIMITS[name] if name in LIMITS and family in FAMILIES else (-math.inf, math.inf)
    for value in values:
        if type(value) not in kinds or not least <= cast(float, value) <= most:
            rule = f"{what} from {least} to {most}" if math.isfinite(most) else what
            example = f"write {name}={known[0]}..{known[-1]}, or {values_text(known).replace(', ', ',')}"
            raise UserError(f"'{name}' has {value!r}: it takes {rule}; {example}")


def parse_vary(text: str) -> tuple[str, ...]:
    """`learning_rate,batch_tokens` -> both names. UserError: a name is not one of VARIABLE_RECIPE_FIELDS, or comes
    twice."""
    names = tuple(part.strip() for part in text.split(","))
    for place, name in enumerate(names):
        if name not in VARIABLE_RECIPE_FIELDS:
            rule = (
                "varies already"
                if name in merge_dimensions(SPACES.values())
                else "is nothing of a recipe that may vary"
            )
            known = ", ".join(VARIABLE_RECIPE_FIELDS)
            raise UserError(f"--vary: {name!r} {rule}: choose of {known}; write {VARIABLE_RECIPE_FIELDS[0]}")
        if name in names[:place]:
            raise UserError(f"--vary: {text!r} names {name} twice: name each once")
    return names


def recipe_field_values(
    names: tuple[str, ...], recipe: Mapping[str, Any], longest: float = math.inf
) -> dict[str, tuple[Value, ...]]:
    """Return the values to try of each of these fields, the recipe's own among them; whole numbers stay whole.

    A context is the recipe's times a power of two, at most `longest` or the recipe's; contexts that fit no batch are
    left out, and batches that fit no context.
    """
    values: dict[str, tuple[Value, ...]] = {
        name: tuple(dict.fromkeys(type(recipe[name])(times * recipe[name]) for times in FREED_TIMES)) for name in names
    }  # a value of 0 has no other
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
    """Return the least rows of a batch: ROWS, or those of the recipe's own batch if that was set to fewer; 0 where a
    recipe has no context or batch."""
    if not {"context", "batch_tokens"} <= recipe.keys():
        return 0
    return max(1, min(ROWS, int(recipe["batch_tokens"]) // int(recipe["context"])))


def extend_widths(space: "Space", weights: float) -> Dimensions:
    """Return a space's widths with as many of EXTRA_WIDTHS as make its largest model twice as large as `weights` in its
    layers; nothing where its models are large enough, or its width is fixed."""
    widths, deepest = space.dimensions["d_model"], max(space.dimensions["layers"])

    def most() -> float:
        return layer_weights(space.family, {"d_model": max(widths), "layers": deepest})

    if most() >= weights or space.is_user_set("d_model"):
        return {}
    for width in EXTRA_WIDTHS:
        if most() < 2 * weights:
            widths = (*widths, width)
    return {"d_model": widths}


def layer_weights(family: str, config: Mapping[str, Value]) -> float:
    """Return the weights in a model's layers, which stand for its size."""
    return PER_LAYER[family] * float(config["d_model"]) ** 2 * float(config["layers"])


def seedless(config: Mapping[str, Value]) -> Config:
    """Return a trial's configuration without the seed that one that was trained anew has beside it."""
    return {name: value for name, value in config.items() if name != "seed"}


def heads_fit(d_model: Any, heads: Any) -> bool:
    """Whether the heads divide the width, and leave each head an even width of at least LEAST_HEAD_WIDTH."""
    return d_model % (2 * heads) == 0 and d_model // heads >= LEAST_HEAD_WIDTH


def precision_of(config: Mapping[str, Any]) -> str:
    """Return the precision of a config; fp32 where its space has none."""
    precision: str = config.get("precision", "fp32")
    return precision


def label(config: Mapping[str, Value]) -> str:
    """Return a config in one short, unique phrase: `d128 h4 l4 p.1 bf16`, then its other dimensions."""
    names = [*(name for name in SHORT if name in config), *(name for name in config if name not in SHORT)]
    return " ".join(SHORT.get(name, _long(name, config[name])) + _short(config[name]) for name in names)


def _long(name: str, value: Value) -> str:
    """Return a dimension's long name, with `=` where a word follows, or a number a number."""
    return f"{name}=" if isinstance(value, str | bool) or name[-1].isdigit() else name


def _short(value: Value) -> str:
    text = f"{value:.15g}" if isinstance(value, float) else str(value)
    return "." + text.removeprefix("0.") if text.startswith("0.") else text


@dataclass(frozen=True, kw_only=True)
class Space:
    """The valid configs of one family on one kind of device. UserError: there are none.

    vary: dimensions beside the family's; own: the recipe's values of these, which are tried first; ranges: what a user
    asked for in place of a dimension's values; small_enough: whether a model of that d_model and so many layers is
    within --at-most, where there is such a bound.
    """

    family: str
    precisions: tuple[str, ...]  # those that the device does natively
    fix: Mapping[str, Value] = field(default_factory=dict)
    vary: Dimensions = field(default_factory=dict)
    own: Mapping[str, Value] = field(default_factory=dict)
    ranges: Mapping[str, Dimension] = field(default_factory=dict)
    small_enough: Callable[[Value, Value], bool] | None = None

    def __post_init__(self) -> None:
        if self.family not in SPACES:
            raise UserError(f"--families: {self.family!r} is no family: there are {' and '.join(SPACES)}; name one")
        assert self.precisions and set(self.precisions) <= set(PRECISIONS), self.precisions
        for name, values in self.dimensions.items():
            if not values:
                raise self._without(name)
        if not self._shapes:
            if self.ranges:
                rows = least_rows(self.own)
                contexts, batches = (map(float, self.dimensions.get(name, ())) for name in ("context", "batch_tokens"))
                few = max(batches, default=math.inf) < rows * min(contexts, default=0)
                rule = f"batch_tokens must be at least {rows} times context" if few else HEADS_RULE
                raise UserError(f"--range: no configuration of {self.family} is left: {rule}; ask for more values")
            raise UserError(f"--fix: {fix_text(self.fix)!r} leaves no valid point: {HEADS_RULE}; {self._remedy()}")

    def _without(self, name: str) -> UserError:
        """Return the error for a dimension that has no value left."""
        if name == "precision":
            there = values_text(self.precisions)
            if name in self.ranges:
                asked = values_text(self.ranges[name].values)
                return UserError(f"--range: 'precision={asked}' is not native to this device: native are {there}")
            if name not in self.fix:
                rule = f"of {self.family!r} has no precision that is native to this device"
                return UserError(f"--families: the space {rule}: native are {there}; leave the family out")
            return UserError(
                f"--fix: 'precision={self.fix[name]}' is not native to this device: native are {there}; "
                "fix one of these or leave precision out"
            )
        values = values_text(self._requested_values[name])
        return UserError(
            f"--fix: '{fix_text({name: self.fix[name]})}' is not in the space of {self.family}: fix one of {values}"
        )

    def _remedy(self) -> str:
        every, heads, d_model = SPACES[self.family], self.fix.get("heads"), self.fix.get("d_model")
        if heads is None or d_model is None:
            return "fix less"
        widths = values_text(tuple(d for d in every["d_model"] if heads_fit(d, heads)))
        few_enough = values_text(tuple(h for h in every["heads"] if heads_fit(d_model, h)))
        return f"with heads={heads} fix d_model at {widths}, with d_model={d_model} fix heads at {few_enough}"

    @property
    def unrestricted(self) -> "Space":
        """Return the space with every precision, and nothing fixed."""
        return replace(self, precisions=PRECISIONS, fix={})

    @cached_property
    def _requested_values(self) -> dict[str, tuple[Value, ...]]:
        """Return each dimension's values before anything is fixed."""
        every = {**SPACES[self.family], **self.vary}
        known = {**every, "d_model": (*every.get("d_model", ()), *EXTRA_WIDTHS)}
        return {
            name: self.ranges[name].values_among(known[name]) if name in self.ranges else values
            for name, values in every.items()
        }

    def is_user_set(self, name: str) -> bool:
        """Whether a user chose a dimension's values, by --fix, --range or --space."""
        return name in self.fix or name in self.ranges

    @cached_property
    def dimensions(self) -> dict[str, tuple[Value, ...]]:
        """Return the values to choose from in each dimension: one value where it is fixed."""
        every = dict(self._requested_values)
        if "precision" in every:
            every["precision"] = tuple(each for each in every["precision"] if each in self.precisions)
        return {
            name: tuple(value for value in values if name not in self.fix or value == self.fix[name])
            for name, values in every.items()
        }

    def _fit(self, config: Mapping[str, Any]) -> bool:
        """Whether the values chosen so far are valid together."""
        d_model, heads, layers, context, batch_tokens = map(config.get, COUPLED_DIMENSIONS)
        if d_model and heads and not heads_fit(d_model, heads):
            return False
        if self.small_enough and d_model and layers and not self.small_enough(d_model, layers):
            return False
        return not (context and batch_tokens) or batch_tokens >= least_rows(self.own) * context

    def _grown(self, config: Config, names: list[str]) -> Iterator[Config]:
        """Yield the config with every valid choice in these dimensions too."""
        if not names:
            yield config
            return
        for value in self.dimensions[names[0]]:
            grown = {**config, names[0]: value}
            if names[0] not in COUPLED_DIMENSIONS or self._fit(grown):
                yield from self._grown(grown, names[1:])

    @cached_property
    def _shapes(self) -> list[Config]:
        """Return the valid combinations of the dimensions in COUPLED_DIMENSIONS."""
        return list(self._grown({}, [name for name in self.dimensions if name in COUPLED_DIMENSIONS]))

    @property
    def count(self) -> int:
        """Return the number of valid configs."""
        free = (values for name, values in self.dimensions.items() if name not in COUPLED_DIMENSIONS)
        return len(self._shapes) * prod(map(len, free))

    def configs(self) -> Iterator[Config]:
        """Yield every valid config once, the first value of each dimension first, always in the same order."""
        return self._grown({}, list(self.dimensions))

    def sample(self, rng: random.Random) -> Config:
        """Draw a valid config: each width equally likely, then each number of heads that fits it, and so on."""
        config: Config = {}
        shape: tuple[Value, ...] = ()
        for name, values in self.dimensions.items():
            coupled = name in COUPLED_DIMENSIONS
            config[name] = rng.choice(self._next_values[shape] if coupled else values)
            shape += (config[name],) if coupled else ()
        return config

    @cached_property
    def _next_values(self) -> dict[tuple[Value, ...], list[Value]]:
        """Return, by the values of the first of COUPLED_DIMENSIONS, those of the next that a valid config has beside
        them."""
        found: dict[tuple[Value, ...], list[Value]] = {}
        for shape in (tuple(each.values()) for each in self._shapes):
            for place, value in enumerate(shape):
                if value not in (there := found.setdefault(shape[:place], [])):
                    there.append(value)
        return found

    def uniform(self, rng: random.Random) -> Config:
        """Draw one of configs(), all equally likely."""
        shape = rng.choice(self._shapes)
        return {name: shape[name] if name in shape else rng.choice(self.dimensions[name]) for name in self.dimensions}

    def contains(self, config: Mapping[str, Value]) -> bool:
        """Whether this is one of configs()."""
        left = self.dimensions
        there = config.keys() == left.keys() and all(config[name] in values for name, values in left.items())
        return there and self._fit(config)

    def complete(self, chosen: Mapping[str, Value]) -> Config:
        """Return what a sampler chose of each dimension that is not fixed, with the fixed values."""
        return {name: {**chosen, **self.fix}[name] for name in self.dimensions}

    def nearest(self, wanted: Mapping[str, Value]) -> Config:
        """Return the default config among those with these values. UserError: there is none."""
        for name, value in wanted.items():
            if value not in self.dimensions[name]:
                known = values_text(self.dimensions[name])
                raise UserError(f"'{name}={value}' is not in the space of {self.family}: choose of {known}")
        try:
            return replace(self, fix={**self.fix, **wanted}).default()
        except UserError:
            rule = HEADS_RULE if self.small_enough is None else f"{HEADS_RULE}, and --at-most holds"
            raise UserError(
                f"{fix_text(wanted)!r} is no configuration of {self.family}: {rule}; leave one out"
            ) from None

    def default(self) -> Config:
        """Return the valid config the fewest steps away from CENTRE, in the fastest native precision.

        The recipe's values (`own`) replace those of CENTRE; the centre of a dimension in neither is its middle value.
        """
        every, native = self._requested_values, self.dimensions.get("precision", ())
        centre = {name: values[(len(values) - 1) // 2] for name, values in every.items()}
        centre |= {name: value for name, value in {**CENTRE, **self.own}.items() if value in every.get(name, ())}
        centre |= {"precision": next(each for each in FASTEST_FIRST if each in native)} if native else {}

        def steps_away(name: str, value: Value) -> int:
            return abs(every[name].index(value) - every[name].index(centre[name]))

        def distance(shape: Config) -> int:
            return sum(steps_away(name, value) for name, value in shape.items())

        nearest = min(self._shapes, key=distance)
        config = dict(nearest)
        for name in self.dimensions.keys() - set(COUPLED_DIMENSIONS):
            config[name] = min(self.dimensions[name], key=partial(steps_away, name))
        return {name: config[name] for name in self.dimensions}
