"""What a trial needs of memory on paper, for its steps and its evaluations."""

import torch

from model.batches import EVALUATION_TOKENS, batch_shape
from model.config import Config, Data, model_config, pad_of
from model.estimates import STATE_BYTES, parameters, step_memory_bytes

_LOGIT_BYTES = 12    # of an evaluation: in the compute dtype, in fp32, and the logarithms


def footprint(config: Config, data: Data, *, micro_batches: int, device: torch.device) -> int:
    """Bytes on paper of a trial's step, its batch cut into so many parts, or of its evaluation where that takes more.

    Attention that may not be fused counts as not fused, which takes more.
    """
    shape = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context)
    made = model_config(config, vocabulary=data.vocabulary, pad=pad_of(data))
    evaluation = STATE_BYTES * parameters(made) + _LOGIT_BYTES * EVALUATION_TOKENS * data.vocabulary
    step = step_memory_bytes(
        made, batch=-(-shape.rows // micro_batches), target=shape.target, source=shape.source,
        precision=config.precision, fused=device.type != "cpu")
    return max(evaluation, step)


def most_micro_batches(config: Config, data: Data) -> int:
    """The power of two that cuts a batch into single rows."""
    shape = batch_shape(data, batch_tokens=config.batch_tokens, context=config.context)
    return 1 << (shape.rows - 1).bit_length()
