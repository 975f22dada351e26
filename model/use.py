"""A trained model in use: translations of sentences, and text that goes on where a prompt ends."""

import itertools
import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from model.gpt import GPT
from model.packing import Shape
from model.tokenizer import Tokenizer
from model.translator import Translator
from tune.errors import UserError

SENTENCES_A_BATCH = 64
BEAM_WIDTH = 4
LEAST_LIMIT = 32
TARGET_OVER_SOURCE = 2
TEMPERATURE = 0.8
TOP_K = 40


def translations(
    model: nn.Module, tokenizer: Tokenizer, sentences: list[str], *, width: int = BEAM_WIDTH,
    row: Shape | None = None, before_step: Callable[[], None] = lambda: None,
) -> list[str]:  # fmt: skip
    """Each sentence in the target language, by beam search; an empty one stays empty. UserError: no translator.

    row: tokens of a source and of its translation at most, each is cut there; before_step: called before each step of
    decoding, which what it raises ends.
    """
    if not isinstance(model, Translator):
        raise UserError("model: it does not translate: name a best-translation folder")
    longest, most = row or (None, sys.maxsize)
    sources = [tokenizer.encode(sentence)[:longest] for sentence in sentences]
    found = [""] * len(sentences)
    order = sorted((place for place, source in enumerate(sources) if source), key=lambda place: len(sources[place]))
    for limit, group in itertools.groupby(order, lambda place: min(_limit(sources[place]), most)):
        alike = list(group)
        for first in range(0, len(alike), SENTENCES_A_BATCH):
            places = alike[first : first + SENTENCES_A_BATCH]
            source, unpadded = _padded([sources[place] for place in places], model)
            for place, text in zip(places, model.beam(source, unpadded, width, limit, before_step), strict=True):
                found[place] = tokenizer.decode(text)
    return found


@torch.inference_mode()
def continuation(
    model: nn.Module, tokenizer: Tokenizer, prompt: str, tokens: int, *,
    temperature: float = TEMPERATURE, top_k: int = TOP_K, seed: int = 0,
    before_step: Callable[[], None] = lambda: None,
) -> str:  # fmt: skip
    """`tokens` tokens after a prompt, each drawn from the `top_k` likeliest; of a temperature of 0 the likeliest.

    before_step: as for translations. UserError: no language model, or nothing to go on from.
    """
    if not isinstance(model, GPT):
        raise UserError("model: it does not go on with text: name a best-nanogpt folder")
    text = tokenizer.encode(prompt)
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


def _limit(source: list[int]) -> int:
    """Tokens that a translation may have, in few steps: sentences of one batch share it."""
    return LEAST_LIMIT * 2 ** max(0, math.ceil(math.log2(TARGET_OVER_SOURCE * len(source) / LEAST_LIMIT)))


def _padded(sources: list[list[int]], model: Translator) -> tuple[Tensor, Tensor | None]:
    """Token numbers (B, S) and, where the lengths differ, which are not padding (B, S)."""
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
    return int(tokens[torch.multinomial((best / temperature).softmax(-1), 1, generator=draws)])
