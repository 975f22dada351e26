"""Which text serves a search: the one that was named, else the hub's where it can be had, else the builtin one."""

import json
import re
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from datasets import Dataset
from huggingface_hub import HfApi
from huggingface_hub.errors import RevisionNotFoundError

import tune.corpora
from model.config import Data
from model.data.corpus import LONGEST_CHARACTERS
from model.data.dataset import OwnData
from model.data.hub import HubName
from model.families import FAMILIES, Family
from tests.model.stand_in import ask_python, fill, pairs, serving, translations
from tune.corpora import ASK_SECONDS, load_corpora, load_corpus
from tune.errors import UserError
from tune.flags import BUILTIN
from tune.search_flags import HUB_LARGE_TEXT, HUB_PAIRS, HUB_TEXT
from tune.settings import Settings
from tune.store.journal import STUDY_FILE

ASK = """
import contextlib, io, json, sys
import tune.corpora
from tune import cli
from tune.settings import Settings

def answer(flags):
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = cli.main(Settings, ["--budget", "8h", *flags.split()])
    return code, out.getvalue(), error.getvalue()

def content():
    found = tune.corpora.load_corpora(Settings(budget=60.0))
    stored = {name: value for name, value in found.settings.stored().items() if name.endswith("corpus")}
    return stored, [[each.sha256, each.tokenizer, str(each.folder)] for each in found.data.values()], found.notes

def chosen(budget, device, families):
    found = tune.corpora.load_corpora(Settings(budget=budget, families=families), device)
    return found.settings.text_corpus, found.data["text"].sha256, found.notes

def refuse(*_, **__):
    raise AssertionError("opened again")

def found(flags):
    return {"content": content(), "answers": [*map(answer, flags)], "by cap": [chosen(*cap.split()) for cap in caps]}

flags, caps = map(json.loads, sys.argv[1:])
online = found(flags)
tune.corpora.open_splits = tune.corpora.load_pairs = refuse
again = content()
tune.corpora.fetch_dataset_infos = lambda names, seconds: dict.fromkeys(names, ConnectionError())
print(json.dumps([online | {"again": again}, found([])]))
"""
CANNOT_SERVE = {
    "--translation-corpus hub:no/such": "is not on the hub",
    "--translation-corpus hub:some/scores": "has no text field",
    "--text-corpus hub:some/silence --families nanogpt": "has too little text",
}


BY_CAP = ("48m cpu nanogpt", "8h cpu nanogpt", "4s cuda nanogpt", "1h cuda nanogpt", "96m cpu nanogpt,translation")


@dataclass(frozen=True)
class Asked:
    """What is found with the hub, then without it; the lines that it was asked; and what lies where it was asked."""

    online: dict[str, Any]
    offline: dict[str, Any]
    lines: list[str]
    beside: list[Path]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    folder, here, home = map(tmp_path_factory.mktemp, ("datasets", "here", "home"))
    fill(folder)
    caps = json.dumps(BY_CAP)
    with serving(folder) as (endpoint, lines):
        found = ask_python(ASK, json.dumps([*CANNOT_SERVE]), caps, endpoint=endpoint, home=home, cwd=here)
    return Asked(*found, lines, list(here.iterdir()))


def test_the_hub_is_asked_once_and_then_its_cache_and_a_dataset_that_cannot_serve_is_one_line(hub: Asked) -> None:
    """Where nothing is named its texts serve; nothing is written beside its cache."""
    stored, _, notes = hub.online["content"]
    assert stored == {"translation_corpus": HUB_PAIRS, "text_corpus": HUB_TEXT} and notes == []
    first = hub.lines[: next(number for number, line in enumerate(hub.lines) if "no/such" in line)]
    for name in ("Helsinki-NLP/opus-100", "karpathy/tiny_shakespeare"):
        assert first.count(f"GET /api/datasets/{name}") == 1
    for (flags, sentence), (code, out, error) in zip(CANNOT_SERVE.items(), hub.online["answers"], strict=True):
        flag, name = flags.split()[:2]
        assert (code, out) == (2, "") and error.count("\n") == 1
        assert error.startswith(f"{flag}: {name!r} {sentence}"), error
    assert hub.offline["content"] == hub.online["content"] and hub.beside == []


def test_a_dataset_that_was_prepared_is_not_opened_again(hub: Asked) -> None:
    assert hub.online["again"] == hub.online["content"]


def test_where_the_hub_cannot_be_reached_the_builtin_texts_serve_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("model.data.toy_corpus.PAIRS", 6000)
    found = load_corpora(Settings(budget=60.0))
    assert all(corpus.builtin for corpus in found.data.values()) and set(found.data) == {"pairs", "text"}
    (note,) = found.notes
    assert "translation and nanogpt: the Hugging Face hub cannot be reached" in note
    assert note.endswith("a smoke test; name a file with --translation-corpus and --text-corpus")
    assert "\n" not in note
    assert found.settings.translation_corpus == found.settings.text_corpus == BUILTIN


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_without_the_hub_no_cap_of_more_than_an_hour_goes_into_a_toy_corpus_that_nobody_asked_for(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour does, as a smoke test, and an experiment, whose trainings do not depend on the cap."""
    monkeypatch.setattr("model.data.toy_corpus.PAIRS", 6000)
    large = Settings(budget="64h")
    both = "--translation-corpus and --text-corpus: the Hugging Face hub cannot be reached"
    with pytest.raises(UserError, match=rf"^{both} \([^\n]*: name a file, write builtin, or [^\n]*$"):
        load_corpora(large, device)
    with pytest.raises(UserError, match=r"^--text-corpus: the Hugging Face hub cannot be reached"):
        load_corpora(replace(large, translation_corpus=BUILTIN), device)
    named = replace(large, translation_corpus=BUILTIN, text_corpus=BUILTIN)
    for settings, kind in ((named, device), (Settings(budget="1h"), device), (large, None)):
        assert all(corpus.builtin for corpus in load_corpora(settings, kind).data.values())


def test_a_dataset_that_cannot_serve_a_large_cap_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    why = {"text": "--text-corpus: 'hub:a/b' cannot be loaded"}
    monkeypatch.setattr(tune.corpora, "load_from_hub", lambda _: ({}, why))
    with pytest.raises(UserError, match=r"^--text-corpus: 'hub:a/b' cannot be loaded; ") as refused:
        load_corpora(Settings(budget="64h", families="nanogpt"), "cpu")
    assert str(refused.value).count("--text-corpus") == 1


def test_a_cache_that_cannot_be_opened_is_the_reason_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: HubName) -> None:
        raise name.refused("cannot be opened")

    monkeypatch.setattr(tune.corpora, "cached", refuse)
    (note,) = load_corpora(Settings(budget="1h", families="nanogpt"), "cpu").notes
    assert note.startswith(f"nanogpt: --text-corpus: {HUB_LARGE_TEXT!r} cannot be opened: using the builtin toy corpus")


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Data:
    """A text of the hub, made by a script there, as an earlier search prepared it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    answer = SimpleNamespace(sha="script", siblings=[SimpleNamespace(rfilename="b.py")])
    monkeypatch.setattr(tune.corpora, "fetch_dataset_infos", lambda *_: {"a/b": answer})
    return at_commit(monkeypatch, "export", "to be")


def at_commit(monkeypatch: pytest.MonkeyPatch, commit: str, line: str) -> Data:
    """What a new search takes of a/b, whose author pushed this."""
    with monkeypatch.context() as patch:
        patch.setattr(HfApi, "dataset_info", lambda *_, **__: SimpleNamespace(sha=commit))
        patch.setattr(tune.corpora, "open_splits", lambda *_: {"train": Dataset(pa.table({"text": [line] * 2_000}))})
        return load_corpus(Settings(budget=60.0), "text", "hub:a/b")


def test_what_is_kept_of_a_script_serves_where_what_the_hub_made_of_it_cannot_be_asked_for(
    kept: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is tried once."""
    tried: list[object] = []
    monkeypatch.setattr(HfApi, "dataset_info", lambda *_, **__: tried.append(0) or no_answer())
    assert load_corpus(Settings(budget=60.0), "text", "hub:a/b").folder == kept.folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    tried.clear()
    with pytest.raises(UserError, match=r"^--text-corpus: 'hub:a/b' cannot be had: .*no answer.* is cached: try again"):
        load_corpus(Settings(budget=60.0), "text", "hub:a/b")
    assert len(tried) == 1


@pytest.mark.usefixtures("kept")
def test_what_is_kept_of_a_script_serves_not_where_the_hub_says_that_it_has_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise RevisionNotFoundError("gone", response=SimpleNamespace(headers={}, request=None))

    monkeypatch.setattr(HfApi, "dataset_info", gone)
    with pytest.raises(UserError, match=r"^--text-corpus: 'hub:a/b' cannot be loaded .*gone"):
        load_corpus(Settings(budget=60.0), "text", "hub:a/b")


def test_a_study_goes_on_with_what_was_kept_of_its_dataset_and_asks_nobody(
    kept: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its author has pushed since, and other searches took; where its own is not kept, it is asked for."""
    newer = at_commit(monkeypatch, "newer", "or not")
    assert newer.sha256 != kept.sha256
    monkeypatch.setattr(tune.corpora, "fetch_dataset_infos", no_answer)
    going_on = Settings(budget=60.0, resume=tmp_path)
    for each in (kept, newer):
        facts = {"settings": {}, "corpora": {"nanogpt": {"sha256": each.sha256}}}
        (tmp_path / STUDY_FILE).write_text(json.dumps(facts))
        assert load_corpus(going_on, "text", "hub:a/b").folder == each.folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    with pytest.raises(TimeoutError):
        load_corpus(going_on, "text", "hub:a/b")


def test_the_hub_is_asked_for_three_seconds_at_most_and_only_for_what_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ask(repositories: list[str], seconds: float) -> dict[str, Exception]:
        asked.append((list(repositories), seconds))
        return dict.fromkeys(repositories, TimeoutError())

    monkeypatch.setattr(tune.corpora, "fetch_dataset_infos", ask)
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs(0, 400)))
    found = load_corpora(Settings(budget=60.0, translation_corpus=path))
    assert asked == [(["karpathy/tiny_shakespeare"], ASK_SECONDS)] and ASK_SECONDS <= 3
    assert found.settings.translation_corpus == path and found.data["text"].builtin
    load_corpora(Settings(budget=60.0, families={"nanogpt": 1.0}, text_corpus=BUILTIN))
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("bad", "asked", "said"),
    [
        ("long\t" + "larga " * LONGEST_CHARACTERS + "\n", {}, "pairs left out as longer than .*"),
        ("no tab\n\n", {"skip_bad_lines": True}, "bad lines or rows left out"),
    ],
    ids=["too long", "bad"],
)
def test_one_line_says_how_much_of_a_file_was_left_out(
    bad: str, asked: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Also where the prepared text of before serves."""
    path = tmp_path / "pairs.tsv"
    lines = [f"{source}\t{target}\n" for source, target in pairs(0, 400)]
    path.write_text("".join([bad, *lines]))
    for _ in range(2):
        found = load_corpora(Settings(budget=60.0, families={"translation": 1.0}, translation_corpus=path, **asked))
        (note,) = found.notes
        assert re.fullmatch(f"translation: {said}: {bad.count(chr(10))}", note)


def test_a_line_says_what_of_a_dataset_is_left_out_and_which_split_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tune.corpora, "fetch_dataset_infos", lambda *_: {"a/b": SimpleNamespace(sha="1", siblings=[])})
    parts = {"train": [("one side", ""), *pairs(0, 400)], "valid": pairs(400, 420), "test": pairs(420, 422)}
    splits = {part: Dataset(translations(rows)) for part, rows in parts.items()}
    monkeypatch.setattr(tune.corpora, "open_splits", lambda *_: splits)
    found = load_corpora(Settings(budget=60.0, families={"translation": 1.0}, translation_corpus="hub:a/b"))
    counted, own = found.notes
    assert counted == "translation: bad lines or rows left out: 1"
    assert own.startswith("translation: test cut from train")


@pytest.mark.parametrize(("last", "notes"), [("to be or not ", 0), ("大か学", 1)])
def test_one_line_says_how_much_of_what_models_are_judged_on_they_cannot_know(
    last: str, notes: int, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("to be or not " * 900 + last * (1_300 // len(last)))
    found = load_corpora(Settings(budget=60.0, families={"nanogpt": 1.0}, text_corpus=path))
    assert len(found.notes) == notes
    assert all(note.startswith("nanogpt: 100 % of the validation text") for note in found.notes)


def test_where_no_text_is_named_it_follows_from_the_cap_alone(hub: Asked) -> None:
    """A small one for what goes through it some times, a large one for more, the same each time; --resume keeps it."""
    found = hub.online["by cap"]
    assert [text for text, *_ in found] == [HUB_TEXT, HUB_LARGE_TEXT, HUB_TEXT, HUB_LARGE_TEXT, HUB_TEXT]
    small, large = {text: sha256 for text, sha256, _ in found}.values()
    assert small != large
    for text, _, notes in found:
        assert any(note.startswith(f"nanogpt: {text}, default ") for note in notes)
    assert hub.offline["by cap"] == found


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_small_text_serves_as_long_as_the_recipes_last_trial_goes_through_it_so_many_times(device: str) -> None:
    from model.config import RECIPES
    from tune.recipe import MOST_EPOCHS, NOMINAL, SMALL_TEXT_TOKENS, life_share, recipe, small_text_seconds

    made = recipe(
        base=RECIPES["nanogpt"], given={}, family="nanogpt", kind=device, seconds=small_text_seconds(device),
        prices=NOMINAL[device], text_tokens=1_000_000, windowed_tokens=50_000, sizes=(1.0, 1e12),
    )  # fmt: skip
    epochs = life_share("nanogpt") * made.tokens / SMALL_TEXT_TOKENS  # on a GPU in steps of nearly as many as fill it
    assert epochs == pytest.approx(MOST_EPOCHS, rel=1e-6 if device == "cpu" else 0.3)


def no_answer(*_: object, **__: object) -> None:
    raise TimeoutError("no answer")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("screen", [Terminal, StringIO])
def test_each_part_of_preparing_has_a_bar_on_a_terminal_and_nowhere_else(
    screen: type[StringIO], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs(0, 400)))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stderr", shown := screen())
    asked = Settings(budget="1h", families="translation", translation_corpus=tmp_path / "pairs.tsv")
    load_corpora(asked)
    parts = ("splitting", "learning a vocabulary", "tokenizing")
    assert [part in shown.getvalue() for part in parts] == [screen is Terminal] * len(parts)


@pytest.mark.parametrize("read", [None, (1, 2, 3), OwnData(vocabulary=2, train=[0], valid=[1], test=[1])])
def test_what_a_familys_read_returns_and_is_no_data_is_told_in_one_line(
    read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = type("Points", (Family,), {"corpus": "points", "read": lambda *_: read})()
    monkeypatch.setitem(FAMILIES, "points", family)
    with pytest.raises(UserError, match=r"^--own-corpus: 'points.npz': points raised \w+Error: .*: correct it$"):
        load_corpus(Settings(budget=60.0), "points", "points.npz")
