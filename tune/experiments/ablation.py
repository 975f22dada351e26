"""The published ablation of a translator: its widths, heads, depths and dropouts, each trained on equal tokens; and
what dropout does where a text is seen again and again.
"""

from model.config import Config, Data
from model.data.dataset import PairData, fewer_pairs
from tune.devices import Devices
from tune.experiments.ablation_tables import Shape, overfitting_tables, tables, theirs
from tune.experiments.base import Experiment, ExperimentSettings, Point
from tune.experiments.lists import trainings

FAMILY = "translation"
FULL_TOKENS = 116_000_000
"""Target tokens of each training at a scale of 1: the report's 100 epochs, of the 108,964 Tatoeba pairs that this
project's figures are of. How many epochs they are of the text at hand is told."""
LEAST_STEPS = 20
OF_FIGURES = (
    *(Shape(512, heads, 2, 0.5) for heads in (8, 32)), *(Shape(512, 4, layers, 0.5) for layers in (8, 16)),
    Shape(256, 8, 2, 0.5), Shape(256, 4, 8, 0.5), Shape(128, 4, 2, 0.5), Shape(32, 8, 2, 0.1), Shape(32, 8, 4, 0.1),
)  # fmt: skip
"""In the report's figures alone; what these do not tell is as in the nearest row of its table."""
WITHOUT_DROPOUT = (
    *(Shape(d_model, 4, 2, 0.0) for d_model in (64, 128, 512)),
    Shape(64, 4, 4, 0.0),
    Shape(128, 4, 4, 0.0),
)
DROPOUTS = 0.0, 0.1, 0.3
"""With each of these the default configuration, or what --fix makes of it, is trained until its validation loss turns.
"""
EPOCHS = 30
LEAST_EPOCH_STEPS = 4
"""Of a text that is seen again and again: it has that many batches at least."""


def ablation(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """The report's configurations, those of its figures and those without dropout, each for the same steps."""
    shapes = dict.fromkeys((*theirs(), *OF_FIGURES, *WITHOUT_DROPOUT))
    return trainings(devices, settings, [(shape._asdict(), steps_of(settings)) for shape in shapes])


def overfitting(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """One configuration with each dropout, on a text that each sees EPOCHS times."""
    return trainings(devices, settings, [({"dropout": dropout}, steps_again(settings)) for dropout in DROPOUTS])


def steps_again(settings: ExperimentSettings) -> int:
    """Of each training on such a text."""
    return max(LEAST_EPOCH_STEPS * EPOCHS, steps_of(settings))


def steps_of(settings: ExperimentSettings) -> int:
    """Optimizer steps of each training: batches have equal tokens."""
    return max(LEAST_STEPS, round(settings.scale * FULL_TOKENS / batch_tokens(settings)))


def batch_tokens(settings: ExperimentSettings) -> int:
    """Target tokens of a step."""
    return int(settings.set.get("batch_tokens", Config(family=FAMILY).batch_tokens))


def seen_again(data: Data, settings: ExperimentSettings) -> Data:
    """As many of the training pairs as are seen EPOCHS times; all, where even these are seen more often."""
    assert isinstance(data, PairData)
    share = steps_again(settings) * batch_tokens(settings) / EPOCHS / data.training_tokens
    return fewer_pairs(data, max(1, round(share * len(data.train))))


ABLATION = Experiment(
    name="ablation", about="the report's translators at equal tokens: quality, cost, effects of each dimension",
    points=ablation, tables=tables, families=(FAMILY,),
)  # fmt: skip
OVERFITTING = Experiment(
    name="overfitting", about=f"a translator on a text that it sees {EPOCHS} times, with dropout and without",
    points=overfitting, text=seen_again, tables=overfitting_tables, families=(FAMILY,), sets=("dropout",),
)  # fmt: skip
