"""An average of the weights beside the training: at a constant rate most of what a decay would give, at any moment.

Its window grows with the training: a weight's share halves over a share of the steps so far. Averages of late weights
and decays come to much the same (Hagele et al. 2024, arXiv:2405.18392).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

EVERY = 8
"""Steps between two updates: what a lerp takes is nothing beside that."""


class Average:
    """Of a model's parameters, an exponential one.

    half_life: the share of the steps so far in which the weight of what was averaged halves. names: of the parameters.
    """

    def __init__(self, names: Mapping[nn.Parameter, str], half_life: float) -> None:
        self.half_life, self._names = half_life, names
        self._parameters = list(names)
        self._averages = [parameter.detach().clone() for parameter in names]

    def update(self, steps: int) -> None:
        """Told after each step, with how many there were."""
        if steps % EVERY == 0:
            share = 1 - 0.5 ** (EVERY / max(1.0, self.half_life * steps))
            torch._foreach_lerp_(self._averages, [parameter.detach() for parameter in self._parameters], share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; afterwards its own again, bit by bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for place, parameter in enumerate(self._parameters):
            parameter.data, self._averages[place] = self._averages[place], parameter.data

    def tensors(self) -> dict[str, Tensor]:
        """By the names of the parameters."""
        return dict(zip(self._names.values(), self._averages, strict=True))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """What `tensors` gave; of none, the weights as they are."""
        for place, (parameter, name) in enumerate(self._names.items()):
            self._averages[place].copy_(tensors.get(name, parameter.detach()))
