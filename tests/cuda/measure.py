"""The parts of `make gpu`: what was counted and predicted without a GPU, measured on one.

Parts 1 to 3 need torch alone. Each ends in eight minutes, and writes a figure into results/gpu-PART.json as soon as it
has it: whole grids, of which results/gpu.json has what RESULTS.md shows. --dry-run goes through a part on a CPU at tiny
sizes, and writes where --out says.
"""

import argparse
import gc
import json
import multiprocessing
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.profiler import ProfilerActivity, profile

from model.config import Config, Data
from model.cost.memory_estimate import memory_estimate
from model.cost.peak_flops import peak_flops
from model.data.corpus import load_pairs, load_text
from model.data.dataset import TextData, prepare_pairs, prepare_text
from model.families import FAMILIES
from model.nn.precision import native_precisions
from model.training.cohort import Cohort
from model.training.evaluation import evaluate
from model.training.graph import GraphedLearner, make_learner
from model.training.learner import Learner, cosines
from model.training.memory import PeakMemory
from model.training.time_budget import warm_up
from tune.devices import MPS
from tune.recipe import launches
from tune.search.memory_model import ESTIMATE_FACTOR, first_overhead

ROOT = Path(__file__).resolve().parents[2]
PART_SECONDS = 480.0
TOGETHER_SECONDS, LOOK_SECONDS = 120.0, 0.5
"""Seconds for processes side by side to begin and be timed, and between two looks whether one died."""
LAUNCHING = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
SHAPES = [(64, 4, 4), (128, 4, 4), (128, 8, 8), (256, 8, 4), (512, 8, 4)]
UPSTREAM = {"seconds": 77.0, "loss": 1.4655}  # nanoGPT's shakespeare configuration, as issue 23 has it
COMPILERS = ("inductor", "aot_eager", "eager")
"""Backends of torch.compile: with all of it, without the inductor, with the first part alone."""
FAILED = "the part failed"
SEEDS = 3
Row = dict[str, str | None]
ABOUT = (
    "One GPU, borrowed for minutes. nanogpt is ours by Muon where nothing else is said; kernel by kernel means eager."
)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where and how much. seeds, long: whole trainings, and the steps of each; filling: a batch that fills the device;
    tiny: the shape of what is large else; data: a folder with shakespeare/input.txt, None for the text that comes with
    Python."""

    device: torch.device
    shapes: list[tuple[int, int, int]]
    seconds: float
    steps: int
    processes: tuple[int, ...]
    members: tuple[int, ...]
    cohort_tokens: tuple[int, ...]
    seeds: int
    long: int
    filling: dict[str, Any] = field(default_factory=dict)
    tiny: dict[str, Any] = field(default_factory=dict)
    data: Path | None = None

    def configs(self, shape: tuple[int, int, int], **changes: Any) -> Iterator[tuple[Config, Data]]:
        """One of each family, in bf16."""
        width, heads, layers = shape
        given = {"d_model": width, "heads": heads, "layers": layers, "precision": "bf16"} | changes
        for family, data in (("nanogpt", self.text()), ("translation", self.pairs())):
            yield Config(family=family, **given), data

    def text(self) -> TextData:
        """Tiny shakespeare where it is."""
        return _once("text", lambda: prepare_text(load_text(self.data and self.data / "shakespeare" / "input.txt")))

    def pairs(self) -> Data:
        """The sentences that come with the project."""
        return _once("pairs", lambda: prepare_pairs(load_pairs(None)))

    def wait(self) -> None:
        """Until the device has done all."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def step_seconds(self, advance: Callable[[list[float]], object]) -> float:
        """Of a step at a rate of 0 where so many are asked for at once."""
        for _ in range(2):
            advance([0.0] * min(8, self.steps))
        self.wait()
        began, done, some = time.perf_counter(), 0, min(32, self.steps)
        while done == 0 or time.perf_counter() - began < self.seconds:
            advance([0.0] * some)
            done += some
            self.wait()
        return (time.perf_counter() - began) / done

    def upstreams(self) -> Config:
        """nanoGPT's own for tiny shakespeare on a GPU."""
        shape = self.tiny or {"d_model": 384, "heads": 6, "layers": 6, "context": 256, "batch_tokens": 64 * 256}
        return Config(
            family="nanogpt", architecture="nanogpt", dropout=0.2, learning_rate=1e-3, precision="bf16", **shape
        )


_made = dict[str, Any]()


def _once(name: str, make: Callable[[], Any]) -> Any:
    if name not in _made:
        _made[name] = make()
    return _made[name]


def named(config: Config) -> str:
    """In short."""
    return f"{config.family} d{config.d_model} h{config.heads} l{config.layers}"


def row(claim: str, measured: str, asked: str | None = None, against: str | None = None) -> Row:
    """Those of one claim become one."""
    return {"claim": claim, "against": against, "asked": asked, "measured": measured, "spread": None, "n": None}


def paths(bench: Bench) -> Iterator[Row]:
    """Does all train, as a graph what it does kernel by kernel, and how many kernels has a step?"""
    for precision in native_precisions(bench.device):
        for config, data in bench.configs(bench.shapes[0], precision=precision):
            began = time.perf_counter()
            learner = make_learner(config, data, bench.device)
            learner.dry_step()
            bench.wait()
            ready = time.perf_counter() - began
            factors = [warm_up(step, 50) for step in range(bench.steps)]
            losses = learner.take_steps(factors).loss
            valid = evaluate(learner.model, config, data, "valid", tokens=4096, device=bench.device)
            assert valid is not None, "nothing refuses it"
            graph = "a graph" if isinstance(learner, GraphedLearner) and learner.graphed else "no graph"
            eager = Learner(config, data, bench.device)
            eager.dry_step()
            apart = (eager.take_steps(factors).loss - losses).abs().max().item()
            told = f"{losses[0]:.3f}, {losses[-1]:.3f}, {valid.loss:.3f}, {ready:.1f}, {graph}, {apart:.1g}"
            yield row(
                f"{bench.steps} steps in each precision: first and last loss, validation; seconds until ready; whether "
                "it is a graph, and how far at most its losses are from those kernel by kernel",
                f"{named(config)} {precision}: {told}",
            )
    width, heads, layers = bench.shapes[0]
    for depth in (layers, 2 * layers):
        for config, data in bench.configs((width, heads, depth)):
            learner = Learner(config, data, bench.device)
            learner.take_steps([0.0, 0.0])
            bench.wait()
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.device.type == "cuda" else [])]
            with profile(activities=activities) as seen:
                learner.step(0.0)
                bench.wait()
            events = {event.key: event.count for event in seen.key_averages()}
            kernels = sum(events.get(name, 0) for name in LAUNCHING)
            copies, waits = events.get("cudaMemcpyAsync", 0), events.get("cudaStreamSynchronize", 0)
            attention = ", ".join(sorted(name[6:] for name in events if name.startswith("aten::_scaled_dot")))
            counted = f"{launches(config.family, config.layers):.0f}"
            told = f"{named(config)}: {kernels} (foretold {counted}), {copies}, {waits}, {attention}"
            yield row("a step kernel by kernel: kernels, copies on the device, waits, attention", told, "no wait")
    for config, data in (*bench.configs(bench.shapes[0]), (bench.upstreams(), bench.text())):
        yield _compiled_gradients(bench, replace(config, dropout=0.0), data)


def _compiled_gradients(bench: Bench, config: Config, data: Data) -> Row:
    learner, found = Learner(config, data, bench.device), list[str]()
    learner.take_steps([warm_up(step, 50) for step in range(bench.steps)])
    batch = learner.batches.any_batch()

    def gradients(function: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        learner.optimizer.zero_grad(set_to_none=True)
        function(learner.model, config, batch.inputs, batch.targets)[0].backward()
        return [parameter.grad.clone() for parameter in learner.parameter_names if parameter.grad is not None]

    right = gradients(learner.family.losses)
    for how in COMPILERS:
        if how != "inductor" or bench.device.type == "cuda":
            torch.compiler.reset()
            other = gradients(torch.compile(learner.family.losses, dynamic=False, backend=how))
            whole, *each = cosines(right, other)
            worst = ", ".join(
                f"{name} {like:.3f}"
                for like, name in sorted(zip(each, learner.parameter_names.values(), strict=True))[:3]
            )
            found.append(f"{how} {whole:.4f} ({worst})")
    return row(
        "what is compiled, without dropout: cosine of its gradients and of those kernel by kernel, the three least",
        f"{named(config)} of {config.architecture}: {'; '.join(found)}", "1",
    )  # fmt: skip


def speeds(bench: Bench) -> Iterator[Row]:
    """Kernel by kernel, as a graph, as a compiled graph."""
    peak = peak_flops("bf16" if "bf16" in native_precisions(bench.device) else "fp32", bench.device)
    for shape in bench.shapes:
        for config, data in bench.configs(shape):
            yield _speed(bench, config, data, peak, "3x at d128" if shape[0] == 128 else None)
    yield _speed(bench, bench.upstreams(), bench.text(), peak, None, compiled=True)
    real = bench.device.type == "cuda"
    shape = {"d_model": 768, "heads": 12, "layers": 12, "context": 1024, "batch_tokens": 16_384} if real else bench.tiny
    gpt2 = Config(family="nanogpt", architecture="nanogpt", dropout=0.0, precision="bf16", **shape)
    words = replace(bench.text(), vocabulary=50_304) if real else bench.text()
    for cudnn in (False, True):
        yield _speed(bench, gpt2, words, peak, "50 % at d768", compiled=True, cudnn=cudnn)
    few, many = bench.configs(bench.shapes[len(bench.shapes) // 4]), bench.configs(bench.shapes[-1], **bench.filling)
    for config, data in (each for both in zip(few, many, strict=True) for each in both):
        yield _speed(bench, config, data, peak, None, compiled=True)


def _speed(
    bench: Bench,
    config: Config,
    data: Data,
    peak: float,
    asked: str | None,
    *,
    compiled: bool = False,
    cudnn: bool = False,
) -> Row:
    learner = Learner(config, data, bench.device)
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    eager = bench.step_seconds(learner.take_steps)
    del learner
    graphed = make_learner(config, data, bench.device)
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    graphed.dry_step()
    graph = best = bench.step_seconds(graphed.take_steps)
    after = ""
    if compiled and bench.device.type == "cuda":
        began = time.perf_counter()
        graphed.compile()
        graphed.take_steps([0.0])
        bench.wait()
        taken = time.perf_counter() - began
        best = bench.step_seconds(graphed.take_steps)
        how = "" if graphed.can_compile() else " (not compiled: with other gradients)"
        after = f", {best * 1e3:.3g} = {eager / best:.2f}x{how}, {taken:.0f} s"
    tokens = graphed.take_steps([0.0]).tokens
    mfu = FAMILIES[config.family].flops_per_token(config, data) * tokens / min(graph, best) / peak
    by = ", by cuDNN's attention" if cudnn else ""
    told = f"{eager * 1e3:.3g}, {graph * 1e3:.3g} = {eager / graph:.2f}x{after}, {mfu:.1%} of {peak / 1e12:.3g} T"
    claim = "ms of a step: kernel by kernel; as a graph, times as fast"
    if compiled:
        claim += "; compiled, times as fast, after so many seconds"
    return row(
        f"{claim}; model FLOPs utilisation",
        f"{named(config)}, {config.batch_tokens:,} tokens{by}: {told}",
        asked,
    )


def others(bench: Bench) -> Iterator[Row]:
    """Memory against its estimate, nanoGPT's own configuration, several trials as one, and several processes."""
    for shape in bench.shapes[1:] or bench.shapes:
        for config, data in bench.configs(shape, **bench.filling):
            yield _memory(bench, config, data)
    yield _memory(bench, bench.upstreams(), bench.text())
    for seed in range(bench.seeds):
        yield _trained(bench, replace(bench.upstreams(), seed=seed))
    for tokens in bench.cohort_tokens:
        for config, data in bench.configs(bench.shapes[min(1, len(bench.shapes) - 1)], batch_tokens=tokens):
            yield _as_one(bench, config, data)
    for count in bench.processes:
        how = "with" if MPS.exists() else "without"
        claim = f"processes that share the GPU {how} MPS, nanogpt d128 as a graph in each: steps a second together"
        yield row(claim, f"{count}: {side_by_side(bench, count):.0f}")


def _memory(bench: Bench, config: Config, data: Data) -> Row:
    gc.collect()
    peak = PeakMemory(bench.device)
    learner = make_learner(config, data, bench.device)
    learner.dry_step()
    learner.take_steps([0.0])
    bench.wait()
    step = peak.bytes()
    evaluate(learner.model, config, data, "valid", tokens=16_384, device=bench.device)
    bench.wait()
    estimate = memory_estimate(config, data, micro_batches=1, device=bench.device)
    predicted = first_overhead(config.family, bench.device.type) + ESTIMATE_FACTOR * estimate
    told = f"{peak.bytes() / 1e6:.0f}, {step / 1e6:.0f}, {predicted / 1e6:.0f}, {estimate / 1e6:.0f}"
    return row(
        f"MB of a trial, {config.batch_tokens:,} tokens a step: at most; before its evaluation; foretold; on paper",
        f"{named(config)}: {told}", "within 10 %",
    )  # fmt: skip


def _trained(bench: Bench, config: Config) -> Row:
    """As upstream does, the best of the validations counts; here of the average of the weights."""
    data, steps, every = bench.text(), bench.long, max(1, bench.long // 20)
    upstreams = replace(data, name="nanoGPT's validation split", valid=np.concatenate([data.valid, data.test]))
    learner = make_learner(config, data, bench.device)
    learner.dry_step()
    assert learner.average is not None, "the recipe has one"
    bench.wait()
    began, seconds, losses = time.perf_counter(), 0.0, list[float]()
    for first in range(0, steps, every):
        now = time.perf_counter()
        some = range(first, min(first + every, steps))
        learner.take_steps([min(warm_up(step, 100), (steps - step) / (0.7 * steps)) for step in some])
        bench.wait()
        seconds += time.perf_counter() - now
        with learner.average.applied():
            valid = evaluate(learner.model, config, upstreams, "valid", tokens=None, device=bench.device)
        assert valid is not None, "nothing refuses it"
        losses.append(valid.loss)
    best = every * (1 + losses.index(min(losses)))
    told = f"{seconds:.1f}, {time.perf_counter() - began:.1f}; {min(losses):.4f} after {best}, {losses[-1]:.4f}"
    return row(
        f"nanoGPT's shakespeare configuration (d384 h6 l6, context 256, 64 rows, AdamW, dropout .2) as a graph, "
        f"{steps:,} steps: seconds of them, of these and 20 evaluations; loss of the whole last 10 % by the average of "
        "the weights, at best after so many steps, and at the end",
        f"seed {config.seed}: {told}", "25 s, 1.460", f"upstream: {UPSTREAM['seconds']:.0f} s, {UPSTREAM['loss']}",
    )  # fmt: skip


def _cohort(bench: Bench, config: Config, data: Data, members: int) -> Cohort:
    """Siblings in dropout."""
    cohort = Cohort()
    for place in range(members):
        cohort.join(Learner(replace(config, dropout=(1 + place % 3) / 10, seed=place), data, bench.device))
    return cohort


def _as_one(bench: Bench, config: Config, data: Data) -> Row:
    config = replace(config, dropout=0.1, dropout_after=0.0)
    eager = bench.step_seconds(_cohort(bench, config, data, 1).leave(0).take_steps)
    learner = make_learner(config, data, bench.device)
    learner.dry_step()
    graph, told = bench.step_seconds(learner.take_steps), list[str]()
    for members in bench.members:
        cohort = _cohort(bench, config, data, members)
        each = [bench.step_seconds(partial(take, cohort)) / members for take in (_kernel_by_kernel, _as_a_graph)]
        ms = ", ".join(f"{seconds * 1e3:.3g} = {eager / seconds:.2f}x" for seconds in each)
        told.append(f"{members}: {ms}, {graph / each[-1]:.2f}x")
        del cohort
    return row(
        "trials of one shape as one, with dropout: ms of a step of one kernel by kernel, as a graph; of each of so "
        "many kernel by kernel = times the first, as a graph = times the first, times the second; how far losses of "
        f"{SEEDS} as one graph are at most from each's alone in {bench.steps} steps",
        f"{named(config)}, {config.batch_tokens:,} tokens: {eager * 1e3:.3g}, {graph * 1e3:.3g}; {'; '.join(told)}; "
        f"{_farthest(bench, config, data):.2g}",
        "8 as a graph: 8x one kernel by kernel",
    )  # fmt: skip


def _farthest(bench: Bench, config: Config, data: Data) -> float:
    """How far losses of a few as one graph are at most from those alone."""
    configs = [replace(config, dropout=0.0, seed=seed) for seed in range(SEEDS)]
    cohort, factors = Cohort(), [warm_up(step, bench.steps // 2) for step in range(bench.steps)]
    for each in configs:
        cohort.join(Learner(each, data, bench.device))
    found = cohort.take_steps([[factor] * len(configs) for factor in factors])
    alone = [Learner(each, data, bench.device).take_steps(factors) for each in configs]
    return max((one.loss - other.loss).abs().max().item() for one, other in zip(found, alone, strict=True))


def _kernel_by_kernel(cohort: Cohort, factors: list[float]) -> None:
    for factor in factors:
        cohort.step([factor] * len(cohort.learners))


def _as_a_graph(cohort: Cohort, factors: list[float]) -> None:
    cohort.take_steps([[factor] * len(cohort.learners) for factor in factors])


def side_by_side(bench: Bench, count: int) -> float:
    context = multiprocessing.get_context("spawn")
    ready, told, rates = context.Barrier(count, timeout=TOGETHER_SECONDS), context.Queue(), list[float]()
    running = [context.Process(target=_steps, args=(bench, ready, told), daemon=True) for _ in range(count)]
    ends = time.monotonic() + TOGETHER_SECONDS
    for process in running:
        process.start()
    try:
        while len(rates) < count:
            if time.monotonic() > ends or any(process.exitcode for process in running):
                codes = ", ".join(str(process.exitcode) for process in running)
                raise RuntimeError(f"{len(rates)} of {count} processes told how fast they were, exit codes {codes}")
            with suppress(queue.Empty):
                rates.append(told.get(timeout=LOOK_SECONDS))
    finally:
        for process in running:
            process.kill()
            process.join()
    return sum(rates)


def _steps(bench: Bench, ready: Any, told: Any) -> None:
    torch.set_num_threads(1)
    config, data = next(bench.configs(bench.shapes[min(1, len(bench.shapes) - 1)]))
    learner = make_learner(config, data, bench.device)
    learner.dry_step()
    bench.wait()
    ready.wait()
    told.put(1 / bench.step_seconds(learner.take_steps))


def searches(bench: Bench) -> Iterator[Row]:
    """A search, which needs Ray; the kernels; what is special to CUDA tested; each in what is left of the part."""
    ends = time.monotonic() + PART_SECONDS
    texts = ["--translation-corpus", "tatoeba/spa.txt", "--text-corpus", "shakespeare/input.txt"]
    given = [str(bench.data / each) if "/" in each else each for each in texts] if bench.data else []
    for claim, command in (
        ("a search of three minutes", ["tune/run.py", "--budget", "3m", *given]),
        ("kernels checked and timed", ["kernels/run.py", "--sizes", "full"]),
        ("tests of the kernels and of the path to the device", ["-m", "pytest", "-q", "tests/kernels", "tests/cuda"]),
    ):
        code, lines = run_within(ends - time.monotonic(), [sys.executable, *command])
        yield row(claim, f"exit code {code}: {' / '.join(lines[-3:])}")


def run_within(seconds: float, command: list[str]) -> tuple[int, list[str]]:
    """Run a command; return its exit code and the lines it printed. TimeoutExpired: it took longer; it was killed with
    all processes below it, which else hold its output open, and the GPU."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            printed, _ = running.communicate(timeout=max(0.0, seconds))
        except BaseException:
            for each in (*psutil.Process(running.pid).children(recursive=True), running):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            raise
    return running.returncode, printed.strip().splitlines()


PARTS: list[Callable[[Bench], Iterator[Row]]] = [paths, speeds, others, searches]


def measure(part: int, bench: Bench, out: Path) -> None:
    """Write the rows of a part into out/gpu-PART.json, each as soon as it is measured, until its time is over."""
    about = "No GPU" if bench.device.type == "cpu" else torch.cuda.get_device_name()
    common = {
        "commit": _commit(), "machine": f"{about}, torch {torch.__version__}", "date": date.today().isoformat(),
        "command": f"make gpu PART={part}",
    }  # fmt: skip
    rows, ends = dict[str | None, Row](), time.monotonic() + PART_SECONDS
    made = PARTS[part - 1](bench)
    while time.monotonic() < ends:
        try:
            found = next(made, None)
        except Exception as error:  # what was measured before it stays
            found = row(FAILED, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
            made = iter(())
        if found is None:
            break
        print(f"{found['claim']}: {found['measured']}", flush=True)
        before = rows.get(found["claim"])
        rows[found["claim"]] = joined(before, found) if before else found | common
        file = {"title": f"On a GPU, part {part}", "about": ABOUT, "rows": list(rows.values())}
        (out / f"gpu-{part}.json").write_text(json.dumps(file, indent=1) + "\n", encoding="utf-8")


def joined(one: Row, other: Row) -> Row:
    """What both measured of one claim."""
    asked = [each for each in dict.fromkeys((one["asked"], other["asked"])) if each]
    return one | {"measured": f"{one['measured']}; {other['measured']}", "asked": "; ".join(asked) or None}


def _commit() -> str | None:
    try:
        told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return told.stdout.strip() or None


TINY = {"d_model": 16, "heads": 2, "layers": 1, "context": 16, "batch_tokens": 64}
DRY = Bench(
    device=torch.device("cpu"), shapes=[(16, 2, 1)], seconds=0.0, steps=2, processes=(1,), members=(2,),
    cohort_tokens=(64,), seeds=1, long=5, tiny=TINY,
)  # fmt: skip
REAL = Bench(
    device=torch.device("cuda"), shapes=SHAPES, seconds=0.5, steps=100, processes=(1, 2, 4, 8, 16), members=(8, 16),
    cohort_tokens=(768, 12_288), seeds=5, long=3_500, filling={"batch_tokens": 16_384},
)  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", type=int, choices=range(1, len(PARTS) + 1))
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "results")
    asked = parser.parse_args(arguments)
    if not (asked.dry_run or torch.cuda.is_available()):
        print("there is no GPU here: --dry-run --out FOLDER shows that the parts run", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    measure(asked.part, replace(DRY if asked.dry_run else REAL, data=asked.data), asked.out)
    return 0
