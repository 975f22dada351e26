"""What the rows of the experiment large_batch come to, in a few sentences."""

from collections.abc import Iterator, Sequence

from tune.experiments.experiment import Row
from tune.experiments.large_batch.tables import epochs, late_scale, over_seeds, recipe_tokens, trainings
from tune.experiments.tables import with_interval


def conclusions(rows: Sequence[Row]) -> list[str]:
    """What held and what did not."""
    return [*_rules(rows), *_lars(rows), *_noise(rows), *_orders(rows)]


def _valid(seeds: Sequence[Row]) -> float | None:
    """The validation loss, the mean of the seeds; None: one diverged."""
    found = over_seeds(seeds, lambda row: row["valid_loss"])
    return None if found is None else found[0]


def _rules(rows: Sequence[Row]) -> Iterator[str]:
    """What the largest batch costs without a change of the rate, and what of that a rule gives back."""
    found = {key: _valid(seeds) for key, seeds in trainings(rows).items()}
    most, small = max((times for times, _ in found), default=1), found.get((1, "unchanged"))
    large = {rule: loss for (times, rule), loss in found.items() if times == most and rule != "LARS"}
    sound = {rule: loss for rule, loss in large.items() if loss is not None}
    if most == 1 or small is None or not sound:
        return
    if "unchanged" in sound:
        beyond = _beyond(sound["unchanged"], small)
        yield f"At equal samples a batch x{most} without a change of the rate ends {beyond} the recipe's batch."
    best = min(sound, key=lambda rule: sound[rule])
    yield f"Of the rules for AdamW's rate {best!r} is best there: it ends {_beyond(sound[best], small)} it."
    for rule in large:
        if rule not in sound:
            yield f"{rule!r} diverged at x{most}."
        elif rule not in (best, "unchanged") and sound[rule] > sound.get("unchanged", sound[rule]):
            yield f"{rule!r} is worse at x{most} than no change: {_beyond(sound[rule], sound['unchanged'])} it."


def _beyond(loss: float, other: float) -> str:
    """.12 nats above"""
    return f"{abs(loss - other):.3f} nats {'above' if loss >= other else 'below'}"


def _lars(rows: Sequence[Row]) -> Iterator[str]:
    """Against the best of AdamW's, at each batch."""
    found = {key: _valid(seeds) for key, seeds in trainings(rows).items()}
    said = []
    for times in sorted({times for times, rule in found if rule == "LARS"}):
        adam = [loss for (each, rule), loss in found.items() if each == times and rule != "LARS" and loss is not None]
        own = found[times, "LARS"]
        if own is None:
            said.append(f"diverges at x{times}")
        elif adam:
            said.append(f"ends {_beyond(own, min(adam))} at x{times}")
    if said:
        yield f"LARS against the best of AdamW's: it {', '.join(said)}."


def _noise(rows: Sequence[Row]) -> Iterator[str]:
    """The batch that the recipe's own training suggests."""
    seeds = trainings(rows).get((1, "unchanged"), [])
    scale = late_scale(seeds) if seeds else None
    if scale is None:
        return
    recipe = recipe_tokens(rows)
    yield (f"The gradient noise scale late in the recipe's training suggests a batch of "
           f"{with_interval(scale, '{:,.0f}')} tokens, {scale[0] / recipe:.1f} times the recipe's.")  # fmt: skip


def _orders(rows: Sequence[Row]) -> Iterator[str]:
    """What a new order in each epoch is worth."""
    found = epochs(rows)
    if len(found) < 2:
        return
    on, off = found[True], found[False]
    losses = _valid(on), _valid(off)
    if losses[0] is None or losses[1] is None:
        return
    yield (f"Without set_epoch all {off[0]['asked']['epochs']} epochs have {off[0]['orders']} order (with it "
           f"{on[0]['orders']}), and the validation loss ends {_beyond(losses[1], losses[0])} that with it"
           f"{', over ' + str(len(on)) + ' seeds' if len(on) > 1 else ', of one seed'}.")  # fmt: skip
