"""The step on a GPU as one CUDA graph: giving out its kernels one by one takes longer than a small model's arithmetic.

A graph does again what was done once, on the same memory, with the same Python numbers. So a step here reads nothing of
the host: the rows of its batch and its rates wait in a queue on the device, at a place that each step moves by one.
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
from model.data.resident import IGNORED, sent
from model.families import FAMILIES, Transformers
from model.nn import precision
from model.training.learner import Learner, Step

QUEUE = 64
"""Steps that wait on the device at most."""

log = logging.getLogger(__name__)


@functools.cache
def _stream_of(device: str) -> torch.cuda.Stream:
    """One for all trials of this process: torch keeps the room of its products for each stream, and for good."""
    return torch.cuda.Stream(device)


class CapturedSteps:
    """Steps on a GPU: what each reads waits in a queue there, and they are replays of one where that can be captured.

    rows, told: the shapes of what a step reads and tells; rates: how many it reads. body: takes a step, whose rates are
    `rate`, captured or not; a number of the host's in there would be every step's. now: what a step does, and a graph
    serves as long as that stays; guard: called before a capture, and what it gives where that fails: steps are then
    taken kernel by kernel.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        rows: Sequence[int],
        rates: int,
        told: Sequence[int],
        body: Callable[[Tensor, bool], Tensor],
        now: Callable[[], object],
        guard: Callable[[], Callable[[], None]],
    ) -> None:
        self._device, self._body, self._now, self._guard = device, body, now, guard
        self._rows = torch.zeros(QUEUE, *rows, dtype=torch.int64, device=device)
        self._rates = torch.zeros(QUEUE, rates, device=device)
        self._told = torch.zeros(QUEUE, *told, device=device)
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
    def aside(self) -> Iterator[None]:
        """On the stream of the captures: autograd remembers on which one it added up a gradient, and no capture may
        wait for another's."""
        now = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(now)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            now.wait_stream(self._stream)

    def take(self, rows: Tensor, rates: np.ndarray) -> Iterator[int]:
        """A step of each of these rows (N, ...), at most QUEUE, at these rates (N, R), inside `aside`; yields the place
        of each that was given out. The host waits for none."""
        self._rows[: len(rows)].copy_(rows)
        self._rates[: len(rows)].copy_(sent(rates.astype(np.float32), self._device))
        self._place.zero_()
        for place in range(len(rows)):
            if self._graph is not None and self.graphed:
                self._graph.replay()
            else:
                self.forget()
                self._step(captured=False)
                if self._graph_of != self._now():
                    self.capture()
            yield place

    def told(self, count: int) -> Tensor:
        """What the first so many of the last that were taken told (N, ...)."""
        return self._told[:count].clone()

    def forget(self) -> None:
        """The graph that there is serves no longer: its memory is for what follows, not kept beside it."""
        if self._graph is not None:
            self._graph = self._graph_of = None
            torch.cuda.empty_cache()

    def capture(self) -> None:
        """Make the graph of the next steps, which takes none; no graph where that fails."""
        self._graph, self._graph_of = None, self._now()
        graph, undo = torch.cuda.CUDAGraph(), self._guard()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                self._step(captured=True)
            self._graph = graph
        except RuntimeError as error:  # memory may have run out: a graph has its own beside what steps before it kept
            log.warning("a step is no CUDA graph: %s", str(error).partition("\n")[0])
            undo()

    def _step(self, *, captured: bool) -> None:
        """The next in line."""
        self._rate.copy_(self._rates.index_select(0, self._place)[0])
        told = self._body(self._rows.index_select(0, self._place)[0], captured)
        self._told.index_copy_(0, self._place, told[None])
        self._place.add_(1)


class GraphedLearner(Learner):
    """A Learner whose `advance` replays its step; where a step cannot be captured, it is taken kernel by kernel."""

    batches: TrainBatches

    def __init__(self, config: Config, data: Data, device: torch.device, micro_batches: int = 1):
        super().__init__(config, data, device, micro_batches)
        self._captured = CapturedSteps(
            device, rows=self.batches.take(0)[0].shape[1:], rates=len(self.optimizer.param_groups), told=(2,),
            body=self._body, now=lambda: (self.micro_batches, self._loss, self.dropout), guard=self._guard,
        )  # fmt: skip

    @property
    def graphed(self) -> bool:
        """Whether the next step is replayed."""
        return self._captured.graphed

    def rehearse(self) -> None:
        """As any Learner's; then the step is captured."""
        with self._captured.aside():
            super().rehearse()
            self._captured.capture()

    def compile(self) -> None:
        """As any Learner's; the next step is captured anew."""
        with self._captured.aside():
            self._captured.forget()
            super().compile()

    def advance(self, factors: Sequence[float]) -> Step:
        """A step at each of these shares of the peak rates; the host waits for none of them."""
        peaks = [group["peak_rate"] for group in self.optimizer.param_groups]
        told, tokens = list[Tensor](), 0
        with self._captured.aside():
            while factors:
                rows, counts = self.batches.take(min(len(factors), QUEUE))
                rates = np.outer(factors[: len(counts)], peaks)
                for place in self._captured.take(rows, rates):
                    self._took(counts[place])
                told.append(self._captured.told(len(counts)))
                tokens, factors = tokens + sum(counts), factors[len(counts) :]
            losses, norms = torch.cat(told).unbind(1)
        return Step(loss=losses, gradient_norm=norms[-1], tokens=tokens)

    def _body(self, rows: Tensor, captured: bool) -> Tensor:
        """Loss and norm (2,) of a step."""
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
    """What learns best on a device; batches of other families may be of any shape."""
    graphed = device.type == "cuda" and isinstance(FAMILIES[config.family], Transformers)
    return (GraphedLearner if graphed else Learner)(config, data, device, micro_batches)
