"""LARS (You et al. 2017, arXiv:1708.03888): momentum in which no matrix moves more than a share of its norm a step."""

from pytorch_optimizer import LARS

from model.learner import Learner

BASE_RATE = 0.05    # of .01 to .1, tried on nanoGPT with the recipe's batch
WEIGHT_DECAY = 5e-4    # the paper's


def take_lars(learner: Learner, rate: float) -> None:
    """Let a learner that begins use LARS: a step moves a matrix by `rate` times its norm, whatever its gradient's.

    Of the paper's two factors, rate and trust, only the product counts for matrices; gains and biases, which have
    neither trust ratio nor decay, take the rate as it is, so the trust is 1 here.
    """
    group = {"params": list(learner.model.parameters()), "peak_rate": rate}
    learner.optimizer = LARS([group], lr=rate, weight_decay=WEIGHT_DECAY, momentum=0.9, trust_coefficient=1.0)
    learner.moments = ("momentum_buffer",)
    learner._begin_moments()
