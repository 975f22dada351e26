"""Prepared data, kept from one search to the next: in $XDG_CACHE_HOME/ration, or ~/.cache/ration.

data/ has what was prepared, under a hash of the source's contents (sha256) and of the code that prepares it. sources/
maps a source, a file by its size and times or a dataset by its commit, to such a name, so that it is not read again.
Entries of both appear whole or not at all, and damaged ones are made anew. All may be deleted while no search runs.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import tokenizers

from model.config import Data
from model.data.corpus import PairCorpus, ProgressBar, TextCorpus
from model.data.dataset import OwnData, prepare_pairs, prepare_text
from model.data.stored import Stored
from tune.errors import UserError

Corpus = PairCorpus | TextCorpus | OwnData
Stamp = list[int] | str | None
"""What shows whether a source has changed: a file's size, times and inode, or a dataset's commit. Empty: it is read
each time; None: it cannot be known, and what was kept last serves."""

LATELY = 2.0
"""Seconds since a file's last change in which it may change again and keep its time: some disks store whole seconds."""
ABANDONED = 86_400.0
"""Seconds after which a folder that a process made to work in is taken to be of one that was killed."""
MAKING = "making-"


def load_or_prepare(source: str, stamp: Callable[[], Stamp], load: Callable[[], Corpus], track: ProgressBar) -> Data:
    """Return the prepared data of a source: kept from an earlier time, or made now from the corpus that `load` reads.

    source: its name, with all options of reading it. UserError: that of `load`; it changed while it was read; no disk
    has room for what is made of it.
    """
    before, begun = stamp(), time.time()
    if found := find_prepared(source, before):
        return found
    corpus = load()
    key = key_of(corpus)

    def unchanged() -> None:
        if before != stamp():
            raise UserError(f"{source}: has changed while it was read: begin again")

    try:
        data = _open(key) or _make(key, corpus, track, unchanged)
    except OSError as error:
        places = "neither the cache nor the place of temporary files takes what is made of it"
        raise UserError(f"{source}: {places} ({error.strerror}): make room, or name another by TMPDIR") from None
    unchanged()
    if before and data.folder is not None and not (isinstance(before, list) and before[1] / 1e9 > begun - LATELY):
        with suppress(OSError):
            _note(source, before, key)
    return data


def find_prepared(source: str, stamp: Stamp) -> Data | None:
    """Return the data kept of a source with this stamp, or with stamp None as it was read last; None: there is none."""
    try:
        noted = json.loads(_note_of(source).read_text(encoding="utf-8"))
        same = noted["by"] == made_by() and (stamp is None or noted["stamp"] == stamp)
        return _open(str(noted["key"])) if same else None
    except (OSError, ValueError, LookupError, TypeError, RuntimeError):
        return None


def find_content(kind: type[Corpus], name: str, sha256: str) -> Data | None:
    """Return the data kept of the text or pairs with this name and content, by this code; None: there is none."""
    return _open(_key(kind, name, sha256))


def file_stamp(path: Path) -> Stamp:
    """Return a file's stamp; an empty one where it cannot be had."""
    try:
        about = path.stat()
    except OSError:
        return []
    return [about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino]


def key_of(corpus: Corpus) -> str:
    """Return the name under which what is made of a corpus is kept."""
    own: list[object] = []
    if isinstance(corpus, OwnData):  # whose sha256 is of the records' bytes alone
        own = [corpus.vocabulary, *(split.shape for split in (corpus.train, corpus.valid, corpus.test))]
    return _key(type(corpus), corpus.name, corpus.sha256, *own)


def _key(kind: type[Corpus], name: str, sha256: str, *own: object) -> str:
    return hashlib.sha256(json.dumps([kind.__name__, name, sha256, made_by(), *own]).encode()).hexdigest()


@cache
def made_by() -> str:
    """Identify the code that prepares: a hash of this folder's code, and the versions of what it depends on."""
    code = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return f"{hashlib.sha256(code).hexdigest()} {tokenizers.__version__} {unicodedata.unidata_version}"


def cache_folder() -> Path:
    """Return the folder of the cache."""
    asked = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (asked if asked.is_absolute() else Path.home() / ".cache") / "ration"


def prepare(corpus: Corpus, track: ProgressBar, folder: Path | None = None) -> Data:
    """Tokenize a corpus, once for all trials; a family's own data stays as it is."""
    if isinstance(corpus, OwnData):
        return corpus
    if isinstance(corpus, PairCorpus):
        return prepare_pairs(corpus, track)
    return prepare_text(corpus, track, folder)


def _open(key: str) -> Data | None:
    """Return the data kept under this name, or None."""
    try:
        found = Stored.open(cache_folder() / "data" / key)
    except RuntimeError:  # the user has no home folder
        return None
    return found if isinstance(found, Data) else None


def _make(key: str, corpus: Corpus, track: ProgressBar, unchanged: Callable[[], None]) -> Data:
    """Prepare a corpus and keep it, though other processes may do the same; where it cannot be kept, prepare it only.

    unchanged: raises where the source has changed, so that the data may not be what its name says.
    """
    try:
        (root := cache_folder() / "data").mkdir(parents=True, exist_ok=True)
        _sweep(root)
        making = Path(tempfile.mkdtemp(prefix=MAKING, dir=root))
    except (OSError, RuntimeError):
        return prepare(corpus, track)
    try:
        prepare(corpus, track, making).save(making)
        unchanged()
        return _named(making, key) or prepare(corpus, track)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
        return prepare(corpus, track)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _named(making: Path, key: str) -> Data | None:
    """Rename a complete folder to its key, unless another process was first; a damaged one there is removed."""
    for _ in range(3):
        with suppress(OSError):
            making.rename(making.parent / key)
        if found := _open(key):
            return found
        aside = Path(tempfile.mkdtemp(prefix=MAKING, dir=making.parent))
        with suppress(OSError):
            (making.parent / key).rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    return None


def _sweep(root: Path) -> None:
    """Remove what killed processes left behind."""
    for folder in root.glob(f"{MAKING}*"):
        with suppress(OSError):
            if folder.stat().st_mtime < time.time() - ABANDONED:
                shutil.rmtree(folder, ignore_errors=True)


def _note_of(source: str) -> Path:
    return cache_folder() / "sources" / f"{hashlib.sha256(source.encode()).hexdigest()}.json"


def _note(source: str, stamp: Stamp, key: str) -> None:
    """Note for the next search which data a source with this stamp has. OSError: the disk does not take it."""
    (path := _note_of(source)).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        (new := Path(folder, path.name)).write_text(
            json.dumps({"source": source, "stamp": stamp, "key": key, "by": made_by()}), encoding="utf-8"
        )
        new.replace(path)
