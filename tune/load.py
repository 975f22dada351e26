"""Reads a user's Python file: one with families is executed here, and registers them; of one with a training loop only
the text is read here. Standard library only: any module may import it.
"""

import ast
import base64
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tune.errors import UserError, error_text
from tune.reports import Metric
from tune.search_space import SPACES, Value

_LOADED: dict[Path, str] = {}
"""The text of each file that this process has executed."""


def load_families(path: Path) -> None:
    """Execute a file that registers families, once unless it changes; it can import what is beside it.

    UserError: it cannot be read, raises an error, or registers none.
    """
    source = text_of(path, "--load")
    if _LOADED.get(path) == source:
        return
    before = dict(SPACES)
    module = ModuleType(f"loaded_{path.stem}")  # a name that no package has
    module.__file__, sys.modules[module.__name__] = str(path), module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except Exception as error:
        reason = str(error) if isinstance(error, UserError) else error_text(error)
        raise UserError(f"--load: '{path}' cannot be executed ({reason}): correct it") from error
    if all(before.get(family) is space for family, space in SPACES.items()):
        raise UserError(f"--load: '{path}' registers no family: write @register(\"NAME\") above the class of one")
    _LOADED[path] = source


def text_of(path: Path, flag: str) -> str:
    """Return the text of a Python file. UserError: it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")  # as Python itself: without a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{flag}: '{path}' cannot be read ({reason}): name a Python file") from None


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A user's training loop: a script, a function in a file, or a pickled function of this session. folder: first on
    its process's path; metric: what it reports; life: the steps after which it is complete; fixed: the values that all
    its configurations share."""

    folder: Path
    file: Path | None = None
    function: str | None = None
    pickled: bytes | None = None
    metric: Metric
    life: float | None = None
    fixed: Mapping[str, Value] = field(default_factory=dict)

    def to_json(self) -> dict[str, str]:
        """Return what its process is told of it, JSON-able."""
        if self.pickled is not None:
            return {"pickled": base64.b64encode(self.pickled).decode()}
        return {"file": str(self.file)} | ({} if self.function is None else {"function": self.function})


def parse_loop_name(text: str) -> tuple[Path, str | None]:
    """`train.py:train` -> the file and the function's name; None for a script's function."""
    file, colon, function = text.rpartition(":")
    return (Path(file), function) if colon and Path(file).suffix == ".py" else (Path(text), None)


def check_loop(text: str) -> None:
    """Check what --train names. UserError: the file cannot be read, is no Python or empty, or has no such function of
    one argument."""
    path, name = parse_loop_name(text)
    source = text_of(path, "--train")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UserError(f"--train: '{path}' is no Python ({getattr(error, 'msg', error)}{where}): correct it") from None
    if not tree.body:
        raise UserError(f"--train: '{path}' is empty: name a script that trains, or FILE:function")
    if name is None:
        return
    there = dict(_defined(tree.body))
    if name not in there and "*" not in there:
        known = ", ".join(each for each, what in there.items() if isinstance(what, ast.FunctionDef)) or "no function"
        raise UserError(f"--train: '{path}' has no function {name!r}: there is {known}; write FILE:function")
    found = there.get(name)
    if isinstance(found, ast.ClassDef | ast.AsyncFunctionDef):
        kind = "a class" if isinstance(found, ast.ClassDef) else "async"
        raise UserError(f"--train: {name!r} in '{path}' is {kind}: name a function that takes a configuration")
    if isinstance(found, ast.FunctionDef) and not found.decorator_list:
        if _yields(found):
            raise UserError(f"--train: {name!r} in '{path}' is a generator: name a function that calls report")
        places = [*found.args.posonlyargs, *found.args.args]
        needed = len(places) - len(found.args.defaults)
        more = [
            each for each, default in zip(found.args.kwonlyargs, found.args.kw_defaults, strict=True) if not default
        ]
        _check_takes(name, needed, len(places) + bool(found.args.vararg), len(more))


def check_function(train: object) -> None:
    """Check a training function. UserError: it cannot be called with a configuration alone, or does not run then."""
    if isinstance(train, type) or not callable(train):
        raise UserError(f"--train: {train!r:.60} is no function: give one that takes a configuration")
    name = getattr(train, "__name__", "train")
    *_, (inner, _) = layers(train)
    kinds = inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction
    if any(is_kind(inner) for is_kind in kinds):
        raise UserError(f"--train: {name!r} is a generator or async: give a function that calls report")
    try:
        places = inspect.signature(train).parameters.values()
    except (TypeError, ValueError):
        return
    by_place = [each for each in places if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [each for each in by_place if each.default is each.empty]
    more = [each for each in places if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    takes = len(by_place) + any(each.kind is each.VAR_POSITIONAL for each in places)
    _check_takes(name, len(needed), takes, len(more))


def layers(train: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Yield a function and those that functools.partial and ray.tune.with_parameters have inside of it, the innermost
    last, each with what it holds, if it is Ray's."""
    while train is not None:
        of_ray = getattr(train, "__module__", None) == "ray.tune.trainable.util"
        holds = inspect.getclosurevars(train).nonlocals if of_ray else {}
        yield train, holds
        train = train.func if isinstance(train, functools.partial) else holds.get("trainable")


def _yields(function: ast.FunctionDef) -> bool:
    """Return whether a function itself yields, rather than one inside of it."""
    inside: list[ast.AST] = [*function.body]
    for each in inside:  # and what is added meanwhile
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside += ast.iter_child_nodes(each)
    return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in inside)


def _check_takes(name: str, needed: int, takes: int, more: int) -> None:
    if needed > 1 or not takes or more:
        what = f"needs {needed + more} arguments" if takes else "takes no argument"
        raise UserError(f"--train: {name!r} {what}: a training loop takes its configuration, and nothing else")


def _defined(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the names that a module defines, as far as its text tells, each with the statement that does."""
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield each.name, each
        elif isinstance(each, ast.Import | ast.ImportFrom):
            yield from (((alias.asname or alias.name).partition(".")[0], each) for alias in each.names)
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            yield from (
                (name.id, each) for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
            )
        for block in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(each, ast.If | ast.Try | ast.With):
                inner = getattr(each, block, [])
                yield from _defined([part for one in inner for part in getattr(one, "body", [one])])
