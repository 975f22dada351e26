"""An average of the weights beside the training: at a constant rate it gives most of what a decay would, at any moment.

Its window grows with the training: its half-life is a share of the steps so far. Averaging late weights and decaying
the rate come to much the same (Hagele et al. 2024, arXiv:2405.18392).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

EVERY = 8
"""Steps between two updates, beside which the cost of an update is negligible."""


class Average:
    """An exponential average of a model's parameters.

    half_life: as a share of the steps so far. names: of the parameters.
    """

    def __init__(self, names: Mapping[nn.Parameter, str], half_life: float) -> None:
        self.half_life, self._names = half_life, names
        self._parameters = list(names)
        self._averages = [parameter.detach().clone() for parameter in names]

    def update(self, steps: int) -> None:
        """Update the average; to be called after each step, with the number of steps so far."""
        if steps % EVERY == 0:
            share = 1 - 0.5 ** (EVERY / max(1.0, self.half_life * steps))
            torch._foreach_lerp_(self._averages, [parameter.detach() for parameter in self._parameters], share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights inside, and afterwards its own again, bit by bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for place, parameter in enumerate(self._parameters):
            parameter.data, self._averages[place] = self._averages[place], parameter.data

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages, by the names of the parameters."""
        return dict(zip(self._names.values(), self._averages, strict=True))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` returned; a parameter that is missing there gets its present weights as average."""
        for place, (parameter, name) in enumerate(self._names.items()):
            self._averages[place].copy_(tensors.get(name, parameter.detach()))
