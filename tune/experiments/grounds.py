"""What an experiment stands on, which of its points run together, and what they cost."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from model.config import Config, Data
from tune.corpora import SETTINGS as CORPORA
from tune.corpora import load_corpora, prepare
from tune.devices import Devices, find_devices
from tune.dimensions import Value, fix_text
from tune.experiments.experiment import Experiment, Point
from tune.experiments.remedies import remedies
from tune.experiments.settings import ExperimentSettings
from tune.flag import invalid
from tune.space import Space

START_SECONDS, END_SECONDS = 15.0, 5.0
"""Of each device of a crew, kept for its processes to come up and to end."""


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """One configuration, its text, the devices, and what is to be measured. notes: for the user, on the text."""

    settings: ExperimentSettings
    devices: Devices
    config: Config
    data: Data
    points: Sequence[Point]
    notes: Sequence[str]


def survey(experiment: Experiment, settings: ExperimentSettings) -> Grounds:
    """UserError: a setting that cannot serve."""
    devices, family = find_devices(settings), settings.family
    if family not in experiment.families:
        rule = f"{family!r} is not what {experiment.name} is about: write {' or '.join(experiment.families)}"
        raise invalid("families", rule)
    space = Space(family=family, precisions=devices.precisions, fix=settings.fix)
    check_fixed(experiment, settings.fix)
    points = experiment.points(devices, settings)
    if settings.resume is None and settings.budget < price(points, 0.0):
        taken = {*settings.fix, *experiment.sets}
        free = {name: values for name, values in space.dimensions.items() if name not in taken}
        others = remedies(settings, free, lambda some: price(experiment.points(devices, some), 0.0))
        raise settings.too_small_for(experiment.name, price(points, 0.0), others)
    texts, fixed = load_corpora(settings), dict[str, Any](settings.fix)
    (corpus,) = texts.corpora.values()
    named = {name: getattr(texts.settings, name) for name in CORPORA.values()}
    return Grounds(
        settings=replace(settings, **named), devices=devices, data=prepare(corpus), points=points,
        config=Config(family=family, seed=settings.seed, **fixed), notes=texts.notes,
    )  # fmt: skip


def check_fixed(experiment: Experiment, fix: Mapping[str, Value]) -> None:
    """UserError: a dimension is fixed whose values are the points' own."""
    for name in experiment.sets:
        if name in fix:
            rule = f"is not for {experiment.name}, which sets {name} itself: leave it out"
            raise invalid("fix", f"'{fix_text({name: fix[name]})}' {rule}")


def crews(points: Sequence[Point]) -> list[list[Point]]:
    """The points of each number of devices: their processes stay up from one to the next."""
    ordered = sorted(points, key=lambda point: point.devices)
    return [list(group) for _, group in itertools.groupby(ordered, key=lambda point: point.devices)]


def price(points: Sequence[Point], share: float = 1.0) -> float:
    """Device-seconds of the points: with a share of 1 what they are worth, with 0 the least that they must have."""
    fixed = sum(group[0].devices * (START_SECONDS + END_SECONDS) for group in crews(points))
    return fixed + sum(point.devices * point.given(share) for point in points)


def affordable_share(points: Sequence[Point], left: float) -> float:
    """The share, at most 1, with which the price of the points is at most so many device-seconds; below 0: too few."""
    least, worth = price(points, 0.0), price(points)
    if left < least or worth == least:
        return 1.0 if left >= least else -1.0
    return min(1.0, (left - least) / (worth - least))


def affordable_points(points: Sequence[Point], left: float) -> int:
    """How many of the first points so many device-seconds pay for."""
    return next(count for count in range(len(points), -1, -1) if not count or price(points[:count], 0.0) <= left)


def wall(points: Sequence[Point], share: float = 1.0) -> float:
    """Seconds of wall time that the points take at their price: one crew after the other."""
    return len(crews(points)) * (START_SECONDS + END_SECONDS) + sum(point.given(share) for point in points)
