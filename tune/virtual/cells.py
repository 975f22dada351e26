"""Cells of the table: many searches that differ in their seed only, and what they come to."""

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import product

from tune.virtual.curves import Table
from tune.virtual.rows import Row, Rows
from tune.virtual.searches import WITHOUT, Cell, Outcome, search
from tune.virtual.settings import ReplaySettings


def replay(tables: Sequence[Table], settings: ReplaySettings) -> list[Row]:
    """A row for each table, budget, number of workers and scheduler."""
    kept = Rows(settings.rows)
    schedulers = (*settings.schedulers, *(f"{WITHOUT}{idea}" for idea in settings.ablations))
    rows = []
    for table, budget, workers, scheduler in product(tables, settings.budgets, settings.workers, schedulers):
        cell = Cell(table=table, scheduler=scheduler, budget=budget, workers=workers)
        row = kept.find(asked(cell, settings))
        if row is None:
            outcomes = [search(cell, settings, seed) for seed in range(settings.seeds)]
            row = asked(cell, settings) | found(outcomes)
            kept.keep(row)
        rows.append(row)
    return rows


def asked(cell: Cell, settings: ReplaySettings) -> Row:
    """What a cell was asked for."""
    return {
        "table": cell.table.name, "scheduler": cell.scheduler, "budget": cell.budget.text, "cap_seconds": cell.cap,
        "workers": cell.workers, "deadline": settings.deadline and settings.deadline.text, "seeds": settings.seeds,
        "suggest": settings.suggest, "start_up": settings.start_up, "thaw": settings.thaw, "diverge": settings.diverge,
        "memory_limit": settings.memory_limit if math.isfinite(settings.memory_limit) else None,
    }  # fmt: skip


def found(outcomes: Sequence[Outcome]) -> Row:
    """What the searches of a cell come to; regrets are 0.05 where the perplexity is 5 % above the best."""
    regrets = [outcome.regret for outcome in outcomes]
    spread = statistics.stdev(regrets) if len(regrets) > 1 else 0.0

    def mean(value: Callable[[Outcome], float]) -> float:
        return statistics.fmean(value(outcome) for outcome in outcomes)

    return {
        "mean_regret": statistics.fmean(regrets),
        "standard_error": spread / math.sqrt(len(regrets)),
        "p90_regret": sorted(regrets)[max(0, math.ceil(0.9 * len(regrets)) - 1)],
        "unspent": mean(lambda outcome: outcome.unspent),
        "after_divergence": mean(lambda outcome: outcome.after_divergence),
        "unfit": mean(lambda outcome: outcome.unfit),
        "trials": mean(lambda outcome: outcome.trials),
        "hypervolume": mean(lambda outcome: outcome.hypervolume),
    }
