"""The configuration of a trial: the searched dimensions, and the recipe of its family."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from torch import nn

from model.data.dataset import OwnData, PairData, TextData
from model.nn.gpt import GPT, GPTConfig
from model.nn.translator import Translator, TranslatorConfig
from tune.errors import UserError
from tune.reports import EPOCHS_AS_NEW

Data = TextData | PairData | OwnData

COMMON = {
    "context": 64, "warm_up_steps": 20, "label_smoothing": 0.0, "architecture": "modern", "optimizer": "muon",
    "dropout_after": EPOCHS_AS_NEW,
}  # fmt: skip
RECIPES: dict[str, dict[str, Any]] = {
    "translation": {
        **COMMON, "learning_rate": 6e-3, "batch_tokens": 2048, "weight_decay": 0.01, "betas": (0.9, 0.98), "taps": 0,
    },
    "nanogpt": {
        **COMMON, "learning_rate": 4.2e-3, "batch_tokens": 1536, "weight_decay": 0.1, "betas": (0.9, 0.99), "taps": 3,
    },
}  # fmt: skip
OF_ARCHITECTURE: dict[str, dict[str, Any]] = {
    "nanogpt": {
        "learning_rate": 4e-3, "batch_tokens": 768, "warm_up_steps": 100, "optimizer": "adamw", "taps": 0,
        "dropout_after": 0.0,
    }
}  # fmt: skip
"""By architecture, what differs from the recipe of the family nanogpt."""
OLD_DEFAULTS: dict[str, Any] = {"architecture": "modern", "optimizer": "adamw", "taps": 0, "dropout_after": 0.0}
"""Values of the fields that an older stored config or recipe lacks, as there was no choice then."""


def family_recipe(family: str, architecture: object = None) -> dict[str, Any]:
    """Return a family's recipe; for nanogpt, that of the named architecture."""
    other = OF_ARCHITECTURE.get(str(architecture), {}) if family == "nanogpt" else {}
    return RECIPES[family] | other


_FAMILYS_OWN: Any = None  # replaced by the family's value in RECIPES


@dataclass(frozen=True, kw_only=True)
class Config:
    """One point of the search space with its recipe; fields that are not given have their family's defaults.

    UserError: an unknown family or optimizer, heads that do not divide d_model, or checkpointing of another family.
    """

    family: str
    d_model: int = 128
    heads: int = 4
    layers: int = 4
    dropout: float = 0.1
    precision: str = "fp32"
    seed: int = 0
    architecture: str = "modern"  # nanogpt only
    learning_rate: float = _FAMILYS_OWN  # base rate, from which muP gives each tensor's
    batch_tokens: int = _FAMILYS_OWN  # target tokens a step
    context: int = _FAMILYS_OWN  # longest sequence
    warm_up_steps: int = _FAMILYS_OWN
    label_smoothing: float = _FAMILYS_OWN  # training only
    weight_decay: float = _FAMILYS_OWN  # matrices only
    betas: tuple[float, float] = _FAMILYS_OWN  # of AdamW
    optimizer: str = _FAMILYS_OWN  # muon or adamw: of hidden matrices, with AdamW for the rest; sgd: of all
    taps: int = _FAMILYS_OWN  # nanogpt only: how many of the tokens before each are mixed into its embedding
    dropout_after: float = _FAMILYS_OWN  # how many times the text is seen before dropout begins
    clip: float = 1.0  # largest norm of all gradients together
    decay_share: float = 0.4  # share of a life's training in which the rate falls to zero
    average: float = 0.05  # half-life of the average of the weights, as a share of the steps so far; 0: no average
    scaling_rules: bool = True  # muP, under the name that studies keep; False: the standard parametrization
    evaluation_window: int | None = None  # tokens of a window in evaluation, which all contexts divide; None: context
    micro_batches: int = 1  # least number of parts of a batch, whose gradients are accumulated
    checkpointing: bool = False  # nanogpt only: blocks keep only their input and recompute the rest in backward
    own: Mapping[str, Any] = field(default_factory=dict)  # dimensions that only a user's own family has

    def __post_init__(self) -> None:
        if self.family not in RECIPES:
            known = ", ".join(RECIPES)
            raise UserError(f"family: {self.family!r} is none of {known}: one of your own comes with --load FILE")
        for name, value in family_recipe(self.family, self.architecture).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.optimizer not in ("muon", "adamw", "sgd"):
            raise UserError(f"optimizer: {self.optimizer!r} is none: choose muon, adamw or sgd")
        if self.checkpointing and self.family != "nanogpt":
            raise UserError(f"checkpointing: of {self.family!r} the blocks are not known; it is for nanogpt")
        object.__setattr__(self, "betas", tuple(self.betas))  # JSON knows lists only
        if self.d_model % self.heads:
            raise UserError(f"heads: {self.heads} does not divide d_model {self.d_model}; choose a divisor")

    @classmethod
    def at(cls, point: Mapping[str, Any], *, family: str, seed: int = 0) -> Self:
        """Return the config of a trial at a point of its family's search space. Dimensions that are no field go to
        `own`; a seed that is one of the dimensions replaces `seed`."""
        known = {each.name for each in fields(cls)}
        own = {name: value for name, value in point.items() if name not in known}
        given = {"seed": seed} | {name: point[name] for name in point if name in known}
        return cls(family=family, own=own, **given)


def model_config(config: Config, *, vocabulary: int, pad: int) -> GPTConfig | TranslatorConfig:
    """Return the shape of the model of a config."""
    shape = {name: getattr(config, name) for name in ("d_model", "heads", "layers", "dropout")}
    shape["mup"] = config.scaling_rules
    if config.family == "nanogpt":
        return GPTConfig(
            vocabulary=vocabulary, context=config.context, architecture=config.architecture, taps=config.taps, **shape
        )
    return TranslatorConfig(vocabulary=vocabulary, pad=pad, **shape)


def build_model(config: Config, *, vocabulary: int, pad: int) -> nn.Module:
    """Return the untrained model of a config, initialized from torch's global generator."""
    made = model_config(config, vocabulary=vocabulary, pad=pad)
    return GPT(made) if isinstance(made, GPTConfig) else Translator(made)


def pad_of(data: Data) -> int:
    """Return the padding token; 0 for text, which has none."""
    return getattr(data, "pad", 0)
