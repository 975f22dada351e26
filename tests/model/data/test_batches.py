"""Batches: each token where it belongs, resumed as if never stopped, evaluations the same for everyone."""

import functools
import itertools
import json
import random
import re
import warnings
from collections import Counter
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model.data import batches
from model.data.batches import EVALUATION_TOKENS, IGNORED, Batch, TrainBatches, evaluation_batches, span
from model.data.dataset import PairData, TextData, count_words
from model.data.resident import OUTSIDE, ROUND, ResidentPairs, ResidentRows, resident
from model.data.tokenizer import Tokenizer
from tests.model.conftest import prepared, prepared_pairs
from tune.errors import UserError

CONTEXT = 16
Data = TextData | PairData
WORDS = ["tú", "yo", "él", "casa", "perro", "gato", "niño", "niña", "rojo", "verde", "azul", "come", "bebe", "lee"]


_from_json = functools.cache(Tokenizer.from_json)


def tokenizer_of(data: Data) -> Tokenizer:
    return _from_json(data.tokenizer)


@functools.cache
def made_pairs(count: int) -> list[tuple[str, str]]:
    """Different pairs of skewed lengths."""
    chooser = random.Random(0)
    pairs: dict[tuple[str, str], None] = {}
    while len(pairs) < count:
        words = chooser.choices(WORDS, k=min(40, 1 + int(chooser.gammavariate(3, 2))))
        pairs[" ".join(words[::-1]).upper(), " ".join(words)] = None
    return list(pairs)


@pytest.fixture(scope="module")
def pairs() -> PairData:
    made = made_pairs(2_000)
    return prepared_pairs(made[:1_000], made[1_000:1_500], made[1_500:])


@pytest.fixture(scope="module")
def text() -> TextData:
    whole = " ".join(random.Random(0).choices(WORDS, k=3_000))
    return prepared(whole[:10_000], whole[10_000:11_111], whole[11_111:12_345])


@pytest.fixture(params=["pairs", "text"])
def data(request: pytest.FixtureRequest) -> Data:
    made: Data = request.getfixturevalue(request.param)
    return made


def batches_of(data: Data, *, seed: int = 0, tokens: int = 256) -> TrainBatches:
    return TrainBatches(data, batch_tokens=tokens, context=CONTEXT, seed=seed)


def content(batch: Batch) -> list[Any]:
    return [x.tolist() for x in (*batch.inputs, batch.targets)]


def pairs_of(data: PairData, batch: Batch) -> list[tuple[str, str]]:
    """The pairs of a batch in words, after a check of how they are laid out."""
    source, source_of, target_in, target_of = batch.inputs
    assert torch.equal(source == data.pad, source_of == OUTSIDE)
    assert torch.equal(target_in == data.pad, target_of == OUTSIDE)
    assert torch.equal(batch.targets == IGNORED, target_of == OUTSIDE)
    tokenizer, pairs = tokenizer_of(data), []
    for i, of in enumerate(target_of):
        for places in (of, source_of[i]):
            inside = places[places != OUTSIDE]
            assert torch.equal(inside, places[: len(inside)]) and set(inside.diff().tolist()) <= {0, 1}
            assert inside[0] == 0 and inside[-1] == of.max()
        for sentence in range(int(of.max()) + 1):
            targets = batch.targets[i, of == sentence].tolist()
            assert targets[-1] == tokenizer.eos and tokenizer.eos not in targets[:-1]
            assert target_in[i, of == sentence].tolist() == [tokenizer.bos, *targets[:-1]]
            pairs.append((tokenizer.decode(source[i, source_of[i] == sentence].tolist()), tokenizer.decode(targets)))
    return pairs


def epoch_of(batches: TrainBatches) -> list[Batch]:
    """The batches of the epoch that `batches` is at the beginning of."""
    epoch, taken = batches.state()["epoch"], []
    while True:
        taken.append(next(batches))
        if batches.state()["epoch"] != epoch:
            return taken[:-1]


def same_memory(tree: Any) -> list[np.ndarray]:
    """All arrays of nested dataclasses."""
    if isinstance(tree, np.ndarray):
        return [tree]
    return [a for field in fields(tree) for a in same_memory(getattr(tree, field.name))] if is_dataclass(tree) else []


def test_training_windows_are_the_text_and_what_follows(text: TextData) -> None:
    whole = tokenizer_of(text).decode(text.train)
    for batch in itertools.islice(batches_of(text), 50):
        tokens = batch.inputs[0]
        assert torch.equal(tokens[:, 1:], batch.targets[:, :-1])
        for row, targets in zip(tokens.tolist(), batch.targets.tolist(), strict=True):
            assert tokenizer_of(text).decode([*row, targets[-1]]) in whole


def test_batches_are_int64_and_count_their_targets(data: Data) -> None:
    for batch in itertools.islice(batches_of(data), 50):
        assert batch.targets.dtype == torch.int64 and batch.targets.is_contiguous()
        assert batch.tokens == int((batch.targets != IGNORED).sum())
        assert all(x.dtype in (torch.int64, torch.bool) and x.is_contiguous() for x in batch.inputs)


def test_the_order_follows_from_the_seed(data: Data) -> None:
    one, same, other = (
        [content(batch) for batch in itertools.islice(batches_of(data, seed=seed), 20)] for seed in (1, 1, 2)
    )
    assert one == same != other


def test_the_order_leaves_the_other_random_streams_alone(data: Data) -> None:
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()
    list(itertools.islice(batches_of(data), 20))
    assert torch.equal(torch_state, torch.get_rng_state())
    assert str(numpy_state) == str(np.random.get_state(legacy=False)) and python_state == random.getstate()


@pytest.mark.parametrize("taken", [0, 17, 200])
def test_resumed_batches_go_on_as_if_never_stopped(data: Data, taken: int) -> None:
    uninterrupted = batches_of(data, seed=5)
    list(itertools.islice(uninterrupted, taken))
    state = json.loads(json.dumps(uninterrupted.state()))
    resumed = batches_of(data, seed=6)
    resumed.load_state(state)
    assert resumed.state() == state
    for expected, batch in itertools.islice(zip(uninterrupted, resumed, strict=True), 60):
        assert content(batch) == content(expected)


def test_an_epoch_of_text_has_no_window_twice(text: TextData) -> None:
    numbered = replace(text, train=np.arange(10_000, dtype=np.uint16))
    batches = batches_of(numbered)
    offsets = set()
    for _ in range(3):
        seen = Counter(itertools.chain.from_iterable(batch.targets.flatten().tolist() for batch in epoch_of(batches)))
        assert max(seen.values()) == 1 and len(seen) > 10_000 - CONTEXT - 256 - CONTEXT
        offsets.add(min(seen) % CONTEXT)
        batches = batches_of(numbered, seed=len(offsets))
    assert len(offsets) > 1


def test_pairs_come_equally_often(pairs: PairData) -> None:
    batches, seen, epochs = batches_of(pairs), Counter[tuple[str, str]](), 12
    while batches.state()["epoch"] < epochs:
        seen.update(pairs_of(pairs, next(batches)))
    assert len(seen) >= 1_000 * 0.997 and seen.keys() <= {*made_pairs(2_000)[:1_000]}
    counts = np.array(list(seen.values()))
    assert abs(counts.mean() - epochs) < 0.5 and counts.std() < 0.25 * epochs


def test_each_epoch_mixes_the_pairs_anew(pairs: PairData) -> None:
    batches = batches_of(pairs)
    first, second = ({frozenset(pairs_of(pairs, batch)) for batch in epoch_of(batches)} for _ in range(2))
    assert len(first) > 20 and len(second) > 20 and not first & second


def test_training_batches_have_one_shape(data: Data) -> None:
    batches = list(itertools.islice(batches_of(data, tokens=512), 100))
    (shape,) = {tuple(x.shape for x in (*batch.inputs, batch.targets)) for batch in batches}
    rows, length = shape[-1]
    assert abs(rows * length - 512) <= length


def test_training_needs_a_batch(pairs: PairData, text: TextData) -> None:
    """The advice is a larger number of what there is too little of."""
    of = "fewer than a batch; give a .* that has (?:about|at least) ([0-9]+) of them$"
    for data, tokens, said in (
        (pairs, (len(pairs.rows) + 1) * pairs.row[1], f"--translation-corpus: 'pairs' has 1000 training pairs, {of}"),
        (text, len(text.train), f"--text-corpus: 'text' has 10000 training tokens, {of}"),
    ):
        with pytest.raises(UserError, match=said) as told:
            batches_of(data, tokens=tokens)
        wanted = re.search(said, str(told.value))
        assert wanted and len(data.train) < int(wanted[1]) < 1.1 * len(data.train)
    assert batches_of(replace(text, train=np.resize(text.train, int(wanted[1]))), tokens=len(text.train))


def evaluated(
    data: Data, tokens: int | None, split: str = "valid", context: int = CONTEXT, window: int | None = None
) -> list[Batch]:
    return list(evaluation_batches(data, split, tokens=tokens, context=context, window=window))


def predicted(batch: Batch) -> list[int]:
    """The targets of a batch of text that count."""
    counted: list[int] = batch.targets[batch.targets != IGNORED].tolist()
    return counted


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_whole_evaluation_has_every_pair_once(pairs: PairData, split: str) -> None:
    first, last = {"train": (0, 1_000), "test": (1_500, 2_000)}[split]
    rows = itertools.chain.from_iterable(pairs_of(pairs, batch) for batch in evaluated(pairs, None, split))
    assert sorted(rows) == sorted(made_pairs(2_000)[first:last])


def test_pairs_are_packed_once_for_all_evaluations_on_as_many_tokens(
    pairs: PairData, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {tokens: evaluated(pairs, tokens) for tokens in (None, 500)}
    monkeypatch.setattr(batches, "pack", None)
    for tokens, found in before.items():
        for one, other in zip(found, evaluated(pairs, tokens), strict=True):
            assert torch.equal(one.targets, other.targets) and one.tokens == other.tokens
    with pytest.raises(TypeError):
        evaluated(pairs, 700)


def test_no_batch_of_an_evaluation_is_large_on_either_side_however_long_a_few_sources_are(pairs: PairData) -> None:
    long = [(" ".join([word] * 300), word) for word in WORDS]
    made = made_pairs(2_000)
    data = prepared_pairs(made[:1_000], made[1_000:1_500] + long, long)
    for batch in evaluated(data, None):
        sides = [side.numel() for side in (*batch.inputs, batch.targets)]
        assert max(sides) <= EVALUATION_TOKENS or len(batch.targets) == 1


@pytest.mark.parametrize("context", [1, 7, 5_000])
def test_a_whole_evaluation_predicts_every_token_but_the_first_once(text: TextData, context: int) -> None:
    targets = [target for batch in evaluated(text, None, context=context) for target in predicted(batch)]
    assert targets == text.valid[1:].tolist()


@pytest.mark.parametrize("tokens", [300, 900, None])
@pytest.mark.parametrize("window", [CONTEXT, 6 * CONTEXT, 5_000])
def test_models_of_any_context_that_divides_the_window_are_judged_on_the_same_tokens_batch_by_batch(
    text: TextData, tokens: int | None, window: int
) -> None:
    """Each with at most its own context before them, which its training gave it too."""
    numbered = replace(text, valid=np.arange(10, 1_121, dtype=np.uint16))
    whole = [predicted(batch) for batch in evaluated(numbered, tokens, context=window)]
    assert tokens is None or window > 1_111 or abs(sum(map(len, whole)) - tokens) < window
    for context in (each for each in (1, 2, CONTEXT // 2, CONTEXT, 3 * CONTEXT) if window % each == 0):
        batches = evaluated(numbered, tokens, context=context, window=window)
        assert [predicted(batch) for batch in batches] == whole
        for batch in batches:
            (inputs,) = batch.inputs
            assert inputs.shape == batch.targets.shape and batch.tokens == len(predicted(batch))
            assert inputs.shape[1] <= context
            assert (inputs + 1)[batch.targets != IGNORED].tolist() == predicted(batch)


@pytest.mark.parametrize("tokens", [300, 900])
def test_a_subset_has_about_its_tokens_spread_over_the_split(pairs: PairData, text: TextData, tokens: int) -> None:
    for data in (pairs, text):
        assert abs(sum(batch.tokens for batch in evaluated(data, tokens)) - tokens) <= 5 * tokens**0.5
    order = {pair: i for i, pair in enumerate(made_pairs(2_000)[1_000:1_500])}
    rows = [order[row] for batch in evaluated(pairs, tokens) for row in pairs_of(pairs, batch)]
    assert len(set(rows)) == len(rows)
    assert np.histogram(rows, bins=5, range=(0, 500))[0].min() > len(rows) / 5 - 2
    numbered = replace(text, valid=np.arange(1_111, dtype=np.uint16))
    places = [place for batch in evaluated(numbered, tokens) for place in batch.targets.flatten().tolist()]
    assert len(set(places)) == len(places)
    assert np.histogram(places, bins=5, range=(0, 1_111))[0].min() > tokens / 5 - 3 * CONTEXT


def test_a_split_shorter_than_a_window_is_evaluated_whole(text: TextData) -> None:
    short = replace(text, valid=text.valid[:CONTEXT])
    (batch,) = evaluated(short, 5)
    assert batch.targets.tolist() == [short.valid[1:].tolist()]
    assert span(short, "valid", 5, context=CONTEXT).tokens == batch.tokens == CONTEXT - 1


@pytest.mark.parametrize("tokens", [1, 900, 10**9, None])
def test_a_span_counts_what_an_evaluation_predicts(pairs: PairData, text: TextData, tokens: int | None) -> None:
    rows = [row for batch in evaluated(pairs, tokens) for row in pairs_of(pairs, batch)]
    counted = span(pairs, "valid", tokens, context=CONTEXT)
    assert counted.tokens == sum(batch.tokens for batch in evaluated(pairs, tokens))
    assert counted.characters == sum(len(target) for _, target in rows)
    assert counted.words == sum(len(target.split()) for _, target in rows)
    targets = [
        [target for target in row if target != IGNORED]
        for batch in evaluated(text, tokens) for row in batch.targets.tolist()
    ]  # fmt: skip
    counted = span(text, "valid", tokens, context=CONTEXT)
    assert counted.tokens == counted.characters == sum(map(len, targets))
    decoded = tokenizer_of(text).decode(itertools.chain.from_iterable(targets))
    assert abs(counted.words - len(decoded.split())) <= len(targets) * (tokens is not None and tokens < 1_000) + 1


@pytest.mark.parametrize("tokens", [200, None])
def test_a_span_of_text_in_longer_tokens_counts_its_characters_and_the_words_that_begin_in_it(
    monkeypatch: pytest.MonkeyPatch, tokens: int | None
) -> None:
    monkeypatch.setattr("model.data.dataset.SHORT_TEXT", 1_000)
    parts = [" ".join(random.Random(seed).choices([*WORDS, "日本語", "…"], k=3_000)) for seed in range(3)]
    data = prepared(*parts)
    assert len(data.valid) < len(parts[1]) / 2
    tokenizer, characters, words = tokenizer_of(data), 0, 0
    for batch in evaluated(data, tokens):
        (inputs,) = batch.inputs
        for row, targets in zip(inputs.tolist(), batch.targets.tolist(), strict=True):
            before = tokenizer.decode(row[:1])
            after = tokenizer.decode([row[0], *(each for each in targets if each != IGNORED)])
            characters += len(after) - len(before)
            words += count_words(after) - count_words(before)
    assert span(data, "valid", tokens, context=CONTEXT)[1:] == (characters, words)


def test_a_batch_moves_whole(data: Data) -> None:
    batch = replace(next(batches_of(data)), block=3)
    moved = batch.to("meta")
    assert (moved.tokens, moved.block) == (batch.tokens, 3) and moved.targets.device.type == "meta"
    assert [x.shape for x in moved.inputs] == [x.shape for x in batch.inputs]


def test_read_only_memory_is_enough_and_stays_as_it_is(data: Data) -> None:
    arrays = same_memory(data)
    ours = [array for array in arrays if array.flags.writeable]
    before = [array.copy() for array in arrays]
    try:
        for array in ours:
            array.setflags(write=False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            taken: list[Tensor] = [batch.targets for batch in itertools.islice(batches_of(data), 30)]
            taken += [batch.targets for batch in evaluated(data, None)]
    finally:
        for array in ours:
            array.setflags(write=True)
    for targets in taken:
        targets.fill_(7)
    assert all(np.array_equal(array, copy) for array, copy in zip(arrays, before, strict=True))


def test_rows_that_are_laid_out_are_those_put_together(pairs: PairData) -> None:
    """A GPU has them so."""
    laid = ResidentRows(pairs, torch.device("cpu"))
    plan = np.random.default_rng(0).permutation(len(pairs.rows))[: 4 * 5].reshape(4, 5)
    together = ResidentPairs(pairs, pairs.train, "cpu")
    shape = [-(-side // ROUND) * ROUND for side in pairs.row]
    for rows in plan:
        expected = together.batch(pairs.rows.of(rows), *shape)
        found = Batch(*laid.gather(torch.from_numpy(rows)), expected.tokens)
        assert content(found) == content(expected)
        assert found.targets.dtype == torch.int64


def test_a_field_of_records_is_on_a_device_once_for_all_who_ask_for_it() -> None:
    records = np.zeros(8, np.dtype([("label", "u1"), ("other", "i1"), ("pixels", "u1", (2, 3))]))

    def there(array: np.ndarray) -> Tensor:
        return resident(array, "meta")

    assert there(records["pixels"]) is there(records["pixels"])
    whole = [records["pixels"], records["label"], records["other"], records["label"][1:], records["pixels"][:, 0]]
    whole += [records["label"].view("i1"), records["pixels"].reshape(8, 3, 2), records["label"][::2].repeat(2)]
    assert len({id(there(array)) for array in whole}) == len(whole), "each shows something else"
    assert [there(array).shape for array in whole] == [array.shape for array in whole]
