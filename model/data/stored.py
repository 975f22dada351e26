"""Prepared data in a folder: arrays as .npy files, which are mapped into memory on opening, and all else as JSON.

Between processes of one machine such data is pickled as the folder's name.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import numpy as np

from tune.errors import UserError

FACTS = "facts.json"


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Base of dataclasses that can be stored in a folder: their fields are arrays, JSON values, or such dataclasses.

    folder: where it is stored; None for a copy with other values.
    """

    folder: Path | None = field(default=None, init=False, repr=False, compare=False)
    kinds: ClassVar[dict[str, type["Stored"]]] = {}

    def __init_subclass__(cls) -> None:
        Stored.kinds[cls.__name__] = cls

    def __reduce_ex__(self, protocol: Any) -> Any:
        return super().__reduce_ex__(protocol) if self.folder is None else (reopen_stored, (type(self), self.folder))

    def save(self, folder: Path) -> None:
        """Write everything except arrays whose files exist already. OSError: the disk does not take it."""
        facts = {"kind": type(self).__name__, "data": _facts(self, folder, "")}
        facts["files"] = {path.name: _stamp(path) for path in sorted(folder.glob("*.npy"))}
        with (folder / FACTS).open("w", encoding="utf-8") as file:
            json.dump(facts, file)
            os.fsync(file.fileno())  # what has its final name is whole even after a power cut

    @staticmethod
    def open(folder: Path) -> "Stored | None":
        """Return what save() wrote. None: it is not there, or not as it was written."""
        try:
            facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            if any(_stamp(folder / name) != stamp for name, stamp in facts["files"].items()):
                return None
            made: Stored = _made(Stored.kinds[facts["kind"]], facts["data"], folder, "")
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        object.__setattr__(made, "folder", folder)
        return made


def reopen_stored(kind: type[Stored], folder: Path) -> Stored:
    """Open data that was pickled as its folder's name; `kind` makes pickle import its class. UserError: it has gone, or
    was changed, since."""
    found = kind.open(folder)
    if found is None:
        rule = "has gone, or was changed, while it was in use: leave it alone as long as a search runs"
        raise UserError(f"prepared text: '{folder}' {rule}; then go on with --resume")
    return found


def write(path: Path, parts: Iterable[np.ndarray], dtype: Any) -> np.ndarray:
    """Write the parts of an array, joined along its first axis, to a file as they come; return it mapped."""
    more, count = iter(parts), 0
    first = next(more, np.empty(0, dtype))
    with path.open("wb") as file:
        _head(file, dtype, (0, *first.shape[1:]))
        for part in chain([first], more):
            file.write(np.ascontiguousarray(part, dtype=dtype).data)
            count += len(part)
        file.seek(0)
        _head(file, dtype, (count, *first.shape[1:]))
        os.fsync(file.fileno())
    return mapped(path)


def mapped(path: Path) -> np.ndarray:
    """Return the array in a file, memory-mapped. ValueError: it is damaged."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _head(file: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    """Write the header of a .npy file, which is as long for any first axis: NumPy leaves room for a longer one."""
    about = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)


def _stamp(path: Path) -> list[int]:
    """Return a file's size in bytes and the time of its last change, in nanoseconds."""
    about = path.stat()
    return [about.st_size, about.st_mtime_ns]


def _parts(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields that __init__ takes, with their types."""
    hints = get_type_hints(kind)
    return ((each.name, hints[each.name]) for each in fields(kind) if each.init)


def _facts(data: Any, folder: Path, inside: str) -> dict[str, Any]:
    facts = {}
    for name, kind in _parts(type(data)):
        value = getattr(data, name)
        if is_dataclass(kind):
            facts[name] = _facts(value, folder, f"{inside}{name}.")
        elif isinstance(value, np.ndarray):
            if not (path := folder / f"{inside}{name}.npy").exists():
                write(path, [value], value.dtype)
        else:
            facts[name] = value
    return facts


def _made(kind: Any, facts: dict[str, Any], folder: Path, inside: str) -> Any:
    made: dict[str, Any] = {}
    for name, each in _parts(kind):
        if is_dataclass(each):
            made[name] = _made(each, facts[name], folder, f"{inside}{name}.")
        elif each is np.ndarray:
            made[name] = mapped(folder / f"{inside}{name}.npy")
        else:
            made[name] = tuple(facts[name]) if isinstance(facts[name], list) else facts[name]
    return kind(**made)
