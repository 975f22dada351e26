"""The tables of the ablation, beside the published ones."""

import math
from collections.abc import Sequence

from model.estimates import plain_parameters
from model.experiments.intervals import mean_interval
from tune.experiments.ablation.effects import interactions, main_effects
from tune.experiments.ablation.rows import (
    COMPARE,
    REPORT,
    TABLE,
    agreement,
    average,
    by_shape,
    long_and_short,
    lowest_point,
    named,
    of_set,
    shape_of,
    their_losses,
    theirs,
)
from tune.experiments.experiment import Row, Table
from tune.experiments.tables import figure, with_interval

WORDS = 65_000
"""The report's vocabulary on either side: the one with which plain_parameters() gives its column."""
TRAINED = 4 + 20
"""Bytes a parameter by the report's rule, those to store it included."""
MIB = 2**20


def tables(rows: Sequence[Row]) -> list[Table]:
    """All that there are rows for."""
    done = [row for row in rows if "valid_loss" in row]
    made = [quality(done), cost(done), parameters(), memory(done), main_effects(done), interactions(done)]
    made += [longer(done), devices(done), skipped(rows)]
    return [table for table in made if table.rows] if rows else []


def quality(done: Sequence[Row]) -> Table:
    """What each configuration learned."""
    found, known = [], theirs()
    for shape, rows in by_shape(done, *TABLE).items():
        spread, their = mean_interval([row["valid_loss"] for row in rows]), known.get(shape, {})
        valid = f"{average(rows, 'valid_loss'):.3f}" if spread is None else with_interval(spread, "{:.3f}")
        nats = average(rows, "nats_per_word")
        found.append([
            named(shape), f"{average(rows, 'train_loss'):.3f}", f"{average(rows, 'loss_while_training'):.3f}", valid,
            f"{average(rows, 'accuracy'):.1%}", f"{math.exp(average(rows, 'valid_loss')):.4g}", f"{math.exp(nats):.4g}",
            f"{nats:.3f}", f"{average(rows, 'bits_per_character'):.3f}", f"{average(rows, 'bleu'):.1f}",
            *(figure(their.get(name)) for name in ("train_loss", "valid_loss", "valid_perplexity")),
        ])  # fmt: skip
    columns = (
        *("", "train", "with dropout", "valid", "accuracy", "perplexity", "of words", "nats a word", "bits/char"),
        *("BLEU", "published: train", "valid", "perplexity"),
    )
    note = "Losses in nats a token. The report's tokens are words, so that its perplexity stands beside ours of words."
    for row in of_set(done, *TABLE)[:1]:
        note += f" Each saw {row['tokens']:,} target tokens, {row['epochs']:.3g} epochs of this text; there 100."
    ours = {shape: average(rows, "valid_loss") for shape, rows in by_shape(done, REPORT).items()}
    if len(ours) > 1:
        note += f" {agreement(ours, their_losses(ours)):.0%} of all pairs of the report's stand in its order by loss."
    return Table(title="What each configuration learned", columns=columns, rows=found, note=note)


def cost(done: Sequence[Row]) -> Table:
    """What each configuration took."""
    found, known = [], theirs()
    for shape, rows in by_shape(done, *TABLE).items():
        found.append([
            named(shape), f"{average(rows, 'training_seconds') / 60:.2f}", f"{average(rows, 'device_seconds'):.1f}",
            f"{average(rows, 'tokens_per_second'):,.0f}", f"{average(rows, 'memory_bytes') / MIB:,.0f}",
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
    """The report's column against its own shapes, counted."""
    told = {(shape.d_model, shape.layers): row["parameters_million"] or math.nan for shape, row in theirs().items()}
    found = []
    for (width, depth), millions in sorted(told.items()):
        counted = plain_parameters(d_model=width, layers=depth, vocabulary=WORDS) / 1e6
        found.append([str(width), str(depth), f"{counted:.2f}", f"{millions:.2f}", f"{counted / millions - 1:+.2%}"])
    columns = "d_model", "layers", "counted, M", "published, M", "off"
    note = f"torch.nn.Transformer with feed-forward 4 d_model, {WORDS:,} words on either side, the read-out not tied"
    return Table(title="The report's parameters", columns=columns, rows=found, note=note)


def memory(done: Sequence[Row]) -> Table:
    """The report's rule for memory against what was measured, by width and depth."""
    groups: dict[tuple[int, int], list[Row]] = {}
    for shape, rows in by_shape(done, *TABLE).items():
        groups.setdefault((shape.d_model, shape.layers), []).extend(rows)
    found = []
    for (width, depth), rows in sorted(groups.items()):
        size, held = average(rows, "parameters"), average(rows, "memory_bytes")
        found.append([
            str(width), str(depth), f"{size:,.0f}", f"{average(rows, 'stored_bytes') / size:.2f}", f"{held / size:.1f}",
            f"{TRAINED * size / MIB:,.0f}", f"{held / MIB:,.0f}", f"{average(rows, 'paper_bytes') / MIB:,.0f}",
            f"{held / (TRAINED * size):.2f}", f"{average(rows, 'process_bytes') / MIB:,.0f}",
        ])  # fmt: skip
    columns = (
        *("d_model", "layers", "parameters", "stored, B each", "held, B each", "rule, MiB", "measured, MiB"),
        *("ours on paper, MiB", "measured / rule", "process, MiB"),
    )
    note = (
        "The report's rule: 4 bytes a parameter to store and about 20 more to train. Measured: tensors alive at once, "
        "by torch's account; process: what it took more while training, less where it had worked before."
    )
    return Table(title="Memory to store and to train", columns=columns, rows=found, note=note)


def longer(done: Sequence[Row]) -> Table:
    """One configuration for once and several times as long."""
    found = []
    for row in long_and_short(done):
        steps, lowest = lowest_point(row)
        found.append([
            named(shape_of(row["config"])), f"{row['steps']:,}", f"{row['epochs']:.3g}", f"{row['train_loss']:.3f}",
            f"{row['valid_loss']:.3f}", f"{row['valid_loss'] - row['train_loss']:+.3f}", f"{lowest:.3f}",
            f"{steps / row['steps']:.0%}", f"{row['bleu']:.1f}",
        ])  # fmt: skip
    columns = "", "steps", "epochs", "train", "valid", "gap", "lowest valid", "at", "BLEU"
    note = "at: where on its way the lowest was; below one epoch nothing is seen twice, and nothing told of overfitting"
    return Table(title="The same training, longer", columns=columns, rows=found, note=note)


def devices(done: Sequence[Row]) -> Table:
    """One configuration on several devices."""
    compared = of_set(done, COMPARE)
    found = [
        [
            named(shape_of(row["config"])), row["kind"], str(row["threads"]), f"{row['steps']:,}",
            f"{1e3 * row['step_seconds']:.1f}", f"{row['tokens_per_second']:,.0f}", f"{row['mfu']:.1%}",
            f"{row['devices'] * row['device_seconds']:.1f}", f"{row['valid_loss']:.4f}",
            f"{row['tokens_per_second'] / compared[0]['tokens_per_second']:.2f}",
        ]
        for row in compared
    ]  # fmt: skip
    columns = (
        *("", "on", "threads", "steps", "ms a step", "tokens/s", "MFU", "device-seconds", "valid", "times as fast"),
    )
    note = "The report: 34 epochs in 1,400 min on its CPU (32 cores), 100 in about 120 min on its GPU: 34 times as fast"
    return Table(title="One configuration on different devices", columns=columns, rows=found, note=note)


def skipped(rows: Sequence[Row]) -> Table:
    """What has no figures, and why."""
    found = [[row["asked"]["set"], named(shape_of(row["config"])), row["skipped"]] for row in rows if "skipped" in row]
    return Table(title="Not measured", columns=("", "", "because"), rows=found)
