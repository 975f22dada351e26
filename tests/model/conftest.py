"""Small data, small configs and a scripted clock for the tests of training."""

import gc
import itertools
import random
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch

from model import families
from model.config import Config, Data
from model.data import batches
from model.data.corpus import Pair, PairCorpus, TextCorpus
from model.data.dataset import PairData, TextData, prepare_pairs, prepare_text
from model.training import checkpoint as checkpoints
from model.training import learner
from model.training import train as training
from model.training.learner import Learner
from model.training.time_budget import Segment
from model.training.train import train
from tune.reports import Report

SUBSET = 256  # target tokens of the fixed subset


@pytest.fixture(scope="session")
def small_text() -> Config:
    return Config(
        family="nanogpt", d_model=16, heads=4, layers=2, batch_tokens=128, context=16, warm_up_steps=5,
        learning_rate=1e-2, dropout_after=0,
    )  # fmt: skip


@pytest.fixture(scope="session")
def small_pairs() -> Config:
    return Config(
        family="translation", d_model=16, heads=4, layers=2, batch_tokens=256, warm_up_steps=5, learning_rate=1e-2,
        dropout_after=0,
    )  # fmt: skip


def prepared(train: str, valid: str, test: str | None = None) -> TextData:
    """A text of one document a split; what is held out may be for validation and for the test."""
    held_out = {"valid": [valid], "test": [valid if test is None else test]}
    return prepare_text(TextCorpus(name="text", sha256="", builtin=True, train=[train], **held_out))


def prepared_pairs(train: list[Pair], valid: list[Pair], test: list[Pair]) -> PairData:
    return prepare_pairs(PairCorpus(name="pairs", sha256="", builtin=True, train=train, valid=valid, test=test))


@pytest.fixture(scope="session")
def text_data() -> TextData:
    words = random.Random(0).choices(["the", "cat", "sat", "on", "a", "mat", "and", "saw", "another", "bird"], k=8000)
    whole = " ".join(words)
    held_out = len(whole) // 20
    return prepared(whole[: -2 * held_out], whole[-2 * held_out : -held_out], whole[-held_out:])


@pytest.fixture(scope="session")
def pair_data() -> PairData:
    chooser = random.Random(0)
    english, spanish = ["one", "two", "three", "four", "five"], ["uno", "dos", "tres", "cuatro", "cinco"]
    numbers = [chooser.choices(range(5), k=chooser.randint(1, 8)) for _ in range(1200)]
    made = [(" ".join(english[i] for i in some), " ".join(spanish[i] for i in some)) for some in numbers]
    return prepared_pairs(made[:1000], made[1000:1100], made[1100:])


@pytest.fixture(scope="session")
def small(small_text: Config, text_data: TextData, small_pairs: Config, pair_data: PairData) -> dict[str, tuple]:
    """A small config of each family, and its data."""
    return {"text": (small_text, text_data), "pairs": (small_pairs, pair_data)}


@pytest.fixture
def eager(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch.compile, whose time is the machine's."""
    monkeypatch.setattr(Learner, "can_compile", lambda _: False)


@pytest.fixture(scope="session")
def warm() -> None:
    """What torch imports for a first training stays too, as tests/conftest.py has it."""
    import torch._dynamo
    import torch._inductor.config  # noqa: F401

    gc.collect()
    gc.freeze()


class Script:
    """A clock on which building a trial, a step, an evaluation batch and a checkpoint take the seconds that it says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.start, self.step, self.batch, self.save = (itertools.repeat(x) for x in (1.0, 0.1, 0.02, 0.1))
        self.compiles = False
        self.learns = True  # else steps are counted only, and their losses are these
        self.loss: Callable[[int], float] = lambda step: 1.0

    def __call__(self) -> float:
        return self.now

    def install(self, patch: pytest.MonkeyPatch) -> None:
        def slow(function, durations):
            def wrapped(*arguments, **named):
                self.now += next(getattr(self, durations))
                return function(*arguments, **named)

            return wrapped

        def slow_batches(*arguments, **named):
            for batch in evaluation_batches(*arguments, **named):
                yield batch
                self.now += next(self.batch)  # while the batch is worked on

        def step(learner_: Learner, factor: float) -> learner.Step:
            if self.learns:
                return learn(learner_, factor)
            learner_.steps += 1
            loss = torch.tensor(self.loss(learner_.steps))
            return learner.Step(loss=loss, gradient_norm=torch.tensor(1.0), tokens=128)

        learn = Learner.step
        evaluation_batches = families.evaluation_batches
        patch.setattr(families, "evaluation_batches", slow_batches)
        patch.setattr(Learner, "step", slow(step, "step"))
        patch.setattr(checkpoints, "save", slow(checkpoints.save, "save"))
        patch.setattr(batches, "EVALUATION_TOKENS", 128)
        patch.setattr(training, "PeakMemory", slow(training.PeakMemory, "start"))
        patch.setattr(Learner, "can_compile", lambda _: self.compiles)


@pytest.fixture
def clock(warm: None, monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script()
    script.install(monkeypatch)
    return script


Reports = Generator[Report, None, None]


def _begin(
    config: Config,
    data: TextData | PairData,
    folder: Path,
    clock: Callable[[], float] = time.monotonic,
    checkpoint: str | Path | None = None,
    evaluation_tokens: int = SUBSET,
    stop: Callable[[], bool] = lambda: False,
    **asked: object,
) -> Reports:
    segment, known = Segment(**{"device_seconds": 1e6} | asked), Path(checkpoint) if checkpoint else None
    given = {"folder": folder, "checkpoint": known, "evaluation_tokens": evaluation_tokens}
    return train(config, data, segment, **given, clock=clock, stop=stop)


@pytest.fixture
def run(warm: None) -> Callable[..., list[Report]]:
    """train() to its end: the arguments are _begin's, the last ones Segment's."""
    return lambda *given, **asked: list(_begin(*given, **asked))


@pytest.fixture
def begin(small_text: Config, text_data: TextData, tmp_path: Path, clock: Script) -> Callable[..., Reports]:
    """A segment of the small text model's life on the scripted clock, of what Segment takes, report by report."""
    return lambda folder=tmp_path, **asked: _begin(small_text, text_data, folder, clock, **asked)


@pytest.fixture
def life(begin: Callable[..., Reports]) -> Callable[..., list[Report]]:
    """The same to its end."""
    return lambda **asked: list(begin(**asked))


def losses_of(learner: Learner, steps: int = 3) -> list[float]:
    """Of its next steps."""
    return [learner.step(1.0).loss.item() for _ in range(steps)]


def same_weights(one: Report, other: Report) -> bool:
    left, right = (checkpoints.load_file(Path(str(each.checkpoint)) / checkpoints.WEIGHTS) for each in (one, other))
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def assert_parts_add_up(config: Config, data: Data, parts: int = 4) -> None:
    """The gradients of a batch that is taken in parts are those of the whole."""
    whole, added = (gradients(Learner(config, data, torch.device("cpu"), micro_batches=each)) for each in (1, parts))
    least = 1e-6 * max(float(gradient.abs().max()) for gradient in whole.values())  # a bias before a norm has none
    for name, gradient in whole.items():
        torch.testing.assert_close(added[name], gradient, rtol=1e-3, atol=least)


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    """By parameter, of a first batch in training."""
    learner._gradients(learner.batches.any_batch())
    return {name: parameter.grad.clone() for parameter, name in learner.parameter_names.items()}
