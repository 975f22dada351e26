"""The word-level language model on paper: parameters, FLOPs and memory, and the formula of the report that had it.

# Shapes: B batch, S length, D d_model, H heads, F feed-forward, V vocabulary.
"""

from model.estimates import STATE_BYTES
from model.experiments.word_model import WordConfig

BYTES = 4  # all is fp32
LOSS_BYTES = 4  # a logit's logarithm, kept by forward; backward makes the gradients of both
REPORTED_PRODUCTS = 7
"""Of S x D x D multiplications that the report counts a row of the batch."""


def parts(config: WordConfig) -> dict[str, int]:
    """Parameters of each part; each matrix has a bias, each norm a gain and a bias."""
    d, wide = config.d_model, config.feed_forward
    return {
        "embedding": config.vocabulary * d,
        "attention's input projection": config.layers * (3 * d * d + 3 * d),
        "attention's output projection": config.layers * (d * d + d),
        "feed-forward": config.layers * (2 * d * wide + wide + d),
        "norms": (2 * config.layers + 1) * 2 * d,
        "head": config.vocabulary * d + config.vocabulary,
    }


def reported_flops(config: WordConfig, batch: int) -> int:
    """Of a block, as the report estimates them."""
    return 2 * batch * REPORTED_PRODUCTS * config.length * config.d_model**2


def block_flops(config: WordConfig, batch: int) -> int:
    """Of the matrix products of a block's forward; heads cancel. Training takes `estimates.TRAINING` times as many."""
    s, d = config.length, config.d_model
    return batch * (8 * s * d**2 + 4 * s**2 * d + 4 * s * d * config.feed_forward)


def model_flops(config: WordConfig, batch: int) -> int:
    """Of the matrix products of the whole model's forward."""
    return config.layers * block_flops(config, batch) + 2 * batch * config.length * config.d_model * config.vocabulary


def block_kept_bytes(config: WordConfig, batch: int) -> int:
    """What a block's forward keeps for backward, its input included, with fused attention and no dropout.

    Of width D: the input, queries, keys and values, what attention gives, and what goes into each norm and comes out,
    but for the last; the feed-forward's activations once; a number for each head, two for each norm.
    """
    s, d = config.length, config.d_model
    return BYTES * batch * s * (8 * d + config.feed_forward + config.heads + 4)


def model_kept_bytes(config: WordConfig, batch: int) -> int:
    """What the whole model's forward keeps, the loss included."""
    s, d = config.length, config.d_model
    ends = BYTES * batch * s * (2 * d + 2) + LOSS_BYTES * batch * s * config.vocabulary
    return config.layers * block_kept_bytes(config, batch) + ends


def step_bytes(config: WordConfig, batch: int) -> int:
    """The most that a step of the whole model with AdamW holds: at the begin of backward, or at its end."""
    weights = sum(parts(config).values())
    gradients = 2 * LOSS_BYTES * batch * config.length * config.vocabulary
    begin = (STATE_BYTES - BYTES) * weights + model_kept_bytes(config, batch) + gradients
    return max(STATE_BYTES * weights, begin)

