"""The tables of the comparison of methods, beside the published figures."""

from collections.abc import Sequence

from tune.experiments.experiment import Row, Table
from tune.experiments.methods.runs import (
    BASELINE,
    EQUAL,
    FULL,
    Published,
    Run,
    checkpointed,
    equals,
    pairs,
    published_scores,
    ranked,
    ranks,
    runs_of,
    scores,
)  # fmt: skip
from tune.experiments.published import published_by
from tune.experiments.tables import NOTHING, figure

THEIRS = "published: nanoGPT on a laptop's CPU, with checkpointing throughout"


def tables(rows: Sequence[Row]) -> list[Table]:
    """All that there are rows for."""
    runs = runs_of(rows)
    made = [measured(runs), against_baseline(runs), checkpointing(runs), ranking(runs), equal_flops(runs)]
    return [table for table in made if table.rows]


def measured(runs: Sequence[Run]) -> Table:
    """What each took and came to."""
    rows = [
        [
            run.name, run.checkpointing, f"{run.parameters:,}", f"{run.seconds:.1f}",
            f"{run.memory_bytes / 1e6:.1f}", f"{run.allocations:,.0f}", loss_text(run), f"{run.accuracy:.1%}",
            figure(run.published.get("seconds")),
            figure(run.published.get("allocations"), "{:,.0f}"), figure(run.published.get("loss_at_2000"), "{:.4f}"),
        ]
        for run in runs
    ]  # fmt: skip
    columns = (
        *("method", "checkpointing", "parameters", "s", "peak MB", "allocations", "loss", "accuracy"),
        *("published s", "allocations", "loss"),
    )
    note = (
        "s: of steps alone; peak and allocations: of a short run apart, by memray on a CPU, allocations a step times "
        f"the steps; loss and accuracy: on the validation split. {THEIRS}."
    )
    steps = runs[0].steps if runs else 0
    return Table(title=f"Methods, after {steps:,} steps", columns=columns, rows=rows, note=note)


def loss_text(run: Run) -> str:
    """Of several seeds the mean, and half of what lies between the least and the greatest."""
    if len(run.losses) == 1:
        return f"{run.loss:.4f}"
    return f"{run.loss:.3f} ±{(max(run.losses) - min(run.losses)) / 2:.3f}"


def against_baseline(runs: Sequence[Run]) -> Table:
    """Each method beside the baseline on the same shape, and the report's beside its full precision."""
    rows = []
    for run, base in pairs(runs):
        theirs, first = run.published, published_by("methods", "method", "doubled").get((FULL, run.doubled), {})
        rows.append([
            run.name, *ratios(run, base), f"{run.loss - base.loss:+.4f}", quotient(theirs, first, "seconds"),
            quotient(theirs, first, "allocations"), difference(theirs, first, "loss_at_2000"),
        ])  # fmt: skip
    columns = (
        *("method", "s", "peak", "allocations", "loss"), *("published s", "allocations", "loss"),
    )
    note = "times the baseline's, of losses the difference; published: times those of full precision"
    return Table(title="Against the baseline, without checkpointing", columns=columns, rows=rows, note=note)


def ratios(run: Run, other: Run) -> list[str]:
    """Of seconds, of the peak and of allocations."""
    quotients = (getattr(run, name) / getattr(other, name) for name in ("seconds", "memory_bytes", "allocations"))
    return [f"{each:.2f}" for each in quotients]


def quotient(row: Published, first: Published, name: str) -> str:
    """Of two published figures."""
    above, below = row.get(name), first.get(name)
    return NOTHING if above is None or below is None else f"{above / below:.2f}"


def difference(row: Published, first: Published, name: str) -> str:
    """Of two published figures."""
    one, other = row.get(name), first.get(name)
    return NOTHING if one is None or other is None else f"{one - other:+.4f}"


def checkpointing(runs: Sequence[Run]) -> Table:
    """The same with it and without."""
    rows = [[run.name, *ratios(run, plain), f"{run.loss - plain.loss:+.1e}"] for run, plain in checkpointed(runs)]
    columns = "method", "s", "peak", "allocations", "loss"
    note = "each block keeps its input only; times those without, of losses the difference"
    return Table(title="Activation checkpointing", columns=columns, rows=rows, note=note)


def ranking(every: Sequence[Run]) -> Table:
    """By the report's formula, the best first; beside it the report's own rows by the same, and where it has them."""
    runs, theirs = ranked(every), published_scores()
    recomputed = dict(zip(theirs, ranks(list(theirs.values())), strict=True))
    printed = {key: place for place, key in enumerate(theirs, start=1)}
    ours = scores(runs)
    rows = []
    for place, score, run in sorted(zip(ranks(ours), ours, runs, strict=True), key=lambda each: each[0]):
        key = run.method, run.doubled
        beside = figure(theirs.get(key), "{:.2f}"), figure(recomputed.get(key)), figure(printed.get(key))
        rows.append([run.name, f"{score:.2f}", str(place), *beside])
    columns = "method", "score", "rank", "published score", "its rank", "rank as printed"
    note = (
        "score: loss - max(seconds) / seconds - max(allocations) / allocations, the lower the better. The report "
        "prints accuracy for the loss; its order is that of its losses. All with checkpointing, as there, if measured."
    )
    return Table(title="Ranking by the report's formula", columns=columns, rows=rows, note=note)


def equal_flops(runs: Sequence[Run]) -> Table:
    """Shapes that cost the same, and beside them what is doubled at its own cost."""
    same = equals(runs)
    if not same or same[0].doubled != "nothing":
        return Table(title="", columns=(), rows=())
    first, own = same[0], ("layers", "d_model")
    more = [run for run in runs if run.method == BASELINE and run.checkpointing == "off" and run.doubled in own]
    rows = [
        [
            "as it is" if run is first else EQUAL if run in same else f"{run.doubled} doubled",
            *(str(run.config[name]) for name in ("d_model", "heads", "layers")), f"{run.parameters:,}",
            f"{run.flops:.3g}", f"{run.flops / first.flops:.3f}", f"{run.seconds:.1f}", loss_text(run),
            f"{run.loss - first.loss:+.4f}", f"{run.accuracy:.1%}",
        ]
        for run in (*same, *more)
    ]  # fmt: skip
    columns = (
        *("shape", "d_model", "heads", "layers", "parameters", "FLOPs", "of the first's", "s", "loss", "difference"),
        "accuracy",
    )
    note = "FLOPs of the training on paper, model/estimates.py; how far seeds lie apart, --seeds tells"
    return Table(title="Shapes of equal FLOPs", columns=columns, rows=rows, note=note)
