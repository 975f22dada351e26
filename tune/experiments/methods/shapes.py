"""The shapes that methods are compared on: one as it is, each dimension doubled, and others that cost as much."""

from collections.abc import Mapping
from typing import Any

from model.estimates import flops_per_token
from model.gpt import GPTConfig

REPORT: Mapping[str, Any] = {"architecture": "nanogpt", "d_model": 128, "heads": 4, "layers": 4, "dropout": 0.0}
"""The report's, as nanoGPT trains it on a CPU."""
CONTEXT, VOCABULARY = 64, 65
"""Of tiny shakespeare; another text's vocabulary moves the FLOPs by little."""
DOUBLED = ("nothing", "heads", "layers", "d_model")
LAYERS_TIMES = (0.25, 0.5, 2.0)
"""Of shapes that cost what one costs as it is: as many times its layers."""

Shape = Mapping[str, Any]


def doubled(shape: Shape, what: str) -> dict[str, Any]:
    """The shape with this dimension twice as large."""
    return {**shape, what: 2 * shape[what]} if what in shape else dict(shape)


def flops(shape: Shape) -> float:
    """Of a token in training."""
    sizes = {name: shape[name] for name in ("d_model", "heads", "layers")}
    config = GPTConfig(vocabulary=VOCABULARY, context=CONTEXT, architecture=shape["architecture"], **sizes)
    return flops_per_token(config, target=CONTEXT)


def equal_shapes(shape: Shape) -> list[dict[str, Any]]:
    """Others that cost what it costs: fewer layers, and wider; more layers, and narrower."""
    layers = {max(1, round(times * shape["layers"])) for times in LAYERS_TIMES} - {shape["layers"]}
    return [equal_shape(shape, count) for count in sorted(layers)]


def equal_shape(shape: Shape, layers: int) -> dict[str, Any]:
    """With so many layers, and of all widths that its heads divide evenly the one whose FLOPs are the closest."""
    step = 2 * shape["heads"] if shape["architecture"] == "modern" else shape["heads"]
    widths = range(step, 4 * shape["d_model"] + 1, step)
    made = ({**shape, "layers": layers, "d_model": width} for width in widths)
    return min(made, key=lambda each: abs(flops(each) - flops(shape)))
