"""A training step as one CUDA graph: launching its kernels one by one takes longer than a small model's arithmetic.

A graph repeats what was captured, on the same memory and with the same Python numbers. So a step here reads nothing
from the host: the rows of its batch and its rates wait in a queue on the device, at a place that each step moves by
one.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from model.config import Config, Data
from model.data.batches import Batch, TrainBatches
from model.data.resident import IGNORED, to_device
from model.families import FAMILIES, Transformers
from model.nn import precision
from model.training.learner import Learner, Step

QUEUE = 64
"""Largest number of steps that wait on the device."""

log = logging.getLogger(__name__)


@functools.cache
def _stream_of(device: str) -> torch.cuda.Stream:
    """Return the one stream of all trials of this process: torch keeps a workspace for products of each stream."""
    return torch.cuda.Stream(device)


class CapturedSteps:
    """Steps on a GPU, whose inputs wait in a queue there; they are replays of one captured step where that is possible.

    rows, returns: the shapes of what a step reads and returns; rates: how many learning rates it reads. body: takes a
    step at the rates in `rate`; its second argument says whether it is captured, when any number of the host's in it
    becomes that of all steps. now: returns what determines a step, and a graph serves as long as that is equal; guard:
    called before a capture, returns what undoes a failed one, after which steps are taken kernel by kernel.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        rows: Sequence[int],
        rates: int,
        returns: Sequence[int],
        body: Callable[[Tensor, bool], Tensor],
        now: Callable[[], object],
        guard: Callable[[], Callable[[], None]],
    ) -> None:
        self._device, self._body, self._now, self._guard = device, body, now, guard
        self._rows = torch.zeros(QUEUE, *rows, dtype=torch.int64, device=device)
        self._rates = torch.zeros(QUEUE, rates, device=device)
        self._results = torch.zeros(QUEUE, *returns, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._rate = torch.zeros(rates, device=device)
        self.rate = self._rate.unbind()
        self._stream = _stream_of(str(device))
        self._graph: torch.cuda.CUDAGraph | None = None
        self._graph_of: object = None

    @property
    def graphed(self) -> bool:
        """Whether the next step is replayed."""
        return self._graph is not None and self._graph_of == self._now()

    @contextmanager
    def on_capture_stream(self) -> Iterator[None]:
        """Run what is inside on the stream of the captures: autograd accumulates a gradient on the stream that it first
        used, and a capture may not wait for another stream."""
        now = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(now)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            now.wait_stream(self._stream)

    def take(self, rows: Tensor, rates: np.ndarray) -> Iterator[int]:
        """Take a step on each of these rows (N, ...), at most QUEUE, at these rates (N, R), inside `on_capture_stream`;
        yield the place of each once it is launched. The host waits for none."""
        self._rows[: len(rows)].copy_(rows)
        self._rates[: len(rows)].copy_(to_device(rates.astype(np.float32), self._device))
        self._place.zero_()
        for place in range(len(rows)):
            if self._graph is not None and self.graphed:
                self._graph.replay()
            else:
                self.drop_graph()
                self._step(captured=False)
                if self._graph_of != self._now():
                    self.capture()
            yield place

    def results(self, count: int) -> Tensor:
        """Return what the first `count` of the steps last taken returned (N, ...)."""
        return self._results[:count].clone()

    def drop_graph(self) -> None:
        """Drop the graph, which no longer serves, and free its memory before what follows needs some."""
        if self._graph is not None:
            self._graph = self._graph_of = None
            torch.cuda.empty_cache()

    def capture(self) -> None:
        """Capture the graph of the next steps, without taking a step; there is no graph where that fails."""
        self._graph, self._graph_of = None, self._now()
        graph, undo = torch.cuda.CUDAGraph(), self._guard()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                self._step(captured=True)
            self._graph = graph
        except RuntimeError as error:  # memory may have run out: a graph has its own beside what earlier steps kept
            log.warning("a step is no CUDA graph: %s", str(error).partition("\n")[0])
            undo()

    def _step(self, *, captured: bool) -> None:
        """Take the next step of the queue."""
        self._rate.copy_(self._rates.index_select(0, self._place)[0])
        result = self._body(self._rows.index_select(0, self._place)[0], captured)
        self._results.index_copy_(0, self._place, result[None])
        self._place.add_(1)


class GraphedLearner(Learner):
    """A Learner whose `take_steps` replays a captured step; where it cannot be captured, steps are taken kernel by
    kernel."""

    batches: TrainBatches

    def __init__(self, config: Config, data: Data, device: torch.device, micro_batches: int = 1):
        super().__init__(config, data, device, micro_batches)
        self._captured = CapturedSteps(
            device, rows=self.batches.take(0)[0].shape[1:], rates=len(self.optimizer.param_groups), returns=(2,),
            body=self._body, now=lambda: (self.micro_batches, self._loss, self.dropout), guard=self._guard,
        )  # fmt: skip

    @property
    def graphed(self) -> bool:
        """Whether the next step is replayed."""
        return self._captured.graphed

    def dry_step(self) -> None:
        """Take a dry step as any Learner does, then capture the step."""
        with self._captured.on_capture_stream():
            super().dry_step()
            self._captured.capture()

    def compile(self) -> None:
        """Compile as any Learner does; the next step is captured anew."""
        with self._captured.on_capture_stream():
            self._captured.drop_graph()
            super().compile()

    def take_steps(self, factors: Sequence[float]) -> Step:
        """Take a step at each of these shares of the peak rates; the host waits for none of them."""
        peaks = [group["peak_rate"] for group in self.optimizer.param_groups]
        results, tokens = list[Tensor](), 0
        with self._captured.on_capture_stream():
            while factors:
                rows, counts = self.batches.take(min(len(factors), QUEUE))
                rates = np.outer(factors[: len(counts)], peaks)
                for place in self._captured.take(rows, rates):
                    self._count_step(counts[place])
                results.append(self._captured.results(len(counts)))
                tokens, factors = tokens + sum(counts), factors[len(counts) :]
            losses, norms = torch.cat(results).unbind(1)
        return Step(loss=losses, gradient_norm=norms[-1], tokens=tokens)

    def _body(self, rows: Tensor, captured: bool) -> Tensor:
        """Take a step on these rows; return loss and gradient norm (2,)."""
        for group, rate in zip(self.optimizer.param_groups, self._captured.rate, strict=True):
            group["lr"] = rate
        inputs, targets = self.batches.gather(rows)
        batch = Batch(inputs, targets, (targets != IGNORED).sum())  # type: ignore[arg-type]
        loss = self._by_parts(batch) if captured else self._gradients(batch)
        return torch.stack([loss, self._update()])

    def _guard(self) -> Callable[[], None]:
        scaler = self.scaler.state_dict()

        def undo() -> None:
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler = precision.scaler(self.config.precision, self.device)
            self.scaler.load_state_dict(scaler)

        return undo


def make_learner(config: Config, data: Data, device: torch.device, micro_batches: int = 1) -> Learner:
    """Make a learner: on a GPU a graphed one for Transformers; batches of other families may be of any shape."""
    graphed = device.type == "cuda" and isinstance(FAMILIES[config.family], Transformers)
    return (GraphedLearner if graphed else Learner)(config, data, device, micro_batches)
