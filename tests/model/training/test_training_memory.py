"""Running out of memory is told from other errors; batches in parts make the same step, and take less."""

import errno
import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.config import Config
from model.cost.memory_estimate import memory_estimate
from model.cost.peak_flops import peak_flops
from model.data.batches import batch_shape
from model.data.dataset import PairData, TextData
from model.data.resident import IGNORED
from model.families import FAMILIES
from model.nn.precision import prepare
from model.training import checkpoint as checkpoints
from model.training import monitor
from model.training.learner import Learner
from model.training.memory import MemoryLimit, ran_out
from tests.forked import FORKING
from tests.model.conftest import Script, assert_parts_add_up, losses_of, prepared, same_weights
from tune.reports import Report
from tune.search.memory_model import ESTIMATE_FACTOR, first_overhead

CPU = torch.device("cpu")
Run = Callable[..., list[Report]]
pytestmark = pytest.mark.usefixtures("eager")


def raised(act: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        act()
    return caught.value


def caused(by: BaseException) -> Exception:
    error = RuntimeError("the compiler failed")
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    "act",
    [
        lambda: torch.empty(2**50),
        lambda: np.empty(2**55, dtype=np.uint8),
        lambda: bytearray(2**55),
    ],
    ids=["torch", "numpy", "python"],
)
def test_what_allocators_raise_is_known(act: Callable[[], object]) -> None:
    assert ran_out(raised(act))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (caused(MemoryError()), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("checkpoint: it is of another configuration, and says: out of memory"), False),
        (caused(ValueError("no")), False),
        (None, False),
    ],
    ids=str,
)
def test_running_out_is_told_from_other_errors(error: BaseException | None, expected: bool) -> None:
    assert ran_out(error) is expected


@pytest.mark.parametrize("limited", [True, False])
def test_what_onednn_says_of_much_else_is_running_out_only_under_a_limit(
    limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.training.memory.is_memory_limited", lambda: limited)
    assert ran_out(RuntimeError("could not create a primitive")) is limited


@pytest.fixture
def text(small: dict[str, tuple]) -> tuple[Config, Any]:
    """Without dropout, which parts would draw differently."""
    config, data = small["text"]
    return replace(config, dropout=0.0), data


@pytest.mark.parametrize("family", ["text", "pairs"])
@pytest.mark.parametrize("micro_batches", [3, 64])
def test_parts_of_a_batch_make_the_step_of_the_whole(family: str, small: dict[str, tuple], micro_batches: int) -> None:
    """The gradients, that is: where one is next to nothing, the optimizer makes a whole step of its rounding."""
    config, data = small[family]
    assert_parts_add_up(replace(config, dropout=0.0), data, micro_batches)


def test_a_part_without_targets_leaves_the_loss_that_of_the_whole(text: tuple[Config, Any]) -> None:
    """As a user's family may have rows without any, such as a masked language model."""
    whole, cut = (Learner(*text, CPU, parts) for parts in (1, 64))
    batch = whole.batches.any_batch()
    targets = batch.targets.clone()
    targets[0] = IGNORED
    given = replace(batch, targets=targets, tokens=int((targets != IGNORED).sum()))
    for learner in (whole, cut):
        learner.batches = iter([given])  # type: ignore[assignment]
    assert losses_of(cut, 1) == pytest.approx(losses_of(whole, 1))


def short_of_memory(monkeypatch: pytest.MonkeyPatch, most_rows: int) -> list[int]:
    """Let a step run out of memory beyond so many rows, half way through; returns the rows that were tried."""
    backward, tried = Learner._backward, []

    def scarce(self: Learner, batch: Any, *share: Any) -> torch.Tensor:
        tried.append(len(batch.targets))
        loss = backward(self, batch, *share)
        if len(batch.targets) > most_rows:
            raise MemoryError
        return loss

    monkeypatch.setattr(Learner, "_backward", scarce)
    return tried


def test_a_batch_that_does_not_fit_is_halved_until_it_does(
    text: tuple[Config, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = losses_of(Learner(*text, CPU))
    tried = short_of_memory(monkeypatch, most_rows=2)
    learner = Learner(*text, CPU)
    learner.dry_step()
    in_dry_step = len(tried)
    assert learner.is_out_of_memory and learner.micro_batches > 1
    assert losses_of(learner) == pytest.approx(expected, rel=1e-5)
    assert max(tried[-3:]) <= 2 and len([rows for rows in tried[in_dry_step:] if rows > 2]) <= 1


def test_what_does_not_fit_in_the_smallest_parts_is_an_error_and_other_errors_are_not_tried_again(
    text: tuple[Config, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = short_of_memory(monkeypatch, most_rows=0)
    with pytest.raises(MemoryError):
        losses_of(Learner(*text, CPU))
    assert tried[-1] == 1
    tried.clear()

    def fails(self: Learner, batch: Any, *share: Any) -> torch.Tensor:
        tried.append(1)
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(Learner, "_backward", fails)
    with pytest.raises(RuntimeError, match="shapes differ"):
        losses_of(Learner(*text, CPU))
    assert len(tried) == 1


def test_a_dry_step_changes_nothing(small_pairs: Config, pair_data: PairData, tmp_path: Path, run: Run) -> None:
    plain = run(small_pairs, pair_data, tmp_path / "a", steps=3)[-1]
    dry = run(small_pairs, pair_data, tmp_path / "b", steps=3, dry_step=True)[-1]
    assert same_weights(plain, dry)
    assert not dry.ran_out and dry.micro_batches == 1


def test_a_segment_tells_that_it_ran_out_and_how_it_went_on(life: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    short_of_memory(monkeypatch, most_rows=2)
    last = life(steps=2)[-1]
    assert (last.ran_out, last.micro_batches, last.ended) == (True, 4, "rung")


def short_in_evaluations(monkeypatch: pytest.MonkeyPatch, error: Exception, *, whole: bool) -> list[int | None]:
    """Let those of whole splits fail, or all; returns what was asked for, in target tokens."""
    evaluate, asked = monitor.evaluate, []

    def scarce(*given: Any, tokens: int | None, **named: Any) -> Any:
        asked.append(tokens)
        if tokens is None or not whole:
            raise error
        return evaluate(*given, tokens=tokens, **named)

    monkeypatch.setattr(monitor, "evaluate", scarce)
    return asked


def test_an_evaluation_that_memory_does_not_suffice_for_costs_itself_alone(
    clock: Script, life: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.learns, asked = False, short_in_evaluations(monkeypatch, MemoryError(), whole=True)
    last = life(steps=20, final=True)[-1]
    assert asked.count(None) == 2, "valid and test"
    assert last.ended == "final" and not last.whole and last.test is None and not last.ran_out
    assert last.valid is not None and Path(str(last.checkpoint)).name == f"{checkpoints.AFTER_DECAY}-000020"
    assert checkpoints.load(Path(str(last.checkpoint))).state["steps"] == last.steps == 20


@pytest.mark.parametrize("final", [True, False])
def test_without_memory_for_the_smallest_evaluation_a_segment_says_so_and_leaves_its_checkpoint(
    clock: Script, life: Run, monkeypatch: pytest.MonkeyPatch, final: bool
) -> None:
    clock.learns, asked = False, short_in_evaluations(monkeypatch, MemoryError(), whole=False)
    last = life(steps=20, final=final)[-1]
    assert (last.ended, last.valid, last.test) == ("unmeasured", None, None)
    assert checkpoints.load(Path(str(last.checkpoint))).state["steps"] == 20
    assert len([tokens for tokens in asked if tokens is not None]) == 1, "it is not tried in vain again and again"


def test_other_errors_of_an_evaluation_are_not_taken_for_it(
    clock: Script, life: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.learns = False
    short_in_evaluations(monkeypatch, RuntimeError("shapes differ"), whole=True)
    with pytest.raises(RuntimeError, match="shapes differ"):
        life(steps=20, final=True)


def test_on_paper_smaller_parts_need_less_down_to_single_rows(small_text: Config, text_data: TextData) -> None:
    config = replace(small_text, batch_tokens=2**14, layers=8, d_model=64)
    most = FAMILIES["nanogpt"].most_micro_batches(config, text_data)
    shape = batch_shape(text_data, batch_tokens=config.batch_tokens, context=config.context)
    assert most >= shape.rows > most // 2
    sizes = [memory_estimate(config, text_data, micro_batches=parts, device=CPU) for parts in (1, 4, 16)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 2 * sizes[2]


SEEN = [
    ("nanogpt", (128, 4, 4), {}, 66, None, 453),
    ("nanogpt", (768, 12, 6), {}, 66, None, 4519),
    ("nanogpt", (256, 4, 4), {"precision": "fp32"}, 66, None, 1852),
    ("nanogpt", (512, 8, 4), {"context": 256}, 66, None, 2041),
    ("nanogpt", (128, 4, 4), {"context": 256, "batch_tokens": 12_288}, 8192, None, 3919),
    ("nanogpt", (384, 4, 6), {"context": 256, "batch_tokens": 12_288}, 8192, None, 4943),
    ("nanogpt", (384, 8, 8), {"context": 256, "batch_tokens": 12_288}, 8192, None, 5369),
    ("nanogpt", (512, 8, 6), {"context": 256, "batch_tokens": 12_288}, 8192, None, 5669),
    ("translation", (128, 4, 4), {"batch_tokens": 12_288}, 4096, (55, 64), 1489),
    ("translation", (384, 6, 6), {"batch_tokens": 12_288}, 4096, (55, 64), 4205),
    ("translation", (384, 8, 4), {}, 4096, (55, 64), 3852),
    ("translation", (384, 8, 6), {}, 4096, (55, 64), 5146),
]
"""Of an H200: family, width, heads, layers, what else, vocabulary, a row, and the MB that torch kept for such a trial,
its evaluation included, beside what the process keeps (docs/log.md, days 27, 33 and 42)."""


@pytest.mark.parametrize(("family", "shape", "changes", "vocabulary", "row", "megabytes"), SEEN)
def test_what_a_gpu_keeps_for_a_trial_is_predicted(
    family: str, shape: tuple[int, int, int], changes: dict[str, Any], vocabulary: int, row: tuple[int, int] | None,
    megabytes: int, text_data: TextData, pair_data: PairData,
) -> None:  # fmt: skip
    sizes = dict(zip(("d_model", "heads", "layers"), shape, strict=True))
    config = Config(family=family, **{"precision": "bf16", "batch_tokens": 16_384, **sizes, **changes})
    text, pairs = replace(text_data, vocabulary=vocabulary), replace(pair_data, vocabulary=vocabulary)
    data = text if row is None else replace(pairs, row=row)
    estimate = memory_estimate(config, data, micro_batches=1, device=torch.device("cuda"))
    predicted = first_overhead(family, "cuda") + ESTIMATE_FACTOR * estimate
    assert predicted == pytest.approx(1e6 * megabytes, rel=0.1)


MEGABYTE = 2**20


def under_a_limit() -> None:
    """What a process of its own does."""
    gc.freeze()  # what it began with is not looked through each time that memory runs out
    text = "the cat sat on a mat and saw another bird. " * 1000
    data = prepared(text, text[:999])
    torch.set_num_threads(1)
    limit = MemoryLimit(300 * MEGABYTE, CPU)
    peak_flops("fp32", CPU)  # as what a trial's process does before it begins
    limit.begin()
    whole = Learner._by_parts

    def hungry(learner: Any, batch: Any) -> torch.Tensor:
        ballast = torch.ones(290 * MEGABYTE // learner.micro_batches, dtype=torch.uint8)  # noqa: F841 - until the end
        learner.kept = torch.ones(20_000)  # lies above it, as kernels made in a step do
        return whole(learner, batch)

    Learner._by_parts = hungry  # type: ignore[method-assign]
    config = Config(family="nanogpt", d_model=192, layers=2, batch_tokens=1024, context=64)
    learner = Learner(config, data, CPU)
    for _ in range(2):
        learner.step(1.0)  # what was freed when it ran out is there for its parts
    assert learner.is_out_of_memory and learner.micro_batches == 2, (learner.is_out_of_memory, learner.micro_batches)
    assert limit.counted_bytes() < 150 * MEGABYTE, limit.counted_bytes()  # the ballast counts no more

    def fits(megabytes: int) -> bool:
        try:
            torch.ones(megabytes * MEGABYTE // 4)
        except RuntimeError as error:
            assert ran_out(error), error
            return False
        return True

    limit.lift()
    prepare("fp32", "cpu")  # which lets the heap keep what is freed, now that there is no limit
    for trial in range(2):
        limit.begin()
        assert fits(200) and not fits(400) and fits(100), trial  # less than before: small things lie in the gap now
        kept = torch.ones(50 * MEGABYTE // 4)  # noqa: F841 - what a trial leaves behind is not the next one's
    limit.lift()
    assert fits(400)
    MemoryLimit(10**20, CPU).begin()  # more than the system can count
    assert fits(400)


def test_a_limit_holds_every_trial_of_a_process_and_what_was_freed_when_memory_ran_out_is_there() -> None:
    process = FORKING.Process(target=under_a_limit)
    process.start()
    process.join()
    assert process.exitcode == 0
