"""The end of a search: the winner of each family, its samples and how well it translates, charged like everything else,
and the last lines printed.
"""

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from model.config import Config, Data
from model.data.dataset import PairData
from model.data.tokenizer import Tokenizer
from model.families import FAMILIES
from model.inference import SAMPLE_TOKENS, Sample, samples
from model.nn.translator import Translator
from model.training.checkpoint import exported_config, load_model
from model.training.evaluation import CHUNK, SENTENCES, Score, chunk_count, evaluate, score, translate_in_chunks
from model.training.time_budget import MARGIN, PhaseTimer
from tune.errors import UserError
from tune.loop import output_of
from tune.own_space import LOOP
from tune.reports import Evaluation, split_row
from tune.search.engine import Engine
from tune.search.successive_halving import (
    BEFORE_DEADLINE,
    NO_LONGER,
    NO_TRIAL,
    PAST_BEST,
    TOO_LITTLE,
    VARYING_ERROR_PARTS,
)
from tune.search_space import label
from tune.store.accounting import DECODING, Hold
from tune.store.journal import ENDED_BY_CAP, ENERGY, MIN_UNSPENT_SHARE, Journal, as_mapping
from tune.store.queries import measured_text, ranking
from tune.units import duration_text, energy_text, money_text


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The first of a family's ranking among trials that left a checkpoint. report: the row of the report that ranks it;
    measured: on how much of the validation split, in words."""

    trial: str
    report: int
    config: dict[str, Any]
    parameters: int
    perplexity: float
    measured: str
    bits_per_character: float | None
    test_perplexity: float | None
    decayed: bool
    averaged: bool
    checkpoint: Path


def winners(journal: Journal) -> dict[str, Winner]:
    """Return the winner of each family that has one."""
    kept = [row for row in ranking(journal) if row["checkpoint"] is not None]
    first = {row["family"]: row for row in reversed(kept)}
    return {
        family: Winner(
            trial=row["trial"], report=row["report"], config=json.loads(row["config"]), parameters=row["parameters"],
            perplexity=row["perplexity"], measured=measured_text(row), bits_per_character=row["bits_per_character"],
            test_perplexity=row["test_perplexity"], decayed=bool(row["final"]), averaged=bool(row["averaged"]),
            checkpoint=resolve_inside(journal.folder, row["checkpoint"]),
        )
        for family, row in first.items()
    }  # fmt: skip


def resolve_inside(folder: Path, path: str) -> Path:
    """Return a path that a journal gives, made absolute. UserError: it leads out of the study's folder."""
    found = (folder / path).resolve()
    if not found.is_relative_to(folder.resolve()):
        raise UserError(f"journal: {path!r} leads out of the study {str(folder)!r}: do not trust it")
    return found


def no_winner_reason(journal: Journal, family: str) -> str:
    """Return a line on why no trial of a family reached a rung, and what may help, where anything may."""
    rows = journal.rows("SELECT trial, state, reason, config FROM trials WHERE family = ? ORDER BY trial", family)
    facts = journal.facts()
    if not rows:
        return f"no trial was started{_more_time(facts)}"
    kinds = Counter(_kind(row) for row in rows)
    phrases = {"diverged": "diverged", "memory": "did not fit in memory", "time": "had too little time"}
    phrases, where = phrases | {"again": "could go on after an error", "error": "failed"}, "log.txt"
    for kind in ("again", "error"):
        errors = [(row["reason"].partition(": ")[2], row["trial"]) for row in rows if _kind(row) == kind]
        alike = [VARYING_ERROR_PARTS.sub("#", error) for error, _ in errors]
        for one, count in Counter(alike).most_common(1):
            error, trial = errors[alike.index(one)]
            phrases[kind] += f" ({f'{count} of them: ' if count < len(errors) else ''}{error})"
            where = output_of(trial) if family == LOOP else where
    (first, most), *rest = kinds.most_common()
    text = ", ".join([f"{most} of {len(rows)} {phrases[first]}", *(f"{count} {phrases[kind]}" for kind, count in rest)])
    given = family == LOOP or "learning_rate" in json.loads(rows[0]["config"])
    vary = "" if given else ": --vary learning_rate tries some"
    ended: Any = as_mapping(facts.get("ended"))
    all_spent = ended.get("cap", math.inf) - ended.get("spent", 0.0) < MUCH * ended.get("cap", math.inf)
    limited = "memory_limit" in as_mapping(facts.get("settings"))
    smaller = "allow them more with --memory-limit" if limited else "fix smaller sizes with --fix"
    helps = {
        "error": f"; see {where}, correct that and go on with --resume{' and a larger --budget' if all_spent else ''}",
        "again": f"; see {where}{_more_time(facts)}",
        "diverged": f"; in a new search lower learning rates may help{vary}",
        "memory": f"; in a new search {smaller}",
        "time": _more_time(facts),
    }[first]
    return f"no trial reached a rung: {text}{helps}"


def _kind(trial: sqlite3.Row) -> str:
    """Return why a trial ended: error, diverged or memory; again, if it waits after an error; else time."""
    kind = (trial["reason"] or "").partition(":")[0]
    if kind == "error" and trial["state"] == "paused":
        return "again"
    return kind if kind in ("error", "diverged", "memory") else "time"


def _more_time(facts: Mapping[str, Any]) -> str:
    """Return what gives a search more time; '' where a signal ended it, after which it can simply go on."""
    ended = as_mapping(facts.get("ended"))
    reason = ended.get("reason", ENDED_BY_CAP)
    reason = "deadline" if reason == ENDED_BY_CAP and ended.get("near_deadline") else reason
    more = {ENDED_BY_CAP: "a larger --budget", "deadline": "a later --deadline"}.get(str(reason))
    return f"; {more} goes on" if more else ""


MUCH = 0.1
"""Share of the cap unspent above which a line says why, for any reason."""
NEAR = 0.9
"""Share of a deadline or a wall clock: a search that ended earlier was ended by something else."""


def last_lines(
    journal: Journal, found: Mapping[str, Winner], scores: Mapping[str, Score], families: Iterable[str]
) -> Iterator[str]:
    """Yield the line that a user leaves with for each family: its best configuration, or why there is none."""
    for family in families:
        winner = found.get(family)
        if winner is None:
            yield f"{family}: {no_winner_reason(journal, family)}"
            continue
        test = "not measured" if winner.test_perplexity is None else f"{winner.test_perplexity:.4g}"
        marks = {"before its decay": not winner.decayed, "averaged weights": winner.averaged}
        weights = ", ".join(mark for mark, holds in marks.items() if holds)
        weights = f" ({weights})" if weights else ""
        measured = f" {winner.measured}" if winner.measured else ""
        bits = "" if winner.bits_per_character is None else f" ({winner.bits_per_character:.3f} bits a character)"
        quality = f"validation perplexity {winner.perplexity:.4g}{measured}{bits}, test perplexity {test}"
        size = f"{winner.parameters:,} parameters"
        score = scores.get(family)
        of = " of characters" if score and "tok:char" in score.signature else ""
        bleu = "" if score is None else f", BLEU{of} {score.bleu:.1f} on {score.sentences} test sentences"
        yield f"{family}: best {winner.trial} {label(winner.config)}{weights}: {quality}, {size}{bleu}"


def spending_lines(journal: Journal, *, cap: float, spent: float, price: float | None = None) -> Iterator[str]:
    """Yield lines on what a search spent, and why less than the cap; price: of a device-hour."""
    steps = journal.rows("SELECT TOTAL(seconds) AS seconds FROM charges WHERE what = 'steps'")[0]["seconds"]
    share, in_steps = spent / cap, steps / spent if spent else 0.0
    of_cap = f"{duration_text(round(spent, 1))} of {duration_text(cap)} ({100 * share:.1f} %)"
    facts: Any = journal.facts()
    beside = f"{money_text(spent, price)}{energy_text(facts.get(ENERGY))}"
    yield f"spent {of_cap}, {100 * in_steps:.1f} % of it in optimizer steps{beside}"
    last = "SELECT reason, at FROM decisions WHERE action = 'hand back' ORDER BY decision DESC LIMIT 1"
    left = duration_text(round(cap - spent, 1))
    ended: Any = as_mapping(facts.get("ended"))
    by_itself = ended.get("reason") == ENDED_BY_CAP
    for row in journal.rows(last) if cap - spent > MIN_UNSPENT_SHARE * cap else ():
        if any(each in row["reason"] for each in (PAST_BEST, TOO_LITTLE, NO_LONGER)):
            yield f"{left} handed back: {row['reason'].split(': ', 1)[1]}"
        elif by_itself and (ended.get("near_deadline") or BEFORE_DEADLINE in row["reason"]):
            yield f"{left} unspent at the deadline: a later --deadline goes on with them"
        elif by_itself and "experiment" not in facts and cap - spent > MUCH * cap:
            why, wall = row["reason"].split(": ", 1)[-1], ended.get("wall_clock") or math.inf
            if why != NO_TRIAL and row["at"] > NEAR * wall:
                why = f"its wall clock without --patient, about {duration_text(round(wall))}, was over"
            yield f"{left} unspent: {why}{'' if why == NO_TRIAL else '; a larger --budget goes on'}"


MOST = 4
"""Most samples of a winner."""
STEPS_A_TOKEN = 0.1
"""Cost of decoding a token, in optimizer steps: it is less, as a step is for hundreds of tokens and their gradients."""
UNCHARGED_SECONDS = 60.0
"""Most seconds of decoding by one winner where the driver's core does it, which is no device."""
OPENING_SECONDS = {"cpu": 0.0, "cuda": 5.0}
"""Seconds until a process that had no GPU can use one: on an H100 3 s, with the first kernels of a model."""
LOADING_SECONDS = 0.3
"""Seconds to load a model: ten times what the weights of such a model took from a local disk, as measured."""

Item = TypeVar("Item")


def sample_seconds(step_seconds: float) -> float:
    """Return the expected seconds of a sample, from those of an optimizer step."""
    return SAMPLE_TOKENS * STEPS_A_TOKEN * step_seconds


def decoding_seconds(step_seconds: float) -> float:
    """Return the seconds that must be left for decoding to begin."""
    return MARGIN * (LOADING_SECONDS + sample_seconds(step_seconds))


class TimeIsUp(Exception):
    """Another step of decoding might not fit in its lease, and ends it."""


def write_samples(
    found: Mapping[str, Winner], engine: Engine, data: Mapping[str, Data], *, kind: str
) -> dict[str, Score]:
    """Write samples of each winner that had its decay, as many as the rest of the cap pays for, on a device of the
    driver, and note them in the journal. Before them the test split is evaluated, where the winner's own leases had no
    time for that. A winner that wrote all of them in an earlier run does not again, and what it wrote stays until it
    writes more.

    Where devices are GPUs (`kind` is cuda) and the driver has none, as on a cluster, the driver's CPU core writes them:
    it is no device, and nothing is charged. Either way it ends before the deadline. Return the scores of those that
    translate, where the rest of the cap pays for these too.
    """
    torch.set_num_threads(1)
    accounting = engine.accounting
    facts: Any = accounting.journal.facts()
    same = {name for name, winner in found.items() if (facts.get("decoded") or {}).get(name) == winner.report}
    kept: dict[str, list[Sample]] = {name: facts["samples"][name] for name in same}
    scores = {
        name: Score(**{what: value for what, value in score.items() if what != "trial"})
        for name, score in facts.get("bleu", {}).items() if name in same
    }  # fmt: skip

    def note() -> None:
        bleu = {family: {"trial": found[family].trial} | asdict(each) for family, each in scores.items()}
        decoded = {name: found[name].report for name in kept}
        accounting.journal.write_facts(samples=kept, bleu=bleu, decoded=decoded)

    note()
    for family, winner in sorted(found.items(), key=lambda each: each[1].test_perplexity is not None):
        wrote_all = len(kept.get(family, [])) == MOST and (family in scores or not isinstance(data[family], PairData))
        if wrote_all and winner.test_perplexity is not None:
            continue
        (row,) = accounting.journal.rows("SELECT MAX(step_seconds) AS step FROM reports WHERE trial = ?", winner.trial)
        price = sample_seconds(row["step"] or 0.0)
        device = kind if kind == "cpu" or torch.cuda.is_available() else "cpu"
        charged = device == kind
        seconds = min(accounting.ledger.affordable(None) if charged else UNCHARGED_SECONDS, engine.wall_left())
        if not winner.decayed or seconds <= decoding_seconds(row["step"] or 0.0) + OPENING_SECONDS[device]:
            continue
        with Hold(accounting, winner.trial, DECODING, devices=1, seconds=seconds) if charged else nullcontext() as hold:
            timer = PhaseTimer(seconds, accounting.clock)
            folder = accounting.journal.folder / f"best-{family}"
            model, tokenizer = load_model(folder, device)
            if winner.test_perplexity is None and charged:
                query = "SELECT valid_seconds / valid_tokens AS each FROM reports WHERE report = ?"
                (known,) = accounting.journal.rows(query, winner.report)
                # it had a trial's cores
                token_seconds = known["each"] and known["each"] * max(1.0, accounting.ledger.share)
                tested = on_test_split(model, exported_config(folder), data[family], timer, device, token_seconds)
                tested = tested and replace(tested, seconds=0.0)  # charged to none of its trial's leases
                accounting.journal.update("reports", winner.report, split_row("test", tested))
            written = samples(model, tokenizer, data[family], MOST, make_time_check(timer))
            taken, price = take_while_affordable(written, timer, price, MOST)
            kept[family] = max(kept.get(family, []), taken, key=len)
            score_of_all = scored(model, tokenizer, data[family], timer, price)
            if hold is not None:
                hold.charge("evaluation")
        if score_of_all is not None:
            scores[family] = score_of_all
        note()
    return scores


def on_test_split(
    model: nn.Module, config: Config, data: Data, timer: PhaseTimer, device: str, token_seconds: float | None
) -> Evaluation | None:
    """Return the evaluation of the test split; None where the lease does not pay for all of it. token_seconds: a token
    of another split took so many, if known."""
    tokens = FAMILIES[config.family].span(config, data, "test", None).tokens
    if token_seconds is None or timer.seconds_left() < MARGIN * token_seconds * tokens:
        return None
    ask = make_time_check(timer)

    def go_on() -> bool:
        ask()
        return True

    try:
        return evaluate(model, config, data, "test", device=device, go_on=go_on, clock=timer.clock)
    except TimeIsUp:
        return None
    finally:
        model.eval()


def scored(model: nn.Module, tokenizer: Tokenizer, data: Data, timer: PhaseTimer, price: float) -> Score | None:
    """Return how well a model translates; None where it is no translator, or the lease does not pay for all sentences.

    price: device-seconds of one sentence alone.
    """
    if not (isinstance(data, PairData) and isinstance(model, Translator)):
        return None
    written = translate_in_chunks(model, tokenizer, data, data.test, SENTENCES, make_time_check(timer))
    found, _ = take_while_affordable(written, timer, CHUNK * price, chunk_count(data), whole=True)
    return score([pair for chunk in found for pair in chunk]) if found and len(found) == chunk_count(data) else None


def make_time_check(timer: PhaseTimer) -> Callable[[], None]:
    """Return a function to call before each step of decoding, which raises TimeIsUp where another step as long as the
    longest so far might not fit."""
    before = timer.clock()

    def ask() -> None:
        nonlocal before
        now = timer.clock()
        timer.observe("step", now - before)
        before = now
        if timer.seconds_left() <= MARGIN * timer.expected("step", 0.0):
            raise TimeIsUp

    return ask


def take_while_affordable(
    written: Iterator[Item], timer: PhaseTimer, price: float, most: int, *, whole: bool = False
) -> tuple[list[Item], float]:
    """Return at most so many items, as long as another is expected to fit, and the seconds that the last one took.

    price: expected seconds of the first; whole: after the first, take more only if all that are left fit.
    """
    items: list[Item] = []
    while len(items) < most:
        ahead = most - len(items) if whole and items else 1
        if timer.seconds_left() <= MARGIN * price * ahead:
            break
        began = timer.clock()
        try:
            items.append(next(written))
        except (TimeIsUp, StopIteration):
            break
        price = timer.clock() - began
    return items, price
