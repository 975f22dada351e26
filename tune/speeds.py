"""What optimizer steps cost on this device: measured for a few shapes in short, scaled to others by FLOPs on paper."""

import math
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch

from model.config import Config, Data
from model.families import FAMILIES
from model.learner import Learner

MEASURED_STEPS, MEASURED_SECONDS = 20, 0.5
"""A shape is measured for so many steps, or until so many seconds are over."""


class Speeds:
    """Seconds a step of one family on this text and device; nothing is measured until `measure` is called."""

    def __init__(self, family: str, data: Data, kind: str) -> None:
        self._family, self._data, self._kind = family, data, kind
        self._measured: dict[float, float] = {}

    def measure(self, config: Mapping[str, Any], micro_batches: int) -> float:
        """Seconds of a step in so many parts, from a few real ones; the first of them are slow, and do not count.

        On a CPU they are seconds of its time: what else runs there now does not count either.
        """
        clock = time.process_time if self._kind == "cpu" else time.monotonic
        torch.set_num_threads(1)
        learner = Learner(self._whole(config), self._data, torch.device(self._kind), micro_batches)
        taken: list[float] = []
        while len(taken) < MEASURED_STEPS and sum(taken) < MEASURED_SECONDS:
            began = clock()
            learner.step(1.0)
            learner.wait()
            taken.append(clock() - began)
        seconds = self._measured[self.flops(config)] = statistics.median(taken[len(taken) // 2 :])
        return seconds

    def expected(self, config: Mapping[str, Any]) -> float:
        """Seconds of a step: those of the measured config nearest in FLOPs, times how many more FLOPs it has."""
        flops = self.flops(config)
        nearest = min(self._measured, key=lambda other: abs(math.log(other / flops)))
        return self._measured[nearest] * flops / nearest

    def flops(self, config: Mapping[str, Any]) -> float:
        """On paper, of a step."""
        return FAMILIES[self._family].step_flops(self._whole(config), self._data)

    def _whole(self, config: Mapping[str, Any]) -> Config:
        return Config.at(config, family=self._family)
