"""What the rows of the comparison of methods come to, in a few sentences."""

from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import geometric_mean

from tune.experiments.experiment import Row
from tune.experiments.methods.runs import (
    BASELINE,
    FULL,
    MIXED,
    SGD,
    Run,
    checkpointed,
    equals,
    pairs,
    ranked,
    ranks,
    runs_of,
    scores,
)  # fmt: skip

NOISE = 0.01
"""Nats by which two seeds may differ, as far as is known."""


def conclusions(rows: Sequence[Row]) -> list[str]:
    """What held and what did not."""
    runs = runs_of(rows)
    return list(chain(_methods(runs), _took_effect(runs), _checkpointing(runs), _formula(runs), _equal(runs)))


def _methods(runs: Sequence[Run]) -> Iterator[str]:
    """What each takes of the baseline's, over all shapes."""
    told = []
    for method in dict.fromkeys(run.method for run, _ in pairs(runs)):
        found = [(run, base) for run, base in pairs(runs) if run.method == method]
        seconds = geometric_mean(run.seconds / base.seconds for run, base in found)
        memory = geometric_mean(run.memory_bytes / base.memory_bytes for run, base in found)
        losses = [run.loss - base.loss for run, base in found]
        told.append(f"{method} {seconds:.2f}, {memory:.2f}, {min(losses):+.3f} to {max(losses):+.3f}")
    if told:
        yield f"Beside the baseline (times its seconds, times its memory, nats of loss): {'; '.join(told)}."


def _took_effect(runs: Sequence[Run]) -> Iterator[str]:
    """The report's losses of SGD and of the two precisions are equal to four digits."""
    changed = {method: [abs(run.loss - base.loss) for run, base in pairs(runs) if run.method == method]
               for method in (SGD, MIXED)}  # fmt: skip
    if all(changed.values()):
        least = {method: min(found) for method, found in changed.items()}
        same = [run.loss == base.loss for run, base in pairs(runs) if run.method == FULL]
        control = " Full precision is the baseline itself here, to the last digit." if same and all(same) else ""
        yield (f"In the report SGD and mixed precision end with the losses of AdamW and full precision to four digits, "
               f"so they took no effect; here they move every loss, by {least[SGD]:.4f} and {least[MIXED]:.4f} at "
               f"least.{control}")  # fmt: skip


def _checkpointing(runs: Sequence[Run]) -> Iterator[str]:
    found = checkpointed(runs)
    if found:
        seconds = geometric_mean(run.seconds / plain.seconds for run, plain in found)
        memory = geometric_mean(run.memory_bytes / plain.memory_bytes for run, plain in found)
        moved = max(abs(run.loss - plain.loss) for run, plain in found)
        yield (f"Activation checkpointing takes {seconds:.2f} times the seconds and {memory:.2f} times the memory, and "
               f"moves no loss by more than {moved:.1e}.")  # fmt: skip


def _formula(runs: Sequence[Run]) -> Iterator[str]:
    """Whom it puts first."""
    compared = ranked(runs)
    if len(compared) < 2:
        return
    first, last = (compared[ranks(scores(compared)).index(place)] for place in (1, max(ranks(scores(compared)))))
    slower = sum(run.seconds > first.seconds for run in compared)
    yield (f"The report's formula divides by what is taken, so it puts first what takes the most: {first.name}, than "
           f"which {slower} of {len(compared)} are slower; and last {last.name}.")  # fmt: skip


def _equal(runs: Sequence[Run]) -> Iterator[str]:
    same = equals(runs)
    if len(same) < 2 or same[0].doubled != "nothing":
        return
    first, best = same[0], min(same, key=lambda run: run.loss)
    gain = first.loss - best.loss
    shape = ", ".join(f"{name} {best.config[name]}" for name in ("d_model", "heads", "layers"))
    verdict = "which is noise" if gain < NOISE else "more than noise"
    yield (f"At equal FLOPs the best shape is {shape}: {gain:.3f} nats below the shape as it is, {verdict}"
           f"{''.join(_dearer(runs, first))}.")  # fmt: skip


def _dearer(runs: Sequence[Run], first: Run) -> Iterator[str]:
    """What doubling gains at its own cost."""
    for run in runs:
        if run.method == BASELINE and run.checkpointing == "off" and run.doubled in ("layers", "d_model"):
            gain, times = first.loss - run.loss, run.flops / first.flops
            yield f"; {run.doubled} doubled gains {gain:.3f} at {times:.1f} times the FLOPs"
