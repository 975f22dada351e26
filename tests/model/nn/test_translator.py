"""Translator: causal, blind to padding, tied three ways, and the same text with and without cached keys and values."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from model.nn.decoding import LENGTH_PENALTY, KeyValueCache, beam_search
from model.nn.precision import Embedding
from model.nn.translator import RESIDENT, Translator, TranslatorConfig

WORDS, D, H, L = 20, 16, 4, 2
PAD, BOS, EOS = WORDS, WORDS + 1, WORDS + 2
B, S, T = 3, 6, 7


def translator(**changes):
    """A model in double precision whose weights all have a value: what begins at zero hides mistakes."""
    given = {"vocabulary": WORDS + 3, "pad": PAD, "d_model": D, "heads": H, "layers": L}
    model = Translator(TranslatorConfig(**(given | changes))).double().eval()
    for module in model.modules():
        if isinstance(module, Embedding):
            module.compute_dtype = torch.float64
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def padded_batch():
    """Sources of 6, 4 and 1 words."""
    source = torch.randint(WORDS, (B, S))
    unpadded = torch.arange(S) < torch.tensor([6, 4, 1])[:, None]
    return source.masked_fill(~unpadded, PAD), unpadded


def whole(model, source, unpadded, target):
    """The logits of rows with one pair each, read without a past."""
    source_of = torch.zeros_like(source) if unpadded is None else unpadded.long() - 1
    return model(source, source_of, target, torch.zeros_like(target))


def test_pairs_beside_each_other_in_a_row_know_nothing_of_each_other():
    model = translator()
    lengths = [(3, 2), (1, 4), (2, 1)]
    pairs = [(torch.randint(WORDS, (1, s)), torch.randint(WORDS, (1, t))) for s, t in lengths]
    rows = [
        (torch.cat(side, 1), torch.repeat_interleave(torch.arange(3), torch.tensor(counts))[None])
        for side, counts in zip(zip(*pairs, strict=True), zip(*lengths, strict=True), strict=True)
    ]
    (source, source_of), (target, target_of) = [
        (F.pad(tokens, (0, 2), value=PAD), F.pad(of, (0, 2), value=-1)) for tokens, of in rows
    ]
    logits = model(source, source_of, target, target_of)
    alone = torch.cat([whole(model, source, None, target) for source, target in pairs], 1)
    torch.testing.assert_close(logits[:, : alone.shape[1]], alone, rtol=1e-5, atol=1e-5)  # tables of positions are fp32
    assert logits.isfinite().all()


def test_no_target_sees_a_later_one():
    model, target = translator(), torch.randint(WORDS, (B, T))
    source, unpadded = padded_batch()
    changed = target.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % WORDS
    before, after = whole(model, source, unpadded, target), whole(model, source, unpadded, changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


def test_padding_changes_nothing():
    model, target = translator(), torch.randint(WORDS, (B, T))
    source, unpadded = padded_batch()
    logits = whole(model, source, unpadded, target)
    garbage = torch.where(unpadded, source, (source + 7) % WORDS)
    assert torch.equal(logits, whole(model, garbage, unpadded, target))
    for row, length in enumerate((6, 4, 1)):
        alone = whole(model, source[row : row + 1, :length], None, target[row : row + 1])
        torch.testing.assert_close(logits[row : row + 1], alone)


def test_each_source_word_counts():
    model, source, target = translator(), torch.randint(WORDS, (1, S)), torch.randint(WORDS, (1, T))
    for place in range(S):
        changed = source.clone()
        changed[0, place] = (changed[0, place] + 1) % WORDS
        assert not torch.allclose(whole(model, source, None, target), whole(model, changed, None, target))


def test_one_matrix_serves_source_target_and_read_out():
    model = translator()
    tables = [name for name, parameter in model.named_parameters() if model.config.vocabulary in parameter.shape]
    assert tables == ["embedding.weight"]
    before = {name: tensor.clone() for name, tensor in model.named_parameters() if name != "embedding.weight"}
    source, target = torch.randint(10, (1, S)), torch.randint(10, 20, (1, T))
    logits = whole(model, source, None, target)
    for row in (int(source[0, 0]), int(target[0, 0]), BOS):
        with torch.no_grad():
            changed = translator()
            changed.load_state_dict(before | {"embedding.weight": model.embedding.weight.clone()})
            changed.embedding.weight[row] += torch.linspace(0, 1, D)
        assert not torch.allclose(whole(changed, source, None, target), logits)


def test_there_is_no_longest_sentence():
    model, length = translator(), RESIDENT + 5
    source, target = torch.randint(WORDS, (1, length)), torch.randint(WORDS, (1, length))
    logits = whole(model, source, None, target)
    assert logits.shape == (1, length, model.config.vocabulary)
    torch.testing.assert_close(whole(model, source, None, target[:, :RESIDENT]), logits[:, :RESIDENT])


@pytest.mark.parametrize("fused", [True, False])
def test_decoding_with_a_past_gives_the_same_logits(fused):
    model, target = translator(), torch.randint(WORDS, (B, T))
    for module in model.modules():
        if hasattr(module, "fused"):
            module.fused = fused
    memory, past = model.encode(*padded_batch()), KeyValueCache(model.config.layers, limit=T)
    with torch.inference_mode():
        pieces = [model.decode(piece, memory, past) for piece in target.split([1, 1, 3, 2], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), model.decode(target, memory))


def sentences(source, unpadded):
    """The rows without their padding, each a batch of one."""
    return [row[None, kept] for row, kept in zip(source, unpadded, strict=True)]


def reference_greedy(model, source, limit):
    """One sentence, the whole target read again for each token."""
    text = []
    while len(text) < limit:
        token = int(whole(model, source, None, torch.tensor([[BOS, *text]]))[0, -1].argmax())
        if token == EOS:
            break
        text.append(token)
    return text


def reference_beam(model, source, width, limit):
    """One sentence, plain lists: (tokens, log probability, finished)."""

    def score(text):
        return text[1] / ((5 + len(text[0])) / 6) ** LENGTH_PENALTY

    kept = [([], 0.0, False)]
    for _ in range(limit):
        longer = [text for text in kept if text[2]]
        for tokens, total, finished in kept:
            if not finished:
                gains = whole(model, source, None, torch.tensor([[BOS, *tokens]]))[0, -1].float().log_softmax(-1)
                longer += [
                    ([*tokens, token], total + gain, token == EOS)
                    for token, gain in enumerate(gains.tolist())
                    if token != PAD
                ]
        kept = sorted(longer, key=score, reverse=True)[:width]
    return [token for token in max(kept, key=score)[0] if token != EOS]


@pytest.fixture(scope="module")
def talkative():
    """A model that ends some texts early and some never."""
    torch.manual_seed(5)
    return translator()


def test_a_beam_of_one_is_greedy(talkative):
    source, unpadded = padded_batch()
    expected = [reference_greedy(talkative, sentence, 12) for sentence in sentences(source, unpadded)]
    assert beam_search(talkative, source, unpadded, 1, 12) == expected


def test_beam_is_the_text_of_the_slow_way(talkative):
    torch.manual_seed(2)
    source, unpadded = padded_batch()
    expected = [reference_beam(talkative, sentence, 4, 9) for sentence in sentences(source, unpadded)]
    assert beam_search(talkative, source, unpadded, 4, 9) == expected


@pytest.mark.parametrize("width", [1, 4])
def test_decoding_stops_at_the_limit(width):
    model = translator()
    with torch.no_grad():
        model.embedding.weight[EOS] = 0  # its logit is 0 always, and so hardly ever the greatest
    texts = beam_search(model, *padded_batch(), width, limit=5)
    assert max(map(len, texts)) == 5
    assert not any(EOS in text for text in texts)


@pytest.mark.parametrize("width", [1, 4])
def test_decoding_stops_at_eos(width):
    model = translator()
    with torch.no_grad():
        model.embedding.weight[:] = torch.randn(D, dtype=torch.float64)  # all words are one
        logit = whole(model, *padded_batch(), torch.full((B, 1), BOS))[0, 0, EOS]
        model.embedding.weight[EOS] *= 10 * logit.sign()
    assert beam_search(model, *padded_batch(), width, limit=50) == [[], [], []]
