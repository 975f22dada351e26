"""The recipe of a family, which follows from device, cap and text: what of its training is not searched, and the size
around which a search begins. It is made by one function, `recipe`; its rules are the constants above it. The trial that
is trained to its end is called the last trial here. First comes what a step costs on a device, which --plan uses
too. Standard library only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from tune.errors import UserError
from tune.search_space import ASPECT, CENTRE, LEAST_CONTEXT, PER_LAYER, ROWS, layer_weights

LAUNCHES = {"nanogpt": (142, 52), "translation": (152, 119)}
"""By family, the kernels of an eager step by Muon in bf16 outside its layers, and in each layer, as torch's profiler
counts them on an H100 (`make gpu PART=1`). Muon has 14 for all matrices of one shape; there are four and five shapes.
A GPU works through a step kernel by kernel: a small one takes as long as its launch, whatever it computes."""


@dataclass(frozen=True, kw_only=True)
class StepPrices:
    """The prices of steps on a device. flops: most FLOP/s of a step; launch_seconds: least seconds of a kernel, however
    small; 0 on a core."""

    flops: float
    launch_seconds: float = 0.0

    def step(self, launches: float, flops: float) -> float:
        """Return the seconds of a step: of launching its kernels or of their arithmetic, whichever takes longer."""
        return max(launches * self.launch_seconds, flops / self.flops)

    def trained(self, family: str, weights: float, flops: float) -> float:
        """Return the FLOP/s in steps of so many FLOPs of a model with so many weights in its layers, whose d_model over
        layers is ASPECT."""
        layers = (weights / (PER_LAYER[family] * ASPECT**2)) ** (1 / 3)
        return flops / self.step(launches(family, layers), flops)


def launches(family: str, layers: float) -> float:
    """Return the kernels of a step; 0 for a user's own family, of which none are known."""
    beside, each = LAUNCHES.get(family, (0, 0))
    return beside + each * layers


NOMINAL = {"cpu": StepPrices(flops=2e11), "cuda": StepPrices(flops=1.4e14, launch_seconds=4e-6)}
"""Assumed prices by kind of device, for what is decided before any is measured, so that the same command has the same
text: those of the core on which the default size was tuned, and of an H100, whose steps are CUDA graphs. They are used
too where the search's own process has no GPU, as on a cluster whose driver runs elsewhere."""

FLOPS_PER_WEIGHT = 6
"""FLOPs of training for each weight and token."""
CENTRE_COMPUTE = 600.0 * NOMINAL["cpu"].flops
"""Training FLOPs of a family that suit the default size: ten minutes of a nominal core, on which it was tuned.

Compute-optimal size grows with the square root of the compute (Hoffmann et al. 2022, arXiv:2203.15556)."""
LEAST_TOKENS_A_WEIGHT, MOST_TOKENS_A_WEIGHT = 5, 100
"""Bounds of the tokens that a model should see for each weight of its layers: compute-optimal are 20 (Hoffmann et al.
2022); a text with fewer is memorized, and more would better train a larger model."""
LIFE_SHARE, LIFE_SHARES, WALL_SHARES = 0.7, {"translation": 0.85}, {"nanogpt": 0.8}
"""Share of a family's training that the last trial has; and, by family, the share where the loss still falls so steeply
there that longer training is worth more than a wider choice: from ten minutes of a core to an hour by the power .09 for
a translator, .02 for nanogpt (docs/log.md, days 25, 28, 32). WALL_SHARES is of a wall clock that is too short for one
slot to use all: others then try shapes at the same time, of which a translator has too few as it is (day 60)."""
MOST_EPOCHS = 40
"""Most times that the last trial should see its text. It bounds the cap for which the small text is the default, says
when --plan calls a text too small, and bounds the size around which a search begins: training on what was seen so often
is worth next to nothing, and on what was seen up to 4 times about as much as on new text (Muennighoff et al. 2023,
arXiv:2305.16264)."""
SMALL_TEXT_TOKENS = 1e6
"""Training tokens of the small text that is the default: tiny shakespeare, by character."""
CONTEXTS = {128: 3e6, 256: 6e6, 512: 3e8, 1024: 3e9}
"""By context, the tokens of the last trial's training from which on it is better than a shorter one at equal
device-seconds; below them its steps have too few rows. Those of 512 and more are a guess: none was tried."""
WINDOWS = 64
"""Least windows of the validation split: fewer, longer ones leave its end unread and its first tokens without a past.
"""
FILLING_TOKENS = {"cpu": 0, "cuda": 16_384}
"""Tokens of a step that fills a device: on a GPU those that the original nanoGPT has on one. At equal seconds of an
H100 so many are better than the family's own batch and than two or three times that (docs/log.md, day 25). A core is
filled by any batch, and keeps the family's own: half of its gradient noise scale (McCandlish et al. 2018,
arXiv:1812.06162), which is 2,000 to 4,000 tokens until late in a training, for each size and text tried
(`tune/experiment.py large_batch` measures it). For nanoGPT a step of twice as many was worse at equal seconds, and so
was one of half as many."""
LEAST_STEPS = 1_000
"""Least steps of the last trial's training, which bound the batch."""
LEAST_EPOCH_STEPS = 16
"""Least steps of an epoch, which bound the batch too."""
RATE_TIMES = 2.0
"""Largest factor, up or down, by which the learning rate follows the batch; it follows by the square root (Malladi et
al. 2022, arXiv:2205.10287)."""
LEAST_BETA2, MOST_BETA2 = 0.9, 0.999
"""Bounds of AdamW's beta2, which follows the batch so that the half-life of the second moment stays the same in tokens
(Marek et al. 2025, arXiv:2507.07101)."""
ROUNDS = 20
"""Rounds of the iteration from the largest model of the space to one that suits the compute at the FLOP/s and the batch
that it has itself: each is nearer by a third."""
WARM_UP_SHARE = 0.02
"""Largest share of the last trial's steps in warm-up; a long one has the family's own warm-up. A longer one was worse,
for translation by .01 to .04 nats at a tenth of 500 steps (docs/log.md, day 53)."""
WARM_UPS_AT_FIRST, STEPS_AT_FIRST = 2.5, 50
"""Length of the first rung, where the cap pays for it, in warm-ups and in steps of the default configuration alone on
its device, whichever is less; trials that share a machine take longer for one."""
SMALLEST_EVALUATION_TOKENS = 2_048
EVALUATION_TOKENS_PER_RUNG_SECOND = {"cpu": 800, "cuda": 50_000}
"""Tokens of nanoGPT's fixed validation subset for each second of rung 0, so that evaluating it takes at most about 2 %
of the shortest segment; all its trials have the same. Another family has as many times fewer as its layers have more
weights (PER_LAYER)."""

NUMBERS: Mapping[str, tuple[type, float, float, str]] = {
    "context": (int, LEAST_CONTEXT, 8192, "256"),
    "batch_tokens": (int, 8, 2**24, "1536"),
    "learning_rate": (float, 1e-6, 10.0, "1e-3"),
    "warm_up_steps": (int, 1, 10**6, "100"),
    "weight_decay": (float, 0.0, 100.0, "0.1"),
    "label_smoothing": (float, 0.0, 0.9, "0.1"),
    "taps": (int, 0, 16, "3"),
    "dropout_after": (float, 0.0, 1e6, "4"),
}
"""Numbers that --set can set: type, least, most, an example. Each is a field of model.config.Config."""
WORDS: Mapping[str, tuple[str, ...]] = {"architecture": ("modern", "nanogpt"), "optimizer": ("muon", "adamw")}
"""Fields of model.config.Config that --set can set to one of some words."""
SETTABLE = (*NUMBERS, *WORDS)
BUILT_IN_ONLY_FIELDS = ("architecture", "optimizer", "taps", "dropout_after")
"""Those that a user's own family does not have."""
TEXT_ONLY_FIELDS = ("architecture", "context", "taps")
"""Those that translation does not have, as its rows are sentences."""


def unused_settings(family: str) -> tuple[str, ...]:
    """Return those of SETTABLE that change nothing for a family."""
    return {"nanogpt": (), "translation": TEXT_ONLY_FIELDS}.get(family, BUILT_IN_ONLY_FIELDS)


def parse_set(text: str) -> dict[str, Any]:
    """`context=256,learning_rate=1e-3` -> {"context": 256, "learning_rate": .001}. UserError: a name that is not in
    SETTABLE or comes twice, a value out of range, or a batch smaller than the context."""
    given = dict[str, Any]()
    for part in text.split(","):
        name, _, typed = (piece.strip() for piece in part.partition("="))
        if name not in SETTABLE:
            raise UserError(f"{part!r} is nothing of a recipe: there are {', '.join(SETTABLE)}; write context=256")
        if name in given:
            raise UserError(f"{part!r} sets {name} a second time: each is set once; keep one")
        if name in WORDS:
            if typed not in WORDS[name]:
                raise UserError(f"{part!r}: {name} is {' or '.join(WORDS[name])}: write {name}={WORDS[name][0]}")
            given[name] = typed
            continue
        kind, least, most, example = NUMBERS[name]
        try:
            value = float(typed)
        except ValueError:
            value = math.nan
        if not least <= value <= most or (kind is int and value != int(value)):
            what, form = ("a whole number", "d") if kind is int else ("a number", "g")
            raise UserError(f"{part!r}: {name} is {what} from {least:{form}} to {most:{form}}: write {name}={example}")
        given[name] = kind(value)
    if given.get("batch_tokens", math.inf) < given.get("context", 0):
        rule = f"a step has at least one row, which is as long as the context of {given['context']}"
        raise UserError(f"'batch_tokens={given['batch_tokens']}': {rule}: write batch_tokens={given['context']}")
    return given


def set_text(given: Mapping[str, Any]) -> str:
    """Return the inverse of parse_set."""
    return ",".join(f"{name}={value if name in WORDS else repr(value)}" for name, value in given.items())


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The recipe of a family. SETTABLE and betas are fields of model.config.Config, the same in all trials that do not
    vary them.

    weights: of the layers of the model around which a search begins (0: nothing is known of such models); tokens: that
    one trial of such a model would see, were it all that the family trains; flops: the FLOP/s from which that follows;
    why: the reason for each of SETTABLE, in a few words; own: what rate, warm-up and beta2 follow from in a trial that
    varies its batch (`batch_scaled_fields`); evaluation_window: that of Config, where contexts vary; average: that of
    Config, where it is not the default.
    """

    context: int
    batch_tokens: int
    learning_rate: float
    warm_up_steps: int
    weight_decay: float
    label_smoothing: float
    betas: tuple[float, float]
    architecture: str
    optimizer: str
    taps: int
    dropout_after: float
    weights: float
    tokens: float
    flops: float
    why: Mapping[str, str]
    own: Mapping[str, float] = field(default_factory=dict)
    evaluation_window: int | None = None
    average: float | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Return the fields of a trial's model.config.Config that the recipe has."""
        return {name: getattr(self, name) for name in (*SETTABLE, "betas")}

    def at(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return the known fields of the Config of a trial at a point of the space."""
        set_apart = {name: getattr(self, name) for name in ("evaluation_window", "average")}
        known = {name: value for name, value in set_apart.items() if value is not None}
        return {**self.config, **known, **batch_scaled_fields(self.own, point), **point}

    def line(self, family: str) -> str:
        """Return the recipe of a family in one short line."""
        context = "" if "context" in unused_settings(family) else f"context {self.context}, "
        rate, warm_up = f"rate {self.learning_rate:g}", f"warm-up {self.warm_up_steps} steps"
        return f"{context}{self.batch_tokens:,} tokens a step, {rate}, {warm_up}"

    def around(self, weights: float) -> Self:
        """Return the recipe with another size to begin around, which the same compute trains on other tokens."""
        return replace(self, weights=weights, tokens=self.tokens * self.weights / weights)

    @classmethod
    def from_stored(cls, stored: Any) -> Self:
        """Return the recipe that asdict() made this of. UserError, LookupError, TypeError: it did not; anyone may have
        edited it."""
        sound = [parse_set(set_text({name: stored[name]})) for name in SETTABLE]
        made = cls(**{**stored, "betas": tuple(stored["betas"])} | {k: v for each in sound for k, v in each.items()})
        numbers = [*made.betas, made.weights, made.tokens, made.flops, *made.own.values()]
        if len(made.betas) != 2 or not all(0 <= beta < 1 for beta in made.betas):
            raise UserError(f"{made.betas!r} are no betas")
        if not all(isinstance(number, int | float) and 0 <= number < math.inf for number in numbers):
            raise UserError("a figure of its recipe is none")
        if made.own and not ({"batch_tokens", "life"} <= made.own.keys() and all(made.own.values())):
            raise UserError("what its recipe follows from is not all there")
        window = made.evaluation_window
        if window is not None and not (
            isinstance(window, int) and window >= made.context and not window % made.context
        ):
            raise UserError("its evaluation has no whole window")
        if not all(isinstance(text, str) for each in (*made.why.items(), made.own) for text in each):
            raise UserError("a reason of its recipe is none")
        return made


def recipe(
    *, base: Mapping[str, Any], given: Mapping[str, Any], family: str, kind: str, seconds: float, prices: StepPrices,
    text_tokens: int, windowed_tokens: int | None, sizes: tuple[float, float],
) -> Recipe:  # fmt: skip
    """Return the recipe of one family for device, cap and text. A user's own family keeps its own recipe.

    base: the family's own recipe, as model.config.RECIPES has it; given: what --set gave, which overrides the rest;
    kind: of device; seconds: device-seconds that the family would have for one trial, were that all it trained; prices:
    of a device's steps; text_tokens: of the training split; windowed_tokens: of the validation split where it is cut
    into windows of the context (None: rows are sentences); sizes: weights of the layers of the smallest and the largest
    model of its space.
    """
    given = {name: value for name, value in given.items() if name not in unused_settings(family)}
    plain = {name: base[name] for name in (*SETTABLE, "betas")}
    why = dict.fromkeys(SETTABLE, "the family's own")
    if family not in PER_LAYER:
        why |= dict.fromkeys(given, "given")
        return Recipe(**{**plain, **given}, weights=0.0, tokens=0.0, flops=0.0, why=why)
    weights, batch, why_batch = sizes[1], max(FILLING_TOKENS[kind], int(base["batch_tokens"])), ""
    for _ in range(ROUNDS):  # a small model or batch does not fill a device, whose fewer FLOP/s suit a smaller one
        flops = prices.trained(family, weights, FLOPS_PER_WEIGHT * weights * given.get("batch_tokens", batch))
        weights = min(max(suited_weights(family, seconds * flops), sizes[0]), sizes[1])
        tokens = seconds * flops / (FLOPS_PER_WEIGHT * weights)
        life = life_share(family) * tokens
        batch, why_batch = _batch(base, kind, life, text_tokens)
    context, why_context = base["context"], "rows are sentences"
    if windowed_tokens is not None:
        longest = given.get("batch_tokens", batch) // ROWS
        context, why_context = _context(base, life, min(longest, windowed_tokens // WINDOWS))
        if ROWS * given.get("context", 0) > batch:
            batch, why_batch = ROWS * int(given["context"]), f"{ROWS} rows"
    batch = int(given.get("batch_tokens", batch))
    # context and batch above follow from the size that suits the compute, whatever the text
    weights = min(weights, max(most_weights(family, text_tokens), sizes[0]))
    flops = prices.trained(family, weights, FLOPS_PER_WEIGHT * weights * batch)
    tokens = seconds * flops / (FLOPS_PER_WEIGHT * weights)
    own = {"life": life, "beta1": base["betas"][0], "beta2": base["betas"][1]}
    own |= {name: base[name] for name in ("batch_tokens", "learning_rate", "warm_up_steps")}
    found = {**plain, "context": context, "batch_tokens": batch, **batch_scaled_fields(own, {"batch_tokens": batch})}
    short = "few steps" if found["warm_up_steps"] < base["warm_up_steps"] else "the family's own"
    times = _rate_times(batch / base["batch_tokens"])
    rate = "the family's own" if times == 1 else f"{times:.2g} times the family's own, as its batch"
    why |= {"context": why_context, "batch_tokens": why_batch, "learning_rate": rate, "warm_up_steps": short}
    if base["dropout_after"]:
        why["dropout_after"] = "times that the text is seen: new text needs none"
    why |= dict.fromkeys(given, "given")
    return Recipe(
        **{**found, **given}, weights=weights, tokens=tokens, flops=flops, why=why,
        own={name: value for name, value in own.items() if name not in given or name == "batch_tokens"},
    )  # fmt: skip


def batch_scaled_fields(own: Mapping[str, float], point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that follow from the batch of a point that has one: learning rate (by the square root), betas
    (the second moment keeps its half-life in tokens) and warm-up. Not those that the point itself has or `own` lacks.

    own: the family's own batch_tokens and values of these, and as `life` the tokens of the last trial.
    """
    if not own or "batch_tokens" not in point:
        return {}
    batch, found = point["batch_tokens"], dict[str, Any]()
    times = batch / own["batch_tokens"]
    if "learning_rate" in own:
        found["learning_rate"] = float(f"{_rate_times(times) * own['learning_rate']:.2g}")
    if "warm_up_steps" in own:
        found["warm_up_steps"] = int(min(own["warm_up_steps"], max(1, round(WARM_UP_SHARE * own["life"] / batch))))
    if "beta2" in own:
        beta2 = own["beta2"] if times == 1 else min(max(own["beta2"] ** times, LEAST_BETA2), MOST_BETA2)
        found["betas"] = (own["beta1"], beta2)
    return {name: value for name, value in found.items() if name not in point}


def _rate_times(times: float) -> float:
    """Return the factor of the learning rate for a batch that is so many times as large."""
    return min(max(math.sqrt(times), 1 / RATE_TIMES), RATE_TIMES)


def first_steps(warm_up_steps: float) -> float:
    """Return the steps that the default configuration makes at least until rung 0, as a loss in its warm-up tells
    little but who steps the fastest."""
    return max(warm_up_steps, min(STEPS_AT_FIRST, WARM_UPS_AT_FIRST * warm_up_steps))


def life_share(family: str, *, suggested: bool = True, side_by_side: bool = False) -> float:
    """Return a family's share of the last trial. suggested: the search suggests shapes that suit the family; else there
    is more to choose from, and it is LIFE_SHARE. side_by_side: of a wall clock that is too short for one of several
    slots."""
    return (WALL_SHARES if side_by_side else LIFE_SHARES).get(family, LIFE_SHARE) if suggested else LIFE_SHARE


def suited_weights(family: str, compute: float) -> float:
    """Return the weights in the layers of a model that suits so many FLOPs of training, as far as is known before any
    training."""
    return layer_weights(family, CENTRE) * math.sqrt(compute / CENTRE_COMPUTE)


def most_weights(family: str, text_tokens: float) -> float:
    """Return the most weights in layers around which a search on a text begins, whatever its cap: those that suit a
    last trial which sees the text MOST_EPOCHS times. At least the default's: on 60 KB of text smaller ones did not win.
    """
    return max(layer_weights(family, CENTRE), _suited_to(family, MOST_EPOCHS / life_share(family) * text_tokens))


def _suited_to(family: str, tokens: float) -> float:
    """Return the weights in layers that suit the compute of training them on so many tokens."""
    return FLOPS_PER_WEIGHT * layer_weights(family, CENTRE) ** 2 * tokens / CENTRE_COMPUTE


def small_text_seconds(kind: str) -> float:
    """Return the device-seconds of a family up to which the small text is the default: in these its last trial, of the
    size that suits the compute, sees the text MOST_EPOCHS times in steps that fill the device."""
    tokens = MOST_EPOCHS / life_share("nanogpt") * SMALL_TEXT_TOKENS
    weights = _suited_to("nanogpt", tokens)
    step = FLOPS_PER_WEIGHT * weights * max(1, FILLING_TOKENS[kind])
    return FLOPS_PER_WEIGHT * weights * tokens / NOMINAL[kind].trained("nanogpt", weights, step)


def _batch(base: Mapping[str, Any], kind: str, life: float, text_tokens: int) -> tuple[int, str]:
    """Return the batch, and why: the family's own, doubled while it does not exceed what fills the device and leaves
    enough steps."""
    batch = int(base["batch_tokens"])
    most = min(FILLING_TOKENS[kind], life / LEAST_STEPS, text_tokens / LEAST_EPOCH_STEPS)
    doublings = max(0, math.floor(math.log2(most / batch))) if most > batch else 0
    why = {0: "a core is filled by any"}.get(FILLING_TOKENS[kind], f"to fill a device, with {LEAST_STEPS:,} steps")
    return batch << doublings, why


def _context(base: Mapping[str, Any], life: float, most: float) -> tuple[int, str]:
    """Return the context, and why: the longest up to `most` that pays with so many tokens of training, and at least the
    family's own."""
    fitting = [context for context, tokens in CONTEXTS.items() if life >= tokens and context <= most]
    return max([base["context"], *fitting]), f"of the size that suits the cap a last trial has {life / 1e6:.3g}M tokens"


def evaluation_tokens(kind: str, family: str, rung_seconds: float) -> int:
    """Return the target tokens of a family's validation subset, where rung 0 has so many seconds of training."""
    cost = PER_LAYER.get(family, PER_LAYER["nanogpt"]) / PER_LAYER["nanogpt"]
    return max(SMALLEST_EVALUATION_TOKENS, int(EVALUATION_TOKENS_PER_RUNG_SECOND[kind] * rung_seconds / cost))
