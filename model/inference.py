"""Use of a trained model: translations, text that continues a prompt, and the commands for both."""

import io
import itertools
import json
import math
import pickle
import re
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from model.config import Data
from model.data.dataset import OwnData, PairData, PairSplit, TextData
from model.data.packing import Shape
from model.data.tokenizer import UNKNOWN_CHARACTER, CharacterTokenizer, Tokenizer
from model.nn.decoding import beam_search
from model.nn.gpt import GPT
from model.nn.translator import Translator
from model.settings import BEAM_WIDTH, TEMPERATURE, TOP_K, GenerateSettings, TranslateSettings, UseSettings
from model.training.checkpoint import CONFIG, TOKENIZER, load_model
from model.training.memory import ran_out
from tune.errors import UserError
from tune.load import load_families

SENTENCES_A_BATCH, SENTENCES_AT_ONCE = 64, 256
"""Sentences that are decoded together, and lines of standard input that are read before their translations are printed.
"""
LEAST_LIMIT = 32
TARGET_OVER_SOURCE = 2


def translations(
    model: nn.Module, tokenizer: Tokenizer, sentences: list[str], *, width: int = BEAM_WIDTH,
    row: Shape | None = None, before_step: Callable[[], None] = lambda: None,
) -> list[str]:  # fmt: skip
    """Translate each sentence by beam search; an empty one stays empty. UserError: the model is no translator.

    row: most tokens of a source and of its translation, which are cut there; before_step: called before each step of
    decoding; what it raises ends that.
    """
    if not isinstance(model, Translator):
        raise UserError("model: it does not translate: name a best-translation folder")
    longest, most = row or (None, sys.maxsize)
    sources = [tokenizer.encode(as_text(sentence))[:longest] for sentence in sentences]
    found = [""] * len(sentences)
    order = sorted((place for place, source in enumerate(sources) if source), key=lambda place: len(sources[place]))
    for limit, group in itertools.groupby(order, lambda place: min(_limit(sources[place]), most)):
        alike = list(group)
        for first in range(0, len(alike), SENTENCES_A_BATCH):
            places = alike[first : first + SENTENCES_A_BATCH]
            source, unpadded = _padded([sources[place] for place in places], model)
            texts = beam_search(model, source, unpadded, width, limit, before_step)
            for place, text in zip(places, texts, strict=True):
                found[place] = tokenizer.decode(text)
    return found


@torch.inference_mode()
def continuation(
    model: nn.Module, tokenizer: Tokenizer, prompt: str, tokens: int, *,
    temperature: float = TEMPERATURE, top_k: int = TOP_K, seed: int = 0,
    before_step: Callable[[], None] = lambda: None,
) -> str:  # fmt: skip
    """Return `tokens` tokens that follow a prompt, each drawn from the `top_k` likeliest; at temperature 0 the
    likeliest.

    before_step: as for translations. UserError: the model is no language model, or the prompt is empty.
    """
    if not isinstance(model, GPT):
        raise UserError("model: it does not go on with text: name a best-nanogpt folder")
    text = [token for part in tokenizer.stream([as_text(prompt)]) for token in part.tolist()]  # as texts to learn from
    if not text:
        raise UserError("prompt: '' gives nothing to go on from: write at least a character")
    device = next(model.parameters()).device
    draws = torch.Generator().manual_seed(seed)
    for _ in range(tokens):
        before_step()
        seen = torch.tensor([text[-model.config.context :]], device=device)
        logits = model(seen)[0, -1].float().cpu()
        if tokenizer.unknown is not None:
            logits[tokenizer.unknown] = float("-inf")
        text.append(_draw(logits, temperature, top_k, draws))
    return tokenizer.decode(text[-tokens:]) if tokens else ""


def as_text(typed: str) -> str:
    """Return typed text in NFC, as the texts are that models learn from. UserError: its bytes were no UTF-8."""
    if any("\ud800" <= character <= "\udfff" for character in typed):
        shown = typed.encode(errors="replace").decode()
        raise UserError(f"text: {shown!r:.60} is no UTF-8: write it as UTF-8")
    return unicodedata.normalize("NFC", typed)


def _limit(source: list[int]) -> int:
    """Return how many tokens a translation may have, one of few values: sentences of one batch share it."""
    return LEAST_LIMIT * 2 ** max(0, math.ceil(math.log2(TARGET_OVER_SOURCE * len(source) / LEAST_LIMIT)))


def _padded(sources: list[list[int]], model: Translator) -> tuple[Tensor, Tensor | None]:
    """Return token numbers (B, S) and, where the lengths differ, which of them are no padding (B, S)."""
    device = next(model.parameters()).device
    longest = max(map(len, sources))
    rows = [source + [model.config.pad] * (longest - len(source)) for source in sources]
    lengths = torch.tensor([[len(source)] for source in sources], device=device)
    unpadded = torch.arange(longest, device=device) < lengths
    return torch.tensor(rows, device=device), None if bool(unpadded.all()) else unpadded


def _draw(logits: Tensor, temperature: float, top_k: int, draws: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    best, tokens = logits.topk(min(top_k, len(logits)))
    chances = ((best - best[0]).double() / temperature).softmax(-1).float()  # shifted, so 0 at the likeliest
    return int(tokens[torch.multinomial(chances, 1, generator=draws)])


PROMPT_TOKENS = 48
SAMPLE_TOKENS = 96
"""Tokens that continue the prompt of a sample; a translation is rarely longer."""

Sample = dict[str, str]
"""The input, the model's output and the reference, by these names."""


def samples(
    model: nn.Module, tokenizer: Tokenizer, data: Data, count: int, before_step: Callable[[], None] = lambda: None
) -> Iterator[Sample]:
    """Yield samples one at a time, spread over the validation split; none for a model that neither translates nor
    continues text.

    before_step: as for translations.
    """
    if not isinstance(model, GPT | Translator):
        return
    for source, reference in spread_pairs(data.valid, count) if isinstance(data, PairData) else _text(data, count):
        given, wanted = tokenizer.decode(source.tolist()), tokenizer.decode(reference.tolist())
        if isinstance(data, PairData):
            (written,) = translations(model, tokenizer, [given], row=data.row, before_step=before_step)
        else:
            written = continuation(model, tokenizer, given, SAMPLE_TOKENS, before_step=before_step)
        yield {"input": given, "output": written, "reference": wanted}


def spread_pairs(split: PairSplit, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the tokens of so many pairs, evenly spread over a split: source, and target without its bos and eos."""
    for pair in np.linspace(0, len(split) - 1, count).astype(int):
        yield split.source.tokens_of(pair), split.target.tokens_of(pair)[1:-1]


def _text(data: TextData | OwnData, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield so many prompts, spread over the validation split, each with the tokens that follow it there."""
    whole = PROMPT_TOKENS + SAMPLE_TOKENS
    for start in np.linspace(0, max(0, len(data.valid) - whole), count).astype(int):
        text = data.valid[start : start + whole]
        yield text[:PROMPT_TOKENS], text[PROMPT_TOKENS:]


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that control a terminal, or the direction of writing; a new line and a tab are none of these."""


def translate(settings: TranslateSettings) -> int:
    """Print translations, one a line. UserError: the folder does not serve, input is no UTF-8, or memory ran out."""
    model, tokenizer = _opened(settings)
    facts = json.loads((settings.folder / TOKENIZER).read_text(encoding="utf-8"))
    longest = facts.get("longest", math.inf)  # an older winner does not tell
    at_once = 1 if not settings.sentences and sys.stdin.isatty() else SENTENCES_AT_ONCE
    lines = iter(settings.sentences or sys.stdin)
    try:
        while sentences := [line.lstrip("\ufeff").strip() for line in itertools.islice(lines, at_once)]:
            for each in sentences:
                if len(tokenizer.encode(as_text(each))) > longest:
                    what = f"'{each:.40}...' has more than {longest} tokens, the most that the model saw in training"
                    print(f"sentence: {what}: split it", file=sys.stderr)
            for text in translations(model, tokenizer, sentences, width=settings.beam):
                _print(text)
            sys.stdout.flush()
    except UnicodeDecodeError as error:
        raise UserError(
            f"standard input: {error.object[error.start :][:20]!r} is no UTF-8: write it as UTF-8"
        ) from None
    except Exception as error:
        if not ran_out(error):
            raise
        raise UserError(
            f"--beam: {settings.beam} takes more memory than there is; write fewer, or shorter sentences"
        ) from None
    return 0


def generate(settings: GenerateSettings) -> int:
    """Print a prompt and the text that continues it. UserError: the folder or the prompt does not serve."""
    torch.set_num_threads(1)  # a token is too little work to share: on a busy machine its threads wait for each other
    model, tokenizer = _opened(settings)
    if unread := {each for each in as_text(settings.prompt) if tokenizer.unknown in tokenizer.encode(each)}:
        listed = ", ".join(map(repr, sorted(unread)))
        print(f"prompt: the model's text has no {listed}: read as unknown characters", file=sys.stderr)
    text = continuation(
        model, tokenizer, settings.prompt, settings.tokens,
        temperature=settings.temperature, top_k=settings.top_k, seed=settings.seed,
    )  # fmt: skip
    _print(settings.prompt + text)
    return 0


def write_upstream(folder: Path, clone: Path, name: str, *, steps: int, loss: float) -> str:
    """Write a winner where a clone of nanoGPT looks for it, `out-NAME/ckpt.pt` and `data/NAME/meta.pkl`; return the
    command that samples from it.

    steps, loss: how long it was trained, and its loss in nats a token. UserError: nanoGPT has no such model, or the
    files cannot be written or are there already.
    """
    model, tokenizer = load_model(folder)
    if not isinstance(model, GPT):
        raise UserError(f"model: {folder} is no language model: name a study with a best-nanogpt")
    checkpoint = model.to_upstream()
    if not isinstance(tokenizer, CharacterTokenizer):
        raise UserError(
            f"model: {folder} has a vocabulary of its own: nanoGPT's sample.py knows characters, or GPT-2's"
        )
    known = dict(enumerate(tokenizer.characters))
    unknown = len(known)
    kept = json.loads((folder / CONFIG).read_text())
    meta = {
        "vocab_size": unknown + 1, "itos": known | {unknown: UNKNOWN_CHARACTER},
        "stoi": {UNKNOWN_CHARACTER: unknown} | {character: number for number, character in known.items()},
    }  # fmt: skip
    out, data = clone / f"out-{name}" / "ckpt.pt", clone / "data" / name / "meta.pkl"
    whole = checkpoint | {"config": kept | {"dataset": name}, "iter_num": steps, "best_val_loss": loss}
    torch.save(whole, saved := io.BytesIO())  # into a file it tells a full disk as a RuntimeError
    made = list[Path]()
    try:
        for path, content in ((out, saved.getvalue()), (data, pickle.dumps(meta))):
            path.parent.mkdir(parents=True)
            made.append(path.parent)
            path.write_bytes(content)
    except OSError as error:
        for each in made:
            shutil.rmtree(each, ignore_errors=True)
        remedy = "name another folder, or remove what an earlier export left there"
        raise UserError(f"--nanogpt: {str(path.parent)!r} cannot be written ({error.strerror}): {remedy}") from None
    return f"{out}: in {clone}: python sample.py {shlex.quote(f'--out_dir={out.parent.name}')} --device=cpu"


def _print(text: str) -> None:
    """Print a line; on a terminal control characters become escapes, so that a model's text cannot control it."""
    if sys.stdout.isatty():
        text = CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    print(text)


def _opened(settings: UseSettings) -> tuple[nn.Module, Tokenizer]:
    if settings.load is not None:
        load_families(settings.load.absolute())
    return load_model(settings.folder)
