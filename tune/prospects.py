"""--plan --resume: what is left of a study's cap, and what half and twice the cap would buy. The study is only read,
also while it runs: nothing is started, measured or written.
"""

import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model.config import Config
from tune.assembly import frame_of
from tune.devices import find_devices
from tune.errors import UserError
from tune.facts import check_same_kind
from tune.recipe import Recipe
from tune.reports import Evaluation
from tune.search.confirm import HalvingWithConfirmation
from tune.search.earlier import WarmStart
from tune.search.engine import Engine
from tune.search.family import CostModel, Family, Suggestions
from tune.search.forecast import NO_FAVOUR, Favour
from tune.search.other_caps import CapForecast, StudyConditions, predict_other_caps
from tune.search.resume import agreed_terms, close_what_a_kill_left_open, damage_as_user_error, replay_journal
from tune.search.state import State
from tune.search.successive_halving import SuccessiveHalving
from tune.search.suggest import prior_of
from tune.search_context import SHORTEST_RUNG_SECONDS, load_stored_recipes
from tune.search_space import PRECISIONS, VARIABLE_RECIPE_FIELDS, label
from tune.settings import Settings
from tune.store.journal import SLOT_SHARE_SQL, Journal, as_mapping, spent_at_its_end
from tune.store.mirror import is_copy
from tune.store.queries import best_so_far, level_text, measured_text
from tune.units import duration_text, money_text, whole_text


@dataclass(frozen=True, kw_only=True)
class Prospects:
    """What is left of a study, and what to expect of it. spent: device-seconds; best: by family, the first row of its
    ranking; forecasts: by family, what this and other caps are expected to buy; configs: labels, by trial."""

    settings: Settings
    spent: float
    best: Mapping[str, sqlite3.Row]
    forecasts: Mapping[str, CapForecast]
    configs: Mapping[str, str]


def forecast_by_family(
    settings: Settings, policies: Mapping[str, object], journal: Journal, *, slots: int, share: float, over: bool
) -> dict[str, CapForecast]:
    """Return by family what to expect of the cap of these settings, and of others. over: the study spends no more of
    it."""
    conditions = StudyConditions(
        cap=settings.budget, families=settings.families, slots=slots, share=share, deadline=settings.deadline,
        patient=settings.patient, over=over, seeds=settings.confirm,
    )  # fmt: skip
    halving = {name: policy for name, policy in policies.items() if isinstance(policy, SuccessiveHalving)}
    return predict_other_caps(journal, halving, conditions, decay_share=Config.decay_share)


def note_prospects(settings: Settings, engine: Engine) -> None:
    """Note the prospects in the journal at the end of a search, for analysis."""
    policies = {name: family.policy for name, family in engine.families.items()}
    journal, share = engine.accounting.journal, engine.accounting.ledger.share
    over, slots = engine.cut_off is None, slots_to_go_on(settings, journal.facts())
    found = forecast_by_family(settings, policies, journal, slots=slots, share=share, over=over)
    journal.write_facts(prospects={name: asdict(each) for name, each in found.items()})


def prospects(settings: Settings) -> Prospects:
    """Return the prospects of the study that these settings resume. UserError: it is damaged, has no trial yet, has
    spent more than the cap, or cannot go on with these devices; or --address."""
    settings.check_planned_here()
    folder = settings.resume
    assert folder is not None, "there is a study"
    with Journal.in_memory_copy(folder) as journal, damage_as_user_error(journal):
        if is_copy(folder):  # what ran since is charged as a resume will charge it
            close_what_a_kill_left_open(journal)
        spent = float(journal.rows("SELECT TOTAL(seconds) AS spent FROM charges")[0]["spent"])
        if settings.budget < spent:
            raise settings.spent_cap_error(spent)
        slots = slots_to_go_on(settings, journal.facts())
        query = f"SELECT MIN({SLOT_SHARE_SQL}) AS share FROM slots WHERE slot IN (SELECT slot FROM leases)"
        share = float(journal.rows(query)[0]["share"] or 1.0)
        policies = restore_policies(journal, settings, folder, slots=slots, share=share)
        over = spent_at_its_end(folder, settings.terms) is not None
        return Prospects(
            settings=settings, spent=spent,
            best=best_so_far(journal),
            forecasts=forecast_by_family(settings, policies, journal, slots=slots, share=share, over=over),
            configs={row["trial"]: label(json.loads(row["config"])) for row in journal.rows("SELECT * FROM trials")},
        )  # fmt: skip


def slots_to_go_on(settings: Settings, facts: Mapping[str, Any]) -> int:
    """Return the slots of a study that goes on: those it had, or where another number of devices is asked for those of
    this machine. UserError: as in the search."""
    if settings.devices is None or str(settings.devices) == as_mapping(facts.get("settings")).get("devices"):
        return int(str(as_mapping(facts.get("devices")).get("slots", 1)))
    devices = find_devices(settings)
    check_same_kind(devices, facts)
    return devices.with_sharing(settings, 0.0).slots


class NoSuggestions(Suggestions):
    """The suggestions of a study that is only read: it starts no more trials."""


def restore_policies(
    journal: Journal, settings: Settings, folder: Path, *, slots: int, share: float
) -> dict[str, SuccessiveHalving]:
    """Return each family's policy in the state to which the journal's events bring it. UserError: there is no trial."""
    terms, (recipes, learned) = agreed_terms(journal), load_stored_recipes(folder, settings.families)
    if not journal.rows("SELECT 1 FROM trials LIMIT 1"):
        raise UserError(f"--resume: {str(folder)!r} has no trial yet: leave --plan out to go on with it")
    families: dict[str, Family] = {}
    policies: dict[str, SuccessiveHalving] = {}
    for name in settings.families:
        seconds, ladder = terms[0].families[name]
        known = learned.get(name, WarmStart())
        frame = frame_of(settings, name, known, slots=slots, share=share, shortest=SHORTEST_RUNG_SECONDS)
        favour = favour_of(settings, name, recipes[name], journal)
        policies[name] = HalvingWithConfirmation(frame, ladder, lambda trial, rung: math.inf, favour)
        policies[name].standings.learn(known.trials)
        families[name] = Family(
            seconds=seconds, policy=policies[name], cost_model=CostModel(), suggestions=NoSuggestions(),
            equal_tokens=settings.rungs == "tokens", warm_up_steps=recipes[name].warm_up_steps,
        )  # fmt: skip
    replay_journal(State(families, folder, share), journal)
    return policies


def favour_of(settings: Settings, family: str, recipe: Recipe, journal: Journal) -> Callable[[str], Favour]:
    """Return a function from a trial to how much the prior favours it, as Suggester.favour does."""
    if settings.search == "random":
        return lambda trial: NO_FAVOUR
    rows, facts = journal.rows("SELECT trial, config FROM trials WHERE family = ?", family), journal.facts()
    configs = {row["trial"]: json.loads(row["config"]) for row in rows}
    native = as_mapping(facts["devices"]).get("precisions")  # an older study does not tell
    known = native if isinstance(native, Sequence) else PRECISIONS
    space = settings.space_of(family, tuple(name for name in PRECISIONS if name in known))
    text = float(str(as_mapping(as_mapping(facts["corpora"])[family])["training_tokens"]))
    default = space.default() | {name: recipe.config[name] for name in VARIABLE_RECIPE_FIELDS if name in settings.vary}
    promise = prior_of(recipe, default, family, text)
    return lambda trial: promise(configs[trial])


def prospect_lines(found: Prospects) -> Iterator[str]:
    """Yield the lines of the prospects, which a user wants to know before they spend more."""
    settings = found.settings
    left = max(0.0, settings.budget - found.spent)
    yield f"{settings.resume}"
    spent, money = whole_text(found.spent), money_text(found.spent, settings.price_per_hour)
    yield f"spent {spent} of {duration_text(settings.budget)}{money}, unspent {whole_text(left)}. Nothing was written."
    for name in settings.families:
        yield ""
        yield from _family_lines(name, found)
    if not any(each.rows for each in found.forecasts.values()):
        return
    yield ""
    yield "Predicted by the scaling law, from configurations tried so far: of a smaller cap what a new search would"
    yield "have given, had it picked the right trial; of a larger one what this one gives, continued. Intervals: 80 %."
    if settings.stop_below_gain:
        yield "--stop-below-gain is not planned for: it may end the search before its cap."


def _family_lines(name: str, found: Prospects) -> Iterator[str]:
    best, forecast = found.best.get(name), found.forecasts[name]
    if best is None:
        yield f"{name}: no trial has reached a rung yet"
        return
    where = " ".join(each for each in (level_text(best), measured_text(best)) if each)
    yield f"{name}: best so far {best['trial']} {found.configs[best['trial']]}"
    yield f"  loss {best['loss']:.3f}, perplexity {best['perplexity']:.4g} {where}"
    if forecast.why:
        yield f"  no forecast: {forecast.why}"
        return
    yield f"  {'cap':<10} {'how':<15} {'loss':>7} {'80 % interval':>18} {'perplexity':>11}   trial"
    for row in forecast.rows:
        between = "" if row.how == "this search" else f"{row.low:.3f} to {row.high:.3f}"
        losses = f"{row.loss:>7.3f} {between:>18} {Evaluation(loss=row.loss).perplexity:>11.4g}"
        yield f"  {whole_text(row.cap):<10} {row.how:<15} {losses}   {row.trial} {found.configs[row.trial]}"
    if not forecast.decayed:
        yield "  at a constant learning rate: no trial had its decay yet, which takes more off"
