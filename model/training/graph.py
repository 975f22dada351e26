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


class GraphedLearner(Learner):
    """A Learner whose `advance` replays its step; where a step cannot be captured, it is taken kernel by kernel."""

    batches: TrainBatches

    def __init__(self, config: Config, data: Data, device: torch.device, micro_batches: int = 1):
        super().__init__(config, data, device, micro_batches)
        groups = self.optimizer.param_groups
        self._rows = torch.zeros(QUEUE, *self.batches.take(0)[0].shape[1:], dtype=torch.int64, device=device)
        self._rates = torch.zeros(QUEUE, len(groups), device=device)
        self._told = torch.zeros(QUEUE, 2, device=device)  # loss and norm of each
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._rate = torch.zeros(len(groups), device=device)  # of each group, now
        self._stream = _stream_of(str(device))
        self._graph: torch.cuda.CUDAGraph | None = None
        self._graph_of: object = None  # what it does: it serves as long as that is what a step does

    @property
    def graphed(self) -> bool:
        """Whether the next step is replayed."""
        return self._graph is not None and self._graph_of == self._step_now()

    def rehearse(self) -> None:
        """As any Learner's; then the step is captured."""
        with self._aside():
            super().rehearse()
            self._capture()

    def advance(self, factors: Sequence[float]) -> Step:
        """A step at each of these shares of the peak rates; the host waits for none of them."""
        told, tokens = list[Tensor](), 0
        with self._aside():
            while factors:
                rows, counts = self.batches.take(min(len(factors), QUEUE))
                self._wait_in_line(rows, factors[: len(counts)])
                for count in counts:
                    self._once()
                    self._took(count)
                told.append(self._told[: len(counts)].clone())
                tokens, factors = tokens + sum(counts), factors[len(counts) :]
            losses, norms = torch.cat(told).unbind(1)
        return Step(loss=losses, gradient_norm=norms[-1], tokens=tokens)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """On the stream of the captures: autograd remembers on which one it added up a gradient, and no capture may
        wait for another's."""
        now = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(now)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            now.wait_stream(self._stream)

    def _wait_in_line(self, rows: Tensor, factors: Sequence[float]) -> None:
        peaks = [group["peak_rate"] for group in self.optimizer.param_groups]
        rates = np.outer(factors, peaks).astype(np.float32)
        self._rows[: len(rows)].copy_(rows)
        self._rates[: len(rows)].copy_(sent(rates, self.device))
        self._place.zero_()

    def _once(self) -> None:
        """A step, by its graph where there is one."""
        if self._graph is not None and self.graphed:
            self._graph.replay()
            return
        self._take_rates_there()
        self._body(self._gradients)
        if self._graph_of != self._step_now():
            self._capture()

    def _step_now(self) -> object:
        return self.micro_batches, self._loss, self.dropout

    def _take_rates_there(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._rate.unbind(), strict=True):
            group["lr"] = rate

    def _body(self, gradients: Callable[[Batch], Tensor]) -> None:
        """The next step in line. A number of the host's in here would be every step's."""
        inputs, targets = self.batches.gather(self._rows.index_select(0, self._place)[0])
        self._rate.copy_(self._rates.index_select(0, self._place)[0])
        counted = (targets != IGNORED).sum()
        loss = gradients(Batch(inputs, targets, counted))  # type: ignore[arg-type]
        self._told.index_copy_(0, self._place, torch.stack([loss, self._update()])[None])
        self._place.add_(1)

    def _capture(self) -> None:
        """Make the graph of the next steps, which takes none; no graph where that fails."""
        self._graph, self._graph_of = None, self._step_now()
        self._take_rates_there()
        graph, scaler = torch.cuda.CUDAGraph(), self.scaler.state_dict()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                self._body(self._by_parts)
            self._graph = graph
        except RuntimeError as error:  # memory may have run out: a graph has its own beside what steps before it kept
            log.warning("a step is no CUDA graph: %s", str(error).partition("\n")[0])
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler = precision.scaler(self.config.precision, self.device)
            self.scaler.load_state_dict(scaler)


def make_learner(config: Config, data: Data, device: torch.device, micro_batches: int = 1) -> Learner:
    """What learns best on a device; batches of other families may be of any shape."""
    graphed = device.type == "cuda" and isinstance(FAMILIES[config.family], Transformers)
    return (GraphedLearner if graphed else Learner)(config, data, device, micro_batches)
