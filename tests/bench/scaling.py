"""Ray Train against torchrun: the same function on two ranks of each, its steps timed in turns."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from kernels.timing import interval
from model.training.ddp import make_learner
from tests.bench.contenders import SMALL, gpt_config, text
from tests.bench.table import Row
from tune.backend.session import local_ray  # before anything of Ray, which reads its environment then
from tune.errors import ROOT

RANKS, ROUNDS, TURN_STEPS, WARM_UP_STEPS = 2, 40, 20, 20
MOST = 1.05


def serve(told: dict[str, Any]) -> None:
    """One rank of the group `name`: whenever it is told to go it takes some steps; the first rank says how long."""
    torch.set_num_threads(1)
    learner = make_learner(gpt_config("modern", "fp32", SMALL), text(Path(told["data"])), torch.device("cpu"))
    for _ in range(WARM_UP_STEPS):
        learner.step(0.0)
    line = Client(told["address"]) if learner.rank == 0 else None
    if line:
        line.send(told["name"])
    while True:
        word = [line.recv() if line else None]
        dist.broadcast_object_list(word)
        if word == ["stop"]:
            return
        dist.barrier()
        began = time.perf_counter()
        for _ in range(TURN_STEPS):
            learner.step(0.0)
        if line:
            line.send((time.perf_counter() - began) / TURN_STEPS)


def ray_train_against_torchrun(data: Path, *, short: bool) -> Iterator[Row]:
    """Both groups are up all the time, and one of them works."""
    with tempfile.TemporaryDirectory() as folder, Listener(str(Path(folder) / "line")) as listener:
        told = {"address": listener.address, "data": str(data)}
        begin_under_torchrun(told | {"name": "torchrun"})
        thread = threading.Thread(target=under_ray_train, args=(told | {"name": "ray"}, folder))
        thread.start()
        accepted = [listener.accept() for _ in range(2)]
        lines: dict[str, Connection] = {line.recv(): line for line in accepted}
        rounds: dict[str, list[float]] = {name: [] for name in lines}
        for done in range(5 if short else ROUNDS):
            for name in sorted(lines, reverse=bool(done % 2)):
                lines[name].send("go")
                rounds[name].append(lines[name].recv())
        for line in lines.values():
            line.send("stop")
        thread.join()
    times, low, high = interval(lambda median: median["ray"] / median["torchrun"], rounds)
    steps = {name: interval(lambda median: median[name], rounds)[0] for name in rounds}  # noqa: B023
    yield Row(
        what=f"a step of {RANKS} gloo ranks under Ray Train: {1e3 * steps['ray']:.1f} ms",
        against=f"the same function under torchrun: {1e3 * steps['torchrun']:.1f} ms",
        asked=f"<= {MOST}x", measured=f"{times:.3f}x ({low:.3f} to {high:.3f})", reached=times <= MOST,
    )  # fmt: skip


def begin_under_torchrun(told: dict[str, Any]) -> None:
    """Each rank is this module, run."""
    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", "-m", "tests.bench.scaling"]
    given = told["address"], str(Path(told["data"]).resolve()), told["name"]
    subprocess.Popen([sys.executable, *words, *given], cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})


def under_ray_train(told: dict[str, Any], folder: str) -> None:
    """Until it is told to stop."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    with local_ray(RANKS, 0):
        TorchTrainer(
            serve, train_loop_config=told, scaling_config=ScalingConfig(num_workers=RANKS),
            run_config=RunConfig(name="bench", storage_path=folder),
        ).fit()  # fmt: skip


if __name__ == "__main__":
    dist.init_process_group("gloo")
    serve(dict(zip(("address", "data", "name"), sys.argv[1:], strict=True)))
    dist.destroy_process_group()
