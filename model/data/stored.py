"""Prepared data in a folder: its arrays as .npy files, mapped into memory by whoever opens it, and all else as JSON.

What lies in a folder travels between processes of one machine as that folder's name.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import numpy as np

from tune.errors import UserError

FACTS = "facts.json"


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What may lie in a folder: a dataclass of arrays, of what JSON has, and of such dataclasses.

    folder: where it lies; a copy with other values lies nowhere.
    """

    folder: Path | None = field(default=None, init=False, repr=False, compare=False)
    kinds: ClassVar[dict[str, type["Stored"]]] = {}

    def __init_subclass__(cls) -> None:
        Stored.kinds[cls.__name__] = cls

    def __reduce_ex__(self, protocol: Any) -> Any:
        return super().__reduce_ex__(protocol) if self.folder is None else (again, (type(self), self.folder))

    def save(self, folder: Path) -> None:
        """Write all but the arrays that are there already. OSError: the disk does not take it."""
        facts = {"kind": type(self).__name__, "data": _facts(self, folder, "")}
        facts["files"] = {path.name: _stamp(path) for path in sorted(folder.glob("*.npy"))}
        with (folder / FACTS).open("w", encoding="utf-8") as file:
            json.dump(facts, file)
            os.fsync(file.fileno())  # after a power cut too what has a name is whole

    @staticmethod
    def open(folder: Path) -> "Stored | None":
        """What save() wrote. None: it is not there, or not as it was written."""
        try:
            facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            if any(_stamp(folder / name) != stamp for name, stamp in facts["files"].items()):
                return None
            made: Stored = _made(Stored.kinds[facts["kind"]], facts["data"], folder, "")
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        object.__setattr__(made, "folder", folder)
        return made


def again(kind: type[Stored], folder: Path) -> Stored:
    """What lay in a folder when it was sent to this process, which with its kind loads the code. UserError: it has gone
    since."""
    found = kind.open(folder)
    if found is None:
        rule = "has gone, or was changed, while it was in use: leave it alone as long as a search runs"
        raise UserError(f"prepared text: '{folder}' {rule}; then go on with --resume")
    return found


def write(path: Path, parts: Iterable[np.ndarray], dtype: Any) -> np.ndarray:
    """Parts of an array with one axis, one after the other into a file as they come; mapped."""
    count = 0
    with path.open("wb") as file:
        _head(file, dtype, 0)
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype=dtype).data)
            count += len(part)
        file.seek(0)
        _head(file, dtype, count)
        os.fsync(file.fileno())
    return mapped(path)


def mapped(path: Path) -> np.ndarray:
    """The array in a file, read from it where and when it is used. ValueError: it is damaged."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _head(file: Any, dtype: Any, count: int) -> None:
    """Its length on disk is the same for any count: NumPy leaves room for one that grows."""
    about = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, about)


def _stamp(path: Path) -> list[int]:
    """Bytes, and the time of the last change: of a file as it was written."""
    about = path.stat()
    return [about.st_size, about.st_mtime_ns]


def _parts(kind: Any) -> Iterator[tuple[str, Any]]:
    """The fields that are given to it, with their types."""
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
