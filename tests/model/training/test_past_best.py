"""A watched segment ends where its loss has turned, and keeps its best; where losses fall it is as any other."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import Config
from model.data.dataset import TextData
from model.training import checkpoint as checkpoints
from model.training import monitor
from model.training.learner import Learner, Step
from tests.model.conftest import Script
from tune.reports import EPOCHS_AS_NEW, Evaluation, Report

pytestmark = pytest.mark.usefixtures("eager")
EPOCH, BEST, STEPS = 5, 60, 200
Lives = Callable[..., list[Report]]


class Watched:
    """Segments of a life on little text, whose validation loss after so many steps is this one. learns: its weights
    move, which takes long."""

    def __init__(self, run: Lives, config: Config, data: TextData, folder: Path, clock: Script) -> None:
        self.run, self.folder, self.clock = run, folder, clock
        self.config = replace(config, layers=1, optimizer="adamw")
        self.data = replace(data, train=data.train[: EPOCH * config.batch_tokens + 1])
        self.loss: Callable[[int], float] = lambda step: 1 + abs(step - BEST) / BEST
        self.steps, self.learns = 0, False
        self.weights: dict[int, list[torch.Tensor]] = {}
        """At each look those of the first evaluation, by steps."""
        self.evaluations = Counter[int]()

    def __call__(self, **asked: object) -> Report:
        return self.run(self.config, self.data, self.folder, self.clock, **{"watched": True, "steps": STEPS} | asked)[
            -1
        ]

    def evaluate(self, model: torch.nn.Module, *_: object, **__: object) -> Evaluation | None:
        """The average is as good as the weights. A loss of NaN: there is no time for it."""
        self.weights.setdefault(self.steps, [each.detach().clone() for each in model.state_dict().values()])
        self.evaluations[self.steps] += 1
        loss = self.loss(self.steps)
        return None if math.isnan(loss) else Evaluation(loss=loss, tokens=100, seconds=1e-4)


@pytest.fixture
def watched(
    run: Lives, small_text: Config, text_data: TextData, tmp_path: Path, clock: Script, monkeypatch: pytest.MonkeyPatch
) -> Watched:
    made, begin, step = Watched(run, small_text, text_data, tmp_path, clock), Learner.__init__, Learner.step

    def begun(learner: Learner, *given: Any) -> None:
        begin(learner, *given)
        learner.model.register_buffer("steps", torch.zeros(1))

    def counted(learner: Learner, factor: float) -> object:
        made.steps = learner.steps + 1
        learner.model.steps.fill_(made.steps)
        clock.learns = made.learns
        taken = step(learner, factor)
        if not made.learns:
            learner.tokens += learner.config.batch_tokens
        return taken

    clock.save, clock.loss = itertools.repeat(0.0), lambda step: 3 - step / 100  # it learns
    monkeypatch.setattr(Learner, "__init__", begun)
    monkeypatch.setattr(Learner, "step", counted)
    monkeypatch.setattr(monitor, "evaluate", made.evaluate)
    return made


def kept(report: Report) -> list[torch.Tensor]:
    return list(checkpoints.load_file(Path(str(report.checkpoint)) / checkpoints.WEIGHTS).values())


def sums(tensors: list[torch.Tensor]) -> list[float]:
    """Whatever their order."""
    return sorted(float(each.double().sum()) for each in tensors)


@pytest.mark.parametrize("final", [False, True])
def test_past_its_best_it_ends_and_the_best_is_what_is_kept(watched: Watched, final: bool) -> None:
    watched.learns = True
    last = watched(final=final)
    assert last.ended == "turned" and last.final and last.valid and last.whole and last.test
    assert BEST < last.steps <= 1.5 * BEST
    best = min(watched.weights, key=watched.loss)
    assert abs(best - BEST) <= 0.1 * BEST
    assert sums(kept(last)) == pytest.approx(sums(watched.weights[best]), abs=1e-6)


@pytest.mark.parametrize(
    ("loss", "final"),
    [(lambda step: 1 / step, False), (lambda step: 1 / step + 0.5 * (step == 66), True),
     (lambda step: 1 + 0.002 * (step % 2), False)],
    ids=["falls", "one reading above", "noise"],
)  # fmt: skip
def test_noise_ends_none(watched: Watched, loss: Callable[[int], float], final: bool) -> None:
    watched.loss = loss
    last = watched(final=final)
    assert (last.steps, last.ended) == (STEPS, "final" if final else "rung")


@pytest.mark.parametrize(("falls", "ended"), [(0.0, "final"), (1e-4, "turned")])
@pytest.mark.parametrize("seconds", [0.1, 0.5])
def test_where_nothing_is_learned_any_more_a_loss_that_rises_is_noise(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, seconds: float, falls: float, ended: str
) -> None:
    """The loss of a step is off by .03, as that of 1,536 tokens is; it stays, and a decay may bring more than was lost,
    or falls by .1 in a thousand steps."""
    watched.loss = lambda step: 1.5 + 3e-5 * max(0, step - 600)
    for seed in range(2):
        chance = random.Random(seed)

        def step(learner: Learner, _: float, chance: random.Random = chance) -> Step:
            watched.clock.now += seconds
            watched.steps = learner.steps = learner.steps + 1
            learner.tokens += learner.config.batch_tokens
            loss = 1.5 - falls * learner.steps + chance.gauss(0, 0.03)
            return Step(loss=torch.tensor(loss), gradient_norm=torch.tensor(1.0), tokens=learner.config.batch_tokens)

        monkeypatch.setattr(Learner, "step", step)
        assert watched(final=True, steps=2_000).ended == ended


def test_an_end_that_is_worse_is_given_up_also_while_dropout_is_new(watched: Watched) -> None:
    watched.learns = True
    watched.config = replace(watched.config, dropout=0.3, dropout_after=160 / EPOCH)
    watched.loss = lambda step: 1 + 1 / step + (step >= 160)
    last = watched(final=True)
    best = min(watched.weights, key=watched.loss)
    assert last.steps == STEPS and best < 160
    assert sums(kept(last)) == pytest.approx(sums(watched.weights[best]), abs=1e-6)


@pytest.mark.parametrize(("dropout", "steps"), [(0.3, STEPS), (0.0, BEST + 30)])
def test_a_loss_that_rises_where_dropout_begins_has_not_turned(watched: Watched, dropout: float, steps: int) -> None:
    watched.config, watched.learns = replace(watched.config, dropout=dropout, dropout_after=BEST / EPOCH), True
    watched.loss = lambda step: 1 - step / 1000 + (0.1 * (step - BEST) / BEST if BEST <= step < 1.45 * BEST else 0)
    last = watched()
    assert (last.steps == STEPS) == (dropout > 0) and last.steps <= steps


def test_a_text_that_is_not_seen_again_and_again_is_not_looked_at(watched: Watched, text_data: TextData) -> None:
    """Whatever its loss does; nor is a segment that nobody asked to watch, also after one that was watched."""
    assert watched(watched=False, steps=150).steps == 150
    first = watched(steps=BEST)
    last = watched(watched=False, steps=STEPS, checkpoint=first.checkpoint)
    assert first.ended == last.ended == "rung" and last.steps == STEPS
    watched.data, watched.weights = text_data, {}
    assert len(text_data.train) * EPOCHS_AS_NEW > STEPS * watched.config.batch_tokens
    assert watched().steps == STEPS
    assert [*watched.weights] == [STEPS]


def test_where_the_end_of_a_last_segment_is_worse_than_what_was_seen_that_is_kept(watched: Watched) -> None:
    """Also where only its end is."""
    watched.learns = True
    watched.loss = lambda step: 2.0 if step == STEPS else 1.0 + 1 / step
    last = watched(final=True)
    assert (last.steps, last.ended) == (STEPS, "final")
    assert sums(kept(last)) != pytest.approx(sums(watched.weights[STEPS]), abs=1e-6)


def test_a_best_is_kept_over_the_end_of_a_lease(watched: Watched) -> None:
    watched.learns, half = True, STEPS // 2
    watched.loss = lambda step: (1.0 if step <= half else 2.0) + 1 / step
    first = watched(steps=half)
    last = watched(checkpoint=first.checkpoint, final=True)
    assert last.steps > half and sums(kept(last)) == pytest.approx(sums(watched.weights[half]), abs=1e-6)


def test_an_end_that_is_the_best_is_evaluated_once_as_it_is_and_once_by_the_average(watched: Watched) -> None:
    """And whole, valid and test; where it goes back, what it goes back to is evaluated once more."""
    watched.loss = lambda step: 1 / step
    watched(final=True)
    assert watched.evaluations[STEPS] == 4
    watched.loss = lambda step: 2.0 if step == STEPS else 1.0 + 1 / step
    watched.evaluations.clear()
    watched(final=True)
    assert watched.evaluations[STEPS] == 5


@pytest.mark.parametrize("worse", [0.0, 1.0])
def test_a_checkpoint_of_the_end_has_no_best_beside_it(watched: Watched, worse: float) -> None:
    watched.loss = lambda step: 1 / step + (worse if step == STEPS else 0)
    tensors = checkpoints.load(Path(str(watched(final=True).checkpoint))).tensors
    assert tensors and not checkpoints.with_prefix(tensors, checkpoints.BEST)


def test_an_end_that_could_not_be_looked_at_is_not_given_up_for_what_was_before(watched: Watched) -> None:
    """One reading above is noise, as anywhere."""
    watched.loss = lambda step: 1 / step
    watched(final=True)
    watched.learns = True
    *_, late, end = sorted(watched.weights)
    watched.loss = lambda step: math.nan if step == end else 1 / step + (step == late)
    watched.weights = {}
    last = watched(final=True)
    assert late in watched.weights and last.steps == end == STEPS
    assert sums(kept(last)) == pytest.approx(sums(watched.weights[STEPS]), abs=1e-6)
