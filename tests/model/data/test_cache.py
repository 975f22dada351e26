"""Prepared data that is kept: the same as made anew, never of another text, whole whatever happens to it."""

import itertools
import json
import os
import pickle
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.data import cache
from model.data.cache import file_stamp, find_prepared, load_or_prepare
from model.data.corpus import PairCorpus, load_pairs, load_text, no_progress_bar
from model.data.dataset import OwnData, PairData, TextData, prepare_pairs, prepare_text
from tests.model.data.test_batches import same_memory
from tune.errors import UserError

LONG_AGO = 1_500_000_000


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ration"


@pytest.fixture(params=["text", "pairs"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def write(path: Path, kind: str, seed: int = 0, changed: float = LONG_AGO) -> Path:
    """A text of this kind, which last changed then; all are equally long."""
    numbers = random.Random(seed).sample(range(1000, 9999), 600)
    lines = (f"we count {n}\tcontamos {n}\n" if kind == "pairs" else f"we count {n} é\n" for n in numbers)
    path.write_text("".join(lines), encoding="utf-8")
    os.utime(path, (changed, changed))
    return path


def read(path: Path, kind: str) -> Callable[[], cache.Corpus]:
    return lambda: load_pairs(path) if kind == "pairs" else load_text(path)


def prepare(path: Path, kind: str, load: Callable[[], cache.Corpus] | None = None) -> TextData | PairData:
    return load_or_prepare(f"{kind} {path}", lambda: file_stamp(path), load or read(path, kind), no_progress_bar)


def anew(path: Path, kind: str) -> TextData | PairData:
    """Without the cache."""
    corpus = read(path, kind)()
    return prepare_pairs(corpus) if isinstance(corpus, PairCorpus) else prepare_text(corpus)


def not_again() -> cache.Corpus:
    raise AssertionError("read again")


def content(data: Any) -> tuple[Any, ...]:
    """All that is in it."""
    facts = {k: v for k, v in vars(data).items() if isinstance(v, str | int | tuple)}
    return facts, [(array.dtype, array.tolist()) for array in same_memory(data)]


def folders(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "data").iterdir())


def test_what_is_kept_is_what_is_made_and_the_text_is_not_read_again(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "some.txt", kind)
    first, second = prepare(path, kind), prepare(path, kind, not_again)
    assert content(first) == content(second) == content(anew(path, kind))
    assert second.folder is not None
    assert not any(array.flags.writeable for array in same_memory(second))


def test_a_text_that_changed_is_prepared_anew(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "some.txt", kind)
    prepare(path, kind)
    write(path, kind, seed=1, changed=LONG_AGO + 1)
    assert content(prepare(path, kind)) == content(anew(path, kind))
    write(path, kind)
    assert content(prepare(path, kind)) == content(anew(path, kind))


def test_a_time_that_may_not_tell_the_next_change_is_not_relied_on(kind: str, tmp_path: Path) -> None:
    tomorrow = LONG_AGO * 2.0
    path = write(tmp_path / "some.txt", kind, changed=tomorrow)

    def content_now() -> object:
        size_and_time = [path.stat().st_size, path.stat().st_mtime_ns]
        return content(
            load_or_prepare(f"{kind} {path}", lambda: list(size_and_time), read(path, kind), no_progress_bar)
        )

    before = content_now()
    write(path, kind, seed=1, changed=tomorrow)
    assert content_now() == content(anew(path, kind)) != before


def test_another_file_of_the_same_size_and_time_is_not_taken_for_it(kind: str, tmp_path: Path) -> None:
    path, other = write(tmp_path / "some.txt", kind), write(tmp_path / "other.txt", kind, seed=1)
    stamp = file_stamp(path)
    prepare(path, kind)
    other.replace(path)
    assert isinstance(stamp, list) and file_stamp(path)[:2] == stamp[:2]
    assert content(prepare(path, kind)) == content(anew(path, kind))


def test_a_text_that_changes_while_it_is_read_is_refused(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "some.txt", kind)

    def load() -> cache.Corpus:
        corpus = read(path, kind)()
        write(path, kind, seed=1, changed=LONG_AGO + 1)
        return corpus

    with pytest.raises(ValueError, match=r"some\.txt: has changed while it was read"):
        prepare(path, kind, load)
    assert content(prepare(path, kind)) == content(anew(path, kind))
    write(path, kind)  # what it was at first
    assert content(prepare(path, kind)) == content(anew(path, kind))


def test_a_text_that_is_gone_is_not_served(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "some.txt", kind)
    prepare(path, kind)
    path.unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        prepare(path, kind)


def test_other_code_prepares_anew(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "some.txt", kind)
    before = prepare(path, kind)
    monkeypatch.setattr(cache, "made_by", lambda: "other code")
    assert prepare(path, kind).folder != before.folder


def test_the_same_text_elsewhere_is_not_prepared_again(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "other").mkdir()
    first = prepare(write(tmp_path / "some.txt", kind), kind)
    monkeypatch.setattr(cache, "prepare", not_again)
    assert prepare(write(tmp_path / "other" / "some.txt", kind), kind).folder == first.folder


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def overwrite(path: Path) -> None:
    """As many bytes, later."""
    path.write_bytes(b"x" * path.stat().st_size)
    os.utime(path, (LONG_AGO, LONG_AGO))


def drop_a_fact(path: Path) -> None:
    facts = json.loads(path.read_text())
    del facts["data"]["vocabulary"]
    path.write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("name", "damage"),
    [("*.npy", shorten), ("*.npy", overwrite), ("*.npy", Path.unlink),
     ("facts.json", shorten), ("facts.json", overwrite), ("facts.json", Path.unlink), ("facts.json", drop_a_fact)],
)  # fmt: skip
def test_what_is_damaged_is_made_anew(
    kind: str, name: str, damage: Callable[[Path], None], tmp_path: Path, place: Path
) -> None:
    path = write(tmp_path / "some.txt", kind)
    whole, folder = content(anew(path, kind)), prepare(path, kind).folder
    assert folder is not None
    damage(sorted(folder.glob(name))[0])
    assert content(prepare(path, kind)) == whole
    assert content(prepare(path, kind, not_again)) == whole
    assert folders(place) == [folder.name]


def test_a_damaged_note_is_made_anew(tmp_path: Path, place: Path) -> None:
    path = write(tmp_path / "some.txt", "text")
    prepare(path, "text")
    (note,) = (place / "sources").iterdir()
    for text in ("", "[]", '{"stamp": 1}', '{"key": "../../..", "stamp": null, "by": null}'):
        note.write_text(text)
        assert content(prepare(path, "text")) == content(anew(path, "text"))
    prepare(path, "text", not_again)


def test_a_note_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, place: Path) -> None:
    path = write(tmp_path / "some.txt", "text")
    (taken := cache._note_of(f"text {path}")).mkdir(parents=True)
    assert content(prepare(path, "text")) == content(anew(path, "text"))
    assert [*(place / "sources").iterdir()] == [taken]


def test_two_that_prepare_at_once_have_the_same_and_leave_one_folder(kind: str, tmp_path: Path, place: Path) -> None:
    path, both, made = write(tmp_path / "some.txt", kind), threading.Barrier(2), []

    def load() -> cache.Corpus:
        both.wait(600)
        return read(path, kind)()

    def track(items: Any, about: str, total: int) -> Any:
        if about == "tokenizing":
            both.wait(600)  # neither has named its folder yet
        return items

    def search() -> None:
        made.append(load_or_prepare(f"{kind} {path}", lambda: file_stamp(path), load, track))

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = content(anew(path, kind))
    assert [content(data) for data in made] == [whole, whole]
    assert folders(place) == [made[0].folder.name] == [made[1].folder.name]


def test_what_killed_processes_left_is_removed_and_others_work_is_not(tmp_path: Path, place: Path) -> None:
    for name, changed in {"making-old": LONG_AGO, "making-now": None}.items():
        (folder := place / "data" / name).mkdir(parents=True)
        (folder / "train.npy").touch()
        if changed:
            os.utime(folder, (changed, changed))
    data = prepare(write(tmp_path / "some.txt", "text"), "text")
    assert data.folder is not None and folders(place) == sorted([data.folder.name, "making-now"])


def test_where_nothing_can_be_kept_it_serves_all_the_same(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    path = write(tmp_path / "some.txt", kind)
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    data = prepare(path, kind)
    assert data.folder is None and content(data) == content(anew(path, kind))
    assert content(pickle.loads(pickle.dumps(data))) == content(data)


def test_where_no_disk_takes_a_text_that_is_one_line(tmp_path: Path, monkeypatch: Any) -> None:
    path = write(tmp_path / "some.txt", "text")
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    monkeypatch.setattr("tempfile.tempdir", str(path))
    with pytest.raises(UserError, match=r"^text .*/some\.txt: neither the cache nor .* \(Not a directory\): make room"):
        prepare(path, "text")


def test_where_nobody_has_a_folder_of_their_own_it_serves_all_the_same(
    kind: str, tmp_path: Path, monkeypatch: Any
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    path = write(tmp_path / "some.txt", kind)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert content(prepare(path, kind)) == content(anew(path, kind))


def test_a_source_of_which_nobody_can_tell_serves_as_it_was_last(tmp_path: Path) -> None:
    path = write(tmp_path / "some.txt", "text")
    assert find_prepared("hub:a/b", None) is None
    data = load_or_prepare("hub:a/b", lambda: "commit", read(path, "text"), no_progress_bar)
    assert find_prepared("hub:a/b", "other") is find_prepared("hub:a/c", None) is None
    assert content(find_prepared("hub:a/b", None)) == content(find_prepared("hub:a/b", "commit")) == content(data)


def test_a_familys_own_data_is_kept_with_its_shape_and_its_vocabulary() -> None:
    """Of the same bytes."""
    records = np.arange(24, dtype=np.int16)
    for vocabulary, shape in ((24, (4, 6)), (np.int64(30), (4, 6)), (30, (4, 3, 2))):
        split = records.reshape(shape)
        own = OwnData(vocabulary=vocabulary, train=split, valid=split, test=split)
        own = replace(own, sha256=own.digest())
        for _ in range(2):
            found = load_or_prepare("images", list, lambda own=own: own, no_progress_bar)
            assert found.folder is not None and (found.vocabulary, found.train.shape) == (vocabulary, shape)


def test_it_travels_by_name_and_a_copy_with_other_values_travels_whole(kind: str, tmp_path: Path) -> None:
    data = prepare(write(tmp_path / "some.txt", kind), kind)
    sent = pickle.dumps(data)
    assert len(sent) < 1_000 and content(pickle.loads(sent)) == content(data)
    other = replace(data, name="other")
    assert content(pickle.loads(pickle.dumps(other))) == content(other) != content(data)
    moved: list[pickle.PickleBuffer] = []
    pickle.dumps(other, protocol=5, buffer_callback=moved.append)
    assert sum(buffer.raw().nbytes for buffer in moved) == sum(array.nbytes for array in same_memory(other))
    assert data.folder is not None
    (data.folder / "facts.json").unlink()
    with pytest.raises(ValueError, match="has gone, or was changed, while it was in use"):
        pickle.loads(sent)


def test_an_array_is_as_long_as_its_parts(tmp_path: Path) -> None:
    from model.data.stored import write as write_parts

    for count, each in itertools.product((0, 1, 9, 10, 100_000), ((), (3,), (2, 3))):
        whole = np.broadcast_to(np.arange(count, dtype=np.uint32), (*each, count)).T
        array = write_parts(tmp_path / "array.npy", (whole[at : at + 7] for at in range(0, count, 7)), np.uint32)
        assert np.array_equal(array, whole if count else [])
