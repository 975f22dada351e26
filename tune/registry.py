"""Registers a user's own family of models: a class under a name, which a search then treats like those built in."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import ray.cloudpickle

from model.families import BUILT_IN, Family, register_family, registered_families
from tune.errors import UserError, is_user_code
from tune.own_space import LOOP, NAME
from tune.recipe import BUILT_IN_ONLY_FIELDS
from tune.search_space import PRECISIONS, SPACES, VARIABLE_RECIPE_FIELDS, Value
from tune.store.journal import SCHEMA

RESERVED_NAMES = {"family", "seed", "own", *re.findall(r"(\w+) (?:TEXT|INTEGER|REAL)", SCHEMA)} - set(
    VARIABLE_RECIPE_FIELDS
)
"""Names that no dimension can have: the journal's columns, beside which it stands in tables, except those that --vary
can free, which may vary here too."""


def register(name: str) -> Callable[[type[Family]], type[Family]]:
    """Return a decorator that registers a subclass of model.families.Family. UserError: name or space cannot serve."""

    def registered(family: type[Family]) -> type[Family]:
        if not NAME.fullmatch(name) or name in (*BUILT_IN, LOOP):
            raise UserError(f"families: {name!r} is taken or no name: write another, of letters, digits and _")
        for dimension, values in family.space.items():
            if rule := fault(dimension, tuple(values)):
                raise UserError(f"families: {name!r}: {dimension!r} {rule}")
        register_family(name, family())
        SPACES[name] = {dimension: tuple(values) for dimension, values in family.space.items()}
        return family

    return registered


def fault(dimension: str, values: tuple[Value, ...]) -> str | None:
    """Return what is wrong with a dimension of a space; None: nothing."""
    if not NAME.fullmatch(dimension) or dimension in RESERVED_NAMES:
        return "is a column of the journal, or no name: write another, of letters, digits and _"
    if dimension in BUILT_IN_ONLY_FIELDS:
        return "is a setting of the families that are built in: write another name"
    words = [value for value in values if isinstance(value, str) and NAME.fullmatch(value)]
    numbers = [value for value in values if type(value) in (int, float)]
    if len(values) not in (len(words), len(numbers)) or not values or len(set(values)) < len(values):
        return f"has the values {values!r}: write numbers or words, each once"
    if dimension == "precision" and not set(values) <= set(PRECISIONS):
        return f"has the values {values!r}: choose of {', '.join(PRECISIONS)}"
    return None


def pickle_families_by_value() -> dict[str, Family]:
    """Return a user's own families, and let their code travel to Ray's processes, wherever these run, with the user's
    imported modules beside it.
    """
    folders = {
        file.parent
        for family in registered_families().values()
        if (file := _file(sys.modules[type(family).__module__]))
    }
    for module in list(sys.modules.values()) if folders else ():
        file = _file(module)
        if file is not None and file.parent in folders and module.__name__ != "__main__" and is_user_code(file):
            ray.cloudpickle.register_pickle_by_value(module)
    return registered_families()


def _file(module: ModuleType) -> Path | None:
    """Return the file that a module was read from; None in a notebook."""
    file = getattr(module, "__file__", None)
    return Path(file).absolute() if isinstance(file, str) else None
