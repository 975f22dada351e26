"""What training does on a GPU, on one that is none: all lies on the device, no step waits for it, kernels are few."""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from model.config import Config, Data
from model.data import batches
from model.data.tokenizer import Tokenizer
from model.inference import continuation, translations
from model.nn.gpt import GPT
from model.nn.loss import sums
from model.nn.precision import PRECISIONS, set_compute
from model.nn.translator import RESIDENT, Translator
from model.training.evaluation import IN_FLIGHT, evaluate
from model.training.learner import Learner, Step
from model.training.memory import MemoryLimit
from model.training.time_budget import Segment
from model.training.train import train
from tests.cuda.fake_cuda import CUDA, Misplaced, Seen, fake_cuda
from tests.model.conftest import losses_of, prepared_pairs

FAMILIES = ("nanogpt", "translation")
LAYERS = 4
LAUNCHES = {
    ("nanogpt", "muon"): 309, ("nanogpt", "adamw"): 244, ("translation", "muon"): 557, ("translation", "adamw"): 476,
}  # fmt: skip
"""A step with so many layers in bf16, its batch's gather too: to be lowered, never raised."""
Plant = Callable[[Learner, pytest.MonkeyPatch], None]
BOTH = pytest.mark.parametrize("family", FAMILIES)


def config(family: str, **changes: object) -> Config:
    small = {
        "d_model": 16, "heads": 2, "layers": 1, "context": 16, "batch_tokens": 128, "precision": "bf16",
        "dropout_after": 0,
    }  # fmt: skip
    return Config(family=family, **small | changes)  # type: ignore[arg-type]


def learner(family: str, data: dict[str, Data], **changes: object) -> Learner:
    """With a step behind it."""
    made = Learner(config(family, **changes), data[family], CUDA)
    made.step(1.0)
    return made


@BOTH
@pytest.mark.parametrize(("precision", "optimizer"), [*((each, "muon") for each in PRECISIONS), ("bf16", "adamw")])
def test_a_step_is_all_on_the_device_waits_for_nothing_and_has_few_kernels(
    family: str, precision: str, optimizer: str, data: dict[str, Data]
) -> None:
    counted = precision == "bf16"
    with fake_cuda() as seen:
        made = learner(family, data, precision=precision, optimizer=optimizer, layers=LAYERS if counted else 1)
        seen.clear()
        step = made.step(1.0)
        assert step.loss.device == step.gradient_norm.device == CUDA
        assert not seen.waits and not seen.copies
        assert not counted or seen.launches.total() <= LAUNCHES[family, optimizer], seen.launches


def test_a_step_on_sentences_beyond_the_tables_that_are_kept_waits_for_nothing_either() -> None:
    pairs = [(" ".join(["one"] * (RESIDENT + 1)), " ".join(["uno"] * (RESIDENT + 2)))] * 40
    with fake_cuda() as seen:
        made = learner("translation", {"translation": prepared_pairs(pairs, pairs[:2], pairs[:2])})
        seen.clear()
        made.step(1.0)
        assert not seen.waits and not seen.copies


@BOTH
def test_parts_of_a_batch_and_a_dry_step_wait_for_nothing_either(family: str, data: dict[str, Data]) -> None:
    with fake_cuda() as seen:
        made = learner(family, data, micro_batches=4)
        seen.clear()
        made.dry_step()
        made.step(1.0)
        assert not seen.waits


def test_a_model_with_no_layer_of_ours_computes_there_in_fp32_as_on_a_cpu() -> None:
    with fake_cuda():
        model = torch.nn.Linear(2, 2).to(CUDA)
        set_compute(model, "bf16")
        assert model(torch.zeros(1, 2, device=CUDA)).dtype == torch.float32


@BOTH
def test_it_learns_there_what_it_learns_on_a_cpu(family: str, data: dict[str, Data]) -> None:
    asked = config(family, dropout=0.0, precision="fp32", optimizer="adamw")

    host = losses_of(Learner(asked, data[family], torch.device("cpu")), 4)
    with fake_cuda():
        there = losses_of(Learner(asked, data[family], CUDA), 4)
    assert there == pytest.approx(host, rel=1e-3) and host[-1] != pytest.approx(host[0], rel=1e-3)


@BOTH
def test_weights_cast_at_once_give_the_bits_of_weights_cast_one_by_one(
    family: str, data: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, launches = [], []
    for several_processes in (False, True):
        monkeypatch.setattr("torch.distributed.is_initialized", lambda several=several_processes: several)
        with fake_cuda() as seen:
            made = learner(family, data, dropout=0.1)
            losses.append(losses_of(made))
            launches.append(seen.launches.total())
    assert losses[0] == losses[1] and launches[0] < launches[1]


@pytest.mark.parametrize(("family", "precision"), [("nanogpt", "fp16"), ("translation", "bf16")])
def test_a_dry_step_changes_nothing(family: str, precision: str, data: dict[str, Data]) -> None:
    losses = []
    with fake_cuda():
        for dry in (False, True):
            made = Learner(config(family, precision=precision), data[family], CUDA)
            if dry:
                made.dry_step()
            losses.append(losses_of(made))
    assert losses[0] == losses[1]


def test_a_limit_is_the_same_for_each_trial_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the last one left."""
    held, told = [5e9], list[float]()
    with fake_cuda(), monkeypatch.context() as patch:  # undone before the fake is
        patch.setattr(torch.cuda, "memory_reserved", lambda *_: held[0])
        patch.setattr(torch.cuda, "empty_cache", lambda: held.__setitem__(0, 3e8))
        patch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(total_memory=10**11))
        patch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch._C, "_cuda_setMemoryFraction", lambda share, _: told.append(share), raising=False)
        limit = MemoryLimit(2 * 10**9, torch.device("cuda"))  # as a trial names it, without an index
        for held[0] in (0.0, 5e9, 7e9):
            limit.begin()
    assert told == pytest.approx([0.023] * 3)


def test_an_evaluation_makes_fp32_of_a_few_logits_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = torch.randn(40, 10, dtype=torch.bfloat16), torch.arange(40) % 10
    nats, right = sums(logits, targets)
    monkeypatch.setattr("model.nn.loss.EVALUATED_AT_ONCE", 100)
    with fake_cuda() as seen:
        found = sums(logits.to(CUDA), targets.to(CUDA))
        assert [each.item() for each in found] == pytest.approx([nats.item(), right.item()])
        assert seen.launches["_log_softmax"] == 4


@BOTH
def test_an_evaluation_waits_twice_and_now_and_then_for_what_is_in_flight(
    family: str, data: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "EVALUATION_TOKENS", 1)
    with fake_cuda() as seen:
        made = learner(family, data, context=64)
        for split in ("valid", "test"):
            given = made.family.evaluation_batches(made.config, data[family], split, None, CUDA)
            count = sum(1 for _ in given)
            seen.clear()
            assert count > IN_FLIGHT
            assert evaluate(made.model, made.config, data[family], split, device=CUDA) is not None
            assert len(seen.waits) <= 2 + count // IN_FLIGHT


@BOTH
def test_decoding_is_done_there(family: str, data: dict[str, Data]) -> None:
    with fake_cuda() as seen:
        model = learner(family, data).model.eval()
        tokenizer = Tokenizer.from_json(data[family].tokenizer)
        seen.clear()
        if isinstance(model, Translator):
            assert len(translations(model, tokenizer, ["one two", "three", ""])) == 3
        elif isinstance(model, GPT):
            continuation(model, tokenizer, "the cat", 4)
        assert seen.launches


@BOTH
def test_segments_run_there_and_one_that_goes_on_ends_as_if_it_had_never_stopped(
    family: str, data: dict[str, Data], tmp_path: Path
) -> None:
    """To the bit, as this GPU has a CPU's arithmetic: a graph reads the memory into which a checkpoint is read."""
    ticks, losses = itertools.count(), []
    for goals in ((6,), (3, 6)):
        path = None
        with fake_cuda() as seen:
            for goal in goals:
                (*_, last) = train(
                    config(family, warm_up_steps=5), data[family], Segment(device_seconds=1e6, steps=goal), device=CUDA,
                    folder=tmp_path / f"{goals}", checkpoint=path, evaluation_tokens=64,
                    clock=lambda: float(next(ticks)),
                )  # fmt: skip
                path = Path(last.checkpoint or "")
                assert (last.steps, last.ended) == (goal, "rung") and seen.launches["graph"] == goal
        assert last.valid is not None
        losses.append(last.valid.loss)
    assert losses[0] == losses[1]


def test_a_curve_is_seen_at_equal_distances_however_many_steps_are_given_at_once(
    data: dict[str, Data], tmp_path: Path
) -> None:
    ticks = itertools.count()
    segment = Segment(device_seconds=1e6, steps=60, final=True, curve=True)
    with fake_cuda():
        reports = train(
            config("nanogpt", warm_up_steps=5), data["nanogpt"], segment, device=CUDA, folder=tmp_path,
            evaluation_tokens=64, clock=lambda: 0.05 * next(ticks),
        )  # fmt: skip
        seen = [report.steps for report in reports if report.valid is not None]
    assert len(seen) > 5 and len({after - before for before, after in itertools.pairwise(seen)}) == 1


def test_a_decay_begins_at_its_step_however_many_are_given_at_once(data: dict[str, Data], tmp_path: Path) -> None:
    now, factors = 0.0, list[float]()

    class Timed(Learner):
        def step(self, factor: float) -> Step:
            nonlocal now
            now, self.steps = now + 0.001, self.steps + 1
            factors.append(factor)
            return Step(loss=torch.zeros(()), gradient_norm=torch.zeros(()), tokens=128)

    steps, asked = 2_000, config("nanogpt", warm_up_steps=5)
    segment = Segment(device_seconds=1e6, steps=steps, final=True)
    with fake_cuda():
        made = train(
            asked, data["nanogpt"], segment, device=CUDA, folder=tmp_path, evaluation_tokens=64, clock=lambda: now,
            make=Timed,
        )  # fmt: skip
        (*_, last) = made
    decayed = [step for step, factor in enumerate(factors) if step > 5 and factor < 1]
    assert last.steps == steps and decayed[0] == pytest.approx((1 - asked.decay_share) * steps, abs=1)


def table_on_the_host(made: Learner, patch: pytest.MonkeyPatch) -> None:
    model = made.model
    holder = model.transformer if isinstance(model, GPT) else model
    holder.cosines = torch.ones_like(holder.cosines, device="cpu")  # type: ignore


def moments_on_the_host(made: Learner, patch: pytest.MonkeyPatch) -> None:
    for values in made.optimizer.state.values():
        values.update({name: tensor.cpu() for name, tensor in values.items()})


def loss_read(made: Learner, patch: pytest.MonkeyPatch) -> None:
    real = made._loss
    patch.setattr(made, "_loss", lambda *given: (lambda both: (both[0] * float(both[1]), both[1]))(real(*given)))


def boolean_index(made: Learner, patch: pytest.MonkeyPatch) -> None:
    real = made._loss
    patch.setattr(made, "_loss", lambda inputs, targets: (targets[targets > 1], real(inputs, targets))[1])


@pytest.mark.parametrize(
    ("family", "plant"),
    [(family, table_on_the_host) for family in FAMILIES]
    + [("nanogpt", moments_on_the_host), ("translation", loss_read), ("nanogpt", boolean_index)],
)
def test_what_is_planted_is_found(
    family: str, plant: Plant, data: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(seen: Seen) -> bool:
        try:
            made.step(1.0)
        except Misplaced:
            return True
        return bool(seen.waits)

    with fake_cuda() as seen:
        made = learner(family, data)
        plant(made, monkeypatch)
        seen.clear()
        assert found(seen)
