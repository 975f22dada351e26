"""The experiments that there are, by name."""

from tune.experiments.ablation import ABLATION
from tune.experiments.experiment import Experiment
from tune.experiments.precision import PRECISION
from tune.experiments.scaling import SCALING
from tune.experiments.stages import STAGES_OF_A_TRAINING

EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in (SCALING, ABLATION, PRECISION)}
