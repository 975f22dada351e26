"""What experiments there are, and what one would do, on this machine; nothing is spent or written."""

from collections.abc import Iterable, Iterator

from tune.devices import find_devices
from tune.duration import duration_text
from tune.experiments.experiment import Experiment
from tune.experiments.grounds import affordable_share, crews, price, survey
from tune.experiments.settings import ExperimentSettings


def list_lines(experiments: Iterable[Experiment]) -> Iterator[str]:
    """One line each, with the least that it takes and what it is worth."""
    for each in experiments:
        settings = ExperimentSettings(budget=1.0, families={each.families[0]: 1.0})
        points = each.points(find_devices(settings), settings)
        least, worth = (duration_text(round(price(points, some))) for some in (0.0, 1.0))
        yield f"{each.name:14} {each.about}; {least} to {worth} here"


def plan_lines(experiment: Experiment, settings: ExperimentSettings) -> Iterator[str]:
    """A line for each point, with its seconds on each device."""
    grounds = survey(experiment, settings)
    share = affordable_share(grounds.points, settings.budget)
    yield f"{experiment.name} on {grounds.devices.slots} x {grounds.devices.name}"
    for group in crews(grounds.points):
        for point in group:
            yield f"{point.devices} x {point.text}: {point.given(share):.0f} s"
    yield f"about {duration_text(round(price(grounds.points, share)))} of {duration_text(settings.budget)}"
