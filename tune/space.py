"""What may vary. Only valid configurations come out, and each under one name; standard library only."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod

from tune.dimensions import (
    CENTRE,
    FASTEST_FIRST,
    HEADS_RULE,
    PARTNERS,
    PRECISIONS,
    SPACES,
    Config,
    Dimensions,
    Value,
    fix_text,
    heads_fit,
    listed,
)
from tune.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Space:
    """The valid configs of one family on one kind of device. vary: dimensions beside the family's. UserError: none."""

    family: str
    precisions: tuple[str, ...]  # those the device does natively, each a different arithmetic
    fix: Mapping[str, Value] = field(default_factory=dict)
    vary: Dimensions = field(default_factory=dict)

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
        return tuple(value for value in values if any(heads_fit(**pair) for pair in pairs[value]))

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

    def default(self) -> Config:
        """The valid config the fewest steps away from CENTRE, in the fastest native precision.

        Where CENTRE says nothing of a dimension its middle value is meant.
        """
        every, native = {**SPACES[self.family], **self.vary}, self.dimensions.get("precision", ())
        centre = {name: values[(len(values) - 1) // 2] for name, values in every.items()}
        centre |= {name: value for name, value in CENTRE.items() if value in every.get(name, ())}
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
