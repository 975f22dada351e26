"""The published ablation of a translator: its widths, heads, depths and dropouts, each trained on equal tokens; and
what dropout does where a text is seen again and again.

The report's configurations are no full grid: an effect is taken from those that differ in one dimension alone, an
interaction from the four corners of two dimensions.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import NamedTuple

from model.config import Config, Data
from model.cost.estimates import plain_parameters
from model.data.dataset import PairData, fewer_pairs
from tune.arithmetic import mean_interval
from tune.devices import Devices
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.lists import training_points
from tune.experiments.tables import EMPTY_CELL, MIB, figure, grouped, over_seeds, signed
from tune.published import published
from tune.reports import LARGEST_LOG
from tune.search_space import label


class Shape(NamedTuple):
    """Searched dimensions of a translator."""

    d_model: int
    heads: int
    layers: int
    dropout: float


Losses = Mapping[Shape, float]


def shape_of(row: Mapping[str, float | None]) -> Shape:
    """Return the shape of a configuration, or of a row of the report."""
    dropout, *counts = (row[name] or 0.0 for name in ("dropout", "d_model", "heads", "layers"))
    d_model, heads, layers = map(int, counts)
    return Shape(d_model, heads, layers, dropout)


def shape_name(shape: Shape) -> str:
    """Return the name of a shape, such as d128 h4 l2 p.1."""
    return label(shape._asdict())


def published_by_shape() -> dict[Shape, dict[str, float | None]]:
    """Return the report's rows by shape."""
    return {shape_of(row): row for row in published("ablation")}


def by_shape(rows: Iterable[Row]) -> dict[Shape, list[Row]]:
    """Return the rows of each configuration, one for each seed, in the order of the shapes."""
    return dict(sorted(grouped(rows, lambda row: shape_of(row["config"])).items()))


def average(rows: Iterable[Row], name: str) -> float:
    """Return the mean of a figure over the seeds that have it; NaN: none has."""
    found = [row[name] for row in rows if row[name] is not None]
    return statistics.fmean(found) if found else math.nan


def mean_text(rows: Sequence[Row], name: str, form: str) -> str:
    """Return that mean as text; EMPTY_CELL: no lease paid for the figure."""
    return figure(None if math.isnan(average(rows, name)) else average(rows, name), form)


def losses(done: Sequence[Row]) -> dict[int, Losses]:
    """Return the validation losses by seed, the first seed's first."""
    found = sorted(grouped(done, lambda row: int(row["config"]["seed"])).items())
    return {seed: {shape_of(row["config"]): row["valid_loss"] for row in rows} for seed, rows in found}


def common(of_seeds: Sequence[Losses]) -> list[Losses]:
    """Return the losses of each seed, for the configurations that every seed has."""
    shapes = [shape for shape in of_seeds[0] if all(shape in each for each in of_seeds)]
    return [{shape: each[shape] for shape in shapes} for each in of_seeds]


def their_losses(shapes: Losses) -> Losses:
    """Return the report's validation losses of those of the configurations that it has."""
    return {shape: row["valid_loss"] or 0.0 for shape, row in published_by_shape().items() if shape in shapes}


def agreement(ours: Losses, others: Losses) -> float:
    """Return the share of all pairs of configurations that both losses rank in the same order."""
    pairs = list(combinations(sorted(ours.keys() & others.keys()), 2))
    return sum((ours[a] < ours[b]) == (others[a] < others[b]) for a, b in pairs) / len(pairs)


UNITS: dict[str, tuple[Callable[[float], float], str]] = {
    "d_model": (math.log2, "doubled"), "heads": (math.log2, "doubled"), "layers": (math.log2, "doubled"),
    "dropout": (lambda dropout: 10 * dropout, ".1 more"),
}  # fmt: skip
"""Unit of each dimension, as a scale and in words: effects are of one unit more."""
Effects = Callable[[Losses], list[float]]


def distance(name: str, low: Shape, high: Shape) -> float:
    """Return the distance along a dimension from one shape to another, in the dimension's units."""
    unit = UNITS[name][0]
    return unit(getattr(high, name)) - unit(getattr(low, name))


def neighbours(shapes: Losses, name: str) -> Iterator[tuple[Shape, Shape]]:
    """Yield the pairs that differ in this dimension alone, with none between them measured: the lower value first."""

    def rest(shape: Shape) -> Shape:
        return shape._replace(**{name: 0})

    for _, group in itertools.groupby(sorted(shapes, key=lambda each: (rest(each), getattr(each, name))), key=rest):
        yield from itertools.pairwise(group)


def slopes(losses: Losses, name: str) -> list[float]:
    """Return what one unit more of a dimension adds to the loss, for each pair of neighbours."""
    return [(losses[high] - losses[low]) / distance(name, low, high) for low, high in neighbours(losses, name)]


def interaction_effects(losses: Losses, one: str, other: str) -> list[float]:
    """Return by how much one unit more of a dimension changes what one more of another adds, for each four corners."""
    found = []
    for low, high in neighbours(losses, one):
        for start, end in neighbours(losses, other):
            corner = high._replace(**{other: getattr(end, other)})
            if start == low and corner in losses:
                across = losses[corner] - losses[high] - losses[end] + losses[low]
                found.append(across / distance(one, low, high) / distance(other, start, end))
    return found


def main_effects(done: Sequence[Row]) -> Table:
    """Return the table of what one unit more of each dimension does."""
    rows = effect_rows(done, ((f"{name}, {unit}", partial(slopes, name=name)) for name, (_, unit) in UNITS.items()))
    note = (
        "Added to the validation loss of the first seed, the mean over pairs that differ in nothing else; over seeds: "
        "of the configurations that every seed has, with 95 % intervals, and of how many pairs"
    )
    return Table(title="Main effects", columns=("", "pairs", *COLUMNS), rows=list(rows), note=note)


def interactions(done: Sequence[Row]) -> Table:
    """Return the table of what one unit more of two dimensions together does beyond each alone."""
    pairs = itertools.combinations(UNITS, 2)
    rows = effect_rows(
        done, ((f"{one} x {other}", partial(interaction_effects, one=one, other=other)) for one, other in pairs)
    )
    note = "By how much one more of the first changes what one more of the second adds, counted as above"
    return Table(title="Interactions", columns=("", "squares", *COLUMNS), rows=list(rows), note=note)


COLUMNS = "here, nats a token", "over seeds", "of the report's configurations alone", "published"


def effect_rows(done: Sequence[Row], wanted: Iterable[tuple[str, Effects]]) -> Iterator[list[str]]:
    """Yield for each effect its name, its number of comparisons, ours of all configurations, over seeds, and of those
    that the report has too, and the report's."""
    of_seeds = list(losses(done).values()) or [{}]
    ours, their, same = of_seeds[0], their_losses(of_seeds[0]), common(of_seeds)
    shared = {shape: ours[shape] for shape in their}
    for name, found in wanted:
        if pairs := found(ours):
            alone = (
                f"{statistics.fmean(some):+.3f}" if (some := found(each)) else EMPTY_CELL for each in (shared, their)
            )
            yield [name, str(len(pairs)), f"{statistics.fmean(pairs):+.3f}", of_all_seeds(same, found), *alone]


def of_all_seeds(of_seeds: Sequence[Losses], found: Effects) -> str:
    """Return the mean over pairs and seeds as text, with its interval over seeds and the number of pairs."""
    pairs = [values for each in of_seeds if (values := found(each))]
    whole = mean_interval([statistics.fmean(values) for values in pairs])
    return EMPTY_CELL if whole is None else f"{signed(whole)} of {len(pairs[0])}"


WORDS = 65_000
"""The report's vocabulary on either side: the size with which plain_parameters() gives its column of parameters."""
STORED, TRAINED = 4, 4 + 20
"""Bytes for each parameter by the report's rule: to store it, and to train it, storage included."""


def tables(done: Sequence[Row]) -> list[Table]:
    """Return the tables of the rows; none where there is no row, as the report's own parameters need none."""
    made = [quality(done), cost(done), parameters(), memory(done), main_effects(done), interactions(done)]
    return made if done else []


def overfitting_tables(done: Sequence[Row]) -> list[Table]:
    """Return the table of what each configuration learned of a text that it saw again and again."""
    both = "trained_loss", "valid_loss"
    done = [
        row | {"gap": None if None in map(row.get, both) else row["valid_loss"] - row["trained_loss"]} for row in done
    ]
    found = [
        [
            shape_name(shape), f"{average(rows, 'epochs'):.3g}", mean_text(rows, "trained_loss", "{:.3f}"),
            f"{average(rows, 'valid_loss'):.3f}", mean_text(rows, "gap", "{:+.3f}"),
            f"{average(rows, 'lowest_loss'):.3f}", f"{average(rows, 'lowest_at'):.0%}",
            mean_text(rows, "bleu", "{:.1f}"),
        ]
        for shape, rows in by_shape(done).items()
    ]  # fmt: skip
    columns = "", "epochs", "train", "valid", "gap", "lowest valid", "at", "BLEU"
    note = "Losses in nats a token, without dropout; at: where on its way the lowest was."
    return [Table(title="The same text again and again", columns=columns, rows=found, note=note)]


def quality(done: Sequence[Row]) -> Table:
    """Return the table of what each configuration learned."""
    found, known = [], published_by_shape()
    for shape, rows in by_shape(done).items():
        their, loss, nats = known.get(shape, {}), average(rows, "valid_loss"), average(rows, "nats_per_word")
        valid = over_seeds((row["valid_loss"] for row in rows), "{:.3f}")
        found.append([
            shape_name(shape), mean_text(rows, "trained_loss", "{:.3f}"), f"{average(rows, 'train_loss'):.3f}", valid,
            f"{average(rows, 'accuracy'):.1%}", *(f"{math.exp(min(each, LARGEST_LOG)):.4g}" for each in (loss, nats)),
            f"{nats:.3f}", f"{average(rows, 'bits_per_character'):.3f}", mean_text(rows, "bleu", "{:.1f}"),
            *(figure(their.get(name)) for name in ("train_loss", "valid_loss", "valid_perplexity")),
        ])  # fmt: skip
    columns = (
        *("", "train", "with dropout", "valid", "accuracy", "perplexity", "of words", "nats a word", "bits/char"),
        *("BLEU", "published: train", "valid", "perplexity"),
    )
    note = "Losses in nats a token. The report's tokens are words, so that its perplexity stands beside ours of words."
    for row in done[:1]:
        note += f" Each saw {row['tokens']:,} target tokens, {row['epochs']:.3g} epochs of this text; there 100."
    ours = {shape: average(rows, "valid_loss") for shape, rows in by_shape(done).items()}
    if len(published_by_shape().keys() & ours.keys()) > 1:
        note += f" {agreement(ours, their_losses(ours)):.0%} of all pairs of the report's stand in its order by loss."
    return Table(title="What each configuration learned", columns=columns, rows=found, note=note)


def cost(done: Sequence[Row]) -> Table:
    """Return the table of what each configuration took."""
    found, known = [], published_by_shape()
    for shape, rows in by_shape(done).items():
        found.append([
            shape_name(shape), f"{average(rows, 'training_seconds') / 60:.2f}",
            f"{average(rows, 'device_seconds'):.1f}",
            f"{average(rows, 'tokens') / average(rows, 'training_seconds'):,.0f}",
            f"{average(rows, 'memory_bytes') / MIB:,.0f}",
            f"{average(rows, 'mfu'):.1%}", f"{average(rows, 'parameters') / 1e6:.2f}",
            *(figure(known.get(shape, {}).get(name)) for name in ("minutes", "parameters_million")),
        ])  # fmt: skip
    columns = (
        *("", "minutes", "device-seconds", "tokens/s", "memory, MiB", "MFU", "M parameters"),
        *("published: minutes", "M parameters"),
    )
    note = "Minutes are of optimizer steps; device-seconds are of all, with evaluations, checkpoints and translations."
    return Table(title="What each configuration took", columns=columns, rows=found, note=note)


def parameters() -> Table:
    """Return the table of the report's parameters against those counted from its own shapes."""
    printed = {
        (shape.d_model, shape.layers): row["parameters_million"] or math.nan
        for shape, row in published_by_shape().items()
    }
    found = []
    for (width, depth), millions in sorted(printed.items()):
        counted = plain_parameters(d_model=width, layers=depth, vocabulary=WORDS) / 1e6
        found.append([str(width), str(depth), f"{counted:.2f}", f"{millions:.2f}", f"{counted / millions - 1:+.2%}"])
    columns = "d_model", "layers", "counted, M", "published, M", "off"
    note = f"torch.nn.Transformer with feed-forward 4 d_model, {WORDS:,} words on either side, the read-out not tied"
    return Table(title="The report's parameters", columns=columns, rows=found, note=note)


def memory(done: Sequence[Row]) -> Table:
    """Return the table of the report's rule for memory against what was measured, by width and depth."""
    found = []
    sizes = grouped(done, lambda row: (row["config"]["d_model"], row["config"]["layers"]))
    for (width, depth), rows in sorted(sizes.items()):
        size, held = average(rows, "parameters"), average(rows, "memory_bytes")
        found.append([
            str(width), str(depth), f"{size:,.0f}", f"{STORED * size / MIB:,.0f}", f"{TRAINED * size / MIB:,.0f}",
            f"{held / MIB:,.0f}", f"{held / size:.1f}", f"{held / (TRAINED * size):.2f}",
        ])  # fmt: skip
    columns = (
        *("d_model", "layers", "parameters", "to store, MiB", "rule to train, MiB", "measured, MiB"),
        *("B a parameter", "measured / rule"),
    )
    note = (
        "The report's rule: 4 bytes a parameter to store and about 20 more to train. Measured: what the process took "
        "more at its peak, which is less where it had worked before."
    )
    return Table(title="Memory to store and to train", columns=columns, rows=found, note=note)


FAMILY = "translation"
FULL_TOKENS = 116_000_000
"""Target tokens of each training at a scale of 1: the report's 100 epochs, of the 108,964 Tatoeba pairs behind this
project's figures. A table's note says how many epochs of the text at hand they are."""
LEAST_STEPS = 20
OF_FIGURES = (
    *(Shape(512, heads, 2, 0.5) for heads in (8, 32)), *(Shape(512, 4, layers, 0.5) for layers in (8, 16)),
    Shape(256, 8, 2, 0.5), Shape(256, 4, 8, 0.5), Shape(128, 4, 2, 0.5), Shape(32, 8, 2, 0.1), Shape(32, 8, 4, 0.1),
)  # fmt: skip
"""Configurations that only the report's figures have; dimensions that these do not tell are as in the nearest row of
its table."""
WITHOUT_DROPOUT = (
    *(Shape(d_model, 4, 2, 0.0) for d_model in (64, 128, 512)),
    Shape(64, 4, 4, 0.0),
    Shape(128, 4, 4, 0.0),
)
DROPOUTS = 0.0, 0.1, 0.3
"""The default configuration, or what --fix makes of it, is trained with each of these dropouts, to see where its
validation loss turns."""
EPOCHS = 30
LEAST_EPOCH_STEPS = 4
"""Least number of batches in a text that is seen again and again."""


def ablation(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Return a point for each of the report's configurations, those of its figures and those without dropout, with the
    same steps."""
    shapes = dict.fromkeys((*published_by_shape(), *OF_FIGURES, *WITHOUT_DROPOUT))
    return training_points(devices, settings, [(shape._asdict(), steps_of(settings)) for shape in shapes])


def overfitting(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Return a point for one configuration with each dropout, on a text that each sees EPOCHS times."""
    return training_points(devices, settings, [({"dropout": dropout}, steps_again(settings)) for dropout in DROPOUTS])


def steps_again(settings: ExperimentSettings) -> int:
    """Return the optimizer steps of each training on a text that is seen again and again."""
    return max(LEAST_EPOCH_STEPS * EPOCHS, steps_of(settings))


def steps_of(settings: ExperimentSettings) -> int:
    """Return the optimizer steps of each training: batches have equal tokens."""
    return max(LEAST_STEPS, round(settings.scale * FULL_TOKENS / batch_tokens(settings)))


def batch_tokens(settings: ExperimentSettings) -> int:
    """Return the target tokens of a step."""
    return int(settings.set.get("batch_tokens", Config(family=FAMILY).batch_tokens))


def seen_again(data: Data, settings: ExperimentSettings) -> Data:
    """Return as many of the training pairs as are seen EPOCHS times, or all where even these are seen more often."""
    assert isinstance(data, PairData)
    share = steps_again(settings) * batch_tokens(settings) / EPOCHS / data.training_tokens
    return fewer_pairs(data, max(1, round(share * len(data.train))))


ABLATION = Experiment(
    name="ablation", about="the report's translators at equal tokens: quality, cost, effects of each dimension",
    points=ablation, tables=tables, families=(FAMILY,),
)  # fmt: skip
OVERFITTING = Experiment(
    name="overfitting", about=f"a translator on a text that it sees {EPOCHS} times, with dropout and without",
    points=overfitting, text=seen_again, tables=overfitting_tables, families=(FAMILY,), sets=("dropout",),
)  # fmt: skip
