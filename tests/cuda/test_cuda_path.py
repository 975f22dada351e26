"""What training does on a GPU, on one that is none: all lies on the device, no step waits for it, kernels are few."""

import itertools
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model.config import Config, Data
from model.data import batches
from model.data.batches import Batch
from model.data.tokenizer import Tokenizer
from model.inference import continuation, translations
from model.nn.gpt import GPT
from model.nn.loss import sums
from model.nn.precision import PRECISIONS
from model.nn.translator import Translator
from model.training.evaluation import IN_FLIGHT, evaluate
from model.training.graph import GraphedLearner, make_learner
from model.training.learner import Learner
from model.training.memory import MemoryLimit
from model.training.time_budget import Segment
from model.training.train import train
from tests.cuda.fake_cuda import CUDA, Misplaced, Seen, fake_cuda

FAMILIES = ("nanogpt", "translation")
LAYERS = 4
LAUNCHES = {
    ("nanogpt", "muon"): 309, ("nanogpt", "adamw"): 244, ("translation", "muon"): 558, ("translation", "adamw"): 477,
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
def test_a_step_is_all_on_the_device_and_waits_for_nothing(
    family: str, precision: str, optimizer: str, data: dict[str, Data]
) -> None:
    with fake_cuda() as seen:
        made = learner(family, data, precision=precision, optimizer=optimizer)
        seen.clear()
        step = made.step(1.0)
        assert step.loss.device == step.gradient_norm.device == CUDA
        assert not seen.waits and not seen.copies


@pytest.mark.parametrize(("family", "optimizer"), LAUNCHES)
def test_a_step_has_few_kernels(family: str, optimizer: str, data: dict[str, Data]) -> None:
    with fake_cuda() as seen:
        made = learner(family, data, layers=LAYERS, optimizer=optimizer)
        seen.clear()
        made.step(1.0)
        assert seen.launches.total() <= LAUNCHES[family, optimizer], seen.launches


@BOTH
def test_parts_of_a_batch_and_a_rehearsal_wait_for_nothing_either(family: str, data: dict[str, Data]) -> None:
    with fake_cuda() as seen:
        made = learner(family, data, micro_batches=4)
        seen.clear()
        made.rehearse()
        made.step(1.0)
        assert not seen.waits


@BOTH
def test_it_learns_there_what_it_learns_on_a_cpu(family: str, data: dict[str, Data]) -> None:
    asked = config(family, dropout=0.0, precision="fp32", optimizer="adamw")

    def losses(device: torch.device) -> list[float]:
        made = Learner(asked, data[family], device)
        return [made.step(1.0).loss.item() for _ in range(4)]

    host = losses(torch.device("cpu"))
    with fake_cuda():
        there = losses(CUDA)
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
            losses.append([made.step(1.0).loss.item() for _ in range(3)])
            launches.append(seen.launches.total())
    assert losses[0] == losses[1] and launches[0] < launches[1]


@BOTH
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_rehearsal_changes_nothing(family: str, precision: str, data: dict[str, Data]) -> None:
    losses = []
    with fake_cuda():
        for rehearsed in (False, True):
            made = Learner(config(family, precision=precision), data[family], CUDA)
            if rehearsed:
                made.rehearse()
            losses.append([made.step(1.0).loss.item() for _ in range(3)])
    assert losses[0] == losses[1]


STEPS = 6


def advanced(made: Learner, steps: int = STEPS) -> list[float]:
    """Losses, and the last norm, of steps at rates that change; some at a time."""
    told = list[float]()
    factors = [min(1.0, (step + 1) / 3) * (1 - step / steps) for step in range(steps)]
    for some in (factors[:1], factors[1:4], factors[4:]):
        step = made.advance(some)
        told += [*step.loss.tolist(), step.gradient_norm.item()]
    return told


def no_graph(_: object, stream: object) -> None:
    raise RuntimeError("no graph here")


def both_ways(take: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, int]]:
    """What steps tell, and how many were replayed: kernel by kernel, and as they are taken on a GPU."""
    told = []
    for ways in ({"graph": no_graph}, {}):
        with fake_cuda() as seen, monkeypatch.context() as patch:
            for name, way in ways.items():
                patch.setattr(torch.cuda, name, way)
            told.append((take(), seen.launches["graph"]))
    return told


@pytest.mark.parametrize(("family", "changes"), [
    *((each, {}) for each in FAMILIES),
    ("nanogpt", {"precision": "fp16"}), ("nanogpt", {"optimizer": "adamw"}), ("translation", {"micro_batches": 2}),
], ids=str)  # fmt: skip
def test_a_graph_learns_what_is_learned_kernel_by_kernel(
    family: str, changes: dict[str, Any], data: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    def take() -> list[float]:
        made = make_learner(config(family, **changes), data[family], CUDA)
        made.rehearse()
        return advanced(made)

    eager, graphed = both_ways(take, monkeypatch)
    assert eager == (graphed[0], 0) and graphed[1] == STEPS


@BOTH
def test_where_dropout_begins_the_graph_is_made_anew(
    family: str, data: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    def losses(dropout: float) -> list[float]:
        two_steps = 2 * 128 / data[family].training_tokens
        made = make_learner(config(family, dropout=dropout, dropout_after=two_steps), data[family], CUDA)
        made.rehearse()
        return advanced(made)

    eager, graphed = both_ways(lambda: losses(0.5), monkeypatch)
    with fake_cuda():
        without = losses(0.0)
    assert eager == (graphed[0], 0) and graphed[1] > STEPS / 2
    assert graphed[0] != without and graphed[0][0] == without[0]


def test_no_graph_is_kept_beside_a_step_that_is_taken_anew(
    warm: None, data: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory would be kept too."""
    made_so_far, kept = list[weakref.ref[Any]](), list[int]()
    with fake_cuda(), monkeypatch.context() as patch:  # undone before the fake is
        make = torch.cuda.CUDAGraph
        made = make_learner(config("nanogpt", dropout=0.5, dropout_after=0.01), data["nanogpt"], CUDA)
        real = made.family.losses

        def a_graph() -> Any:
            graph = make()
            made_so_far.append(weakref.ref(graph))
            return graph

        def losses(*given: Any) -> Any:
            kept.append(sum(each() is not None for each in made_so_far))
            return real(*given)

        patch.setattr(torch.cuda, "CUDAGraph", a_graph)
        patch.setattr(made.family, "losses", losses)
        made.rehearse()
        assert not made.dropout
        made.advance([1.0] * STEPS)
        assert made.dropout and made.graphed
        patch.setattr(torch, "compile", lambda function, **_: function)
        made.compile()
        made.advance([1.0])
    first, again, *checks = kept[:2], kept[2:4], *kept[4:-1]
    assert first == again == [0, 1]  # a step, its capture; and both again where dropout begins
    assert not any(checks) and kept[-1] == 1  # what is compiled is looked at, taken, captured


@pytest.mark.parametrize(("family", "dropout", "precision"), [("nanogpt", 0.5, "fp32"), ("translation", 0.0, "fp16")])
def test_what_is_compiled_is_taken_only_with_the_gradients_of_what_is_not(
    family: str, dropout: float, precision: str, warm: None, data: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    used, told = [], []
    monkeypatch.setattr("model.training.learner.MISCOMPILED", set())

    def compiled(function: Callable[..., Any], **_: object) -> Callable[..., Any]:
        def run(inputs: Any, targets: torch.Tensor) -> Any:
            used.append(len(targets))
            return function(inputs, targets)

        return run

    def miscompiled(function: Callable[..., Any], **_: object) -> Callable[..., Any]:
        """With the loss of the whole, and the gradients of half of it."""

        def run(inputs: Any, targets: torch.Tensor) -> Any:
            used.append(len(targets))
            half = torch.where(torch.arange(len(targets), device=CUDA)[:, None] % 2 == 0, targets, batches.IGNORED)
            (loss, plain), (part, _) = function(inputs, targets), function(inputs, half)
            return part + (loss - part).detach(), plain

        return run

    def broken(function: Callable[..., Any], **_: object) -> Callable[..., Any]:
        def run(*_: object) -> Any:
            raise RuntimeError("no kernel")

        return run

    for how in (None, compiled, broken, miscompiled):
        with fake_cuda(), monkeypatch.context() as patch:
            made = make_learner(config(family, dropout=dropout, precision=precision), data[family], CUDA)
            made.rehearse()
            made.advance([1.0] * 8)  # so that a scaler has found its scale
            if how is not None:
                patch.setattr(torch, "compile", how)
                made.compile()
                used.clear()
            told.append(made.advance([1.0, 1.0]).loss.tolist())
            assert bool(used) == (how is compiled) and made.can_compile() == (how is not miscompiled)
            assert made.graphed
    assert told[0] == told[1] == told[2] == told[3]


@BOTH
def test_gradients_are_added_up_on_the_stream_of_the_captures_alone(
    family: str, data: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autograd has a capture wait for the stream on which it added up before, which no capture may."""
    added, captured = set[object](), set[object]()
    with fake_cuda(), monkeypatch.context() as patch:  # undone before the fake is
        made = make_learner(config(family), data[family], CUDA)
        for parameter in made.names:
            parameter.register_post_accumulate_grad_hook(lambda _: added.add(torch.cuda.current_stream()))
        patch.setattr(torch.cuda, "graph", lambda graph, stream: captured.add(stream) or no_graph(graph, stream))
        made.rehearse()
        made.advance([1.0])
    assert added == captured and len(captured) == 1


@BOTH
def test_many_steps_at_once_are_those_taken_one_by_one(family: str, data: dict[str, Data]) -> None:
    asked, factors = config(family, precision="fp32", dropout=0.0), [0.5, 1.0, 0.7, 0.2]
    with fake_cuda():
        one = Learner(asked, data[family], CUDA)
        steps = [one.step(factor) for factor in factors]
        at_once = make_learner(asked, data[family], CUDA)
        at_once.rehearse()
        found = at_once.advance(factors)
        assert found.loss.tolist() == pytest.approx([step.loss.item() for step in steps], rel=1e-2)
        assert found.gradient_norm.item() == pytest.approx(steps[-1].gradient_norm.item(), rel=5e-2)
        assert (
            found.tokens == sum(step.tokens for step in steps) and at_once.state()["batches"] == one.state()["batches"]
        )


@BOTH
def test_a_replayed_step_is_one_launch_without_copy_or_wait(family: str, data: dict[str, Data]) -> None:
    with fake_cuda() as seen:
        made = make_learner(config(family, average=0.0), data[family], CUDA)
        made.rehearse()
        made.advance([1.0])
        assert_one_launch_a_step(seen, lambda steps: made.advance([1.0] * steps))


def assert_one_launch_a_step(seen: Seen, advance: Callable[[int], object]) -> None:
    counts = []
    for steps in (4, 8):
        seen.clear()
        advance(steps)
        counts.append((seen.launches.total(), len(seen.copies)))
        assert not seen.waits
    (few, copies), (many, again) = counts
    assert many - few == 4 and copies == again


@BOTH
def test_where_memory_runs_out_the_parts_get_a_graph(
    family: str, data: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, losses = config(family), []
    with fake_cuda():
        cut = make_learner(asked, data[family], CUDA, 2)
        cut.rehearse()
        losses.append(advanced(cut))
        made = make_learner(asked, data[family], CUDA)
        rows, real = len(made.batches.some().targets), made.family.losses

        def within_half(model: torch.nn.Module, asked: Config, inputs: Any, targets: torch.Tensor) -> Any:
            if len(targets) > rows - rows // 2:
                raise torch.OutOfMemoryError("planted")
            return real(model, asked, inputs, targets)

        monkeypatch.setattr(made.family, "losses", within_half)
        made.rehearse()
        assert made.micro_batches == 2 and made.ran_out and made.graphed
        losses.append(advanced(made))
    assert losses[0] == losses[1]


def test_a_limit_is_the_same_for_each_trial_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the last one left."""
    held, told = [5e9], list[float]()
    with fake_cuda(), monkeypatch.context() as patch:  # undone before the fake is
        patch.setattr(torch.cuda, "memory_reserved", lambda *_: held[0])
        patch.setattr(torch.cuda, "empty_cache", lambda: held.__setitem__(0, 3e8))
        patch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(total_memory=10**11))
        patch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, *_: told.append(share))
        limit = MemoryLimit(2 * 10**9, CUDA)
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


class Baked(GraphedLearner):
    """A step whose rate is a number."""

    def _update(self) -> torch.Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_rate"] / 5
        return super()._update()


class Asking(GraphedLearner):
    """A step that reads its loss."""

    def _by_parts(self, batch: Batch) -> torch.Tensor:
        loss = super()._by_parts(batch)
        assert loss.item() < 100
        return loss


def test_what_a_graph_would_freeze_or_cannot_hold_is_found(data: dict[str, Data]) -> None:
    told = []
    with fake_cuda() as seen:
        for kind in (GraphedLearner, Baked, Asking):
            made = kind(config("nanogpt"), data["nanogpt"], CUDA)
            made.rehearse()
            seen.clear()
            told.append(advanced(made))
            assert bool(seen.launches["graph"]) == (kind is not Asking)
    right, baked, asking = told
    assert baked != right and asking == right


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


@BOTH
@pytest.mark.parametrize("plant", [table_on_the_host, moments_on_the_host, loss_read, boolean_index])
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
