"""Which text serves a search: the one that was named, else the hub's where it can be had, else the builtin one."""

from io import StringIO
from pathlib import Path

import pytest

import tune.corpora
from model.data.corpus import LONGEST_CHARACTERS
from tests.model.stand_in import NOWHERE, ask_python, fill, pairs, serving
from tune.corpora import ASK_SECONDS, load_corpora, prepare
from tune.flags import BUILTIN
from tune.settings import HUB_PAIRS, HUB_TEXT, Settings

CHOOSE = """
import json
from tune.corpora import load_corpora
from tune.settings import Settings
found = load_corpora(Settings(budget=60.0))
stored = {name: value for name, value in found.settings.stored().items() if name.endswith("corpus")}
print(json.dumps([stored, [each.sha256 for each in found.corpora.values()], found.notes]))
"""


def test_where_nothing_is_named_the_hub_is_asked_once_and_then_its_cache(tmp_path: Path) -> None:
    fill(tmp_path / "datasets")
    with serving(tmp_path / "datasets") as (endpoint, asked):
        online = ask_python(CHOOSE, endpoint=endpoint, home=tmp_path / "home")
    assert online[0] == {"translation_corpus": HUB_PAIRS, "text_corpus": HUB_TEXT} and online[2] == []
    for name in ("Helsinki-NLP/opus-100", "karpathy/tiny_shakespeare"):
        assert asked.count(f"GET /api/datasets/{name}") == 1
    assert ask_python(CHOOSE, endpoint=NOWHERE, home=tmp_path / "home") == online


def test_where_the_hub_cannot_be_reached_the_builtin_texts_serve_and_one_line_says_so() -> None:
    found = load_corpora(Settings(budget=60.0))
    assert all(corpus.builtin for corpus in found.corpora.values()) and set(found.corpora) == {"pairs", "text"}
    (note,) = found.notes
    assert "translation and nanogpt: the Hugging Face hub cannot be reached" in note and "a smoke test" in note
    assert "\n" not in note
    assert found.settings.translation_corpus == found.settings.text_corpus == BUILTIN


def test_the_hub_is_asked_for_three_seconds_at_most_and_only_for_what_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ask(repositories: list[str], seconds: float) -> dict[str, Exception]:
        asked.append((list(repositories), seconds))
        return dict.fromkeys(repositories, TimeoutError())

    monkeypatch.setattr(tune.corpora, "ask", ask)
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs(0, 400)))
    found = load_corpora(Settings(budget=60.0, translation_corpus=path))
    assert asked == [(["karpathy/tiny_shakespeare"], ASK_SECONDS)] and ASK_SECONDS <= 3
    assert found.settings.translation_corpus == path and found.corpora["text"].builtin
    load_corpora(Settings(budget=60.0, families={"nanogpt": 1.0}, text_corpus=BUILTIN))
    load_corpora(Settings(budget=60.0, families={"nanogpt": 1.0}, resume=tmp_path))
    assert len(asked) == 1


def test_one_line_says_how_many_pairs_were_too_long(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    rows = [*pairs(0, 400), ("long", "larga " * LONGEST_CHARACTERS)]
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    found = load_corpora(Settings(budget=60.0, families={"translation": 1.0}, translation_corpus=path))
    (note,) = found.notes
    assert note.startswith("translation: pairs left out as longer than") and note.endswith(": 1")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("screen", [Terminal, StringIO])
def test_each_part_of_preparing_has_a_bar_on_a_terminal_and_nowhere_else(
    screen: type[StringIO], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs(0, 400)))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", shown := screen())
    asked = Settings(budget="1h", families="translation", translation_corpus=tmp_path / "pairs.tsv")
    prepare(load_corpora(asked).corpora["pairs"])
    parts = ("splitting", "learning a vocabulary", "tokenizing")
    assert [part in shown.getvalue() for part in parts] == [screen is Terminal] * len(parts)


def test_a_dataset_that_was_named_is_never_replaced() -> None:
    with pytest.raises(ValueError, match=r"--text-corpus: 'hub:a/b' cannot be had: the hub cannot be reached .*cached"):
        load_corpora(Settings(budget=60.0, families={"nanogpt": 1.0}, text_corpus="hub:a/b"))
