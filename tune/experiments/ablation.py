"""The published ablation of a translator: its widths, heads, depths and dropouts, each trained on equal tokens."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from model.config import Config
from model.training.ddp import ranks
from tune.backend.worker_group import Place, Said
from tune.devices import Devices
from tune.experiments.ablation_tables import COMPARE, LONGER, REPORT, UNDROPPED, tables, theirs
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row
from tune.experiments.whole_training import Prices, at_most, train_whole
from tune.flags import invalid


def work(place: Place, asked: dict[str, Any]) -> Iterator[Said]:
    """Train the configuration; `on` and `threads` say on what, where another device than the point's is compared."""
    if ranks() > 1 and dist.get_rank() > 0:
        return iter(())
    on = torch.device(asked["on"]) if "on" in asked else None
    name = "-".join(str(value) for value in asked.values()).replace(" ", "-")
    return train_whole(place, name, steps=asked["steps"], device=on, threads=asked.get("threads", 1))


FAMILY = "translation"
FULL_TOKENS = 116_000_000
"""Target tokens of each training at a scale of 1: the report's 100 epochs, of the 108,964 Tatoeba pairs that this
project's figures are of. How many epochs they are of the text at hand stands with the table."""
LEAST_STEPS = 20
WITHOUT_DROPOUT = tuple({"d_model": d, "heads": 4, "layers": 2, "dropout": 0.0} for d in (64, 128, 512))
LONG, TIMES = {"d_model": 128, "heads": 4, "layers": 4, "dropout": 0.1}, 4
"""The report's best, and how many times as long, as it did to see overfitting."""
COMPARED, COMPARED_STEPS = {"d_model": 16, "heads": 4, "layers": 2, "dropout": 0.1}, 200
"""What the report trained on CPU and GPU; here for so many steps at most."""


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """The report's configurations, those without dropout, the comparison of devices and the long one; then all but the
    last two with each further seed. UserError: --fix leaves none."""
    asked = Asked(Prices(devices), settings)
    found = [*asked.trainings(settings.seed), *asked.comparison(), *asked.longer()]
    for seed in range(settings.seed + 1, settings.seed + settings.seeds):
        found += asked.trainings(seed)
    if not found:
        raise invalid("fix", "leaves none of the report's configurations: fix less")
    return found


@dataclass(frozen=True)
class Asked:
    """What is asked for under these settings, as points with their prices."""

    prices: Prices
    settings: ExperimentSettings

    def trainings(self, seed: int) -> Iterator[Point]:
        """Each configuration once."""
        report = [shape._asdict() for shape in theirs()]
        steps = steps_of(self.settings)
        for name, shapes in ((REPORT, report), (UNDROPPED, WITHOUT_DROPOUT)):
            for shape in shapes:
                yield from self._training({"set": name, "steps": steps}, shape, seed)

    def comparison(self) -> Iterator[Point]:
        """One configuration on GPU and CPU; where there is no GPU on one thread and on two, for which two cores are
        held."""
        devices, steps = self.prices.devices, min(COMPARED_STEPS, steps_of(self.settings))
        cores = max(1, devices.cores // devices.count)
        others = [("cuda", 1, 1), ("cpu", cores, 1)] if devices.kind == "cuda" else [("cpu", 1, 1), ("cpu", 2, 2)]
        for on, threads, count in others if devices.slots > 1 or devices.kind == "cuda" else ():
            asked = {"set": COMPARE, "steps": steps, "on": on, "threads": threads}
            there = self.prices if on == devices.kind else Prices(replace(devices, kind=on))
            yield from Asked(there, self.settings)._training(asked, COMPARED, self.settings.seed, count)

    def longer(self) -> Iterator[Point]:
        """One configuration for several times as long."""
        asked = {"set": LONGER, "steps": TIMES * steps_of(self.settings)}
        return self._training(asked, LONG, self.settings.seed)

    def _training(
        self, asked: dict[str, Any], shape: Mapping[str, Any], seed: int, devices: int = 1
    ) -> Iterator[Point]:
        """The point, where --fix leaves it in."""
        fix, config = self.settings.fix, {**shape, "seed": seed}
        if all(fix.get(name, value) == value for name, value in shape.items()):
            price = self.prices.whole(Config(family=FAMILY, **{**fix, **config}), asked["steps"])
            yield Point(devices=devices, asked=asked, config=config, seconds=at_most(price), least=price)


def steps_of(settings: ExperimentSettings) -> int:
    """Optimizer steps of each training: batches have equal tokens."""
    return max(LEAST_STEPS, round(settings.scale * FULL_TOKENS / Config(family=FAMILY).batch_tokens))


def line(row: Row) -> str:
    """What came out, in short."""
    return (
        f"validation loss {row['valid_loss']:.3f}, BLEU {row['bleu']:.1f}, {row['device_seconds']:.0f} s, "
        f"{row['memory_bytes'] / 2**20:,.0f} MiB, MFU {row['mfu']:.0%}"
    )


ABLATION = Experiment(
    name="ablation", about="the report's 33 translators at equal tokens: quality, cost, effects of each dimension",
    points=points, work=work, line=line, tables=tables, families=(FAMILY,),
)  # fmt: skip
