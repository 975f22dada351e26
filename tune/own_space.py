"""The search space of a user's own training loop: lists, ranges, and dimensions that exist only beside certain values
of others; from Python, from a TOML file, or from Optuna or Ray Tune. Standard library only.
"""

import json
import math
import os
import random
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, cast

from tune.errors import UserError
from tune.search_space import Config, Dimension, Value

LARGEST = 1e100
"""Largest size of a number in a space."""
MOST_STEPS = 1000
"""Most steps of a range with a step, which becomes a list of values."""
LOOP = "loop"
"""Name of the family of a user's training loop."""
LONGEST_WORD = 80
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
KEYS = ("values", "low", "high", "log", "step", "when")
FORMS = "write a list of values, or { low = 1e-4, high = 1e-2, log = true }"


When = Mapping[str, object]


def choice(*values: Value, when: When | None = None) -> Dimension:
    """Return a dimension with these values: numbers, words, or True and False."""
    return _helped("choice", {"values": list(values), "when": when or {}})


def integers(low: int, high: int, *, log: bool = False, when: When | None = None) -> Dimension:
    """Return a dimension of whole numbers from low to high, both included."""
    return _helped("integers", {"low": low, "high": high, "log": log, "when": when or {}})


def floats(low: float, high: float, *, log: bool = False, when: When | None = None) -> Dimension:
    """Return a dimension of numbers from low to high; log: uniform in their logarithm."""
    return _helped("floats", {"low": low, "high": high, "log": log, "when": when or {}})


def _helped(name: str, given: Mapping[str, object]) -> Dimension:
    try:
        found = dimension(given)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    if name == "integers" and not found.whole:
        raise UserError(f"integers: {given['low']} and {given['high']} are not whole: write floats")
    return replace(found, low=float(found.low), high=float(found.high), whole=False) if name == "floats" else found


def dimension(given: object) -> Dimension:
    """Return the dimension that a list, a mapping with KEYS, or a distribution of Optuna or Ray Tune describes.
    UserError: it is none of these, or has values that cannot serve."""
    if isinstance(given, Dimension):
        return given
    if type(given).__module__.startswith("optuna."):
        return _from_optuna(given)
    if type(given).__module__.startswith("ray.tune."):
        return _from_ray_tune(given)
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        given = {"values": given}
    if not isinstance(given, Mapping):
        raise UserError(f"has {given!r:.60}: {FORMS}")
    if unknown := [key for key in given if key not in KEYS]:
        raise UserError(f"has {unknown[0]!r}: a dimension has {', '.join(KEYS)}; {FORMS}")
    when = _when(given.get("when", {}))
    if ("values" in given) == bool({"low", "high"} & set(given)):
        raise UserError(f"has {'both a list and a range' if 'values' in given else 'neither list nor range'}: {FORMS}")
    if "values" in given:
        return Dimension(values=_values(given["values"]), when=when)
    if missing := [end for end in ("low", "high") if end not in given]:
        raise UserError(f"has no {missing[0]}: write both ends, such as {{ low = 32, high = 256 }}")
    return _range(given.get("low"), given.get("high"), given.get("log", False), given.get("step"), when)


def _is_number(value: object) -> bool:
    """Whether a value is a finite number, at most LARGEST in size, so that arithmetic on it stays finite."""
    return type(value) in (int, float) and -LARGEST <= cast(float, value) <= LARGEST


def _values(given: object) -> tuple[Value, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or not given:
        raise UserError(f"has {given!r:.60} for its values: write a list of one or more")
    for value in given:
        word = isinstance(value, str) and 0 < len(value) <= LONGEST_WORD and value.isprintable()
        if not word and not (type(value) is bool or _is_number(value)):
            raise UserError(f"has the value {value!r:.60}: write finite numbers, true, false, or words on one line")
    if twice := [value for place, value in enumerate(given) if value in given[:place]]:
        raise UserError(f"has the value {twice[0]!r} twice: write each once")
    return tuple(given)


def _when(given: object) -> dict[str, tuple[Value, ...]]:
    if not isinstance(given, Mapping):
        raise UserError(f'has {given!r:.60} for `when`: write {{ optimizer = "sgd" }}')
    many = {name: value if isinstance(value, list | tuple) else [value] for name, value in given.items()}
    return {str(name): _values(values) for name, values in many.items()}


def _range(low: object, high: object, log: object, step: object, when: Mapping[str, tuple[Value, ...]]) -> Dimension:
    for name, value in {"low": low, "high": high, **({} if step is None else {"step": step})}.items():
        if not _is_number(value):
            raise UserError(f"has {name} = {value!r:.60}: write a finite number")
    first, last = cast(float, low), cast(float, high)
    if not first < last:
        raise UserError(f"goes from {low} to {high}: write a low below its high")
    if type(log) is not bool:
        raise UserError(f"has log = {log!r:.60}: write true or false")
    if log and first <= 0:
        raise UserError(f"goes from {low} by its logarithm: write a low above zero")
    whole = type(low) is type(high) is int
    if step is not None:
        return Dimension(values=_steps(first, last, cast(float, step), log), when=when)
    return Dimension(low=first, high=last, whole=whole, log=log, when=when)


def _steps(low: float, high: float, step: float, log: bool) -> tuple[Value, ...]:
    if log or step <= 0:
        raise UserError(f"has a step of {step}{' and a logarithm' if log else ''}: write a step above zero, or log")
    if (high - low) / step >= MOST_STEPS:
        raise UserError(f"has {(high - low) / step:,.0f} steps: write a larger step, at most {MOST_STEPS:,}, or none")
    count = math.floor((high - low) / step + 1e-9) + 1
    if count < 2:
        raise UserError(f"has a step of {step}, which goes beyond {high} at once: write a smaller one, or none")
    return tuple(
        low + place * step if type(low) is type(step) is int else float(f"{low + place * step:.12g}")
        for place in range(count)
    )


def _from_optuna(given: object) -> Dimension:
    if (values := getattr(given, "choices", None)) is not None:
        return Dimension(values=_values(list(values)))
    low, high, log, step = (getattr(given, name, None) for name in ("low", "high", "log", "step"))
    unit = step == 1 and type(low) is int
    return _range(low, high, bool(log), None if unit else step, {})


def _from_ray_tune(given: Any) -> Dimension:
    """Return the dimension of a distribution of Ray Tune. UserError: it is none of uniform, loguniform, randint,
    choice, and their forms with a step."""
    if type(given).__name__ == "Categorical":
        return Dimension(values=_values(list(given.categories)))
    sampler = given.get_sampler() if type(given).__name__ in ("Float", "Integer") else None
    step, how = getattr(sampler, "q", None), type(getattr(sampler, "sampler", sampler)).__name__
    if how not in ("_Uniform", "_LogUniform"):
        raise UserError(f"has {type(given).__name__} of Ray Tune's, which is neither a list nor a range: {FORMS}")
    if type(given).__name__ == "Float":
        return _range(float(given.lower), float(given.upper), how == "_LogUniform", step, {})
    last = given.upper - (1 if step is None else 0)  # with steps the upper end is included
    return _range(given.lower, last, how == "_LogUniform", None if step == 1 else step, {})


def parse_space(text: str) -> dict[str, Dimension]:
    """Read a space from the path of a TOML file, or from what `space_text` wrote. UserError: it cannot be read, or is
    no space."""
    try:
        if text.startswith("{"):
            return make_space(json.loads(text))
        found = tomllib.loads(Path(os.path.expanduser(text)).read_text(encoding="utf-8-sig"))
        if not found:
            raise UserError(f"'{text}' has no dimension: write one or more, such as width = [64, 128]")
        return make_space(found)
    except OSError as error:
        raise UserError(f"'{text}' cannot be read ({error.strerror}): name a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"'{text}' is no TOML ({error}): write lines such as width = [64, 128]") from None
    except UnicodeDecodeError:
        raise UserError(f"'{text}' is not UTF-8: write it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise (
            error if isinstance(error, UserError) else UserError(f"{text!r:.60} is no space: name a TOML file")
        ) from None


def space_text(space: Mapping[str, Dimension]) -> str:
    """Return a space as study.json keeps it."""
    return json.dumps({name: each.to_json() for name, each in space.items()})


def make_space(given: object) -> dict[str, Dimension]:
    """Return the dimensions by name from what was given for each. UserError: one cannot serve."""
    if not isinstance(given, Mapping) or not given:
        raise UserError("has no dimension: write one or more, such as width = [64, 128]")
    found: dict[str, Dimension] = {}
    for name, each in given.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UserError(f"{name!r} is no name for a dimension: write another, of letters, digits and _")
        try:
            found[name] = dimension(each)
            _check_when(found, name)
        except UserError as error:
            raise UserError(f"{name!r} {error}") from None
    return found


def _check_when(space: Mapping[str, Dimension], name: str) -> None:
    for other, values in space[name].when.items():
        if other == name or other not in space:
            raise UserError(f"depends on {other!r}, which is no dimension before it: write that one first")
        if not space[other].values:
            raise UserError(f"depends on {other!r}, which is a range: write a list of values there")
        if odd := [value for value in values if not space[other].contains(value)]:
            raise UserError(f"depends on {other} = {odd[0]!r}, which that never has: it has {space[other].values}")


def parse_range(text: str) -> dict[str, Dimension]:
    """`d_model=64..256 layers=2,4,6` -> both dimensions; also reads what `range_text` wrote. UserError: no values, or a
    dimension twice."""
    if text.startswith("{"):
        return parse_space(text)
    found: dict[str, Dimension] = {}
    for part in text.split():
        name, equals, typed = part.partition("=")
        if not equals or not NAME.fullmatch(name):
            raise UserError(f"{part!r} is no dimension with its values: write NAME=LOW..HIGH, or NAME=VALUE,VALUE")
        if name in found:
            raise UserError(f"{part!r} is of {name} a second time: each dimension is given once; keep one")
        low, dots, high = typed.partition("..")
        try:
            ends = {"low": parse_value(low), "high": parse_value(high)}
            found[name] = dimension(ends if dots else [parse_value(each) for each in typed.split(",")])
        except UserError as error:
            raise UserError(f"{name!r} {error}") from None
    return found


def apply_range(own: Dimension, given: Dimension) -> Dimension:
    """Return the dimension that --range gives in place of one of --space; a range stays whole, or logarithmic, as that
    one is.

    UserError: words where the dimension of --space has only numbers, or fractions where it has only whole ones.
    """
    known, values = own.values or (own.low, own.high), given.values or (given.low, given.high)
    numbers = all(type(value) in (int, float) for value in known)
    whole = all(type(value) is int for value in own.values) if own.values else own.whole
    if not numbers:
        return given
    if odd := [value for value in values if type(value) not in (int, float)]:
        least, most = (value_text(each) for each in (min(known), max(known)))
        raise UserError(f"has {odd[0]!r}, which is no number: write a range as {least}..{most}, or {least},{most}")
    if odd := [value for value in values if whole and not float(value).is_integer()]:
        raise UserError(f"has {odd[0]!r}: it takes whole numbers")
    if given.values:
        return replace(given, values=tuple(int(value) for value in given.values)) if whole else given
    low, high = ((int if whole else float)(value) for value in values)
    return _range(low, high, own.log, None, {})


def range_text(ranges: Mapping[str, Dimension]) -> str:
    """Return the inverse of parse_range: as it is typed, or as JSON, where it has words that cannot be typed."""
    text = " ".join(
        f"{name}={','.join(map(value_text, each.values)) or f'{each.low!r}..{each.high!r}'}"
        for name, each in ranges.items()
    )
    return text if _typed(parse_range, text) == ranges else space_text(ranges)


def parse_value(text: str) -> Value:
    """Return the number, True or False that a text is, else the text as a word."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text, text)


def value_text(value: Value) -> str:
    """Return the inverse of parse_value."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_first(text: str) -> tuple[Config, ...]:
    """`d_model=128,layers=4 d_model=64` -> two configurations, with only what was typed; also reads what `first_text`
    wrote. UserError: it is no list of configurations."""
    if not text.startswith("["):
        return tuple(_one_first(part) for part in text.split())
    try:
        spaces = [make_space({name: [value] for name, value in config.items()}) for config in json.loads(text)]
    except (ValueError, AttributeError, RecursionError):
        raise UserError(f"{text!r:.60} is no list of configurations: write NAME=VALUE,NAME=VALUE") from None
    return tuple({name: each.values[0] for name, each in space.items()} for space in spaces)


def _one_first(text: str) -> Config:
    found: Config = {}
    for part in text.split(","):
        name, equals, typed = part.partition("=")
        if not equals or not typed or not NAME.fullmatch(name):
            raise UserError(f"{part!r} is no value of a dimension: write NAME=VALUE,NAME=VALUE")
        if name in found:
            raise UserError(f"{text!r} has {name} twice: keep one")
        found[name] = parse_value(typed)
    return found


def first_text(first: Sequence[Config]) -> str:
    """Return the inverse of parse_first: as it is typed, or as JSON, where it has words that cannot be typed."""
    text = " ".join(",".join(f"{name}={value_text(value)}" for name, value in config.items()) for config in first)
    return text if _typed(parse_first, text) == tuple(first) else json.dumps(first)


def _typed(parse: Callable[[str], object], text: str) -> object:
    """Return what a text is when it is typed; None: it is wrong."""
    with suppress(UserError):
        return parse(text)
    return None


def fixed_values(space: Mapping[str, Dimension]) -> dict[str, Value]:
    """Return the values of what does not vary: lists of one value on which no dimension depends. Where that would leave
    no dimension, nothing is held."""
    needed = {name for each in space.values() for name in each.when}
    fixed = {name: each.values[0] for name, each in space.items() if len(each.values) == 1 and not each.when}
    fixed = {name: value for name, value in fixed.items() if name not in needed}
    return fixed if len(fixed) < len(space) else {}


def _said(each: Dimension) -> str:
    """Return in words what a dimension may be."""
    if each.values:
        return f"one of {', '.join(map(value_text, each.values))}"
    low, high = (value_text(int(end) if each.whole else end) for end in (each.low, each.high))
    return f"{'a whole number' if each.whole else 'a number'} from {low} to {high}"


@dataclass(frozen=True, kw_only=True)
class OwnSpace:
    """The configurations of a user's loop, with the methods of search_space.Space."""

    given: Mapping[str, Dimension]

    @property
    def unrestricted(self) -> "OwnSpace":
        """Return this space, of which nothing is fixed."""
        return self

    @property
    def dimensions(self) -> dict[str, tuple[Value, ...]]:
        """Return the values of each dimension; a range has none."""
        return {name: each.values for name, each in self.given.items()}

    def existing(self, config: Mapping[str, Value]) -> Config:
        """Return the chosen values of those dimensions that exist beside the others, by their `when`."""
        found: Config = {}
        for name, each in self.given.items():
            if all(found.get(other) in values and other in found for other, values in each.when.items()):
                found[name] = config[name]
        return found

    def complete(self, chosen: Mapping[str, Value]) -> Config:
        """Return what a sampler chose of every dimension as one of these configurations."""
        near = {
            name: chosen[name] if each.values else each.nearest_value(float(chosen[name]))
            for name, each in self.given.items()
        }
        return self.existing(near)

    @cached_property
    def _deciding(self) -> list[str]:
        """Return the dimensions on which others depend."""
        return [name for name in self.given if any(name in each.when for each in self.given.values())]

    def _shapes(self) -> Iterator[tuple[Config, list[str]]]:
        """Yield each combination of the deciding dimensions once, with the names of the others that exist beside it."""
        seen: set[frozenset[tuple[str, Value]]] = set()
        rest = {name: each.middle for name, each in self.given.items()}
        for values in product(*(self.given[name].values for name in self._deciding)):
            there = self.existing({**rest, **dict(zip(self._deciding, values, strict=True))})
            shape = {name: there[name] for name in self._deciding if name in there}
            if (key := frozenset(shape.items())) not in seen:
                seen.add(key)
                yield shape, [name for name in there if name not in self._deciding]

    @cached_property
    def count(self) -> float:
        """Return the number of configurations that `configs` yields."""
        return sum(prod((self.given[name].count for name in names), start=1.0) for _, names in self._shapes())

    def configs(self) -> Iterator[Config]:
        """Yield every configuration once; ranges have the values of Dimension.every."""
        for shape, names in self._shapes():
            for values in product(*(self.given[name].all_values() for name in names)):
                config = {**shape, **dict(zip(names, values, strict=True))}
                yield {name: config[name] for name in self.given if name in config}

    def sample(self, rng: random.Random) -> Config:
        """Draw a configuration, each dimension independently."""
        return self.existing({name: each.draw(rng) for name, each in self.given.items()})

    uniform = sample

    def contains(self, config: Mapping[str, Value]) -> bool:
        """Whether this is one of the configurations."""
        known = {name: config.get(name, each.middle) for name, each in self.given.items()}
        there = self.existing(known)
        return there == dict(config) and all(self.given[name].contains(value) for name, value in config.items())

    def default(self) -> Config:
        """Return what is tried first: the middle of each dimension."""
        return self.nearest({})

    def nearest(self, wanted: Mapping[str, Value]) -> Config:
        """Return the configuration with these values, and the middle of each other dimension. UserError: a dimension
        is unknown, lacks that value, or does not exist beside the others."""
        for name, value in wanted.items():
            if name not in self.given:
                raise UserError(f"{name!r} is no dimension of --space: there are {', '.join(self.given)}")
            if not self.given[name].contains(value):
                rule = f"{name} is {_said(self.given[name])}"
                raise UserError(f"'{name}={value_text(value)}' is not in the space: {rule}")
        config = self.existing({name: each.middle for name, each in self.given.items()} | dict(wanted))
        if gone := [name for name in wanted if name not in config]:
            raise UserError(f"{gone[0]!r} is not there beside the others, by its `when`: leave it out")
        return config
