"""The Hugging Face hub: whether it answers, a dataset's splits from it or its cache, and the corpora they make."""

import hashlib
import logging
import math
import os
import re
import sys
import textwrap
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from model.data.corpus import (
    LEAST_CHARACTERS,
    LEAST_HELD_OUT,
    LEAST_HELD_OUT_PAIRS,
    LEAST_PAIRS,
    PIECE,
    Pair,
    PairCorpus,
    ProgressBar,
    Text,
    TextCorpus,
    no_progress_bar,
    normalised,
    short_pairs,
    split_pairs,
)
from tune.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

HUB = "hub:"
EXPORT = "refs/convert/parquet"
"""Branch where the hub keeps a dataset as parquet; `datasets` 5 reads a dataset that is made by a script only there."""
OUR_SPLITS = {"train": "train", "validation": "valid", "valid": "valid", "test": "test"}
PATIENCE_SECONDS = 10.0
"""Seconds to wait for an answer about a dataset that was asked for by name."""
LONGEST_REASON = 200

_FORM = re.compile(r"hub:([\w.-]+/[\w.-]+)(?::([^:#]+))?(?:#([^#]+))?")


@dataclass(frozen=True, kw_only=True)
class HubName:
    """A dataset as a user names it, `hub:ID[:CONFIG][#FIELD,...]`, under the flag that it was typed for."""

    flag: str
    text: str
    repository: str
    config: str | None
    fields: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, flag: str) -> Self:
        """Read a name. UserError: it is not of that form, or has a field twice."""
        found = _FORM.fullmatch(text)
        if found is None:
            form = "write hub:ID[:CONFIG][#FIELD,...], such as hub:Helsinki-NLP/opus-100:en-es"
            raise UserError(f"{flag}: {text!r} names no dataset of the hub: {form}")
        fields = tuple(field.strip() for field in found[3].split(",")) if found[3] else ()
        if twice := [field for place, field in enumerate(fields) if field in fields[:place]]:
            rule = f"names the field {twice[0]!r} twice: source and target are two"
            raise UserError(f"{flag}: {text!r} {rule}; write them at its end, such as #en,es")
        return cls(flag=flag, text=text, repository=found[1], config=found[2], fields=fields)

    def refused(self, sentence: str) -> UserError:
        """Return the error that says what is wrong with this dataset, and what to do."""
        return UserError(f"{self.flag}: {self.text!r} {sentence}")


def fetch_dataset_infos(repositories: Iterable[str], seconds: float) -> dict[str, Any]:
    """Ask the hub about each dataset; return a huggingface_hub.DatasetInfo each, or the exception that came instead.

    All are asked at once and waited for so many seconds, never longer, even where this machine's name server hangs.
    """
    from huggingface_hub import HfApi

    answers: dict[str, Any] = {}

    def ask_for(repository: str) -> None:
        try:
            answers[repository] = HfApi().dataset_info(repository, timeout=seconds)
        except Exception as error:
            answers[repository] = error

    threads = {name: threading.Thread(target=ask_for, args=(name,), daemon=True) for name in repositories}
    end = time.monotonic() + seconds
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, end - time.monotonic()))
    late = TimeoutError(f"no answer within {seconds:g} s")
    return {name: answers.get(name, late) for name in threads}


def unreachable(answer: Any) -> bool:
    """Whether `fetch_dataset_infos` got no answer: no network, a hub that is down, or one that may not be asked."""
    return isinstance(answer, Exception) and not not_there(answer)


def not_there(answer: Any) -> bool:
    """Whether the hub has no such dataset, none for this user, or no such revision of it."""
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    return isinstance(answer, RepositoryNotFoundError | RevisionNotFoundError | HFValidationError)


def commit(name: HubName, answer: Any) -> tuple[str | None, Any]:
    """Return the commit of a dataset that `open_splits` would take, and the answer to give it, which is an exception
    where what the hub made of a script cannot be asked for. '': it is not there; None: the hub does not tell now."""
    if isinstance(answer, Exception):
        return "" if not_there(answer) else None, answer
    try:
        return _place(name, answer)["revision"], answer
    except Exception as error:
        return ("", answer) if not_there(error) else (None, error)


def open_splits(name: HubName, answer: Any) -> dict[str, "Dataset"]:
    """Return a dataset's splits by the names train, valid and test, memory-mapped; answer: what `fetch_dataset_infos`
    or `commit` returned for it.

    UserError: there is no such dataset or configuration, it cannot be had, or it has nothing to train on.
    """
    if not_there(answer):
        raise name.refused("is not on the hub, or not for you: correct the name, or log in with: hf auth login")
    if unreachable(answer):
        found = cached(name)
        if found is None:
            rule = f"cannot be had: the hub cannot be reached ({reason(answer)}) and nothing of it is cached"
            raise name.refused(f"{rule}: try again later, or name a file")
    else:
        found = _load(name, answer)
    if "train" not in found:
        raise name.refused(f"has no split 'train', only {', '.join(found)}: name another dataset or configuration")
    return {ours: found[theirs] for theirs, ours in OUR_SPLITS.items() if theirs in found}


def cached(name: HubName) -> "DatasetDict | None":
    """Return what this machine's cache has of a dataset since it was last loaded; None: nothing. UserError: it has, but
    that cannot be opened, as where the cache is read-only: the library locks what it opens."""
    import huggingface_hub

    folder = os.environ.get("HF_DATASETS_CACHE") or Path(huggingface_hub.constants.HF_HOME, "datasets")
    if not Path(folder).is_dir():
        return None  # saves the import of `datasets`, which takes a second or more
    from datasets.packaged_modules.cache.cache import Cache

    _hush()
    try:
        builder = Cache(
            dataset_name=name.repository.partition("/")[2], repo_id=name.repository, config_name=name.config,
            version="auto", hash="auto",
        )  # fmt: skip
        found: Any = builder.as_dataset()
    except (ValueError, FileNotFoundError):
        return None
    except OSError as error:
        remedy = "copy it to where you may write and name that by HF_DATASETS_CACHE, or name a file"
        raise name.refused(f"cannot be opened in this machine's cache ({reason(error)}): {remedy}") from error
    return found


def reason(error: Exception) -> str:
    """Return what a library raised, on one line."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", LONGEST_REASON)


def _load(name: HubName, info: Any) -> "DatasetDict":
    """Download what is not cached yet, at the commit that the hub named."""
    import datasets

    _hush()
    with _hub_errors_as_user_error(name):
        where = _place(name, info)
        configs = _configs(name, where)
    if name.config not in configs:
        rule = f"has no configuration {name.config!r}" if name.config else "has several configurations"
        few = textwrap.shorten(", ".join(filter(None, configs)), LONGEST_REASON)
        raise name.refused(f"{rule}: write hub:{name.repository}:CONFIG with one of {few}")
    with _hub_errors_as_user_error(name):
        loaded: Any = datasets.load_dataset(**where)
    return loaded


def _place(name: HubName, info: Any) -> dict[str, Any]:
    """Return the arguments of `load_dataset` for a dataset; for one that is made by a script, those of its export."""
    path = f"hf://datasets/{name.repository}"
    if not any(file.rfilename == f"{name.repository.partition('/')[2]}.py" for file in info.siblings or ()):
        return {"path": path, "name": name.config, "revision": info.sha}
    from huggingface_hub import HfApi

    export = HfApi().dataset_info(name.repository, revision=EXPORT, timeout=PATIENCE_SECONDS)
    return {"path": path, "data_dir": name.config, "revision": export.sha}


def _configs(name: HubName, where: Mapping[str, Any]) -> list[str | None]:
    """Return the configurations of a dataset, with None among them where none needs to be named."""
    import datasets
    import huggingface_hub

    place = {"path": where["path"], "revision": where["revision"]}
    if "data_dir" in where:
        tree = huggingface_hub.HfApi().list_repo_tree(name.repository, repo_type="dataset", revision=where["revision"])
        folders = [entry.path for entry in tree if isinstance(entry, huggingface_hub.hf_api.RepoFolder)]
        return [*folders, *([None] if len(folders) == 1 else [])]
    names = datasets.get_dataset_config_names(**place)
    needless = name.config is None and datasets.get_dataset_default_config_name(**place) is not None
    return [*names, *([None] if needless else [])]


@contextmanager
def _hub_errors_as_user_error(name: HubName) -> Iterator[None]:
    """Turn whatever the hub's libraries raise into a UserError of one line."""
    try:
        yield
    except Exception as error:
        raise name.refused(f"cannot be loaded ({reason(error)}): correct it, try again, or name a file") from error


def _hush() -> None:
    """Keep the libraries' warnings off the screen, and their progress bars where there is no terminal."""
    import datasets
    import huggingface_hub

    datasets.logging.set_verbosity(logging.CRITICAL)
    huggingface_hub.logging.set_verbosity(logging.CRITICAL)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
        huggingface_hub.utils.disable_progress_bars()


ROWS = 1_000
"""Rows that are in memory at a time, beside the text that is kept."""
HELD_OUT = ("valid", "test")
ENGLISH = ("en", "eng", "english")

Field = tuple[str, ...]
"""The name of a column, or the names of a column of structs and of one of its members."""


def pairs_from(name: HubName, splits: Mapping[str, "Dataset"], *, track: ProgressBar = no_progress_bar) -> PairCorpus:
    """Return the pairs of each split, without rows that are empty on one side and pairs that are too long.

    No sentence, on either side, stays in two splits: test keeps all its pairs, valid those that share none with test,
    train those that share none with either. A split that is missing, or of which hardly a pair is left, is cut from
    train. UserError: fields are not there, or there are too few pairs.
    """
    fields = find_pair_fields(name, splits["train"].features.arrow_schema)
    whole = {part: _pairs(split, fields, track, part) for part, split in splits.items()}
    kept = {part: short_pairs(pairs) for part, pairs in whole.items()}
    two_sided, short = (sum(map(len, parts.values())) for parts in (whole, kept))
    held_out: set[str] = set()
    for part in [part for part in ("test", "valid", "train") if part in kept]:
        kept[part] = [pair for pair in kept[part] if held_out.isdisjoint(map(normalised, pair))]
        if part in HELD_OUT and len(kept[part]) < LEAST_HELD_OUT_PAIRS:
            kept["train"] += kept.pop(part)
        elif part in HELD_OUT:
            held_out |= {normalised(sentence) for pair in kept[part] for sentence in pair}
    train = kept["train"]
    if len(train) < LEAST_PAIRS:
        rule = f"has {len(train)} pairs that can be trained on, fewer than a batch"
        raise name.refused(f"{rule}: name a dataset with at least {LEAST_PAIRS}")
    if missing := [part for part in HELD_OUT if part not in kept]:
        train, *cut = split_pairs(train, held_out=len(missing), track=track)
        kept |= dict(zip(missing, cut, strict=True))
    if few := [part for part in HELD_OUT if len(kept[part]) < LEAST_HELD_OUT_PAIRS]:
        rule = f"leaves {len(kept[few[0]])} pairs for the split {few[0]!r}, fewer than {LEAST_HELD_OUT_PAIRS}"
        raise name.refused(f"{rule}: name a dataset with more distinct sentences")
    kept["train"] = train
    lines = ("\t".join(pair) + "\n" for part in ("train", *HELD_OUT) for pair in (*kept[part], ("", "")))
    return PairCorpus(
        name=name.text, sha256=_digest(lines), builtin=False, **kept, too_long=two_sided - short,
        bad_lines=sum(map(len, splits.values())) - two_sided, cut=tuple(part for part in missing if part in splits),
    )  # fmt: skip


def text_from(name: HubName, splits: Mapping[str, "Dataset"], *, track: ProgressBar = no_progress_bar) -> TextCorpus:
    """Return the text of each split, a line for each row. If valid or test is missing, it is cut from the end of train.

    UserError: a field is not there, or there is too little text.
    """
    field = find_text_field(name, splits["train"].features.arrow_schema)
    kept = {part: _text(split, field, track, part) for part, split in splits.items()}
    if missing := [part for part in HELD_OUT if part not in kept]:
        kept["train"], *cut = kept["train"].cut(len(missing))
        kept |= dict(zip(missing, cut, strict=True))
    sizes = {part: kept[part].characters for part in ("train", *HELD_OUT)}
    few = sum(sizes.values()) < LEAST_CHARACTERS or min(sizes.values()) < LEAST_HELD_OUT
    if few or any(text.is_blank() for text in kept.values()):
        rule = f"has too little text (characters: {', '.join(f'{size} in {part}' for part, size in sizes.items())})"
        least = f"at least {LEAST_CHARACTERS}, with {LEAST_HELD_OUT} or more in each split"
        raise name.refused(f"{rule}: name a dataset of {least}, not all of them blank")
    digest = _digest(piece for part in sizes for piece in chain(kept[part], ["\0"]))
    return TextCorpus(name=name.text, sha256=digest, builtin=False, **kept)


def find_pair_fields(name: HubName, schema: pa.Schema) -> list[Field]:
    """Return the fields of source and target: those named, else those of `translation`, else the only two columns of
    text, English first.

    UserError: they are not there, or not two.
    """
    there = text_fields(schema)
    if name.fields:
        found = [_named(name, field, there) for field in name.fields]
    else:
        inside = [field for field in there if field[0] == "translation"]
        found = inside or [field for field in there if len(field) == 1]
        found.sort(key=lambda field: field[-1].lower() not in ENGLISH)
    if len(found) != 2:
        rule = f"has {_listed(there)}, of which two must be source and target"
        raise name.refused(f"{rule}: name them at its end, such as #en,es")
    return found


def find_text_field(name: HubName, schema: pa.Schema) -> Field:
    """Return the field named, else `text`, else the only column of text. UserError: it is not there, or not one."""
    there = text_fields(schema)
    if name.fields:
        found = [_named(name, field, there) for field in name.fields]
    else:
        found = [("text",)] if ("text",) in there else [field for field in there if len(field) == 1]
    if len(found) != 1:
        raise name.refused(f"has {_listed(there)}, of which one must serve: name it at its end, such as #text")
    return found[0]


def text_fields(schema: pa.Schema) -> list[Field]:
    """Return all columns of text, and the text members of all columns of structs, in their order."""
    found: list[Field] = []
    for column in schema:
        if pa.types.is_struct(column.type):
            found += [(column.name, member.name) for member in column.type if _is_text(member.type)]
        elif _is_text(column.type):
            found.append((column.name,))
    return found


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _named(name: HubName, wanted: str, there: list[Field]) -> Field:
    """Return the field of that name, a column rather than a member. UserError: there is none."""
    found = [field for field in sorted(there, key=len) if field[-1] == wanted]
    if not found:
        raise name.refused(f"has no field {wanted!r} with text in it: name of {_listed(there)}")
    return found[0]


def _listed(there: list[Field]) -> str:
    return f"the text fields {', '.join(field[-1] for field in there)}" if there else "no text field"


def _pairs(split: "Dataset", fields: list[Field], track: ProgressBar, about: str) -> list[Pair]:
    rows = (tuple(text.strip() for text in row) for row in _rows(split, fields, track, about))
    return [(source, target) for source, target in rows if source and target]


def _text(split: "Dataset", field: Field, track: ProgressBar, about: str) -> Text:
    def read(row: int) -> Iterator[tuple[int, str]]:
        """Yield the text from a row on, with the row that each piece begins at: about a PIECE, or a row if longer."""
        lines, first, characters = [""] * bool(row), row, 0
        for (text,) in _rows(split.select(range(row, len(split))), [field], no_progress_bar, ""):
            if characters >= PIECE:
                yield first, "\n".join(lines)
                lines, first, characters = [""], row, 0
            lines.append(text.replace("\r\n", "\n").removesuffix("\n"))
            characters += len(lines[-1])
            row += 1
        yield first, "\n".join(lines)

    return Text.whole(read, track, f"reading {about}", math.ceil(split.data.nbytes / PIECE))


def _rows(split: "Dataset", fields: list[Field], track: ProgressBar, about: str) -> Iterator[tuple[str, ...]]:
    """Yield the fields of each row, in NFC, '' where one is missing; read table by table from the memory-mapped
    file."""
    tables = split.with_format("arrow").iter(batch_size=ROWS)
    for table in track(tables, f"reading {about}", math.ceil(len(split) / ROWS)):
        columns = [_column(table, field) for field in fields]
        for row in zip(*columns, strict=True):
            yield tuple(unicodedata.normalize("NFC", text or "") for text in row)


def _column(table: pa.Table, field: Field) -> list[str | None]:
    array = table[field[0]]
    for member in field[1:]:
        array = pc.struct_field(array, member)
    values: list[str | None] = array.to_pylist()
    return values


def _digest(texts: Iterable[str]) -> str:
    sha256 = hashlib.sha256()
    for text in texts:
        sha256.update(text.encode())
    return sha256.hexdigest()
