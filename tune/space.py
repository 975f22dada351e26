"""What may vary. Only valid configurations come out, and each under one name; standard library only."""

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Value = int | float | str
Config = dict[str, Any]  # {"d_model", "heads", "layers", "dropout", "precision"}; the family stands beside it

FAMILIES = ("translation", "nanogpt")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
FASTEST_FIRST = ("bf16", "fp16", "tf32", "fp32")
LEAST_HEAD_WIDTH = 4
DIMENSIONS: dict[str, tuple[Value, ...]] = {
    "d_model": (16, 32, 64, 96, 128, 192, 256, 384, 512),
    "heads": (4, 8, 16, 32),
    "layers": (2, 3, 4, 6, 8, 12, 16),
    "dropout": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    "precision": PRECISIONS,
}
CENTRE: Config = {"d_model": 128, "heads": 4, "layers": 4, "dropout": 0.1}
HEADS_RULE = f"heads must divide d_model and leave each head a width of at least {LEAST_HEAD_WIDTH}"


def listed(values: tuple[Value, ...]) -> str:
    """The values as a user types them: `0, 0.1, 0.2`."""
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def fix_text(fix: Mapping[str, Value]) -> str:
    """The inverse of parse_fix: `precision=bf16,heads=4`."""
    return ",".join(f"{name}={listed((value,))}" for name, value in fix.items())


def parse_fix(text: str) -> dict[str, Value]:
    """`precision=bf16,heads=4` -> {"precision": "bf16", "heads": 4}. ValueError: not in the space."""
    fix: dict[str, Value] = {}
    for part in text.split(","):
        name, equals, typed = (piece.strip() for piece in part.partition("="))
        if name not in DIMENSIONS:
            raise ValueError(f"--fix: {part!r} names no dimension: there are {', '.join(DIMENSIONS)}; write heads=4")
        if name in fix:
            raise ValueError(f"--fix: {part!r} fixes {name} a second time: each dimension takes one value; keep one")
        if not equals or not typed:
            raise ValueError(f"--fix: {part!r} gives no value: {name} is one of {listed(DIMENSIONS[name])}; add =VALUE")
        fix[name] = _parse_value(name, typed)
    return fix


def _parse_value(name: str, typed: str) -> Value:
    try:
        wanted: Value = typed if name == "precision" else float(typed)
    except ValueError:
        wanted = typed
    for value in DIMENSIONS[name]:
        if value == wanted:
            return value
    rule = f" ({HEADS_RULE})" if name in ("heads", "d_model") else ""
    choices = listed(DIMENSIONS[name])
    raise ValueError(f"--fix: '{name}={typed}' is not in the space{rule}: fix {name} at one of {choices}")


def heads_fit(d_model: Any, heads: Any) -> bool:
    """Do the heads divide the width, and leave each head wide enough to attend with?"""
    return d_model % heads == 0 and d_model // heads >= LEAST_HEAD_WIDTH


def label(config: Mapping[str, Value]) -> str:
    """A config in one short, unique phrase: `d128 h4 l4 p.1 bf16`."""
    dropout = f"{config['dropout']:g}".removeprefix("0") or "0"
    return f"d{config['d_model']} h{config['heads']} l{config['layers']} p{dropout} {config['precision']}"


@dataclass(frozen=True, kw_only=True)
class Space:
    """The valid configs of one family on one kind of device. ValueError: none is left."""

    family: str
    precisions: tuple[str, ...]  # those the device does natively, each a different arithmetic
    fix: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"--families: {self.family!r} is no family: there are {' and '.join(FAMILIES)}; name one")
        assert self.precisions and set(self.precisions) <= set(PRECISIONS), self.precisions
        if self.fix:
            parse_fix(fix_text(self.fix))
        fixed = self.fix.get("precision")
        if fixed is not None and fixed not in self.precisions:
            raise ValueError(
                f"--fix: 'precision={fixed}' is not native to this device: native are {listed(self.precisions)}; "
                "fix one of these or leave precision out"
            )
        if not self._shapes:
            raise ValueError(f"--fix: {fix_text(self.fix)!r} leaves no valid point: {HEADS_RULE}; {self._remedy()}")

    def _remedy(self) -> str:
        heads, d_model = self.fix["heads"], self.fix["d_model"]
        widths = listed(tuple(d for d in DIMENSIONS["d_model"] if heads_fit(d, heads)))
        few_enough = listed(tuple(h for h in DIMENSIONS["heads"] if heads_fit(d_model, h)))
        return f"with heads={heads} fix d_model at {widths}, with d_model={d_model} fix heads at {few_enough}"

    @cached_property
    def dimensions(self) -> dict[str, tuple[Value, ...]]:
        """What is left to choose from in each dimension: one value where it is fixed."""
        native = tuple(precision for precision in PRECISIONS if precision in self.precisions)
        whole = DIMENSIONS | {"precision": native}
        return {name: (self.fix[name],) if name in self.fix else values for name, values in whole.items()}

    @cached_property
    def _shapes(self) -> dict[Any, tuple[Any, ...]]:
        """The heads that fit, for each d_model that some fit."""
        left = self.dimensions
        shapes = {d: tuple(h for h in left["heads"] if heads_fit(d, h)) for d in left["d_model"]}
        return {d_model: heads for d_model, heads in shapes.items() if heads}

    @property
    def count(self) -> int:
        """The number of valid configs."""
        left = self.dimensions
        shapes = sum(len(heads) for heads in self._shapes.values())
        return shapes * len(left["layers"]) * len(left["dropout"]) * len(left["precision"])

    def configs(self) -> Iterator[Config]:
        """Every valid config once, smallest width first, always in the same order."""
        left = self.dimensions
        for d_model, heads in self._shapes.items():
            for rest in itertools.product(heads, left["layers"], left["dropout"], left["precision"]):
                yield dict(zip(DIMENSIONS, (d_model, *rest), strict=True))

    def sample(self, rng: random.Random) -> Config:
        """One valid config: each width equally likely, then each of the heads that fit it, then each of the rest."""
        left = self.dimensions
        d_model = rng.choice(tuple(self._shapes))
        rest = (self._shapes[d_model], left["layers"], left["dropout"], left["precision"])
        return dict(zip(DIMENSIONS, (d_model, *map(rng.choice, rest)), strict=True))

    def contains(self, config: Mapping[str, Value]) -> bool:
        """Is this one of configs()?"""
        if set(config) != set(DIMENSIONS) or any(config[name] not in left for name, left in self.dimensions.items()):
            return False
        return config["heads"] in self._shapes.get(config["d_model"], ())

    def default(self) -> Config:
        """The valid config the fewest steps along the dimensions away from CENTRE, in the fastest native precision."""
        fastest = next(p for p in FASTEST_FIRST if p in self.dimensions["precision"])
        wanted = CENTRE | {"precision": fastest}

        def steps_away(config: Config) -> int:
            return sum(abs(grid.index(config[name]) - grid.index(wanted[name])) for name, grid in DIMENSIONS.items())

        return min((config for config in self.configs() if config["precision"] == fastest), key=steps_away)
