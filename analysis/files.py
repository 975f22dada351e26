"""What commands write. A study may come from a stranger, so nothing is written through a link that lies in it."""

from pathlib import Path

from tune.errors import UserError

REMEDY = "name another folder with --out"


def folder_in(folder: Path, name: str) -> Path:
    """A folder inside of one, made if it is not there. UserError: it is a link, or cannot be made."""
    inside = folder / name
    _refuse_link(inside)
    try:
        inside.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(inside, error) from None
    return inside


def write(file: Path, content: bytes) -> Path:
    """The file, made anew, and its folder too. UserError: it is a link, or cannot be written."""
    _refuse_link(file)
    unfinished = file.with_name(f"{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.unlink(missing_ok=True)
        with unfinished.open("xb") as opened:
            opened.write(content)
        unfinished.replace(file)
    except OSError as error:
        raise _refused(file, error) from None
    return file


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise UserError(f"--out: {str(path)!r} is a link, and what it points to is not written: remove it, or {REMEDY}")


def _refused(path: Path, error: OSError) -> UserError:
    return UserError(f"--out: {str(path)!r} cannot be written ({error.strerror}); {REMEDY}")
