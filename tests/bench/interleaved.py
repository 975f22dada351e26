"""Contenders timed in turns, each in a process of its own with one thread: ratios that noise leaves alone."""

import multiprocessing
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

WARM_UP_STEPS = 24
"""Enough for every static shape and every compilation."""


@dataclass
class Timed:
    """CPU seconds a step and target tokens a CPU second of each turn."""

    step_seconds: list[float] = field(default_factory=list)
    tokens_per_second: list[float] = field(default_factory=list)


def interleaved(names: Sequence[str], data: Path, *, turns: int, seconds: float) -> dict[str, Timed]:
    """Let each contender train for about `seconds` in each of `turns` turns."""
    context = multiprocessing.get_context("spawn")
    found = {name: Timed() for name in names}
    lines: dict[str, Connection] = {}
    processes = []
    for name in names:
        lines[name], end = context.Pipe()
        processes.append(context.Process(target=_serve, args=(end, name, data, seconds), daemon=True))
        processes[-1].start()
        assert lines[name].recv() == "ready"
    for _ in range(turns):
        for name, line in lines.items():
            line.send("go")
            steps, tokens, spent = line.recv()
            found[name].step_seconds.append(spent / steps)
            found[name].tokens_per_second.append(tokens / spent)
    for process in processes:
        process.terminate()
    return found


def ratio(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float]:
    """The median of the ratios of the turns, with their quartiles."""
    ratios = [a / b for a, b in zip(slow, fast, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return middle, low, high


def _serve(line: Connection, name: str, data: Path, seconds: float) -> None:
    import torch

    from model.training.memory import prepare_process
    from tests.bench.contenders import make

    torch.set_num_threads(1)
    prepare_process(1)
    step = make(name, data)
    for _ in range(WARM_UP_STEPS):
        step()
    began = time.process_time()
    step()
    steps = max(1, round(seconds / (time.process_time() - began)))
    line.send("ready")
    while True:
        line.recv()
        began = time.process_time()
        tokens = sum(step() for _ in range(steps))
        line.send((steps, tokens, time.process_time() - began))
