"""Trials of one shape trained as one model: small ones do not fill a device, so the rows of all form one batch.

Norms have no gains and linear maps no biases, so only linear maps, embeddings, taps, dropout and the loss tell members
apart. Each member is a Learner whose weights are views of the model's: it keeps its rates, decays, dropout, clip, seed,
batches, moments and count of steps, and takes the steps that it would take alone, on a CPU bit by bit. On a GPU
`take_steps` replays one graph for all. Where memory runs out no batch is cut: only a learner that steps alone does
that.

# Shapes: K members.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model.config import pad_of
from model.data.batches import TrainBatches
from model.data.resident import IGNORED, Batch, Inputs
from model.families import Transformers
from model.nn import precision
from model.nn.attention import Attention, CohortDropout, Dropout
from model.nn.gpt import GPT
from model.training import checkpoint as checkpoints
from model.training.graph import QUEUE, CapturedSteps
from model.training.learner import Learner, Step
from model.training.muon import AdamW, step_together

SHAPE = (
    "family", "d_model", "heads", "layers", "context", "batch_tokens", "precision", "taps", "optimizer",
    "label_smoothing", "scaling_rules",
)  # fmt: skip
"""Fields of Config that all members have in common."""


def can_join(learner: Learner) -> bool:
    """Whether a learner may be a member: a Transformer trained by AdamW or Muon, by a plain Learner. Not upstream's
    architecture, whose norms have gains, not fp16, whose loss has its own scale, and not with activation checkpointing.
    """
    upstream = isinstance(learner.model, GPT) and learner.model.config.architecture == "nanogpt"
    known = isinstance(learner.batches, TrainBatches) and isinstance(learner.optimizer, AdamW)
    plain = type(learner) is Learner and not learner.scaler.is_enabled() and not learner.config.checkpointing
    return known and plain and not upstream


class Cohort:
    """Learners that take their steps together, in the order in which they joined."""

    def __init__(self) -> None:
        self.learners: list[Learner] = []
        self._generators: list[torch.Generator] = []
        self._model: nn.Module | None = None
        self._stacks: list[nn.Parameter] = []
        self._dropouts = CohortDropout([], [])
        self._clips = torch.empty(0)
        self._captured: CapturedSteps | None = None
        self._shared: tuple[int, ...] = ()  # by member, the first one with the same rates in all queued steps

    def join(self, learner: Learner) -> None:
        """Let a learner step with the others from now on. torch's CPU generator must be as this learner left it, and is
        copied to be its own."""
        assert can_join(learner), "ask first"
        first = self.learners[0] if self.learners else learner
        assert first.data is learner.data and first.micro_batches == learner.micro_batches, "members have like batches"
        alike = (getattr(first.config, name) == getattr(learner.config, name) for name in SHAPE)
        assert all(alike), "members have one shape"
        self._captured = None
        generator = torch.Generator()
        generator.set_state(torch.get_rng_state())
        self.learners.append(learner)
        self._generators.append(generator)
        self._stack()

    def leave(self, index: int) -> Learner:
        """Let the learner at this place step alone again, and return it; torch's CPU generator gets its random
        state."""
        learner = self.learners.pop(index)
        torch.set_rng_state(self._generators.pop(index).get_state())
        for parameter in learner.parameter_names:
            parameter.data = parameter.detach().clone()
        self._model, self._stacks, self._captured = None, [], None
        if self.learners:
            self._stack()
        return learner

    def save(self, index: int, folder: Path, state: dict[str, Any]) -> Path:
        """Write a checkpoint of the learner at this place, as it would alone."""
        learner = self.learners[index]
        parts = [(parameter, parameter.data) for parameter in learner.parameter_names]
        for parameter, part in parts:  # safetensors takes no views of a larger storage
            parameter.data = part.clone()
        try:
            tensors = learner.tensors() | {"random.cpu": self._generators[index].get_state()}
            return checkpoints.save(folder, learner.model, tensors, learner.state() | state)
        finally:
            for parameter, part in parts:
                parameter.data = part

    def step(self, factors: Sequence[float]) -> list[Step]:
        """Take a step of each member at its factor of its peak rates, kernel by kernel."""
        for learner, factor in zip(self.learners, factors, strict=True):
            for group in learner.optimizer.param_groups:
                group["lr"] = group["peak_rate"] * factor
        batch, tokens = TrainBatches.next_joined(self._batches())
        with self._steps().on_capture_stream() if self.learners[0].device.type == "cuda" else nullcontext():
            losses, norms = self._gradients(batch), self._update()
            self._count_step(tokens)
        results = zip(losses, norms, tokens, strict=True)
        return [Step(loss=loss, gradient_norm=norm, tokens=count) for loss, norm, count in results]

    def take_steps(self, factors: Sequence[Sequence[float]]) -> list[Step]:
        """Take N steps of each member at these factors (N, K) of its peak rates; a GPU's host waits for none of
        them."""
        if self.learners[0].device.type != "cuda":
            taken = zip(*(self.step(each) for each in factors), strict=True)
            return [
                Step(torch.stack([step.loss for step in of]), of[-1].gradient_norm, sum(step.tokens for step in of))
                for of in taken
            ]
        results, counts, captured = list[Tensor](), list[tuple[int, ...]](), self._steps()
        with captured.on_capture_stream():
            while len(counts) < len(factors):
                rows, tokens = TrainBatches.plan_steps(self._batches(), min(QUEUE, len(factors) - len(counts)))
                some = np.array(factors[len(counts) : len(counts) + len(tokens)])
                for place in captured.take(rows, self._rates(some)):
                    self._count_step(tokens[place])
                results.append(captured.results(len(tokens)))
                counts += tokens
            losses, norms = torch.cat(results).unbind(-1)  # (N, K) each
        each = zip(losses.unbind(1), norms[-1], zip(*counts, strict=True), strict=True)
        return [Step(loss=loss, gradient_norm=norm, tokens=sum(of)) for loss, norm, of in each]

    def _batches(self) -> list[TrainBatches]:
        return [_resident(learner) for learner in self.learners]

    def _steps(self) -> CapturedSteps:
        if self._captured is None:
            members, first = len(self.learners), self.learners[0]
            rows = TrainBatches.plan_steps(self._batches(), 0)[0].shape[1:]
            rates = members * len(first.optimizer.param_groups)
            self._captured = CapturedSteps(
                first.device, rows=rows, rates=rates, returns=(members, 2), body=self._body,
                now=lambda: (self._model, self._shared), guard=self._guard,
            )  # fmt: skip
        return self._captured

    def _rates(self, factors: np.ndarray) -> np.ndarray:
        """Return the rates of each group of each member (N, K groups), and note who shares them: a graph depends on
        it."""
        peaks = [[group["peak_rate"] for group in learner.optimizer.param_groups] for learner in self.learners]
        rates = factors[:, :, None] * np.array(peaks)  # (N, K, groups)
        same = (rates[:, :, None] == rates[:, None]).all((0, 3))
        self._shared = tuple(int(first) for first in same.argmax(1))
        return rates.reshape(len(rates), -1)

    def _body(self, rows: Tensor, captured: bool) -> Tensor:
        """Take a step on these rows; return the loss and gradient norm of each member (K, 2)."""
        steps, batches = self._steps(), _resident(self.learners[0])
        groups = len(steps.rate) // len(self.learners)
        for learner, first in zip(self.learners, self._shared, strict=True):
            of = steps.rate[first * groups : (first + 1) * groups]
            for group, rate in zip(learner.optimizer.param_groups, of, strict=True):
                group["lr"] = rate
        inputs, targets = batches.gather(rows.flatten())
        losses = self._gradients(Batch(inputs, targets, targets.numel()))
        return torch.stack([losses, torch.stack(self._update())], -1)

    def _guard(self) -> Callable[[], None]:
        self._dropouts.settle()

        def undo() -> None:
            for parameter in (*self._stacks, *(each for learner in self.learners for each in learner.parameter_names)):
                parameter.grad = None

        return undo

    def _count_step(self, tokens: Sequence[int]) -> None:
        for learner, count in zip(self.learners, tokens, strict=True):
            learner._count_step(count)
        if self._dropouts.rates != [learner.dropout for learner in self.learners]:
            self._stack()

    def _gradients(self, batch: Batch) -> Tensor:
        """Compute the gradients of all members; return their un-smoothed losses (K,)."""
        members, targets = len(self.learners), batch.targets.unflatten(0, (len(self.learners), -1))
        count = self.learners[0].micro_batches
        if count == 1:
            return self._backward(batch.inputs, batch.targets)
        counted, rows = (targets != IGNORED).sum((1, 2)), -(-targets.shape[1] // count)
        results = list[Tensor]()
        for first in range(0, targets.shape[1], rows):
            of = slice(first, first + rows)
            inputs = tuple(each.unflatten(0, (members, -1))[:, of].flatten(0, 1) for each in batch.inputs)
            share = (targets[:, of] != IGNORED).sum((1, 2)) / counted
            results.append(self._backward(inputs, targets[:, of].flatten(0, 1), share))
        return torch.stack(results).sum(0)

    def _backward(self, inputs: Inputs, targets: Tensor, share: Tensor | None = None) -> Tensor:
        first, members = self.learners[0], len(self.learners)
        self._dropouts.begin(len(targets))
        assert isinstance(first.family, Transformers) and self._model is not None, "no other can join"
        losses, plain = first.family.losses_of_each(self._model, first.config, inputs, targets, members)
        (losses if share is None else losses * share).sum().backward()
        return plain if share is None else plain * share

    def _update(self) -> list[Tensor]:
        """Clip each member's gradients, step with them, clear them, and return their norms."""
        gradients = [stack.grad for stack in self._stacks if stack.grad is not None]
        each = [gradient.unbind() for gradient in gradients]
        norms = torch.stack(torch._foreach_norm([one for some in each for one in some])).view(len(each), -1)  # (P, K)
        found = [torch.linalg.vector_norm(of) for of in norms.mT.contiguous()]
        kept = ((torch.stack(found) + 1e-6).reciprocal() * self._clips).clamp(max=1.0)  # as torch rounds it
        for gradient in gradients:
            gradient.mul_(kept.view(-1, *(1,) * (gradient.ndim - 1)))
        for place, learner in enumerate(self.learners):
            for parameter, some in zip(learner.parameter_names, each, strict=True):
                parameter.grad = some[place]
        step_together([_known(learner.optimizer) for learner in self.learners])
        for learner in self.learners:
            learner.optimizer.zero_grad(set_to_none=True)
        for stack in self._stacks:
            stack.grad = None
        return found

    def _stack(self) -> None:
        """Make the model of all members, whose weights become views of its weights."""
        first, before = self.learners[0], torch.get_rng_state()
        model = first.family.build(first.config, first.data.vocabulary, pad_of(first.data)).to(first.device)
        torch.set_rng_state(before)
        self._stacks = list(model.parameters())
        for place, stack in enumerate(self._stacks):
            own = [list(learner.parameter_names)[place] for learner in self.learners]
            stack.data = torch.stack([parameter.detach() for parameter in own])
            for parameter, part in zip(own, stack.data, strict=True):
                parameter.data = part
        rates = [learner.dropout for learner in self.learners]
        self._dropouts = CohortDropout(rates, self._generators)
        inside = {id(module.drop) for module in model.modules() if isinstance(module, Attention)}  # whose rate is 0
        for module in model.modules():
            if isinstance(module, Dropout) and id(module) not in inside:
                module.rate, module.members = max(rates), self._dropouts
        precision.set_compute(model, first.config.precision)
        self._model = model
        self._clips = torch.tensor([learner.config.clip for learner in self.learners]).to(first.device)


def _known(optimizer: Any) -> AdamW:
    assert isinstance(optimizer, AdamW), "of no other is a member's"
    return optimizer


def _resident(learner: Learner) -> TrainBatches:
    assert isinstance(learner.batches, TrainBatches), "those of a Transformer"
    return learner.batches
