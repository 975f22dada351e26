"""Parameters, FLOPs and memory on paper, before anything is built.

# Shapes: B batch, T target length, S source length, D d_model, H heads, L layers, V vocabulary.
"""

import math
from collections import Counter

from model.nn.attention import MASK_POOL_ELEMENTS
from model.nn.gpt import GPTConfig
from model.nn.precision import compute_dtype
from model.nn.translator import TranslatorConfig
from model.training.muon import POLYNOMIALS

STEP_OVER_FORWARD = 3  # FLOPs of a step over those of a forward: the gradients of a product are two more products
STATE_BYTES = 16  # per parameter: fp32 weight, gradient, and AdamW's two moments or Muon's one and its update
AVERAGE_BYTES = 4  # per parameter: its average, where a training has one
_MASTER_BYTES = 4


def parameters(config: GPTConfig | TranslatorConfig) -> int:
    """Return the number of trained weights, tied ones once."""
    d, layers, vocabulary = config.d_model, config.layers, config.vocabulary
    if isinstance(config, TranslatorConfig):
        return vocabulary * d + _hidden(config)
    if config.architecture == "modern":
        return 2 * vocabulary * d + config.taps * d + _hidden(config)
    return (vocabulary + config.context) * d + _hidden(config) + layers * 2 * d + d


def _hidden(config: GPTConfig | TranslatorConfig) -> int:
    """Return the weights of the matrices between two widths: 12 D^2 a layer, in a decoder with an encoder 16."""
    return sum(map(math.prod, _hidden_matrices(config)))


def moment_bytes(config: GPTConfig | TranslatorConfig, optimizer: str) -> int:
    """Return the bytes of an optimizer's moments: AdamW's two, SGD's one, and Muon's one of hidden matrices."""
    weights = parameters(config)
    with_one = {"adamw": 0, "muon": _hidden(config), "sgd": weights}[optimizer]
    return _MASTER_BYTES * (2 * weights - with_one)


def plain_parameters(*, d_model: int, layers: int, vocabulary: int) -> int:
    """Return the parameters of a torch.nn.Transformer (feed-forward of 4 d_model) with embeddings of source and target
    and a read-out.

    That is the translator of a published ablation: nothing is tied, and every linear map has a bias.
    """
    layer = 28 * d_model**2 + 32 * d_model
    return 3 * vocabulary * d_model + vocabulary + layers * layer + 4 * d_model


def flops_per_token(config: GPTConfig | TranslatorConfig, *, target: int, source: int = 0) -> float:
    """Return the training FLOPs of the matrix products for each target token, at these lengths, padding included."""
    d, layers = config.d_model, config.layers
    whole = 2 * d * config.vocabulary * target
    if isinstance(config, TranslatorConfig):
        whole += layers * (24 * source * d * d + 4 * source**2 * d)  # encoder
        whole += layers * 4 * source * d * d  # keys and values for the decoder
        whole += layers * (28 * target * d * d + 4 * target**2 * d + 4 * target * source * d)  # decoder
    else:
        whole += layers * (24 * target * d * d + 4 * target**2 * d)
    return STEP_OVER_FORWARD * whole / target


def update_flops(config: GPTConfig | TranslatorConfig) -> int:
    """Return the FLOPs of the matrix products in one update of Muon."""
    sides = [(min(shape), max(shape)) for shape in _hidden_matrices(config)]
    return len(POLYNOMIALS) * sum(4 * least**2 * most + 2 * least**3 for least, most in sides)


def _update_elements(config: GPTConfig | TranslatorConfig) -> int:
    """Return the elements that Muon's update needs at most beside the gradients and their update: all matrices of one
    shape, orthogonalized at once, before and after a polynomial, which is of squares of the shorter side."""
    shapes = Counter(_hidden_matrices(config))
    return max(2 * count * (math.prod(shape) + min(shape) ** 2) for shape, count in shapes.items())


def _hidden_matrices(config: GPTConfig | TranslatorConfig) -> list[tuple[int, int]]:
    d, layers = config.d_model, config.layers
    block = [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d)]
    matrices = layers * block
    if isinstance(config, TranslatorConfig):
        matrices += layers * [*block, (d, d), (d, d)] + [(2 * layers * d, d)]
    return matrices


def step_memory_bytes(
    config: GPTConfig | TranslatorConfig, *, batch: int, target: int, source: int = 0, precision: str, optimizer: str,
    fused: bool, whole: bool = False, checkpointing: bool = False, cut: bool = False,
) -> int:  # fmt: skip
    """Return the peak bytes of an optimizer step at these lengths: state, what forward keeps, and what the loss needs.

    fused: whether attention is, with any dropout, as on a GPU; whole: whether a translator's loss takes all logits at
    once, as on a GPU or when compiled; checkpointing: as in `kept_elements`; cut: whether the batch is one of several
    parts. The peak is at the beginning of backward, where there are no gradients but those of earlier parts, or at the
    update, of which Muon's is counted in fp32 (less where a device computes in bf16).
    """
    size = compute_dtype(precision).itemsize
    weights = parameters(config)
    casts = 0 if size == _MASTER_BYTES else size * weights
    kept = size * kept_elements(
        config, batch=batch, target=target, source=source, fused=fused, checkpointing=checkpointing
    )
    if isinstance(config, TranslatorConfig):  # a logit, its gradient, and in fp32 the logit
        each = size + (_MASTER_BYTES if precision == "fp16" else size) + (_MASTER_BYTES if whole else 0)
    else:  # fp32 logit, its gradient, and a copy for the unsmoothed loss; the soft cap also keeps its tanh
        each = 16 if config.architecture == "modern" else 12
    loss = batch * target * config.vocabulary * each
    begin = (2 if cut else 1) * _MASTER_BYTES * weights + moment_bytes(config, optimizer) + kept + loss
    end = STATE_BYTES * weights + (_MASTER_BYTES * _update_elements(config) if optimizer == "muon" else 0)
    return casts + max(begin, end)


def kept_elements(
    config: GPTConfig | TranslatorConfig, *, batch: int, target: int, source: int = 0, fused: bool,
    checkpointing: bool = False,
) -> int:  # fmt: skip
    """Return the elements in the compute dtype that forward keeps for backward, up to the last normalised activations.

    checkpointing: whether a GPT keeps all of one block at a time, and of the others the input. Masks of dropout count
    where attention is not fused; on a GPU they are booleans, which the fitted factor of an estimate covers.
    """
    d, layers = config.d_model, config.layers
    if isinstance(config, TranslatorConfig):
        encoder = _own_attention(config, source, fused) + source * (10 * d + 2)
        cross = target * (5 * d + 2) + (3 if fused else 4) * source * d + 2 * config.heads * (target + source)
        cross += 0 if fused else config.heads * target * source
        decoder = _own_attention(config, target, fused) + cross + target * (10 * d + 2)
        of_source, of_target = (0 if fused else _residual_mask(config, batch, length) for length in (source, target))
        masks = (2 * layers + 1) * of_source + (3 * layers + 1) * of_target
        return batch * (layers * (encoder + decoder) + 3 * d * (source + target)) + masks
    block = _own_attention(config, target, fused) + target * (10 * d + 2)
    ends = 3 + config.taps if config.architecture == "modern" else 2
    masks, mask = (0, 0) if fused else (_attention_masks(config, batch, target), _residual_mask(config, batch, target))
    whole, inputs = (1, layers) if checkpointing else (layers, 0)
    return batch * (whole * block + (inputs + ends) * target * d) + whole * masks + (2 * whole + 1) * mask


def _own_attention(config: GPTConfig | TranslatorConfig, length: int, fused: bool) -> int:
    """Return the elements that self-attention keeps for one text; in `nanogpt` queries and keys are neither normalised
    nor rotated."""
    d, heads = config.d_model, config.heads
    if isinstance(config, GPTConfig) and config.architecture == "nanogpt":
        products = 0 if fused else heads * length**2
        return length * (6 * d + 2) + products
    products = length * heads if fused else length * d + heads * length**2
    return length * (8 * d + 2 + 4 * heads) + products


def _attention_masks(config: GPTConfig, batch: int, length: int) -> int:
    """Return the elements that dropout of attention keeps, which `nanogpt` has: the result, and a mask if joined."""
    if config.architecture == "modern" or config.dropout == 0:
        return 0
    products = batch * config.heads * length**2
    return products * (2 if products > MASK_POOL_ELEMENTS // 2 else 1)


def _residual_mask(config: GPTConfig | TranslatorConfig, batch: int, length: int) -> int:
    """Return the elements that dropout of a branch or an embedding keeps: a mask if joined, else nothing of its own."""
    elements = batch * length * config.d_model
    return elements if config.dropout > 0 and elements > MASK_POOL_ELEMENTS // 2 else 0
