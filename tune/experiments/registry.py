"""The experiments that there are, by name."""

from tune.experiments.ablation import ABLATION
from tune.experiments.batch_size import BATCH_SIZE
from tune.experiments.data_parallel import DATA_PARALLEL
from tune.experiments.estimates import ESTIMATES
from tune.experiments.experiment import Experiment
from tune.experiments.large_batch import LARGE_BATCH
from tune.experiments.loader import LOADER
from tune.experiments.methods import METHODS
from tune.experiments.precision import PRECISION
from tune.experiments.scaling import SCALING
from tune.experiments.stages import STAGES_OF_A_TRAINING
from tune.experiments.transfer import TRANSFER

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for each in (
        ABLATION, METHODS, BATCH_SIZE, ESTIMATES, LOADER, STAGES_OF_A_TRAINING, PRECISION, TRANSFER,
        SCALING, LARGE_BATCH, DATA_PARALLEL,
    )
}  # fmt: skip
