"""What a trial needs of memory on paper: the largest of its steps and evaluations."""

import torch

from model.batches import EVALUATION_TOKENS, BatchShape, batch_shapes
from model.config import Config, Data, model_config, pad_of
from model.estimates import STATE_BYTES, parameters, step_memory_bytes

_LOGIT_BYTES = 12    # of an evaluation: in the compute dtype, in fp32, and the logarithms


def footprint(config: Config, data: Data, *, micro_batches: int, device: torch.device) -> int:
    """Bytes on paper of the hungriest of a trial's steps, cut into so many parts, or of its evaluation."""
    shapes = batch_shapes(data, batch_tokens=config.batch_tokens, context=config.context)
    made = model_config(config, vocabulary=data.vocabulary, pad=pad_of(data))
    evaluation = STATE_BYTES * parameters(made) + _LOGIT_BYTES * EVALUATION_TOKENS * data.vocabulary
    return max(evaluation, *(_step_bytes(config, data, shape, micro_batches, device) for shape in shapes))


def hungriest(config: Config, data: Data, device: torch.device) -> int:
    """The number of the batch shape whose steps need the most memory."""
    shapes = batch_shapes(data, batch_tokens=config.batch_tokens, context=config.context)
    return max(range(len(shapes)), key=lambda number: _step_bytes(config, data, shapes[number], 1, device))


def most_micro_batches(config: Config, data: Data) -> int:
    """The power of two that cuts every batch into single rows."""
    shapes = batch_shapes(data, batch_tokens=config.batch_tokens, context=config.context)
    return 1 << (max(shape.rows for shape in shapes) - 1).bit_length()


def _step_bytes(config: Config, data: Data, shape: BatchShape, micro_batches: int, device: torch.device) -> int:
    """Attention that may not be fused counts as not fused, which takes more."""
    return step_memory_bytes(
        model_config(config, vocabulary=data.vocabulary, pad=pad_of(data)), batch=-(-shape.rows // micro_batches),
        target=shape.target, source=shape.source, precision=config.precision, fused=device.type != "cpu")
