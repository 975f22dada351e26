"""Winners in use: what neighbours a sentence has, or how long a prompt is, must not matter."""

import io
import json
import os
import unicodedata
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from model import inference as use
from model.config import Config, build_model
from model.data.tokenizer import CharacterTokenizer, SubwordTokenizer, Tokenizer
from model.inference import SAMPLE_TOKENS, continuation, samples, translations
from model.settings import BEAM_WIDTH, GenerateSettings, TranslateSettings
from model.training.checkpoint import export, load_model, save
from tests.model.conftest import prepared_pairs
from tune.cli import main

SENTENCES = ["the cat sleeps", "a dog", "", "the small cat eats the fish that a dog left", "dog", "a fish sleeps"]
CHARACTERS = CharacterTokenizer("abcdefgh \n")
WORDS = SubwordTokenizer.train(SENTENCES, 300, marks=True)


def tiny(family: str) -> Config:
    return Config(family=family, d_model=16, heads=4, layers=2, context=16)


def built(family: str, tokenizer: Tokenizer) -> torch.nn.Module:
    torch.manual_seed(1)
    made = build_model(tiny(family), vocabulary=tokenizer.vocabulary, pad=tokenizer.pad or 0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


def exported(folder: Path, family: str, tokenizer: Tokenizer) -> Path:
    state = {"steps": 1, "config": asdict(tiny(family))}
    checkpoint = save(folder / family, built(family, tokenizer), {"step": torch.zeros(1)}, state)
    return export(checkpoint, folder / f"best-{family}", tokenizer.to_json())


@pytest.mark.parametrize("width", [1, 4])
def test_a_sentence_is_translated_as_it_is_alone(width):
    model = built("translation", WORDS)
    together = translations(model, WORDS, SENTENCES, width=width)
    assert together == [translations(model, WORDS, [sentence], width=width)[0] for sentence in SENTENCES]
    assert together[2] == "" and any(together)


def test_a_source_and_its_translation_are_cut_at_the_row_that_is_given():
    model, asked = built("translation", WORDS), []
    long = "a dog that a small cat left sleeps " * 30
    cut = WORDS.decode(WORDS.encode(long)[:5])
    assert WORDS.encode(cut) == WORDS.encode(long)[:5]
    found = translations(model, WORDS, [long], row=(5, 7), before_step=lambda: asked.append(None))
    assert len(asked) <= 1 + 7 and found == translations(model, WORDS, [cut], row=(5, 7))


class TimeIsUp(Exception):
    pass


def test_what_is_raised_before_a_step_ends_decoding_there():
    def two_steps():
        asked.append(None)
        if len(asked) > 2:
            raise TimeIsUp

    for decode in (
        lambda: translations(built("translation", WORDS), WORDS, SENTENCES, before_step=two_steps),
        lambda: continuation(built("nanogpt", CHARACTERS), CHARACTERS, "abc", 40, before_step=two_steps),
    ):
        asked = []
        with pytest.raises(TimeIsUp):
            decode()
        assert len(asked) == 3


def test_a_continuation_follows_its_seed_and_sees_the_last_context_only():
    model = built("nanogpt", CHARACTERS)
    text = continuation(model, CHARACTERS, "abc", 40, seed=3)
    assert len(text) == 40 and text == continuation(model, CHARACTERS, "abc", 40, seed=3)
    assert text != continuation(model, CHARACTERS, "abc", 40, seed=4)
    window = "hgfedcba" * 2
    assert continuation(model, CHARACTERS, "a" * 50 + window, 9) == continuation(model, CHARACTERS, window, 9)


def test_a_prompt_is_read_in_the_tokens_that_a_text_to_learn_from_has():
    tokenizer = SubwordTokenizer.train(["a dog", " \n", "\n"], 300, marks=False)
    prompt, seen = "a dog \na dog", []
    learned = [token for part in tokenizer.stream([prompt]) for token in part.tolist()]
    assert learned != tokenizer.encode(prompt)
    model = built("nanogpt", tokenizer)
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].tolist()))
    continuation(model, tokenizer, prompt, 1)
    assert seen == [[learned]]


def test_without_temperature_the_likeliest_token_is_taken_and_an_unknown_one_never():
    model = built("nanogpt", CHARACTERS)
    with torch.no_grad():
        model.lm_head.weight[CHARACTERS.unknown] = 100 * model.lm_head.weight[0].abs().max()
    text = continuation(model, CHARACTERS, "abc", 30, temperature=0)
    assert text == continuation(model, CHARACTERS, "abc", 30, top_k=1) and "\ufffd" not in text
    assert {continuation(model, CHARACTERS, "abc", 30, temperature=cold) for cold in (1e-40, 5e-324)} == {text}


def test_the_commands_print_what_the_functions_give(tmp_path, monkeypatch, capsys):
    folder = exported(tmp_path, "translation", WORDS)
    first, *others = SENTENCES
    main(TranslateSettings, [str(folder), f"\ufeff {first} ", "--beam", str(BEAM_WIDTH), *others])
    given = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(SENTENCES)))
    main(TranslateSettings, [str(folder)])
    assert capsys.readouterr().out == given
    assert given == "\n".join(translations(built("translation", WORDS), WORDS, SENTENCES)) + "\n"
    main(GenerateSettings, [str(exported(tmp_path, "nanogpt", CHARACTERS)), "--prompt", "abc", "--tokens", "5"])
    assert capsys.readouterr().out == "abc" + continuation(built("nanogpt", CHARACTERS), CHARACTERS, "abc", 5) + "\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("screen", [Terminal, io.StringIO])
def test_translations_are_printed_before_all_lines_are_there(tmp_path, monkeypatch, capsys, screen):
    printed = []

    class Lines(screen):
        def __iter__(self):
            yield from ["dog\n"] * at_once
            printed.append(capsys.readouterr().out.count("\n"))
            yield "dog\n"

    monkeypatch.setattr(use, "SENTENCES_AT_ONCE", 4)
    at_once = 1 if screen is Terminal else 4
    monkeypatch.setattr("sys.stdin", Lines())
    main(TranslateSettings, [str(exported(tmp_path, "translation", WORDS)), "--beam", "1"])
    assert printed == [at_once] and capsys.readouterr().out.count("\n") == 1


def test_sentences_that_are_named_are_translated_together_on_a_terminal_too(tmp_path, monkeypatch, capsys):
    together, of_all = [], use.translations
    monkeypatch.setattr(use, "translations", lambda *given, **more: together.append(given[2]) or of_all(*given, **more))
    monkeypatch.setattr("sys.stdin", Terminal())
    main(TranslateSettings, [str(exported(tmp_path, "translation", WORDS)), *SENTENCES, "--beam", "1"])
    assert together == [SENTENCES] and capsys.readouterr().out.count("\n") == len(SENTENCES)


def test_of_a_sentence_longer_than_any_in_training_it_is_said_that_it_is(tmp_path, capsys):
    made = [(" ".join(["dog"] * (1 + number % 20)), str(number)) for number in range(900)]
    data = prepared_pairs(made, made[:1], made[:1])
    folder = exported(tmp_path, "translation", Tokenizer.from_json(data.tokenizer))
    (folder / "tokenizer.json").write_text(data.tokenizer)
    longest = int(data.train.lengths[data.rows.pairs, 0].max())  # a word is a token
    for words, count in ((longest, 0), (longest + 1, 2)):  # of each
        main(TranslateSettings, [str(folder), *[" ".join(["dog"] * words)] * 2, "--beam", "1"])
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == count and all(f"has more than {longest} tokens" in line for line in lines)


def test_what_a_model_does_not_know_of_a_prompt_is_told(tmp_path, capsys):
    folder = str(exported(tmp_path, "nanogpt", CHARACTERS))
    for prompt, said in (
        ("abc", ""),
        ("añb#", "prompt: the model's text has no '#', 'ñ': read as unknown characters\n"),
    ):
        assert main(GenerateSettings, [folder, "--prompt", prompt, "--tokens", "1"]) == 0
        assert capsys.readouterr().err == said


@pytest.mark.parametrize("command", [TranslateSettings, GenerateSettings])
@pytest.mark.parametrize("screen", [Terminal, io.StringIO])
def test_what_a_model_writes_cannot_steer_a_terminal_and_is_piped_as_it_is(tmp_path, monkeypatch, screen, command):
    written = "a\x1b]0;title\x07\x9b2J\rb\x7f\u202e\tñ\n\\x"
    monkeypatch.setattr(use, "translations", lambda *_, **__: [written, "second"])
    monkeypatch.setattr(use, "continuation", lambda *_, **__: written)
    monkeypatch.setattr("sys.stdout", shown := screen())
    if command is TranslateSettings:
        main(TranslateSettings, [str(exported(tmp_path, "translation", WORDS)), "first", "second"])
    else:
        main(GenerateSettings, [str(exported(tmp_path, "nanogpt", CHARACTERS)), "--prompt", "\x1b"])
    printed = shown.getvalue()
    if screen is Terminal:
        assert all(character.isprintable() or character in "\t\n" for character in printed)
        assert "a\\x1b]0;title\\x07\\x9b2J\\rb\\x7f\\u202e\tñ\n\\x" in printed
    else:
        assert printed == (f"{written}\nsecond\n" if command is TranslateSettings else f"\x1b{written}\n")


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        (TranslateSettings, ["{gpt}", "a dog"], "best-translation"),
        (GenerateSettings, ["{translator}"], "best-nanogpt"),
        (TranslateSettings, ["{nowhere}", "a dog"], "best-<family>"),
        (TranslateSettings, ["{translator}", "a dog", "--beam", "0"], "--beam: 0"),
        (TranslateSettings, ["{translator}", "a dog", "--beam", str(10**18)], f"--beam: {10**18} takes more memory"),
        (GenerateSettings, ["{gpt}", "--tokens", "0"], "--tokens: 0"),
        (GenerateSettings, ["{gpt}", "--temperature", "nan"], "--temperature: nan"),
        (GenerateSettings, ["{gpt}", "--temperature", "inf"], "--temperature: inf"),
        (GenerateSettings, ["{gpt}", "--prompt", ""], "prompt: ''"),
        (GenerateSettings, ["{gpt}", "--seed", str(2**64)], "--seed: '18446744073709551616' is out of range"),
    ],
)
def test_what_does_not_serve_ends_with_one_line(tmp_path, capsys, command, arguments, said):
    folders = {
        "gpt": exported(tmp_path, "nanogpt", CHARACTERS),
        "translator": exported(tmp_path, "translation", WORDS),
        "nowhere": tmp_path / "nowhere",
    }
    assert main(command, [each.format(**folders) for each in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and said in captured.err


DAMAGES = {
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "half of them": lambda folder: os.truncate(folder / "model.safetensors", 1000),
    "no tokenizer's": lambda folder: (folder / "tokenizer.json").write_text("{}"),
    "a broken one": lambda folder: (folder / "tokenizer.json").write_text('{"kind": "bpe", "marks": true, "bpe": {}}'),
    "another width": lambda folder: changed(folder, d_model=32),
}


def changed(folder: Path, **more: int) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | more))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_winner_is_told_in_one_line(tmp_path, capsys, damage):
    folder = exported(tmp_path, "translation", WORDS)
    damage(folder)
    assert main(TranslateSettings, [str(folder), "a dog"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "best-<family>" in captured.err


def test_what_is_typed_is_read_as_corpora_are_and_no_utf_8_is_told_in_one_line(tmp_path, capsys):
    tokenizer = CharacterTokenizer("café ")
    folder = exported(tmp_path, "nanogpt", tokenizer)
    model, _ = load_model(folder)
    one, other = (continuation(model, tokenizer, unicodedata.normalize(form, "café"), 20) for form in ("NFC", "NFD"))
    assert one == other
    assert main(GenerateSettings, [str(folder), "--prompt", "caf\udce9"]) == 2
    assert "no UTF-8" in capsys.readouterr().err


def test_a_sample_of_text_goes_on_where_its_prompt_ends(tmp_path, text_data):
    tokenizer = Tokenizer.from_json(text_data.tokenizer)
    valid = tokenizer.decode(text_data.valid.tolist())
    found = list(samples(*load_model(exported(tmp_path, "nanogpt", tokenizer)), text_data, 3))
    assert len(found) == 3 and valid.startswith(found[0]["input"])
    assert all(row["input"] + row["reference"] in valid and len(row["output"]) == SAMPLE_TOKENS for row in found)


def test_a_sample_of_translation_has_its_source_and_its_reference(tmp_path, pair_data):
    tokenizer = Tokenizer.from_json(pair_data.tokenizer)
    found = list(samples(*load_model(exported(tmp_path, "translation", tokenizer)), pair_data, 2))
    for row, pair in zip(found, (0, len(pair_data.valid) - 1), strict=True):
        for name, side in (("input", pair_data.valid.source), ("reference", pair_data.valid.target)):
            ids = side.tokens_of(pair).tolist()
            text = tokenizer.decode([token for token in ids if token not in (tokenizer.bos, tokenizer.eos)])
            assert row[name] == text
