"""A model with its optimizer and batches: what one optimizer step changes and a checkpoint keeps."""

import logging
import math
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model.config import Config, Data, pad_of
from model.data.batches import Batch, EndlessBatches
from model.families import BUILT_IN, FAMILIES
from model.nn import precision
from model.nn.attention import Dropout
from model.nn.gpt import checkpoint_activations
from model.nn.mup import parameter_groups
from model.training.averaging import Average
from model.training.checkpoint import AVERAGE, BEST, Saved, load_weights, with_prefix
from model.training.memory import give_back_freed, ran_out
from model.training.muon import AdamW, Muon, begin_moments
from tune.errors import error_text
from tune.reports import NEW_DROPOUT

MOMENTUM = 0.9
"""Momentum of SGD."""
MASKS = 16
"""Gradients of one batch, each with other dropout masks, that are added up before they are compared."""
UNLIKE, UNLIKE_MATRIX, BY_CHANCE = 0.02, 0.1, 4.0
"""By how much the cosine of a compiled and an eager gradient may be below that of two eager ones: of all matrices
together, and of each, where BY_CHANCE over the root of its elements is added for what dropout masks may change. A fault
of torch 2.11 made it .05, of some matrices .2 to .3, and models learned much worse (docs/log.md, day 33)."""

log = logging.getLogger(__name__)
MISCOMPILED = set[tuple[str, str, str]]()
"""Families, architectures and precisions for which in this process compiling failed or gave wrong gradients."""


@dataclass(frozen=True)
class Step:
    """Figures of a step or several, on the device; reading them waits for it."""

    loss: Tensor  # un-smoothed; of several steps (N,)
    gradient_norm: Tensor  # of the last step
    tokens: int


def missing_for_compiling() -> tuple[str, str] | None:
    """Return what torch.compile lacks on a CPU of this machine, where without it it takes as long, and fails; and what
    to do about that."""
    packages = "install g++ and python3-dev"
    if shutil.which(compiler := os.environ.get("CXX", "g++")) is None:
        return compiler or "CXX", packages  # which is empty
    if not Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").exists():  # where torch looks, on Debian too
        return "Python headers", packages
    folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())).absolute()  # as torch finds it
    there = next(each for each in (folder, *folder.parents) if os.path.exists(each))
    if os.statvfs(there).f_flag & os.ST_NOEXEC:
        return f"code may be run in '{folder}' (noexec)", "name another folder by TORCHINDUCTOR_CACHE_DIR"
    return None


class Learner:
    """The part of a trial that learns; it knows no clock.

    micro_batches: number of parts of a batch, whose gradients add up to the whole's; doubled where memory runs out
    (`is_out_of_memory`), as long as that helps. forward: what the loss calls, which may wrap the model that is saved.
    rank: of this process among those that train the model together. dropout: the present rate, which is the config's
    once the text was seen `dropout_after` times, and 0 before. may_compile: whether a training may compile it. best:
    where the loss may turn, the best weights so far and what the model kept beside them."""

    rank = 0
    may_compile = True

    def __init__(self, config: Config, data: Data, device: torch.device, micro_batches: int = 1):
        precision.prepare(config.precision, device)
        torch.manual_seed(config.seed)
        self.config, self.data, self.device = config, data, device
        self.micro_batches, self.is_out_of_memory = max(micro_batches, config.micro_batches), False
        self.family = FAMILIES[config.family]
        self.model = self.family.build(config, data.vocabulary, pad_of(data)).to(device)
        precision.set_compute(self.model, config.precision, own=config.family not in BUILT_IN)
        if config.checkpointing:
            checkpoint_activations(self.model)
        self.forward: nn.Module = self.model
        self.batches = self.feed(config)
        self.optimizer = self.make_optimizer()
        self.scaler = precision.scaler(config.precision, device)
        self.parameter_names = {parameter: name for name, parameter in self.model.named_parameters()}
        self.parameters = sum(parameter.numel() for parameter in self.parameter_names)
        self.average = Average(self.parameter_names, config.average) if config.average else None
        self.best = dict[str, Tensor]()
        self.steps = 0
        self.tokens = 0
        self._loss = self._loss_of
        self.dropout = config.dropout
        self._dropouts = [each for each in self.model.modules() if isinstance(each, Dropout) and each.rate > 0]
        self._drops_from = config.dropout_after * data.training_tokens
        self._drop_when_due()

    def step(self, factor: float) -> Step:
        """Take one optimizer step at `factor` of the peak rates."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_rate"] * factor
        batch = next(self.batches)
        loss = self._gradients(batch)
        norm = self._update()
        self._count_step(batch.tokens)
        return Step(loss=loss, gradient_norm=norm, tokens=batch.tokens)

    def take_steps(self, factors: Sequence[float]) -> Step:
        """Take a step at each of these shares of the peak rates."""
        steps = [self.step(factor) for factor in factors]
        losses, tokens = torch.stack([step.loss for step in steps]), sum(step.tokens for step in steps)
        return Step(loss=losses, gradient_norm=steps[-1].gradient_norm, tokens=tokens)

    def _count_step(self, tokens: int) -> None:
        """Account for a step that was taken."""
        self.steps += 1
        self.tokens += tokens
        if self.average is not None:
            self.average.update(self.steps)
        self._drop_when_due()

    def _drop_when_due(self) -> None:
        """Turn dropout on once it is due. New text needs none, and is learned more slowly with it (Liu et al. 2023,
        arXiv:2303.01500, call this late dropout)."""
        self._drop(self.config.dropout if self.tokens >= self._drops_from else 0.0)

    @property
    def dropout_is_new(self) -> bool:
        """Whether dropout began only lately: the loss rises then, before it falls again."""
        return self._drops_from <= self.tokens < NEW_DROPOUT * self._drops_from and self.dropout > 0

    def _drop(self, rate: float) -> None:
        """Set the dropout rate; compiled code, which has the old one in it, is dropped."""
        if rate != self.dropout:
            self.dropout, self._loss = rate, self._loss_of
            for module in self._dropouts:
                module.rate = rate

    def _update(self) -> Tensor:
        """Clip the gradients, step with them, clear them, and return their norm."""
        self.scaler.unscale_(self.optimizer)  # type: ignore[arg-type]  # any that has groups
        norm = torch.nn.utils.clip_grad_norm_(self.parameter_names, self.config.clip)
        self.scaler.step(self.optimizer)  # type: ignore[arg-type]
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return norm.detach()

    def make_optimizer(self) -> torch.optim.Optimizer | AdamW:
        """Make the optimizer, whose groups each have a `peak_rate`. SGD has momentum, one rate and no weight decay."""
        config, muon = self.config, self.config.optimizer == "muon"
        if config.optimizer == "sgd":
            group = {"params": list(self.model.parameters()), "peak_rate": config.learning_rate}
            sgd = torch.optim.SGD([group], lr=config.learning_rate, momentum=MOMENTUM, fused=True)
            begin_moments(sgd)
            return sgd
        groups = parameter_groups(self.model, config.learning_rate, config.weight_decay, muon=muon)
        return (Muon if muon else AdamW)(groups, config.betas)

    def feed(self, config: Config) -> EndlessBatches:
        """Return the batches of a config, from the beginning."""
        return self.family.training_batches(config, self.data, self.device)

    def dry_step(self) -> None:
        """Take a step without effect before the first: memory runs out now if at all, and a GPU loads its kernels.

        At rates of 0 the weights stay, and all else is put back to its beginning.
        """
        random_state, scaler = self.random_state(), self.scaler.state_dict()
        buffers = self.buffers()
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        self._drop(self.config.dropout)  # which needs the most memory
        self._gradients(self.batches.any_batch())
        self._drop_when_due()
        self._update()
        begin_moments(self.optimizer)
        self.set_buffers(buffers)
        self.scaler.load_state_dict(scaler)
        self.set_random_state(random_state)

    def buffers(self) -> dict[str, Tensor]:
        """Return a copy of what a checkpoint keeps of the model beside its parameters, such as a batch norm's means."""
        kept = self.model.state_dict().keys()
        return {name: buffer.clone() for name, buffer in self.model.named_buffers() if name in kept}

    def set_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Put back what `buffers` returned, whatever shape there is now."""
        for name, buffer in buffers.items():
            module, _, own = name.rpartition(".")
            setattr(self.model.get_submodule(module), own, buffer)

    def synchronize(self) -> None:
        """Wait until the device has done the steps it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def can_compile(self) -> bool:
        """Whether torch.compile is allowed, serves this model, did not fail it, and on a CPU has what it needs."""
        if not self.may_compile or not self.family.compiles or self._kind in MISCOMPILED:
            return False
        return self.device.type == "cuda" or missing_for_compiling() is None

    def compile(self) -> None:
        """Compile forward and loss; the weights and their names stay as they are. On a CPU the next step takes long.

        What was compiled for other trials of this process is dropped: torch keeps only a few versions of a function,
        and beyond these runs eagerly without a word. On a CPU (cpp_wrapper) g++ gets two files a graph instead of one a
        kernel, each of which costs it .4 s to start, and optimizes little in the one that only calls kernels;
        activation checkpointing with dropout cannot be compiled so. On a GPU, where no test of ours has a compiler,
        compiled code is used only where its gradients agree with eager ones (`_gradients_match`).
        """
        on_cpu = self.device.type == "cpu"  # a trial compiles on its own core, without processes of its own
        torch._inductor.config.compile_threads = 1 if on_cpu else torch.get_num_threads()
        torch.compiler.reset()
        torch._inductor.config.cpp_wrapper = on_cpu and not self.config.checkpointing
        torch._inductor.config.cpp_wrapper_build_separate = True
        self._loss = torch.compile(self._loss_of, dynamic=False)
        if not on_cpu and not self._gradients_match():
            self._loss = self._loss_of

    @property
    def _kind(self) -> tuple[str, str, str]:
        return self.config.family, self.config.architecture, self.config.precision

    def _gradients_match(self) -> bool:
        """Whether compiled gradients point where eager ones do, together and matrix by matrix, as far as dropout lets
        that be seen. False where gradients are not finite, or the compiled code fails or runs out of memory."""
        state, compiled, batch = self.random_state(), self._loss, self.batches.any_batch()
        try:
            first = self._gradients_by(self._loss_of, batch)
            again, other = (cosines(first, self._gradients_by(loss, batch)) for loss in (self._loss_of, compiled))
            spare = [UNLIKE, *(UNLIKE_MATRIX + BY_CHANCE / each.numel() ** 0.5 for each in first)]
        except Exception as error:  # a compiler has many ways to fail
            if not ran_out(error):
                if self._loss != compiled:
                    raise
                self._compile_no_more(f"fails here: {error_text(error)}")
            self.optimizer.zero_grad(set_to_none=True)
            give_back_freed()
            return False
        finally:
            self.set_random_state(state)
        known = math.isfinite(sum(again))
        alike = all(one > another - least for one, another, least in zip(other, again, spare, strict=True))
        if known and not alike:
            self._compile_no_more("gives other gradients here")
        return known and alike

    def _compile_no_more(self, why: str) -> None:
        """Compile none of this kind in this process any more: each try takes half a minute."""
        MISCOMPILED.add(self._kind)
        log.warning("torch.compile %s (%s): it is not compiled", why, ", ".join(self._kind))

    def _gradients_by(self, loss: Callable[..., tuple[Tensor, Tensor]], batch: Batch) -> list[Tensor]:
        """Return the gradients of all matrices by this loss, of one batch, summed over many dropout masks."""
        self._loss = loss
        for _ in range(MASKS if self.dropout else 1):
            self._by_parts(batch)
        matrices = (parameter.grad for parameter in self.parameter_names if parameter.ndim > 1)
        found = [gradient for gradient in matrices if gradient is not None]
        self.optimizer.zero_grad(set_to_none=True)
        return found

    def _gradients(self, batch: Batch) -> Tensor:
        """Add the batch's gradients; return its un-smoothed loss. Where memory runs out, retry in ever smaller parts;
        where compiled code fails, eagerly."""
        failed = ""
        while True:
            random_state = None if self._loss == self._loss_of else self.random_state()
            try:
                loss = self._by_parts(batch)
            except Exception as error:  # a compiler has many ways to fail; eager works, or fails with its own reason
                short = ran_out(error)
                if random_state is None and not (short and self.micro_batches < len(batch.targets)):
                    raise
                if not short:
                    failed = f"fails here: {error_text(error)}"
            else:
                if failed:  # and eager works
                    self._compile_no_more(failed)
                return loss
            self.optimizer.zero_grad(set_to_none=True)
            if short:
                self.is_out_of_memory = True
                give_back_freed()
            if random_state is None:
                self.micro_batches *= 2
            else:
                self._loss = self._loss_of
                self.set_random_state(random_state)

    def _by_parts(self, batch: Batch) -> Tensor:
        if self.micro_batches == 1:
            return self._backward(batch)
        return torch.stack([self._backward(*part) for part in batch.parts(self.micro_batches)]).sum()

    def _backward(self, batch: Batch, share: Tensor | None = None) -> Tensor:
        loss, unsmoothed = self._loss(batch.inputs, batch.targets)
        self.scaler.scale(loss if share is None else loss * share).backward()  # passing a gradient would import SymPy
        if share is None:
            return unsmoothed
        return torch.where(share > 0, unsmoothed * share, 0.0)  # the mean of a part without targets is NaN

    def _loss_of(self, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[Tensor, Tensor]:
        return self.family.losses(self.forward, self.config, inputs, targets)

    def tensors(self) -> dict[str, Tensor]:
        """Return the optimizer's moments, the averages and the best by parameter name, and the random states."""
        moments = {
            f"{self.parameter_names[parameter]}.{moment}": tensor
            for parameter, values in self.optimizer.state.items()
            if isinstance(parameter, nn.Parameter)
            for moment, tensor in values.items()
        }
        averages = {} if self.average is None else self.average.tensors()
        beside = {f"{AVERAGE}{name}": tensor for name, tensor in averages.items()}
        return moments | beside | {f"{BEST}{name}": tensor for name, tensor in self.best.items()} | self.random_state()

    def state(self) -> dict[str, Any]:
        """Return the rest of what `restore` needs, JSON-able."""
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "batches": self.batches.state(),
            "scaler": self.scaler.state_dict(),
        }

    def restore(self, saved: Saved) -> None:
        """Go on exactly where `tensors` and `state` were taken."""
        load_weights(self.model, saved.weights)
        for parameter, name in self.parameter_names.items():
            values = self.optimizer.state[parameter]
            for moment in values:
                if (tensor := saved.tensors.get(f"{name}.{moment}")) is not None:
                    values[moment].copy_(tensor)
        if self.average is not None:
            self.average.load(with_prefix(saved.tensors, AVERAGE))
        best = with_prefix(saved.tensors, BEST)
        self.best = {name: tensor.to(self.device, copy=True) for name, tensor in best.items()}  # not of a mapped file
        self.steps, self.tokens = saved.state["steps"], saved.state["tokens"]
        self.batches.load_state(saved.state["batches"])
        self.scaler.load_state_dict(saved.state["scaler"])
        self.set_random_state(saved.tensors)
        self._drop_when_due()

    def random_state(self) -> dict[str, Tensor]:
        """Return the states of torch's generators, as tensors of bytes."""
        state = {"random.cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["random.cuda"] = torch.cuda.get_rng_state(self.device)
        return state

    def set_random_state(self, state: dict[str, Tensor]) -> None:
        torch.set_rng_state(state["random.cpu"])
        if self.device.type == "cuda" and "random.cuda" in state:
            torch.cuda.set_rng_state(state["random.cuda"], self.device)


def cosines(one: Sequence[Tensor], other: Sequence[Tensor]) -> list[float]:
    """Return the cosines between two vectors in parts of any shape: of the whole vectors, then of each part."""
    pairs = (one, other), (one, one), (other, other)
    products = [[torch.sum(a * b).item() for a, b in zip(*both, strict=True)] for both in pairs]
    each = [tuple(map(sum, products)), *zip(*products, strict=True)]
    return [across / max(own * others, 1e-60) ** 0.5 for across, own, others in each]


def dry_batch(config: Config, data: Data) -> Iterator[str]:
    """Try out two rows on an untrained model on the CPU, forward and backward; yield the name of each part before it.

    torch's generators stay as they are.
    """
    family, device = FAMILIES[config.family], torch.device("cpu")
    with torch.random.fork_rng(devices=[]), precision.on_threads(1):  # several may wait for each other
        torch.manual_seed(config.seed)
        yield "build"
        model = family.build(config, data.vocabulary, pad_of(data))
        parameter_groups(model, config.learning_rate, config.weight_decay)
        yield "batches"
        for split in ("valid", "test"):
            next(iter(family.evaluation_batches(config, data, split, 1, device)))
        batch = family.training_batches(config, data, device).any_batch()
        part, _ = batch.parts(max(1, len(batch.targets) // 2))[0]
        yield "loss"
        loss, _ = family.losses(model, config, part.inputs, part.targets)
        yield "loss.backward"
        loss.backward()


MakeLearner = Callable[[Config, Data, torch.device, int], Learner]
"""Makes a Learner of a config, data, a device and the number of parts of a batch, as Learner itself does."""
