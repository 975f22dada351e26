"""The step as one graph, on a GPU that is none: what it learns, when it is made anew, and what it would freeze."""

import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import Config, Data
from model.data import batches
from model.data.batches import Batch
from model.training.graph import GraphedLearner, make_learner
from model.training.learner import Learner
from tests.cuda.fake_cuda import CUDA, Seen, fake_cuda
from tests.cuda.test_cuda_path import config
from tune.backend.worker_group import TaskContext
from tune.experiments import life_training

STEPS = 6


def advanced(made: Learner, steps: int = STEPS) -> list[float]:
    """Losses, and the last norm, of steps at rates that change; some at a time."""
    told = list[float]()
    factors = [min(1.0, (step + 1) / 3) * (1 - step / steps) for step in range(steps)]
    for some in (factors[:1], factors[1:4], factors[4:]):
        step = made.take_steps(some)
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


@pytest.mark.parametrize(
    ("family", "changes"),
    [("nanogpt", {}), ("nanogpt", {"precision": "fp16", "optimizer": "adamw"}), ("translation", {"micro_batches": 2})],
    ids=str,
)
def test_a_graph_learns_what_is_learned_kernel_by_kernel(
    family: str, changes: dict[str, Any], data: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    def take() -> list[float]:
        made = make_learner(config(family, **changes), data[family], CUDA)
        made.dry_step()
        return advanced(made)

    eager, graphed = both_ways(take, monkeypatch)
    assert eager == (graphed[0], 0) and graphed[1] == STEPS


def test_where_dropout_begins_the_graph_is_made_anew(data: dict[str, Data], monkeypatch: pytest.MonkeyPatch) -> None:
    text = data["nanogpt"]

    def losses(dropout: float) -> list[float]:
        two_steps = 2 * 128 / text.training_tokens
        made = make_learner(config("nanogpt", dropout=dropout, dropout_after=two_steps), text, CUDA)
        made.dry_step()
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
        made.dry_step()
        assert not made.dropout
        made.take_steps([1.0] * STEPS)
        assert made.dropout and made.graphed
        patch.setattr(torch, "compile", lambda function, **_: function)
        made.compile()
        made.take_steps([1.0])
    first, again, *checks = kept[:2], kept[2:4], *kept[4:-1]
    assert first == again == [0, 1]  # a step, its capture; and both again where dropout begins
    assert not any(checks) and kept[-1] == 1  # what is compiled is looked at, taken, captured


@pytest.mark.parametrize(("family", "dropout", "precision"), [("nanogpt", 0.5, "fp32"), ("translation", 0.0, "fp16")])
def test_what_is_compiled_is_taken_only_with_the_gradients_of_what_is_not(
    family: str, dropout: float, precision: str, warm: None, data: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the like of it compiled again."""
    used, told = [], []

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
            patch.setattr("model.training.learner.MISCOMPILED", set())
            made = make_learner(config(family, dropout=dropout, precision=precision), data[family], CUDA)
            made.dry_step()
            made.take_steps([1.0] * (8 if precision == "fp16" else 1))  # so that a scaler has found its scale
            if how is not None:
                patch.setattr(torch, "compile", how)
                made.compile()
                used.clear()
            told.append(made.take_steps([1.0, 1.0]).loss.tolist())
            assert bool(used) == (how is compiled) and made.can_compile() == (how in (None, compiled))
            assert made.graphed
    assert told[0] == told[1] == told[2] == told[3]


def test_gradients_are_added_up_on_the_stream_of_the_captures_alone(
    data: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autograd has a capture wait for the stream on which it added up before, which no capture may."""
    added, captured = set[object](), set[object]()
    with fake_cuda(), monkeypatch.context() as patch:  # undone before the fake is
        made = make_learner(config("nanogpt"), data["nanogpt"], CUDA)
        for parameter in made.parameter_names:
            parameter.register_post_accumulate_grad_hook(lambda _: added.add(torch.cuda.current_stream()))
        patch.setattr(torch.cuda, "graph", lambda graph, stream: captured.add(stream) or no_graph(graph, stream))
        made.dry_step()
        made.take_steps([1.0])
    assert added == captured and len(captured) == 1


def test_many_steps_at_once_are_those_taken_one_by_one(data: dict[str, Data]) -> None:
    asked, factors = config("nanogpt", precision="fp32", dropout=0.0), [0.5, 1.0, 0.7, 0.2]
    with fake_cuda():
        one = Learner(asked, data["nanogpt"], CUDA)
        steps = [one.step(factor) for factor in factors]
        at_once = make_learner(asked, data["nanogpt"], CUDA)
        at_once.dry_step()
        found = at_once.take_steps(factors)
        assert found.loss.tolist() == pytest.approx([step.loss.item() for step in steps], rel=1e-2)
        assert found.gradient_norm.item() == pytest.approx(steps[-1].gradient_norm.item(), rel=5e-2)
        assert (
            found.tokens == sum(step.tokens for step in steps) and at_once.state()["batches"] == one.state()["batches"]
        )


def test_a_replayed_step_is_one_launch_without_copy_or_wait(data: dict[str, Data]) -> None:
    with fake_cuda() as seen:
        made = make_learner(config("nanogpt", average=0.0), data["nanogpt"], CUDA)
        made.dry_step()
        made.take_steps([1.0])
        assert_one_launch_a_step(seen, lambda steps: made.take_steps([1.0] * steps))


def assert_one_launch_a_step(seen: Seen, advance: Callable[[int], object]) -> None:
    counts = []
    for steps in (2, 4):
        seen.clear()
        advance(steps)
        counts.append((seen.launches.total(), len(seen.copies)))
        assert not seen.waits
    (few, copies), (many, again) = counts
    assert many - few == 2 and copies == again


def test_where_memory_runs_out_the_parts_get_a_graph(data: dict[str, Data], monkeypatch: pytest.MonkeyPatch) -> None:
    asked, losses = config("nanogpt"), []
    with fake_cuda():
        cut = make_learner(asked, data["nanogpt"], CUDA, 2)
        cut.dry_step()
        losses.append(advanced(cut))
        made = make_learner(asked, data["nanogpt"], CUDA)
        rows, real = len(made.batches.any_batch().targets), made.family.losses

        def within_half(model: torch.nn.Module, asked: Config, inputs: Any, targets: torch.Tensor) -> Any:
            if len(targets) > rows - rows // 2:
                raise torch.OutOfMemoryError("planted")
            return real(model, asked, inputs, targets)

        monkeypatch.setattr(made.family, "losses", within_half)
        made.dry_step()
        assert made.micro_batches == 2 and made.is_out_of_memory and made.graphed
        losses.append(advanced(made))
    assert losses[0] == losses[1]


def test_recorded_curves_are_of_steps_as_a_search_takes_them(data: dict[str, Data], tmp_path: Path) -> None:
    """Timed and trained as graphs, which are never compiled."""
    with fake_cuda() as seen:
        given = {"config": config("nanogpt", warm_up_steps=5), "data": data["nanogpt"], "device": CUDA}
        context = TaskContext(**given, folder=tmp_path, ends_at=math.inf)  # type: ignore[arg-type]
        *_, timed = life_training.time_steps(context, 0.0)
        assert timed.row is not None and seen.launches["graph"] >= life_training.TIMED_STEPS
        seen.clear()
        life = life_training.Life(step_seconds=1.0, every=STEPS, memory_bytes=0)
        assert list(life_training.train_to_report(context, life, 1, final=False)) and life.valid
        assert seen.launches["graph"] == STEPS
        assert not life_training.make_uncompiled(context.config, context.data, CUDA, 1).can_compile()


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
            made.dry_step()
            seen.clear()
            told.append(advanced(made))
            assert bool(seen.launches["graph"]) == (kind is not Asking)
    right, baked, asking = told
    assert baked != right and asking == right
