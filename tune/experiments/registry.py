"""The experiments that there are, by name."""

from tune.experiments.ablation.experiment import ABLATION
from tune.experiments.batch_size.experiment import BATCH_SIZE
from tune.experiments.data_parallel.experiment import DATA_PARALLEL
from tune.experiments.estimates.experiment import ESTIMATES
from tune.experiments.experiment import Experiment
from tune.experiments.large_batch.experiment import LARGE_BATCH
from tune.experiments.loader.experiment import LOADER
from tune.experiments.methods.experiment import METHODS
from tune.experiments.precision.experiment import PRECISION
from tune.experiments.scaling.experiment import SCALING
from tune.experiments.stages.experiment import STAGES_OF_A_TRAINING
from tune.experiments.transfer.experiment import TRANSFER

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for each in (
        ABLATION, METHODS, BATCH_SIZE, ESTIMATES, LOADER, STAGES_OF_A_TRAINING, PRECISION, TRANSFER,
        SCALING, LARGE_BATCH, DATA_PARALLEL,
    )
}  # fmt: skip
