"""What a training will take, by steps of small models."""

import math

import pytest
import torch

from model.config import Config
from model.families import FAMILIES
from model.training.learner import Learner
from tune.devices import Devices
from tune.experiments.prices import MADE_UP, PROBED, Prices, solved

CORE = Devices(kind="cpu", count=1, model="core", precisions=("fp32", "bf16"), cores=1)


def probed(family: str) -> list[Config]:
    return [Config(family=family, d_model=width, layers=depth) for width, depth in PROBED]


@pytest.mark.parametrize("family", MADE_UP)
@pytest.mark.parametrize(("once", "layer"), [(0.004, 0.003), (0.0, 0.01), (0.02, 0.0)])
def test_what_steps_are_made_of_is_found_again(family: str, once: float, layer: float) -> None:
    flops = [Prices.flops(config) for config in probed(family)]
    steps = [once + config.layers * layer + each / 2e11 for config, each in zip(probed(family), flops, strict=True)]
    found = solved([[9.0, step, step] for step in steps], flops)
    assert found.once == pytest.approx(once, abs=1e-9) and found.layer == pytest.approx(layer, abs=1e-9)
    assert found.flops == pytest.approx(2e11) and found.spread == 0.0


def test_however_steps_were_disturbed_nothing_costs_less_than_nothing() -> None:
    flops = [Prices.flops(config) for config in probed("nanogpt")]
    for taken in ([0.01, 0.005, 0.02], [0.05, 0.06, 0.01], [0.01, 0.09, 0.011]):
        found = solved([[each] for each in taken], flops)
        assert min(found.once, found.layer) >= 0 < found.flops and math.isfinite(found.flops)


@pytest.mark.parametrize("family", MADE_UP)
def test_a_price_grows_with_the_model_and_with_its_batch(family: str, known_prices: None) -> None:
    base = Config(family=family, d_model=64, layers=2)
    larger = [
        Config(family=family, d_model=128, layers=2),
        Config(family=family, d_model=64, layers=4),
        Config(family=family, d_model=64, layers=2, batch_tokens=2 * base.batch_tokens),
    ]
    price = Prices(CORE).step
    assert all(price(base) < price(config) for config in larger)


@pytest.mark.parametrize("family", MADE_UP)
def test_a_made_up_text_is_learned_from_as_any(family: str) -> None:
    data = MADE_UP[family]()
    learner = Learner(Config(family=family, d_model=16, layers=1, heads=2, batch_tokens=256), data, torch.device("cpu"))
    assert math.isfinite(learner.step(1.0).loss.item()) and learner.family is FAMILIES[family]
