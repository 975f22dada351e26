"""One base learning rate for all shapes: maximal-update rules for width and depth, with AdamW and with Muon.

Sources: Yang et al. 2022 (arXiv:2203.03466) for width, CompleteP (Dey et al. 2025, arXiv:2505.01618) for depth. The
base is the shape at which rates are tuned. A model states its `scaling`; a parameter's role follows from its kind. With
base rate e, weight decay w, and m times the width and l times the layers of the base:

| role                 | what                                 | learning rate | weight decay | epsilon  |
|----------------------|--------------------------------------|---------------|--------------|----------|
| embedding            | embedding tables, read-out matrices  | e             | w            | 1 / m    |
| hidden               | matrices between two widths          | e / m         | w m          | 1 / (ml) |
| gain                 | gains and biases                     | e             | 0            | 1 / (ml) |

In a `standard` scaling the rate of a hidden matrix is e / (m sqrt(l)), its decay w m sqrt(l), and each epsilon the
base's. With Muon the rate of a hidden matrix is MUON e at all shapes, as the update is scaled by the matrix's own shape
(muon.py), and its decay is w / MUON.
"""

from dataclasses import dataclass

from torch import nn

BASE_D_MODEL = 128
BASE_LAYERS = 4

ATTENTION = 12.0  # largest attention score: the scaled product of a query and a key
EMBEDDING_STD = 0.2  # initial, of an embedding; it is normalised before use, so a small one changes direction faster
EPSILON = 1e-8  # Adam's, at the base
MUON = 2.3
"""Muon's rate of a hidden matrix over AdamW's base rate: of values from 1.1 to 9 the best at widths 32, 128 and 256."""
HIDDEN = "hidden"
TIED_STD = 0.05  # initial, of an embedding that is also the read-out: .02 to .2 tried, see docs/log.md


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How a shape relates to the base; `standard` is upstream's parametrization, in which only rates are scaled.

    mup: whether muP's rules hold; else each shape is its own base: one rate for all tensors, no scaled branch or logit.
    """

    d_model: int
    layers: int
    standard: bool = False
    mup: bool = True

    @property
    def width(self) -> float:
        """m: how many times the base's width."""
        return self.d_model / BASE_D_MODEL if self.mup else 1.0

    @property
    def depth(self) -> float:
        """l: how many times the base's layers."""
        return self.layers / BASE_LAYERS if self.mup else 1.0

    @property
    def branch_factor(self) -> float:
        """The factor of a residual branch: x + branch f(x)."""
        return 1.0 if self.standard else 1 / self.depth

    @property
    def logits(self) -> float:
        """The factor of the logits."""
        return 1.0 if self.standard else 1 / self.width

    @property
    def hidden_rate_factor(self) -> float:
        """The factor of the learning rate of hidden matrices."""
        return 1 / self.width / (self.depth**0.5 if self.standard else 1)

    @property
    def epsilon(self) -> float:
        """The factor of Adam's epsilon inside the blocks."""
        return 1.0 if self.standard else 1 / (self.width * self.depth)


UNSCALED = Scaling(d_model=BASE_D_MODEL, layers=BASE_LAYERS, standard=True)
"""The scaling of a model that states none: one rate for all its parameters."""


def attention_scale(head_width: int) -> float:
    """Return the factor of q k, both normalised, that keeps the scores within +-ATTENTION at every head width."""
    return ATTENTION / head_width


def hidden_std(fan_in: int) -> float:
    """Return the initial standard deviation of a hidden matrix."""
    return 1 / fan_in**0.5


def parameter_groups(
    model: nn.Module, base_rate: float, weight_decay: float, *, muon: bool = False
) -> list[dict[str, object]]:
    """Return the groups for AdamW or Muon, each with its `peak_rate`, by the rules of `model.scaling`, else UNSCALED.

    Tied weights are in one group, once.
    """
    scaling = getattr(model, "scaling", UNSCALED)
    hidden = MUON if muon else scaling.hidden_rate_factor
    rules = {
        "embedding": (1.0, 1.0, 1.0 if scaling.standard else 1 / scaling.width),
        HIDDEN: (hidden, 1 / hidden, scaling.epsilon),
        "gain": (1.0, 0.0, scaling.epsilon),
    }
    role_of = roles(model)
    return [
        {
            "params": members, "role": role, "lr": base_rate * rate, "peak_rate": base_rate * rate,
            "weight_decay": weight_decay * decay, "eps": EPSILON * eps,
        }
        for role, (rate, decay, eps) in rules.items()
        if (members := [each for name, each in model.named_parameters() if role_of[name] == role])
    ]  # fmt: skip


def roles(model: nn.Module) -> dict[str, str]:
    """Return the role of each parameter, by its name."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    read_out = getattr(model, "lm_head", None)
    if read_out is not None:
        tables.add(id(read_out.weight))

    def role(parameter: nn.Parameter) -> str:
        if parameter.ndim < 2:
            return "gain"
        return "embedding" if id(parameter) in tables else HIDDEN

    return {name: role(parameter) for name, parameter in model.named_parameters()}
