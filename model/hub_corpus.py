"""Corpora of the Hugging Face hub: the fields that hold the text, and the dataset's own splits, kept apart."""

import hashlib
import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from model.corpus import (
    LEAST_CHARACTERS,
    LEAST_PAIRS,
    Pair,
    PairCorpus,
    TextCorpus,
    cut_text,
    normalised,
    short_pairs,
    split_pairs,
)
from model.hub import HubName
from model.track import Track, untracked

if TYPE_CHECKING:
    from datasets import Dataset

ROWS = 10_000
"""Rows in memory at a time beside the text that is kept."""
HELD_OUT = ("valid", "test")
ENGLISH = ("en", "eng", "english")

Field = tuple[str, ...]
"""The name of a column; or the names of a column of structs and of one of its members."""


def pairs_from(
    name: HubName, splits: Mapping[str, "Dataset"], *, seed: int = 0, track: Track = untracked
) -> PairCorpus:
    """The pairs of each split; a row with nothing on one side is left out and counted, and so is a pair too long.

    No sentence, on either side, stays in two splits: test keeps all pairs, valid those that share none with test, train
    those that share none with either. A split that is missing is cut from train. UserError: fields that are not there,
    or too few pairs.
    """
    fields = find_pair_fields(name, splits["train"].features.arrow_schema)
    whole = {part: _pairs(split, fields, track, part) for part, split in splits.items()}
    kept = {part: short_pairs(pairs) for part, pairs in whole.items()}
    rows, two_sided, short = (sum(map(len, parts.values())) for parts in (splits, whole, kept))
    held_out: set[str] = set()
    for part in [part for part in ("test", "valid", "train") if part in kept]:
        kept[part] = [pair for pair in kept[part] if held_out.isdisjoint(map(normalised, pair))]
        held_out |= {normalised(sentence) for pair in kept[part] for sentence in pair if part in HELD_OUT}
    train = kept["train"]
    if len(train) < LEAST_PAIRS:
        rule = f"has {len(train)} pairs that can be trained on, fewer than a batch"
        raise name.refused(f"{rule}: name a dataset with at least {LEAST_PAIRS}")
    if missing := [part for part in HELD_OUT if part not in kept]:
        train, *cut = split_pairs(train, seed, len(missing), track=track)
        kept |= dict(zip(missing, cut, strict=True))
    if empty := [part for part in HELD_OUT if not kept[part]]:
        raise name.refused(f"leaves no pair for the split {empty[0]!r}: name a dataset with more distinct sentences")
    kept["train"] = train
    lines = ("\t".join(pair) + "\n" for part in ("train", *HELD_OUT) for pair in (*kept[part], ("", "")))
    return PairCorpus(name=name.text, sha256=_digest(lines), builtin=False, **kept,
                      skipped=rows - two_sided, too_long=two_sided - short)


def text_from(name: HubName, splits: Mapping[str, "Dataset"], *, track: Track = untracked) -> TextCorpus:
    """The text of each split, a row below the other. What is missing of valid and test is cut from the end of train.

    UserError: a field that is not there, or too little text.
    """
    field = find_text_field(name, splits["train"].features.arrow_schema)
    kept = {part: _text(split, field, track, part) for part, split in splits.items()}
    if missing := [part for part in HELD_OUT if part not in kept]:
        kept["train"], *cut = cut_text(kept["train"], len(missing))
        kept |= dict(zip(missing, cut, strict=True))
    if sum(map(len, kept.values())) < LEAST_CHARACTERS or any(not text or text.isspace() for text in kept.values()):
        sizes = ", ".join(f"{len(kept[part])} in {part}" for part in ("train", *HELD_OUT))
        rule = f"has too little text (characters: {sizes})"
        raise name.refused(f"{rule}: name a dataset of at least {LEAST_CHARACTERS}, with some in each split")
    digest = _digest(kept[part] + "\0" for part in ("train", *HELD_OUT))
    return TextCorpus(name=name.text, sha256=digest, builtin=False, **kept)


def find_pair_fields(name: HubName, schema: pa.Schema) -> list[Field]:
    """Source and target: those named, else those of `translation`, else the only two columns of text, English first.

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
    """The one named, else `text`, else the only column of text. UserError: it is not there, or not one."""
    there = text_fields(schema)
    if name.fields:
        found = [_named(name, field, there) for field in name.fields]
    else:
        found = [("text",)] if ("text",) in there else [field for field in there if len(field) == 1]
    if len(found) != 1:
        raise name.refused(f"has {_listed(there)}, of which one must serve: name it at its end, such as #text")
    return found[0]


def text_fields(schema: pa.Schema) -> list[Field]:
    """All columns of text, and all members of text of columns of structs, in their order."""
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
    """The field of that name, a column before a member. UserError: there is none."""
    found = [field for field in sorted(there, key=len) if field[-1] == wanted]
    if not found:
        raise name.refused(f"has no field {wanted!r} with text in it: name of {_listed(there)}")
    return found[0]


def _listed(there: list[Field]) -> str:
    return f"the text fields {', '.join(field[-1] for field in there)}" if there else "no text field"


def _pairs(split: "Dataset", fields: list[Field], track: Track, about: str) -> list[Pair]:
    rows = (tuple(text.strip() for text in row) for row in _rows(split, fields, track, about))
    return [(source, target) for source, target in rows if source and target]


def _text(split: "Dataset", field: Field, track: Track, about: str) -> str:
    rows = _rows(split, [field], track, about)
    return "\n".join(text.replace("\r\n", "\n").removesuffix("\n") for (text,) in rows)


def _rows(split: "Dataset", fields: list[Field], track: Track, about: str) -> Iterator[tuple[str, ...]]:
    """The fields of each row, in NFC, '' where one is missing; read table by table from the memory-mapped file."""
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
