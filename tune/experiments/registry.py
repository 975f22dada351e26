"""The experiments that there are, by name."""

from tune.experiments.experiment import Experiment
from tune.experiments.scaling import SCALING

EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in (SCALING,)}
