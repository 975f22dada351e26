"""What a new study learns from earlier ones (--learn-from): read from their journals when it begins, and kept in its
own.

Only what holds here too is taken: seconds of the same processor, losses by the same recipe on the same text. Mere
suggestions, a size and configurations to begin with, are taken from any text: the search judges them by its own losses.
"""

import json
import math
import sqlite3
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tune.errors import UserError
from tune.recipe import SETTABLE
from tune.search.family import FIRST_OVERHEAD_SECONDS, FIRST_START_UP_SECONDS
from tune.search.forecast import MOST_TRIALS, Progress
from tune.search.resume import LONGEST_REASON
from tune.search.scaling_law import Observation
from tune.search.state import number, parse_agreed_terms
from tune.search_space import PER_LAYER, Config, Space, layer_weights, precision_of, seedless
from tune.store.journal import DAMAGED, FACTS_QUERY, SLOT_SHARE_SQL, Fact, as_mapping, connect, facts_in
from tune.store.queries import ranking
from tune.units import counted

ALIKE = tuple(name for name in SETTABLE if name != "warm_up_steps")
"""What must be the same in two recipes for losses of one to tell of the other: all but the warm-up, as losses count
from its end on."""
MOST_SIZE_RATIO = 2.0
"""Largest ratio, either way, of the model size that suits this study's compute to the one that suits an earlier
study's, for that study's best configuration to be tried first."""
MOST_EXPECTED = 0.1
"""Largest share of a family's seconds that a learned start-up or overhead may be, where that is more than the default:
a busy day must not keep a small search from beginning."""

TRIALS = """
    SELECT trial, config, parameters, steps, tokens, valid_loss,
           FIRST_VALUE(step_seconds) OVER (PARTITION BY trial ORDER BY report) AS step_seconds
    FROM reports JOIN trials USING (trial)
    WHERE family = ? AND rung IS NOT NULL AND min(parameters, steps, tokens, step_seconds, valid_loss) > 0
    ORDER BY report"""
"""Query of a family's losses at rungs. step_seconds: those of a trial's first such report, by which the search fixed
its rungs."""
SEGMENTS = f"""
    SELECT trial, fresh, TOTAL(IIF(what = 'start' AND fresh, seconds, 0)) / {SLOT_SHARE_SQL} AS start_up,
           TOTAL(IIF(what = 'steps' OR what = 'start' AND fresh, 0, seconds)) / {SLOT_SHARE_SQL} AS overhead
    FROM (SELECT lease, slot, trial, purpose, lease = MIN(lease) OVER (PARTITION BY slot) AS fresh FROM leases)
    JOIN trials USING (trial) JOIN slots USING (slot)
    JOIN (SELECT lease, what, seconds FROM charges WHERE lease IS NOT NULL) USING (lease)
    WHERE family = ? AND purpose = 'rung' AND lease IN (SELECT lease FROM reports WHERE rung IS NOT NULL)
    GROUP BY lease ORDER BY lease"""
"""Query of what each segment to a rung took beside its steps, in seconds of a slot, as the search's cost model learns
it."""
SHARES = f"SELECT {SLOT_SHARE_SQL} AS share FROM slots WHERE slot IN (SELECT slot FROM leases WHERE purpose = 'rung')"
EXTRA_MEMORY_QUERY = "SELECT TOTAL(max(0, measured - predicted)) FROM memory JOIN trials USING (trial) WHERE family = ?"
"""Query of the bytes by which a family's trials corrected the first guess of what they take; they add up, as each
prediction includes the corrections before it."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The conditions under which a family's figures hold: kind of device, processor and how much of it a slot is (""
    and 0: not one and the same), text (its sha256 and vocabulary), what the recipe has of ALIKE; and the compute of its
    share of the cap, in weights times tokens (0: not known)."""

    kind: str
    processor: str
    share: float
    text: tuple[Fact, Fact]
    recipe: Mapping[str, Fact]
    compute: float


@dataclass(frozen=True, kw_only=True)
class EarlierTrial:
    """A trial of an earlier study: how far it came, and its losses after the warm-up of its learning rate."""

    config: Config
    progress: Progress
    observed: tuple[Observation, ...]


@dataclass(frozen=True, kw_only=True)
class EarlierStudy:
    """One family of an earlier study. best: its configurations, ranked; winner: weights in the layers of the first one
    (0: not known); overheads, start_ups: seconds of a slot; beyond: bytes that trials took above the first guess."""

    folder: Path
    ground: Conditions
    trials: tuple[EarlierTrial, ...]
    best: tuple[Config, ...]
    winner: float
    overheads: tuple[float, ...]
    start_ups: tuple[float, ...]
    beyond: float

    def weights(self, compute: float) -> float:
        """Return the weights in the layers that suit other compute: those of its best model, scaled by the square root
        of the ratio of compute; 0: not known."""
        return self.winner * self.times(compute) if self.ground.compute else 0.0

    def times(self, compute: float) -> float:
        """Return how many times as large as the study's own a model for other compute should be; 1: the study's is not
        known."""
        return math.sqrt(compute / self.ground.compute) if self.ground.compute else 1.0


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """What earlier studies tell of one family; the defaults are what is expected without any.

    overhead, start_up: seconds of a slot, as in CostModel; beyond: bytes that trials take above the first guess;
    speeds: configurations, and how far each came; trials: the losses of each by the same recipe on the same text;
    first: configurations to try first.
    """

    overhead: float = FIRST_OVERHEAD_SECONDS
    start_up: float = FIRST_START_UP_SECONDS
    beyond: float = 0.0
    speeds: tuple[tuple[Config, Progress], ...] = ()
    trials: tuple[tuple[Observation, ...], ...] = ()
    first: tuple[Config, ...] = ()

    def stored(self) -> dict[str, Fact]:
        """Return it as JSON-able data."""
        speeds = [[config, at.size, at.tokens, at.seconds] for config, at in self.speeds]
        trials = [[[each.size, each.tokens, each.loss] for each in trial] for trial in self.trials]
        return {**vars(self), "speeds": speeds, "trials": trials}

    @classmethod
    def from_stored(cls, stored: Fact) -> Self:
        """Read what `stored` returned. LookupError, TypeError, ValueError: it is of another form."""
        facts = as_mapping(stored)
        return cls(
            overhead=number(facts["overhead"]), start_up=number(facts["start_up"]), beyond=number(facts["beyond"]),
            speeds=tuple(
                (_config(config), Progress(size=number(size), tokens=number(tokens), seconds=number(seconds)))
                for config, size, tokens, seconds in map(_several, _several(facts["speeds"]))
            ),
            trials=tuple(
                tuple(
                    Observation(size=number(size), tokens=number(tokens), loss=number(loss))
                    for size, tokens, loss in map(_several, _several(trial))
                )
                for trial in _several(facts["trials"])
            ),
            first=tuple(_config(config) for config in _several(facts["first"])),
        )  # fmt: skip


def read_earlier_study(folder: Path, families: Collection[str]) -> dict[str, EarlierStudy]:
    """Return what a study tells of each of these families that it has; the study is only read. UserError: it tells
    nothing."""
    try:
        with closing(connect(folder)) as journal:
            facts = facts_in(journal.execute(FACTS_QUERY))
            if "recipes" not in facts or "experiment" in facts:
                rule = "is of no search, or of an earlier version: name the folder of a search"
                raise UserError(f"study: {str(folder)!r} {rule}")
            known = as_mapping(facts["recipes"])
            found = {name: _earlier(folder, journal, facts, name) for name in families if name in known}
    except UserError as error:
        raise UserError(f"--learn-from: {str(error).partition(': ')[2]}") from None
    except (sqlite3.Error, *DAMAGED) as error:
        what = f"{type(error).__name__}: {error}"[:LONGEST_REASON]
        raise UserError(f"--learn-from: {str(folder)!r} has a damaged journal ({what}): leave it out") from error
    if not found:
        there, here = (" and ".join(names) or "a training loop" for names in (known, families))
        raise UserError(f"--learn-from: {str(folder)!r} is of {there}, and {here} is searched: leave it out")
    return found


def _earlier(folder: Path, journal: sqlite3.Connection, facts: Mapping[str, Fact], family: str) -> EarlierStudy:
    caps = parse_agreed_terms(facts)
    recipe, text, before = (
        as_mapping(as_mapping(facts.get(name)).get(family)) for name in ("recipes", "corpora", "learned")
    )
    (spent,) = journal.execute("SELECT TOTAL(seconds) FROM charges").fetchone()
    shares = {row["share"] for row in journal.execute(SHARES)}
    processors = {each.processor for each in caps}
    used = spent / caps[0].seconds if caps else 0.0
    segments = journal.execute(SEGMENTS, (family,)).fetchall()
    (beyond,) = journal.execute(EXTRA_MEMORY_QUERY, (family,)).fetchone()
    best = best_of(ranking(journal), family)
    return EarlierStudy(
        folder=folder,
        ground=Conditions(
            kind=str(as_mapping(facts["devices"])["kind"]),
            processor=str(processors.pop()) if len(processors) == 1 else "",
            share=shares.pop() if len(shares) == 1 else 0.0,
            text=(text.get("sha256"), text.get("vocabulary")), recipe={name: recipe.get(name) for name in ALIKE},
            compute=number(recipe["weights"]) * number(recipe["tokens"]) * used,
        ),
        trials=trials_of(journal.execute(TRIALS, (family,)), number(recipe["warm_up_steps"])),
        best=best, winner=layer_weights(family, best[0]) if best and family in PER_LAYER else 0.0,
        overheads=tuple({row["trial"]: number(max(0.0, row["overhead"])) for row in segments}.values()),
        start_ups=tuple(number(row["start_up"]) for row in segments if row["fresh"]),
        beyond=number(beyond) + number(before.get("beyond", 0.0)),
    )  # fmt: skip


def best_of(ranked: Iterable[sqlite3.Row], family: str) -> tuple[Config, ...]:
    """Return the configurations of a family in the rows of a ranking, the best first."""
    sound = (row for row in ranked if row["family"] == family and row["section"] in ("decayed", "rung"))
    return _different(seedless(json.loads(row["config"])) for row in sound)


def trials_of(rows: Iterable[sqlite3.Row], warm_up_steps: float) -> tuple[EarlierTrial, ...]:
    """Return the trials in the rows of TRIALS, those with the most tokens first."""
    found: dict[str, EarlierTrial] = {}
    for row in rows:
        config, seconds = seedless(json.loads(row["config"])), row["steps"] * row["step_seconds"]
        size, tokens = number(row["parameters"]), number(row["tokens"])
        observed = found[row["trial"]].observed if row["trial"] in found else ()
        if row["steps"] >= warm_up_steps:
            observed += (Observation(size=size, tokens=tokens, loss=number(row["valid_loss"])),)
        progress = Progress(size=size, tokens=tokens, seconds=number(seconds))
        found[row["trial"]] = EarlierTrial(config=config, progress=progress, observed=observed)
    return tuple(sorted(found.values(), key=lambda each: -each.progress.tokens))


def suggested_model_size(studies: Sequence[EarlierStudy], weights: float, compute: float) -> float:
    """Return the size to begin around: the geometric mean of the recipe's and of those that each study's best model
    suggests."""
    found = [found for each in studies if (found := each.weights(compute))]
    return statistics.geometric_mean([weights, *found]) if found else weights


def extra_memory_bytes(studies: Sequence[EarlierStudy], kind: str) -> float:
    """Return the bytes that trials take above the first guess: the most of any study on the same kind of device, else
    0."""
    return max((each.beyond for each in studies if each.ground.kind == kind), default=0.0)


def learn_from_studies(
    studies: Sequence[EarlierStudy], conditions: Conditions, space: Space, seconds: float
) -> WarmStart:
    """Return what these studies tell of a family that is searched here, with a share of the cap of so many seconds of a
    slot."""
    priced = [each for each in studies if _same_processor(each.ground, conditions)]
    overheads, start_ups = ([x for each in priced for x in getattr(each, name)] for name in ("overheads", "start_ups"))
    native, whole = space.dimensions.get("precision", ("fp32",)), space.unrestricted
    alike = {each.folder: [tried for tried in each.trials if whole.contains(tried.config)] for each in studies}
    trained = [tried for each in priced for tried in alike[each.folder] if precision_of(tried.config) in native]
    judged = [
        tried.observed for each in studies if _same_losses(each.ground, conditions) for tried in alike[each.folder]
    ]
    close = [each for each in studies if 1 / MOST_SIZE_RATIO <= each.times(conditions.compute) <= MOST_SIZE_RATIO]
    best = [next(filter(space.contains, each.best), None) for each in close]
    return WarmStart(
        overhead=_expected(overheads, FIRST_OVERHEAD_SECONDS, seconds),
        start_up=_expected(start_ups, FIRST_START_UP_SECONDS, seconds),
        beyond=extra_memory_bytes(studies, conditions.kind),
        speeds=tuple((tried.config, tried.progress) for tried in trained[:MOST_TRIALS]),
        trials=tuple(filter(None, judged))[:MOST_TRIALS],
        first=_different(config for config in best if config),
    )


def _different(configs: Iterable[Config]) -> tuple[Config, ...]:
    """Return these without those that came before; retrainings with other seeds are of one configuration."""
    found: list[Config] = []
    for config in configs:
        found += [] if config in found else [config]
    return tuple(found)


def describe_reuse(family: str, study: EarlierStudy, conditions: Conditions) -> str:
    """Return a line that says what of a study counts here, what does not, and why."""
    ground, counts = study.ground, ["sizes"] if study.weights(conditions.compute) else []
    counts += ["memory"] if ground.kind == conditions.kind else []
    not_so = []
    if _same_processor(ground, conditions):
        counts.append("speeds and costs")
    else:
        not_so.append("speeds and costs (of another processor)")
    if _same_losses(ground, conditions):
        counts.append("losses")
    else:
        differ = [name for name, value in conditions.recipe.items() if ground.recipe[name] != value]
        not_so.append(f"losses (of another {'text' if ground.text != conditions.text else ' and '.join(differ)})")
    taken = f"its {', '.join(counts)} count" if counts else "nothing counts"
    left = f", not its {', nor its '.join(not_so)}" if not_so else ""
    return f"{family}: learns from {counted(len(study.trials), 'trial')} of {study.folder}: {taken}{left}"


def _expected(known: Sequence[float], first: float, seconds: float) -> float:
    return min(statistics.median(known), max(first, MOST_EXPECTED * seconds)) if known else first


def _same_processor(one: Conditions, other: Conditions) -> bool:
    return (one.kind, one.processor, one.share) == (other.kind, other.processor, other.share)


def _same_losses(one: Conditions, other: Conditions) -> bool:
    return (one.text, one.recipe) == (other.text, other.recipe)


def _config(fact: Fact) -> Config:
    """Read a configuration. ValueError: it is none."""
    config = {name: value for name, value in as_mapping(fact).items() if isinstance(value, int | float | str)}
    if not config or config != fact:
        raise ValueError(f"{fact!r} is no configuration")
    return config


def _several(fact: Fact) -> Sequence[Fact]:
    """Read a list. TypeError: it is none."""
    if not isinstance(fact, Sequence) or isinstance(fact, str):
        raise TypeError(f"{fact!r} is no list")
    return fact
