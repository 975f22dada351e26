"""Memory of training by torch's own account of its tensors: alike on CPU and GPU, whatever a process held before."""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from model.config import Config, Data
from model.learner import Learner

STEPS = 2
"""Of which the second has all that any step has."""


def step_bytes(config: Config, data: Data, device: torch.device) -> int:
    """The most bytes of tensors alive at once while a model, its optimizer and its batches are made and step."""

    def run() -> None:
        learner = Learner(config, data, device)
        for _ in range(STEPS):
            learner.step(1.0)
        learner.wait()

    return most_bytes(run, device)


def most_bytes(run: Callable[[], object], device: torch.device) -> int:
    """The most bytes of tensors that were alive at once, beyond those before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most
