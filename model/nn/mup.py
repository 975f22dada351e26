"""One base learning rate for all shapes: maximal-update rules for width and depth, with AdamW and with Muon.

Sources: Yang et al. 2022 (arXiv:2203.03466) for width, CompleteP (Dey et al. 2025, arXiv:2505.01618) for depth. The
base is the shape at which rates are tuned. A model states its `scaling`; a parameter's role is what it is:

| role                 | what                                 | learning rate | weight decay | epsilon  |
|----------------------|--------------------------------------|---------------|--------------|----------|
| embedding            | embedding tables, read-out matrices  | e             | w            | 1 / m    |
| hidden               | matrices between two widths          | e / m         | w m          | 1 / (ml) |
| gain                 | gains and biases                     | e             | 0            | 1 / (ml) |

With Muon the rate of a hidden matrix is MUON e at all shapes, of an update that knows its matrix's (muon.py), and its
decay w / MUON.
"""

from dataclasses import dataclass

from torch import nn

BASE_D_MODEL = 128
BASE_LAYERS = 4

ATTENTION = 12.0  # the largest product of a query and a key
EMBEDDING_STD = 0.2  # of an embedding; it is normalised before its use, so a small one turns faster
EPSILON = 1e-8  # of Adam
MUON = 2.3
"""The rate of a hidden matrix by Muon over AdamW's base rate: of 1.1 to 9, the best at widths of 32, 128 and 256."""
HIDDEN = "hidden"
TIED_STD = 0.05  # of an embedding that is the read-out too: .02 to .2 tried, see docs/log.md


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How a shape relates to the base; `standard` is upstream's parametrization, where only the rates may follow.

    ruled: else each shape is its own base: one rate for all tensors, and no branch or logit is scaled.
    """

    d_model: int
    layers: int
    standard: bool = False
    ruled: bool = True

    @property
    def width(self) -> float:
        """m: how many times the base's width."""
        return self.d_model / BASE_D_MODEL if self.ruled else 1.0

    @property
    def depth(self) -> float:
        """l: how many times the base's layers."""
        return self.layers / BASE_LAYERS if self.ruled else 1.0

    @property
    def branch(self) -> float:
        """The factor of a residual branch: x + branch f(x)."""
        return 1.0 if self.standard else 1 / self.depth

    @property
    def logits(self) -> float:
        """The factor of the read-out's result."""
        return 1.0 if self.standard else 1 / self.width

    @property
    def hidden_rate(self) -> float:
        """The factor of the rate of hidden matrices."""
        return 1 / self.width / (self.depth**0.5 if self.standard else 1)

    @property
    def epsilon(self) -> float:
        """The factor of Adam's epsilon inside the blocks."""
        return 1.0 if self.standard else 1 / (self.width * self.depth)


UNSCALED = Scaling(d_model=BASE_D_MODEL, layers=BASE_LAYERS, standard=True)
"""Of a model that states none: one rate for all its parameters."""


def attention_scale(head_width: int) -> float:
    """The factor of q k, both normalised: at every head width their products then lie within +-ATTENTION."""
    return ATTENTION / head_width


def hidden_std(fan_in: int) -> float:
    """Initial standard deviation of a hidden matrix."""
    return 1 / fan_in**0.5


def parameter_groups(
    model: nn.Module, base_rate: float, weight_decay: float, *, muon: bool = False
) -> list[dict[str, object]]:
    """Groups for AdamW or Muon, each with its `peak_rate`; `model.scaling` says which rules hold, where there is one.

    Tied weights come once.
    """
    scaling = getattr(model, "scaling", UNSCALED)
    hidden = MUON if muon else scaling.hidden_rate
    rules = {
        "embedding": (1.0, 1.0, 1.0 if scaling.standard else 1 / scaling.width),
        HIDDEN: (hidden, 1 / hidden, scaling.epsilon),
        "gain": (1.0, 0.0, scaling.epsilon),
    }
    groups = []
    parameters = roles(model)
    for role, (rate, decay, eps) in rules.items():
        members = [parameter for name, parameter in model.named_parameters() if parameters[name] == role]
        if members:
            groups.append(
                {
                    "params": members,
                    "role": role,
                    "lr": base_rate * rate,
                    "peak_rate": base_rate * rate,
                    "weight_decay": weight_decay * decay,
                    "eps": EPSILON * eps,
                }
            )
    return groups


def roles(model: nn.Module) -> dict[str, str]:
    """The role of each parameter by name."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    read_out = getattr(model, "lm_head", None)
    if read_out is not None:
        tables.add(id(read_out.weight))

    def role(parameter: nn.Parameter) -> str:
        if parameter.ndim < 2:
            return "gain"
        return "embedding" if id(parameter) in tables else HIDDEN

    return {name: role(parameter) for name, parameter in model.named_parameters()}
