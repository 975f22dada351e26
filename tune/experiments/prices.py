"""What a training will take on this machine, on paper: FLOPs over the device's peak, and what no FLOPs account for."""

from dataclasses import dataclass
from functools import cache

from model.bleu import CHUNK
from model.config import Config, model_config
from model.estimates import flops_per_token, parameters
from model.gpt import GPTConfig
from model.peak import known_peak
from model.prepared import SMALL_VOCABULARY
from model.translator import TranslatorConfig
from tune.devices import Devices
from tune.experiments.whole_training import EVALUATION_TOKENS, SENTENCES

ROW, CHARACTERS = 64, 65
"""Tokens of a row of translation, on either side, and the vocabulary of a text: guesses, as none was read yet."""
SHARE = {"cpu": 0.6, "cuda": 0.3}
"""Of the peak that products of matrices reach inside a model."""
OVERHEADS = {
    ("translation", "cpu"): (0.014, 0.009), ("nanogpt", "cpu"): (0.005, 0.002),
    ("translation", "cuda"): (0.005, 0.004), ("nanogpt", "cuda"): (0.004, 0.0015),
}  # fmt: skip
"""Seconds of a step beside its products, once and for each layer: measured on an EPYC; those of a GPU are guesses."""
FORWARD = 1 / 3
"""Of a step."""
EVALUATIONS, CHECKPOINTS, WORDS = 4, 3, 48
"""Of a training: how many there are, and the tokens of a translation, each a forward pass."""
PROBES = 4
"""Steps that it takes to know its memory."""
CHECKPOINT_BYTES, DISK_BYTES = 12, 1e8
"""Of a parameter, and a second."""

TIMES, LATE_SECONDS = 2.0, 30.0
"""Of what a training is expected to take: on a busy machine it takes more, a short one above all."""


def at_most(seconds: float) -> float:
    """The seconds that a training may take, where the cap has them, of those that are expected."""
    return TIMES * seconds + LATE_SECONDS


@dataclass(frozen=True)
class Prices:
    """Of trainings on one of these devices; one process drives it, with one thread on a CPU."""

    devices: Devices

    def whole(self, config: Config, steps: int) -> float:
        """Expected device-seconds of a training with all that train_whole() does beside it."""
        rest = EVALUATIONS * EVALUATION_TOKENS / config.batch_tokens * FORWARD * self.step(config)
        rest += CHECKPOINTS * CHECKPOINT_BYTES * parameters(_model(config)) / DISK_BYTES
        if config.family == "translation":
            rest += FORWARD * SENTENCES / CHUNK * WORDS * self._overhead(config)
        return (PROBES + steps) * self.step(config) + rest

    def step(self, config: Config) -> float:
        """Expected seconds of an optimizer step, at the speed of eager code."""
        length = ROW if config.family == "translation" else config.context
        flops = config.batch_tokens * flops_per_token(_model(config), target=length, source=ROW)
        return flops / (SHARE[self.devices.kind] * peak(config.precision, self.devices.kind)) + self._overhead(config)

    def _overhead(self, config: Config) -> float:
        once, layer = OVERHEADS[config.family, self.devices.kind]
        return once + config.layers * layer


@cache
def peak(precision: str, kind: str) -> float:
    """FLOP/s of one process: a price is asked for again and again, and measuring takes time."""
    return known_peak(precision, kind, threads=1)


def _model(config: Config) -> GPTConfig | TranslatorConfig:
    vocabulary = SMALL_VOCABULARY if config.family == "translation" else CHARACTERS
    return model_config(config, vocabulary=vocabulary, pad=0)
