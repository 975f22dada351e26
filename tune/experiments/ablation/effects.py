"""What each dimension does, and two of them together: from configurations that are otherwise equal.

The report's configurations are no full grid: only those are compared that differ in one dimension alone, for an
interaction the four corners of two.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from model.experiments.intervals import mean_interval
from tune.experiments.ablation.rows import Losses, Shape, losses, their_losses
from tune.experiments.experiment import Row, Table
from tune.experiments.tables import NOTHING, signed

UNITS: dict[str, tuple[Callable[[float], float], str]] = {
    "d_model": (math.log2, "doubled"), "heads": (math.log2, "doubled"), "layers": (math.log2, "doubled"),
    "dropout": (lambda dropout: 10 * dropout, ".1 more"),
}  # fmt: skip
"""In what each is counted: an effect is of one more of it."""
Effects = Callable[[Losses], list[float]]


def distance(name: str, low: Shape, high: Shape) -> float:
    """From one to the other, in its units."""
    unit = UNITS[name][0]
    return unit(getattr(high, name)) - unit(getattr(low, name))


def neighbours(shapes: Losses, name: str) -> Iterator[tuple[Shape, Shape]]:
    """Pairs that differ in this dimension alone, with nothing of it measured between: the lower value first."""

    def rest(shape: Shape) -> Shape:
        return shape._replace(**{name: 0})

    for _, group in itertools.groupby(sorted(shapes, key=lambda each: (rest(each), getattr(each, name))), key=rest):
        yield from itertools.pairwise(group)


def slopes(losses: Losses, name: str) -> list[float]:
    """What one more of a dimension adds to the loss, of each pair of neighbours."""
    return [(losses[high] - losses[low]) / distance(name, low, high) for low, high in neighbours(losses, name)]


def twists(losses: Losses, one: str, other: str) -> list[float]:
    """By how much one more of a dimension changes what one more of another adds, of each four corners."""
    found = []
    for low, high in neighbours(losses, one):
        for start, end in neighbours(losses, other):
            corner = high._replace(**{other: getattr(end, other)})
            if start == low and corner in losses:
                across = losses[corner] - losses[high] - losses[end] + losses[low]
                found.append(across / distance(one, low, high) / distance(other, start, end))
    return found


def main_effects(done: Sequence[Row]) -> Table:
    """What one more of a dimension does."""
    rows = effect_rows(done, ((f"{name}, {unit}", partial(slopes, name=name)) for name, (_, unit) in UNITS.items()))
    note = "Added to the validation loss, the mean over pairs that differ in nothing else; 95 % intervals over seeds"
    return Table(title="Main effects", columns=("", "pairs", *COLUMNS), rows=list(rows), note=note)


def interactions(done: Sequence[Row]) -> Table:
    """What one more of two dimensions together does beyond each alone."""
    pairs = itertools.combinations(UNITS, 2)
    rows = effect_rows(done, ((f"{one} x {other}", partial(twists, one=one, other=other)) for one, other in pairs))
    note = "By how much one more of the first changes what one more of the second adds, counted as above"
    return Table(title="Interactions", columns=("", "squares", *COLUMNS), rows=list(rows), note=note)


COLUMNS = "here, nats a token", "of the report's configurations alone", "published"


def effect_rows(done: Sequence[Row], wanted: Iterable[tuple[str, Effects]]) -> Iterator[list[str]]:
    """Name, number of comparisons, ours of all and of those configurations that the report has too, the report's."""
    of_seeds = list(losses(done).values())
    for name, found in wanted if of_seeds else ():
        if pairs := found(of_seeds[0]):
            their = their_losses(of_seeds[0])
            shared = [{shape: each[shape] for shape in their} for each in of_seeds]
            yield [name, str(len(pairs)), effect(of_seeds, found), effect(shared, found), effect([their], found)]


def effect(of_seeds: Sequence[Losses], found: Effects) -> str:
    """Its mean over pairs and seeds, with an interval over seeds where there are several."""
    means = [statistics.fmean(values) for each in of_seeds if (values := found(each))]
    if not means:
        return NOTHING
    whole = mean_interval(means)
    return f"{means[0]:+.3f}" if whole is None else signed(whole)
