"""Families of a user's own, out of a Python file of theirs; standard library only, anyone may import it."""

import sys
from pathlib import Path
from types import ModuleType

from tune.errors import UserError, told_of
from tune.search_space import SPACES

_LOADED: dict[Path, str] = {}
"""The text of each file that this process executed."""


def load(path: Path) -> None:
    """Execute a file that registers families, once as long as it stays as it is; it can import what lies beside it.

    UserError: it cannot be read, raises an error, or registers none.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"--load: '{path}' cannot be read ({reason}): name a Python file") from None
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
        said = str(error) if isinstance(error, UserError) else told_of(error)
        raise UserError(f"--load: '{path}' cannot be executed ({said}): mend it") from error
    if all(before.get(family) is space for family, space in SPACES.items()):
        raise UserError(f"--load: '{path}' registers no family: write @register(\"NAME\") above the class of one")
    _LOADED[path] = source
