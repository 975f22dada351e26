"""How well translators translate that were trained for as long, on a core each: ours, and torch.nn.Transformer's loop.

# Shapes: B batch, S source length, T target length so far.
"""

import multiprocessing
import statistics
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.config import Config
from model.data.dataset import PairData, Sentences
from model.data.tokenizer import Tokenizer
from model.inference import spread_pairs, translations
from model.settings import BEAM_WIDTH
from model.training import checkpoint as checkpoints
from model.training.evaluation import Score, score
from model.training.time_budget import Segment
from model.training.train import train
from tests.bench.contenders import (
    TRANSLATOR,
    PlainTranslator,
    best_precision,
    cpu_seconds,
    padded,
    pairs,
    plain_translator,
)
from tests.bench.table import Row
from tune.reports import Evaluation
from tune.search_space import label

MINUTES, SEEDS = 20, 3
SHAPE: dict[str, Any] = {"d_model": 256, "heads": 4, "layers": 2, "dropout": 0.0}
"""What so many minutes of a core train to translate best, of those tried (docs/log.md, days 25, 27, 29, 32)."""
SENTENCES, LONGEST = 500, 48
"""Of the test split; tokens of a translation at most."""
SENTENCES_A_BATCH = 50
PEAK_RATE, WARM_UP_STEPS = 1e-3, 400
LEAST_BLEU, MORE_BLEU, MORE_CHRF = 48.0, 8.0, 8.0
"""Asked: of each seed; and points more than the loop's, chrF of a hundred."""


def bleu(data: Path, *, short: bool) -> Iterator[Row]:
    """BLEU and chrF on test sentences: the loop's, and each seed of ours, two of them side by side."""
    seconds, seeds = (100.0, 2) if short else (60.0 * MINUTES, SEEDS)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as cores:
        loop = cores.submit(_plain, data, seconds)
        running = [cores.submit(_ours, data, seconds, seed) for seed in range(seeds)]
        plain, ours = loop.result(), [each.result() for each in running]
    yield Row(
        what=f"translation after {seconds / 60:.3g} min of a core, {label(SHAPE)} {best_precision()}, beams of "
        f"{BEAM_WIDTH}, and greedily; {plain.sentences} test sentences, {seeds} seeds",
        against="torch.nn.Transformer's loop of two layers, one seed, greedily: "
        f"BLEU {plain.bleu:.1f}, chrF {plain.chrf:.1f}",
        asked=f"BLEU >= {LEAST_BLEU:.0f}; >= {MORE_BLEU:.0f} BLEU and {MORE_CHRF:.0f} chrF more",
        measured="; ".join((
            f"BLEU {_spread([each.beams.bleu for each in ours], 1)}",
            f"greedily {_spread([each.greedy.bleu for each in ours], 1)}",
            f"chrF {_spread([each.beams.chrf for each in ours], 1)}",
            f"greedily {_spread([each.greedy.chrf for each in ours], 1)}",
            f"nats a token {_spread([each.test.loss for each in ours], 3)}",
            f"a word {_spread([each.test.nats_per_word for each in ours], 2)}",
            f"bits a character {_spread([each.test.bits_per_character for each in ours], 3)}")),
        reached=None if short else all(
            each.beams.bleu >= LEAST_BLEU
            and each.greedy.bleu >= plain.bleu + MORE_BLEU
            and each.greedy.chrf >= plain.chrf + MORE_CHRF
            for each in ours),
    )  # fmt: skip


def _spread(values: list[float], digits: int) -> str:
    """The mean over seeds, their standard deviation, and each."""
    each = ", ".join(f"{value:.{digits}f}" for value in values)
    return f"{statistics.mean(values):.{digits}f} +- {statistics.stdev(values):.{digits + 1}f} ({each})"


@dataclass(frozen=True, kw_only=True)
class Translated:
    """What one of ours came to, on the test split: its translations by beam search, greedily, and its loss."""

    beams: Score
    greedy: Score
    test: Evaluation


def _ours(data: Path, seconds: float, seed: int) -> Translated:
    prepared = pairs(data)
    config = Config(family="translation", precision=best_precision(), seed=seed, **SHAPE)
    with tempfile.TemporaryDirectory() as folder:
        segment, place = Segment(device_seconds=seconds, final=True), Path(folder)
        told = train(config, prepared, segment, folder=place, evaluation_tokens=2_048, clock=cpu_seconds)
        last = deque(told, maxlen=1)[0]
        assert last.checkpoint is not None and last.test is not None
        model, tokenizer = checkpoints.load_model(
            checkpoints.export(Path(last.checkpoint), Path(folder) / "best-translation", prepared.tokenizer)
        )
    beams, greedy = (
        _scored(prepared, lambda sources, width=width: translations(model, tokenizer, sources, width=width))
        for width in (BEAM_WIDTH, 1)
    )
    return Translated(beams=beams, greedy=greedy, test=last.test)


def _plain(data: Path, seconds: float) -> Score:
    """Adam with a warm-up and the inverse root of the steps (Vaswani et al. 2017). It spends all of the seconds on
    steps, while ours evaluates in them too."""
    torch.set_num_threads(1)
    prepared = pairs(data)
    began = cpu_seconds()
    model, step = plain_translator(prepared.train, vocabulary=prepared.vocabulary, pad=prepared.pad, **TRANSLATOR)
    steps = 0
    while cpu_seconds() - began < seconds:
        steps += 1
        step(PEAK_RATE * min(steps / WARM_UP_STEPS, (WARM_UP_STEPS / steps) ** 0.5))
    tokenizer = Tokenizer.from_json(prepared.tokenizer)
    model.eval()
    return _scored(prepared, lambda sources: _greedy(model, prepared, tokenizer, sources))


def _scored(data: PairData, translate: Callable[[list[str]], list[str]]) -> Score:
    """Over sentences spread over the test split."""
    tokenizer = Tokenizer.from_json(data.tokenizer)
    sources, references = zip(
        *((tokenizer.decode(source.tolist()), tokenizer.decode(target.tolist()))
          for source, target in spread_pairs(data.test, SENTENCES)),
        strict=True,
    )  # fmt: skip
    return score(list(zip(translate(list(sources)), references, strict=True)))


@torch.inference_mode()
def _greedy(model: PlainTranslator, data: PairData, tokenizer: Tokenizer, sources: list[str]) -> list[str]:
    """The likeliest next token each time."""
    found: list[str] = []
    for first in range(0, len(sources), SENTENCES_A_BATCH):
        tokens = [np.array(tokenizer.encode(text)) for text in sources[first : first + SENTENCES_A_BATCH]]
        offsets = np.concatenate([[0], np.cumsum([len(text) for text in tokens])])
        sentences = Sentences(tokens=np.concatenate(tokens), offsets=offsets)
        source = padded(sentences, np.arange(len(tokens)), data.pad)  # (B, S)
        target = torch.full((len(tokens), 1), tokenizer.bos)  # (B, T)
        for _ in range(LONGEST):
            target = torch.cat([target, model(source, target)[:, -1:].argmax(-1)], 1)
        for text in target[:, 1:].tolist():
            found.append(tokenizer.decode(text[: text.index(tokenizer.eos)] if tokenizer.eos in text else text))
    return found
