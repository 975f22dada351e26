"""Datasets of the hub, by a stand-in: found and loaded, kept for when the hub is gone, and refused in one line."""

import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from model.data.hub import HubName, cached, fetch_dataset_infos, open_splits
from tests.model.stand_in import NOWHERE, SAID, ask_python, fill, pairs, serving
from tune.errors import UserError

LOAD = """
import json, sys, time
from model.data.hub import HubName, fetch_dataset_infos, open_splits
from model.data.hub import pairs_from, text_from

def load(text):
    try:
        name = HubName.parse(text, "--corpus")
        splits = open_splits(name, fetch_dataset_infos([name.repository], 20)[name.repository])
        corpus = (pairs_from if "opus" in text else text_from)(name, splits)
    except ValueError as error:
        return str(error)
    parts = {part: getattr(corpus, part) for part in ("train", "valid", "test")}
    parts = parts if "opus" in text else {part: "".join(pieces) for part, pieces in parts.items()}
    return parts | {"sha256": corpus.sha256, "name": corpus.name}

print(json.dumps([load(text) for text in sys.argv[1:]]))
"""
NAMES = (
    *("hub:Helsinki-NLP/opus-100:en-es", "hub:karpathy/tiny_shakespeare", "hub:Helsinki-NLP/opus-100"),
    *("hub:Helsinki-NLP/opus-100:en-xx", "hub:Helsinki-NLP/opus-100:en-fr", "hub:Helsinki-NLP/opus-100:en-es#en,de"),
    *("hub:karpathy/tiny_shakespeare:other", "hub:no/opus", "hub:no--such/opus", "hub:some/scores", "hub:some/silence"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    fill(folder / "datasets")
    return folder


@pytest.fixture(scope="module")
def online(folder: Path) -> dict[str, Any]:
    with serving(folder / "datasets") as (endpoint, _):
        answers = ask_python(LOAD, *NAMES, endpoint=endpoint, home=folder / "home")
    return dict(zip(NAMES, answers, strict=True))


def test_a_dataset_keeps_its_splits_but_for_training_pairs_that_a_held_out_one_shares(online: dict[str, Any]) -> None:
    corpus = online["hub:Helsinki-NLP/opus-100:en-es"]
    as_pairs = {part: [tuple(pair) for pair in corpus[part]] for part in ("train", "valid", "test")}
    assert as_pairs["train"] == [*pairs(0, 7), *pairs(8, 1000)]
    assert as_pairs["valid"] == [("we count 7", "¡Siete!"), *pairs(1000, 1050)]
    assert as_pairs["test"] == pairs(1050, 1100)


def test_a_dataset_that_is_a_script_is_loaded_as_the_parquet_that_the_hub_made_of_it(online: dict[str, Any]) -> None:
    corpus = online["hub:karpathy/tiny_shakespeare"]
    assert corpus["train"] == f"train:\n{SAID}" * 2000 and corpus["valid"].startswith(f"validation:\n{SAID}")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hub:no/opus", "is not on the hub.*correct the name"),
        ("hub:no--such/opus", "is not on the hub.*correct the name"),
        ("hub:Helsinki-NLP/opus-100", "has several configurations: write .*:CONFIG with one of en-es, en-fr"),
        ("hub:Helsinki-NLP/opus-100:en-xx", "has no configuration 'en-xx': write .* one of en-es, en-fr"),
        ("hub:karpathy/tiny_shakespeare:other", "has no configuration 'other': write .* one of default"),
        ("hub:Helsinki-NLP/opus-100:en-fr", "has no split 'train', only test: name another"),
        ("hub:Helsinki-NLP/opus-100:en-es#en,de", "has no field 'de' with text in it: name of the text fields en, es"),
        ("hub:some/scores", "has no text field, .*name it"),
        ("hub:some/silence", "has too little text .*at least 8192"),
    ],
)
def test_what_cannot_serve_is_refused_in_one_line(online: dict[str, Any], name: str, said: str) -> None:
    refusal = online[name]
    assert refusal.startswith(f"--corpus: {name!r} ") and "\n" not in refusal
    assert re.search(said, refusal), refusal


def test_where_the_hub_is_gone_the_cache_serves_the_same_and_nothing_else(folder: Path, online: dict[str, Any]) -> None:
    names = (*NAMES[:2], "hub:Helsinki-NLP/opus-100:en-de", "hub:some/thing")
    *kept, never_loaded, unknown = ask_python(LOAD, *names, endpoint=NOWHERE, home=folder / "home")
    assert kept == [online[name] for name in NAMES[:2]]
    for refusal in (never_loaded, unknown):
        assert "cannot be reached (ConnectError" in refusal and "nothing of it is cached: try again later" in refusal


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(30, "Read-only file system")])
def test_a_cache_that_cannot_be_opened_is_not_taken_for_an_empty_one(
    error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that others own, in which `datasets` may lock nothing."""
    from datasets.packaged_modules.cache import cache

    raised: list[Exception] = [error]

    class Cache:
        def __init__(self, **_: object) -> None:
            raise raised[0]

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "Cache", Cache)
    name = HubName.parse("hub:a/b", "--corpus")
    for ask in (cached, partial(open_splits, answer=TimeoutError())):
        with pytest.raises(
            UserError, match=rf"^--corpus: 'hub:a/b' cannot be opened in .* \(.*{error.strerror}\): copy it"
        ):
            ask(name)
    for raised[0] in (ValueError("not cached"), FileNotFoundError()):
        assert cached(name) is None


def test_a_hub_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(HfApi, "dataset_info", lambda *_, **__: released.wait(600))
    answers = fetch_dataset_infos(["a/b", "c/d"], seconds=0.2)
    assert [type(answer) for answer in answers.values()] == [TimeoutError, TimeoutError]
    released.set()


def test_a_name_has_a_repository_and_may_have_a_configuration_and_fields() -> None:
    name = HubName.parse("hub:a-b/c_d.e:en-es#English, Spanish", "--corpus")
    assert (name.repository, name.config, name.fields) == ("a-b/c_d.e", "en-es", ("English", "Spanish"))
    assert HubName.parse("hub:a/b", "--corpus").config is None


@pytest.mark.parametrize("text", ["hub:", "hub:a", "hub:a/b/c", "hub:a/b:", "hub:a/b#", "hub:a/b#x#y", "a/b"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--corpus: '.*' names no dataset of the hub: write hub:ID"):
        HubName.parse(text, "--corpus")
