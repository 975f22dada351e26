"""A copy of a study on a disk that outlives its machine, made anew every minute, from which the study can go on.

The copy is a study's folder as a kill may leave one: its journal is a snapshot, and the last checkpoint of each trial
that the journal names is there whole, or one that it has given way to since. With it lies a sign of life of the driver
that is dated ahead: what ran since the last copy is charged up to then.
"""

import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tune.errors import UserError
from tune.machine import UNFINISHED, private_folder, sync, write_folder_whole
from tune.store.heartbeat import DRIVER, HEARTBEAT_FOLDER, read_heartbeat, write_heartbeat
from tune.store.journal import DAMAGED, JOURNAL_FILE, LOCK, STUDY_FILE, connect, study_facts

MIRROR_EVERY_SECONDS = 60.0
MIRRORED = "mirrored"
"""`ended` of the sign of life in a copy: until then the study may have gone on, whatever its journal says."""
CHECKPOINTS = "checkpoints"
TRIES = 5
"""Tries to make a copy: a checkpoint may give way to a newer one before it is copied, and then the journal is looked at
again."""
LAST_NAMED = """
    SELECT checkpoint FROM reports
    WHERE report IN (SELECT MAX(report) FROM reports WHERE checkpoint IS NOT NULL GROUP BY trial)"""
LAST_DECISION = "SELECT decision, at, trial FROM decisions ORDER BY decision DESC LIMIT 1"
FAULTS = (OSError, sqlite3.Error, UserError)


class Mirror:
    """The copy of a study in the folder `path`, which is created. clock: the study's own."""

    def __init__(self, study: Path, path: Path, clock: Callable[[], float]) -> None:
        self._study, self._path, self._clock = study, path, clock
        self._saying, self._elsewhere = threading.Lock(), False
        self._copied: dict[Path, tuple[tuple[str, int, int], ...]] = {}

    def copy(self, *, whole: bool = False) -> None:
        """Make the copy once. whole: with the winners and all else, and without a sign of life, as the study has ended.
        OSError, sqlite3.Error: it failed, and the copy of before stays. UserError: another run went on with that."""
        self._path.mkdir(parents=True, exist_ok=True)
        self._check()
        self._file(STUDY_FILE)
        with tempfile.TemporaryDirectory() as folder:  # as SQLite is not safe on a network disk
            snapshot, gone = Path(folder, JOURNAL_FILE), set[str]()
            for _ in range(TRIES):
                self.extend_life()
                named = self._snapshot(snapshot)
                there = self._checkpoints()
                missing = [path for path in named if not (self._path / path).is_dir()]
                if all(path in gone and self._has_beside(path, there) for path in missing):
                    break
                gone = {path for path in missing if not (self._study / path).is_dir()}  # a trial has gone on from them
            else:
                raise OSError(f"checkpoints went {TRIES} times before they were copied")
            self._check()  # again, as this machine may have slept for long
            _copy_file(snapshot, self._path / JOURNAL_FILE)
        for path in self._path.glob(f"{CHECKPOINTS}/*/*"):
            within = path.relative_to(self._path)
            if within not in there and str(within) not in named:
                shutil.rmtree(path, ignore_errors=True)
        if whole:
            for path in self._study.iterdir():
                if path.name not in (CHECKPOINTS, HEARTBEAT_FOLDER, LOCK) and not path.name.startswith(JOURNAL_FILE):
                    self._file(path.name) if path.is_file() else self._tree(path.relative_to(self._study))
            (self._path / HEARTBEAT_FOLDER / DRIVER).unlink()

    def _check(self) -> None:
        self._elsewhere = _went_on(self._path, self._study)
        if self._elsewhere:
            raise UserError("another run went on from it")

    def extend_life(self) -> None:
        """Say in the copy that the study lives, and may for MIRROR_EVERY_SECONDS more; not in one that another run went
        on from."""
        with self._saying:
            if self._elsewhere:
                return
            (self._path / HEARTBEAT_FOLDER).mkdir(exist_ok=True)
            write_heartbeat(self._path, DRIVER, 0, self._clock() + MIRROR_EVERY_SECONDS, MIRRORED)

    def _snapshot(self, file: Path) -> list[str]:
        """Write the journal as it is now to one file. Returns the checkpoints that are to be beside it."""
        file.unlink(missing_ok=True)
        with closing(connect(self._study)) as journal, closing(sqlite3.connect(file)) as copy:
            journal.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            return [path for (path,) in copy.execute(LAST_NAMED)]

    def _checkpoints(self) -> set[Path]:
        """Copy the checkpoints that are new, or others of the same name. Returns all that there are."""
        there = set()
        for path in sorted(self._study.glob(f"{CHECKPOINTS}/*/*")):
            if not path.name.startswith(UNFINISHED):
                within = path.relative_to(self._study)
                there.add(within)
                with suppress(FileNotFoundError, shutil.Error):  # it gave way to a newer one
                    self._tree(within)
        return there

    def _has_beside(self, named: str, there: set[Path]) -> bool:
        """Whether the copy has another checkpoint of the trial of this one, of those that are `there`."""
        return any((self._path / each).is_dir() for each in there if each.parent == Path(named).parent)

    def _tree(self, within: Path) -> None:
        """Copy a folder, unless its copy is as it is."""
        source, target = self._study / within, self._path / within
        print_of_it = _fingerprint(source)
        if self._copied.get(within) != print_of_it or not target.is_dir():
            _copy_tree(source, target)
            self._copied[within] = print_of_it

    def _file(self, name: str) -> None:
        with suppress(FileNotFoundError):
            _copy_file(self._study / name, self._path / name)


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file, whole or not at all."""
    part = target.with_name(f"{UNFINISHED}{target.name}")
    shutil.copyfile(source, part)
    sync(part)
    part.replace(target)
    sync(target.parent)


def _copy_tree(source: Path, target: Path, *, symlinks: bool = False) -> None:
    """Copy a folder, whole or not at all, in place of what is there; symlinks: copy links as links, else what they lead
    to."""

    def fill(place: Path) -> None:
        unfinished = shutil.ignore_patterns(f"{UNFINISHED}*")
        shutil.copytree(source, place, symlinks=symlinks, ignore=unfinished, dirs_exist_ok=True)

    write_folder_whole(target, fill)


def _fingerprint(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes and times of a folder's files, which change when a file does."""
    files = ((path, path.stat()) for path in sorted(folder.rglob("*")))
    return tuple((str(path.relative_to(folder)), found.st_size, found.st_mtime_ns) for path, found in files)


@contextmanager
def mirror_study(
    study: Path, folder: Path | None, clock: Callable[[], float], write: Callable[[str], None]
) -> Iterator[None]:
    """Copy the study into `folder`, under its own name, every minute while the `with` block lasts, and whole where that
    ends without an error.

    What cannot be copied is told the first time, and the search goes on. UserError: something else is there, which a
    copy would replace, or a copy that another run went on from.
    """
    place = study if folder is None else folder / study.name
    if place.resolve() == study.resolve():  # a study may go on in its copy
        yield
        return
    mirror, over, fails = Mirror(study, place, clock), threading.Event(), False
    if _is_in_use(place) and _created(place) != _created(study):
        raise UserError(f"--mirror: '{place}' is of another study, or none: take it away, or name another folder")
    if _went_on(place, study):
        remedy = f"take '{study}' away, and --resume begins with the copy, or name another folder"
        raise UserError(f"--mirror: '{place}' knows more than '{study}', as another run went on from it: {remedy}")

    def copy(*, whole: bool = False) -> None:
        nonlocal fails
        try:
            mirror.copy(whole=whole)
            fails = False
        except FAULTS as error:
            if not fails or whole:
                again = "" if whole else "; trying again"
                write(f"mirror: {place} could not be updated: {error}{again}")
            fails = True

    def go_on() -> None:
        copy()
        while not over.wait(MIRROR_EVERY_SECONDS):
            copy()

    def live_on() -> None:
        """Renew the sign of life in the copy, however long it takes to copy."""
        while not over.wait(MIRROR_EVERY_SECONDS / 2):
            with suppress(OSError):
                mirror.extend_life()

    threads = [threading.Thread(target=each, name="mirror", daemon=True) for each in (go_on, live_on)]
    for thread in threads:
        thread.start()
    try:
        yield
    except BaseException:
        over.set()
        raise
    over.set()
    for thread in threads:
        thread.join()
    copy(whole=True)


def is_copy(folder: Path) -> bool:
    """Whether a folder is the copy of a study that may have gone on since."""
    sign = read_heartbeat(folder, DRIVER)
    return sign is not None and sign.ended == MIRRORED


def _went_on(copy: Path, study: Path) -> bool:
    """Whether the last decision that a copy tells of, if it can be read, is none of the study's."""
    with suppress(*FAULTS), closing(connect(copy, briefly=True)) as there, closing(connect(study)) as here:
        if last := there.execute(LAST_DECISION).fetchone():
            alike = "SELECT 1 FROM decisions WHERE decision = :decision AND at = :at AND trial IS :trial"
            return not here.execute(alike, dict(last)).fetchone()
    return False


def _is_in_use(place: Path) -> bool:
    """Whether anything is there, but what a first copy leaves that is killed, or fails, as it begins."""
    return os.path.lexists(place) and not (
        place.is_dir() and all(each.name.startswith((UNFINISHED, HEARTBEAT_FOLDER)) for each in place.iterdir())
    )


def _created(study: Path) -> object:
    try:
        return study_facts(study)["created"]
    except (OSError, *DAMAGED):
        return None


def restore_from_mirror(folder: Path, study: Path) -> None:
    """Restore the lost folder of a study from its copy in `folder`, unless another run does so first: then the study's
    lock tells the two apart. UserError: there is no copy, or no room."""
    place = folder / study.name
    if not os.path.isfile(place / JOURNAL_FILE):
        raise UserError(f"--resume: '{study}' is not there, nor a copy in '{folder}': name the folder of a study")
    try:
        study.parent.mkdir(parents=True, exist_ok=True)
        with private_folder(study.parent, UNFINISHED) as private:
            _copy_tree(place, private / study.name, symlinks=True)  # links are refused later
            (private / study.name).rename(study)
    except (OSError, shutil.Error) as error:
        if study.is_dir():
            return
        why = error.strerror if isinstance(error, OSError) and error.strerror else "some files cannot be read"
        raise UserError(f"--mirror: '{place}' cannot be copied to '{study}' ({why}): make room, or copy it") from None
