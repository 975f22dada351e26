"""One search on recorded curves, by our own scheduler, by that without one of its ideas, or by a baseline; and what it
found."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tune.curves.recorded import Curve, CurveSuggestions, Table
from tune.curves.replay_settings import Amount, ReplaySettings
from tune.errors import UserError
from tune.recipe import FLOPS_PER_WEIGHT, first_steps, life_share, most_weights, suited_weights
from tune.reports import NATS, Evaluation, Report
from tune.search.earlier import (
    TRIALS,
    Conditions,
    EarlierStudy,
    WarmStart,
    best_of,
    learn_from_studies,
    suggested_model_size,
    trials_of,
)
from tune.search.engine import Engine
from tune.search.family import CostModel, Family
from tune.search.forecast import Favour
from tune.search.front import hypervolume
from tune.search.ladder import WALL_CLOCK_MULTIPLE, Frame, Rules
from tune.search.outlook import Outlook
from tune.search.policy import Policy
from tune.search.simulator import Clock, Costs, Simulation
from tune.search.successive_halving import SuccessiveHalving
from tune.search.suggest import SIZE_SPREAD, prior
from tune.search_space import CENTRE, PER_LAYER, Config, Space, label, layer_weights, precision_of
from tune.store.accounting import Accounting, Assignment, Ledger
from tune.store.journal import Journal
from tune.store.queries import ranking

RESOURCE, OUTLOOK = "resource", "outlook"
IDEAS: dict[str, dict[str, Any]] = {
    RESOURCE: {},
    "extrapolation": {"fall_kept": 0.0},
    "law": {"law": False},
    "doubt": {"doubt": 0.0},
    OUTLOOK: {},
    "past-best": {"past_best": False},
    "kept-money": {"last_share": 0.0, "wall_share": 0.0, "own_life_share": 0.0},
    "eta-2": {"eta": 4.0},
    "narrowing": {"narrow": False},
    "deadline-rush": {"rush": False},
}
"""Ideas of our own scheduler, each with the rules that change to do without it. Without `resource`, rungs are equal in
device-seconds where trials have ends of their own, and else in tokens: with it the other way round. Without `outlook`
the prior alone suggests."""

WITHOUT = "without "
"""Prefix of the name of our own scheduler without the idea that follows."""
OF_FRONT = "ration-front"
"""Name of our own scheduler when it looks for the front of size against loss."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Searches that differ only in their seed. max_t: of a baseline's trials in own mode, as a share of a slot's time;
    earlier: the table of a search before each, of which our own is told (None: there was none)."""

    table: Table
    scheduler: str
    budget: Amount
    workers: int
    max_t: float = 1.0
    earlier: Table | None = None

    @property
    def cap(self) -> float:
        """Cap in device-seconds."""
        return self.budget.of(self.table.exhaustive_seconds)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one search. Shares are of the cap; the hypervolume, in (log parameters, loss), is one of the whole
    table's.

    wall: seconds from its start to its end; bound: the regret of the best configuration trained alone with KNOWN_SHARE
    of the cap, which a search that needs the rest to find it cannot beat (0 where trials have ends of their own).
    """

    regret: float
    unspent: float
    after_divergence: float
    unfit: float
    trials: int
    hypervolume: float
    wall: float
    bound: float


MAX_T = (0.98, 0.95, 0.8, 0.5, 0.25, 0.125, 0.0625)
"""Shares of the time that a slot can train which the trials of a baseline may have in own mode, where their schedule
needs an end. With the longest, a slot trains the first configuration that comes, and no other to its end."""


def searches(cell: Cell, settings: ReplaySettings) -> list[Outcome]:
    """Return the outcome of a search for each seed; for a baseline in own mode with the max_t that serves it best."""
    shares = MAX_T if cell.table.is_own_mode and not _ours(cell) else (cell.max_t,)
    tried = [[search(replace(cell, max_t=each), settings, seed) for seed in range(settings.seeds)] for each in shares]
    return min(tried, key=lambda outcomes: sum(outcome.regret for outcome in outcomes))


FAMILY = "replay"
"""Name of the family of each search's trials."""


def search(cell: Cell, settings: ReplaySettings, seed: int) -> Outcome:
    """Run one search: the engine in virtual time, with its own policy or with a baseline in its place."""
    earlier = () if cell.earlier is None or not _ours(cell) else (_earlier_study(cell, cell.earlier, settings, seed),)
    with _searched(cell, settings, seed, earlier) as (engine, curves, clock):
        return outcome(cell, settings, curves, engine, clock)


def _earlier_study(cell: Cell, table: Table, settings: ReplaySettings, seed: int) -> EarlierStudy:
    """Return what a search on this table, with as much cap and as many slots, tells a later one."""
    before = replace(cell, table=table, budget=Amount(text=cell.budget.text, seconds=cell.cap))
    with _searched(before, settings, seed, ()) as (engine, curves, _):
        journal, warm_up = engine.accounting.journal, max(curve.warm_up_steps for curve in curves)
        trials = trials_of(journal.rows(TRIALS, FAMILY), warm_up)
        best = tuple(curves[int(each["curve"])].config for each in best_of(ranking(journal), FAMILY))
    return EarlierStudy(
        folder=Path(table.name), ground=_conditions(table, cell.cap), best=best,
        trials=tuple(replace(each, config=curves[int(each.config["curve"])].config) for each in trials),
        winner=layer_weights(curves[0].family, best[0]) if best else 0.0, overheads=(), start_ups=(), beyond=0.0,
    )  # fmt: skip


def _conditions(table: Table, cap: float) -> Conditions:
    """Return the conditions of a search on a table: of two, the cores differ, and texts of one length are the same, and
    recipes whose dropout begins with the same pass."""
    middle = _middle(table.curves)
    return Conditions(
        kind="cpu", processor=table.name, share=1.0, text=(middle.text_tokens, middle.family),
        recipe={"dropout_after": middle.dropout_after}, compute=_compute(middle, cap),
    )  # fmt: skip


@contextmanager
def _searched(
    cell: Cell, settings: ReplaySettings, seed: int, earlier: Sequence[EarlierStudy]
) -> Iterator[tuple[Engine, Sequence[Curve], Clock]]:
    """Yield the engine after a search, its curves, and the clock at its end."""
    curves, cap, clock = diverging(cell.table.curves, settings.diverge, seed), cell.cap, Clock()
    deadline = settings.deadline.of(cap / cell.workers) if settings.deadline else math.inf
    within = WALL_CLOCK_MULTIPLE * cap / cell.workers if _ours(cell) and not settings.patient else math.inf
    best = min(range(len(curves)), key=lambda index: _alone(curves[index], cell, settings))
    learned = WarmStart()
    if earlier:
        space = Space(family=curves[0].family, precisions=(precision_of(curves[0].config),))
        learned = learn_from_studies(earlier, _conditions(cell.table, cap), space, cap)
    supply = CurveSuggestions(
        curves, seed=seed, only=[best] if cell.scheduler == "oracle" else None, first=learned.first,
        prior=_prior(curves, cap, seed, earlier) if settings.suggest == "prior" else None,
    )  # fmt: skip
    with Journal(None, new=True) as journal:
        accounting = Accounting(journal, Ledger(cap=cap, clock=clock), clock)
        engine = Engine(
            accounting=accounting, slots=cell.workers, wall_left=lambda: deadline - clock.now, within=within
        )
        engine.families[FAMILY] = _family(cell, settings, curves, supply, engine, within, deadline, learned)
        need_end = cell.table.is_own_mode and not _ours(cell)
        ending = [_ending(curve, _max_t_seconds(cell, settings)) for curve in curves] if need_end else curves
        costs = Costs(start_up=settings.start_up, overhead=0.0, thaw=settings.thaw, memory_limit=settings.memory_limit)
        as_loops = _ours(cell) and not cell.table.is_own_mode and cell.scheduler != OF_FRONT
        simulation = Loops if as_loops else Simulation
        simulation(engine, clock, costs, lambda trial, family, config: ending[int(config["curve"])]).run()
        yield engine, curves, clock


class Loops(Simulation):
    """Simulation of trials with ends of their own that report what a user's loop does: the best loss so far, the
    latest, and no size."""

    def segment(self, assignment: Assignment) -> Report | None:
        """Return the report at the end of a lease; None: memory ran out."""
        report, curve = super().segment(assignment), self.course_of("", "", assignment.config)
        if report is None or report.valid is None or not isinstance(curve, Curve):
            return report
        latest = {NATS.name: report.valid.loss}
        return replace(report, valid=Evaluation(loss=curve.lowest(report.steps)), numbers=latest, parameters=0)


def _family(
    cell: Cell, settings: ReplaySettings, curves: Sequence[Curve], supply: CurveSuggestions, engine: Engine,
    within: float, deadline: float, learned: WarmStart,
) -> Family:  # fmt: skip
    """Return the family as a search sets it up. The time of a step is known of the configuration that comes first
    only."""
    steps, unit = max(curve.max_steps for curve in curves), max(curve.report_every for curve in curves)
    step_seconds, life = supply.first().step_seconds, math.inf if cell.table.is_own_mode else steps
    shortest = unit * step_seconds
    if cell.table.is_own_mode:  # a step stands for a second of training
        unit, step_seconds = max(curve.seconds_per_report for curve in curves), 1.0
        steps = max(unit, _max_t_seconds(cell, settings))
        middle = _middle(curves)
        shortest = max(unit, first_steps(middle.warm_up_steps) * middle.step_seconds)
    policy: Policy
    idea, price = cell.scheduler.removeprefix(WITHOUT), engine.price_of(FAMILY)
    if _ours(cell):
        first = unit * step_seconds if math.isfinite(life) else None  # a curve has no closer reports
        share = partial(life_share, curves[0].family, suggested=settings.suggest == "prior")
        asked = {"last_share": share(), "wall_share": share(side_by_side=True), **IDEAS.get(idea, {})}
        frame = Frame(
            slots=cell.workers, shortest=shortest, overhead=settings.thaw, start_up=settings.start_up,
            life=life * step_seconds, rules=Rules(**asked, front=idea == OF_FRONT),
        )  # fmt: skip
        policy = SuccessiveHalving(frame, frame.fit(cell.cap, within, deadline, first=first), price, supply.favour)
        policy.standings.learn(learned.trials)
        sizes = {label(curve.config): float(curve.parameters) for curve in curves}
        if idea != OUTLOOK:
            supply.outlook = Outlook(
                lambda config: sizes[label(config)], policy.outlook, learned.speeds, policy.standings.front_additions
            )
    else:
        from tune.curves.baselines import make_baseline  # this imports Ray and Optuna

        policy = make_baseline(
            cell.scheduler, supply=supply, price=price, unit=unit, steps=steps, step_seconds=step_seconds
        )
    return Family(
        seconds=cell.cap, policy=policy, cost_model=CostModel(), suggestions=supply,
        equal_tokens=math.isfinite(life) != (idea == RESOURCE),
        step_seconds=supply.first().step_seconds, life_steps=life,
        warm_up_steps=max(curve.warm_up_steps for curve in curves),
    )  # fmt: skip


def _max_t_seconds(cell: Cell, settings: ReplaySettings) -> float:
    """Return the seconds of training of a baseline's trial in own mode."""
    return cell.max_t * (cell.cap / cell.workers - settings.start_up - settings.thaw)


def _ending(curve: Curve, seconds: float) -> Curve:
    """Return a curve that ends after so many seconds of training, where it has decayed."""
    return replace(curve, losses=curve.losses[: max(1, int(seconds / curve.seconds_per_report))])


def _middle(curves: Sequence[Curve]) -> Curve:
    """Return the curve with the median step time, which stands for the configuration that a search has measured at its
    start."""
    return sorted(curves, key=lambda curve: curve.step_seconds)[len(curves) // 2]


def _compute(curve: Curve, cap: float) -> float:
    """Return what so many device-seconds compute, in weights in layers times tokens, at the speed of a curve."""
    return cap * layer_weights(curve.family, curve.config) * curve.tokens_per_step / curve.step_seconds


def _prior(
    curves: Sequence[Curve], cap: float, seed: int, earlier: Sequence[EarlierStudy]
) -> Callable[[Config], Favour]:
    """Return the prior of a search on this text and device, its centre drawn from the prior's own uncertainty.
    UserError: the table is not one of built-in models that was measured here."""
    middle = _middle(curves)
    if middle.family not in PER_LAYER or not middle.tokens_per_step or not middle.text_tokens:
        raise UserError("--suggest prior: needs a table that tune/experiment.py curves measured: write order")
    compute = _compute(middle, cap)
    flops = FLOPS_PER_WEIGHT * compute
    weights = min(suited_weights(middle.family, flops), most_weights(middle.family, middle.text_tokens))
    weights *= math.exp(random.Random(f"prior {seed}").gauss(0.0, SIZE_SPREAD))
    weights = suggested_model_size(earlier, weights, compute)
    return prior(
        {**CENTRE, "precision": middle.config["precision"]}, family=middle.family, weights=weights,
        tokens=compute / weights, text_tokens=middle.text_tokens,
        begins=middle.steps_in(middle.dropout_after),  # in steps: its trials count each as a token
    )  # fmt: skip


def _ours(cell: Cell) -> bool:
    return cell.scheduler in ("ration", OF_FRONT) or cell.scheduler.startswith(WITHOUT)


KNOWN_SHARE = 0.6
"""Share of the cap for the best configuration in `Outcome.bound`, as if it were known from the start."""


def _alone(curve: Curve, cell: Cell, settings: ReplaySettings, share: float = 1.0) -> float:
    """Return the loss of a configuration that is trained alone: to its end, in own mode for a share of the cap; inf: it
    does not fit, or diverges before that."""
    steps = share * cell.cap / curve.step_seconds
    if (
        not curve.finite_reports
        or curve.memory_bytes > settings.memory_limit
        or (curve.decayed and steps >= curve.diverges)
    ):
        return math.inf
    return curve.final(steps) if curve.decayed else curve.best[-1]


def outcome(cell: Cell, settings: ReplaySettings, curves: Sequence[Curve], engine: Engine, clock: Clock) -> Outcome:
    """Return what a search found, of all losses that its trials passed; at worst the highest first loss. UserError: no
    configuration fits and trains."""
    fitting = [curve for curve in curves if math.isfinite(_alone(curve, cell, settings))]
    if not fitting:
        raise UserError("--memory-limit: no configuration fits and trains; allow more memory")
    steps = {trial: (curves[int(record.config["curve"])], record.steps) for trial, record in engine.trials.items()}
    reached = [(curve, curve.lowest(count)) for curve, count in steps.values()]
    query = "SELECT trial, steps, valid_loss FROM reports WHERE final AND valid_loss IS NOT NULL"
    finals = [(steps[row["trial"]][0], row["valid_loss"]) for row in engine.accounting.journal.rows(query)]
    # without a decay, a final loss is one that was passed, or lies between two of those
    reached += [(curve, loss) for curve, loss in finals if curve.decayed]
    found = min(min((loss for _, loss in reached), default=math.inf), max(curve.losses[0] for curve in fitting))
    diverged = [curve.seconds_per_report for curve, count in steps.values() if count >= curve.diverges]
    (lost,) = engine.accounting.journal.rows("SELECT TOTAL(seconds) FROM charges WHERE what = 'lost'")
    whole = dominated([(curve, curve.best[-1]) for curve in curves], curves)
    best, known = (min(_alone(curve, cell, settings, share) for curve in fitting) for share in (1.0, KNOWN_SHARE))
    return Outcome(
        regret=math.expm1(found - best),
        bound=math.expm1(known - best),
        unspent=1 - engine.accounting.ledger.spent / cell.cap,
        after_divergence=sum(diverged) / cell.cap,
        unfit=lost[0] / cell.cap,
        trials=len(steps),
        hypervolume=dominated(reached, curves) / whole if whole else 1.0,
        wall=clock.now,
    )


def diverging(curves: Sequence[Curve], share: float, seed: int) -> tuple[Curve, ...]:
    """Return the curves, a share of which turns NaN at a random report and stays so."""
    rng = random.Random(f"diverge {seed}")
    chosen = set(rng.sample(range(len(curves)), round(share * len(curves))))

    def broken(curve: Curve) -> Curve:
        sound = rng.randrange(len(curve.losses))
        return replace(curve, losses=curve.losses[:sound] + (math.nan,) * (len(curve.losses) - sound))

    return tuple(broken(curve) if index in chosen else curve for index, curve in enumerate(curves))


def dominated(reached: Sequence[tuple[Curve, float]], curves: Sequence[Curve]) -> float:
    """Return the hypervolume that losses of some curves dominate, in (log parameters, loss), below the largest model
    and the worst end of a table. A curve that is not sound adds nothing."""
    worst = max((curve.best[-1] for curve in curves if curve.finite_reports), default=0.0)
    bound = math.log1p(max(curve.parameters for curve in curves)), worst
    return hypervolume([(math.log1p(curve.parameters), loss) for curve, loss in reached], bound)
