"""Which text serves a search: the one that was named, else the hub's where it can be had, else the builtin one."""

from io import StringIO
from pathlib import Path

import pytest

import tune.corpora
from model.data.corpus import LONGEST_CHARACTERS
from tests.model.stand_in import NOWHERE, ask_python, fill, pairs, serving
from tune.corpora import ASK_SECONDS, load_corpora
from tune.flags import BUILTIN
from tune.search_flags import HUB_LARGE_TEXT, HUB_PAIRS, HUB_TEXT
from tune.settings import Settings

CHOOSE = """
import contextlib, io, json, sys
from tune import cli
from tune.corpora import load_corpora
from tune.settings import Settings

def answer(flags):
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = cli.main(Settings, ["--budget", "8h", *flags.split()])
    return code, out.getvalue(), error.getvalue()

found = load_corpora(Settings(budget=60.0))
stored = {name: value for name, value in found.settings.stored().items() if name.endswith("corpus")}
hashes = [each.sha256 for each in found.data.values()]
print(json.dumps([[stored, hashes, found.notes], [answer(flags) for flags in sys.argv[1:]]]))
"""
CANNOT_SERVE = {
    "--translation-corpus hub:no/such": "is not on the hub",
    "--translation-corpus hub:Helsinki-NLP/opus-100:xx": "has no configuration 'xx'",
    "--translation-corpus hub:Helsinki-NLP/opus-100:en-es#en,de": "has no field 'de'",
    "--translation-corpus hub:some/scores": "has no text field",
    "--text-corpus hub:some/silence --families nanogpt": "has too little text",
}


def test_the_hub_is_asked_once_and_then_its_cache_and_a_dataset_that_cannot_serve_is_one_line(tmp_path: Path) -> None:
    """Where nothing is named its texts serve; nothing is written beside its cache."""
    fill(tmp_path / "datasets")
    (here := tmp_path / "here").mkdir()
    with serving(tmp_path / "datasets") as (endpoint, asked):
        online, answers = ask_python(CHOOSE, *CANNOT_SERVE, endpoint=endpoint, home=tmp_path / "home", cwd=here)
    assert online[0] == {"translation_corpus": HUB_PAIRS, "text_corpus": HUB_TEXT} and online[2] == []
    first = asked[: next(number for number, line in enumerate(asked) if "no/such" in line)]
    for name in ("Helsinki-NLP/opus-100", "karpathy/tiny_shakespeare"):
        assert first.count(f"GET /api/datasets/{name}") == 1
    for (flags, sentence), (code, out, error) in zip(CANNOT_SERVE.items(), answers, strict=True):
        flag, name = flags.split()[:2]
        assert (code, out) == (2, "") and error.count("\n") == 1
        assert error.startswith(f"{flag}: {name!r} {sentence}"), error
    assert ask_python(CHOOSE, endpoint=NOWHERE, home=tmp_path / "home", cwd=here) == [online, []]
    assert list(here.iterdir()) == []


def test_where_the_hub_cannot_be_reached_the_builtin_texts_serve_and_one_line_says_so() -> None:
    found = load_corpora(Settings(budget=60.0))
    assert all(corpus.builtin for corpus in found.data.values()) and set(found.data) == {"pairs", "text"}
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
    assert found.settings.translation_corpus == path and found.data["text"].builtin
    load_corpora(Settings(budget=60.0, families={"nanogpt": 1.0}, text_corpus=BUILTIN))
    assert len(asked) == 1


def test_one_line_says_how_many_pairs_were_too_long(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    rows = [*pairs(0, 400), ("long", "larga " * LONGEST_CHARACTERS)]
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    found = load_corpora(Settings(budget=60.0, families={"translation": 1.0}, translation_corpus=path))
    (note,) = found.notes
    assert note.startswith("translation: pairs left out as longer than") and note.endswith(": 1")


BY_CAP = """
import json, sys
from tune.corpora import load_corpora
from tune.settings import Settings

def chosen(budget, device, families):
    found = load_corpora(Settings(budget=budget, families=families), device)
    return found.settings.text_corpus, found.data["text"].sha256, found.notes

print(json.dumps([chosen(*asked.split()) for asked in sys.argv[1:]]))
"""


def test_where_no_text_is_named_it_follows_from_the_cap_alone(tmp_path: Path) -> None:
    """A small one for what goes through it some times, a large one for more, the same each time; --resume keeps it."""
    fill(tmp_path / "datasets")
    asked = ("48m cpu nanogpt", "8h cpu nanogpt", "4s cuda nanogpt", "1h cuda nanogpt", "96m cpu nanogpt,translation")
    with serving(tmp_path / "datasets") as (endpoint, _):
        found = ask_python(BY_CAP, *asked, endpoint=endpoint, home=tmp_path / "home")
    assert [text for text, *_ in found] == [HUB_TEXT, HUB_LARGE_TEXT, HUB_TEXT, HUB_LARGE_TEXT, HUB_TEXT]
    small, large = {text: sha256 for text, sha256, _ in found}.values()
    assert small != large
    for text, _, notes in found:
        assert any(note.startswith(f"nanogpt: {text} serves, as ") for note in notes)
    assert ask_python(BY_CAP, *asked, endpoint=NOWHERE, home=tmp_path / "home") == found


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_small_text_serves_as_long_as_the_recipes_last_trial_goes_through_it_so_many_times(device: str) -> None:
    from model.config import RECIPES
    from tune.recipe import MOST_EPOCHS, SMALL_TEXT_TOKENS, life_share, recipe, small_text_seconds
    from tune.step_prices import NOMINAL

    made = recipe(
        base=RECIPES["nanogpt"], given={}, family="nanogpt", kind=device, seconds=small_text_seconds(device),
        prices=NOMINAL[device], text_tokens=1_000_000, windowed_tokens=50_000, sizes=(1.0, 1e12),
    )  # fmt: skip
    epochs = life_share("nanogpt") * made.tokens / SMALL_TEXT_TOKENS  # on a GPU in steps of nearly as many as fill it
    assert epochs == pytest.approx(MOST_EPOCHS, rel=1e-6 if device == "cpu" else 0.3)


PREPARED = """
import json
from tune.corpora import load_corpora
from tune.settings import Settings

def refuse(*_, **__):
    raise AssertionError("opened again")

def content(settings):
    return [[each.sha256, each.tokenizer, str(each.folder)] for each in load_corpora(settings).data.values()]

first = content(Settings(budget=60.0))
import tune.corpora
tune.corpora.open_splits = tune.corpora.load_pairs = refuse
print(json.dumps([first, content(Settings(budget=60.0))]))
"""


def test_a_dataset_that_was_prepared_is_not_opened_again(tmp_path: Path) -> None:
    fill(tmp_path / "datasets")
    with serving(tmp_path / "datasets") as (endpoint, _):
        first, again = ask_python(PREPARED, endpoint=endpoint, home=tmp_path / "home")
    assert first == again


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
