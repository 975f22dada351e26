"""The end of a search: the best of each family, kept where people look for it, and the last lines printed."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model import checkpoint as checkpoints
from model.bleu import Score
from model.config import Data
from tune.dimensions import label
from tune.duration import duration_text
from tune.errors import UserError
from tune.journal import Journal
from tune.queries import measured_text, ranking


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The first of a family's ranking, of those that left a checkpoint. measured: on what of the validation split."""

    trial: str
    family: str
    config: dict[str, Any]
    parameters: int
    perplexity: float
    measured: str
    bits_per_character: float
    test_perplexity: float | None
    decayed: bool
    checkpoint: Path


def winners(journal: Journal) -> dict[str, Winner]:
    """The winner of each family that has one."""
    kept = [row for row in ranking(journal) if row["checkpoint"] is not None]
    first = {row["family"]: row for row in reversed(kept)}
    return {
        family: Winner(
            trial=row["trial"], family=family, config=json.loads(row["config"]), parameters=row["parameters"],
            perplexity=row["perplexity"], measured=measured_text(row), bits_per_character=row["bits_per_character"],
            test_perplexity=row["test_perplexity"], decayed=bool(row["final"]),
            checkpoint=inside(journal.folder, row["checkpoint"]),
        )
        for family, row in first.items()
    }  # fmt: skip


def inside(folder: Path, path: str) -> Path:
    """A path that a journal gives, as long as it stays in the study's folder. UserError: it leads out of it."""
    found = (folder / path).resolve()
    if not found.is_relative_to(folder.resolve()):
        raise UserError(f"journal: {path!r} leads out of the study {str(folder)!r}: do not trust it")
    return found


def export(winner: Winner, study: Path, data: Data) -> None:
    """Put the winner's weights, config and tokenizer into `best-<family>/`."""
    checkpoints.export(winner.checkpoint, study / f"best-{winner.family}", data.tokenizer)


def why_none(journal: Journal, family: str) -> str:
    """Why no trial of a family reached a rung, and what may help against that, where anything may."""
    rows, facts = journal.rows("SELECT state, reason, config FROM trials WHERE family = ?", family), journal.facts()
    if not rows:
        return f"no trial was started{_more_time(facts)}"
    kinds = Counter(_kind(row["reason"]) for row in rows)
    errors = Counter(row["reason"].partition(": ")[2] for row in rows if _kind(row["reason"]) == "error")
    said = {"diverged": "diverged", "memory": "did not fit in memory", "time": "had too little time"}
    said["error"] = "failed" + "".join(f" ({error})" for error, _ in errors.most_common(1))
    (first, most), *rest = kinds.most_common()
    told = ", ".join([f"{most} of {len(rows)} {said[first]}", *(f"{count} {said[kind]}" for kind, count in rest)])
    vary = "" if "learning_rate" in json.loads(rows[0]["config"]) else ": --vary learning_rate tries some"
    limited = "memory_limit" in facts.get("settings", {})
    helps = {
        "error": "; see log.txt, mend that and begin a new study",
        "diverged": f"; lower learning rates may help{vary}",
        "memory": "; allow them more with --memory-limit" if limited else "; fix smaller sizes with --fix",
        "time": _more_time(facts),
    }[first]
    return f"no trial reached a rung: {told}{helps}"


def _kind(reason: str | None) -> str:
    """For which of these a trial ended: error, diverged, memory; else for lack of time."""
    kind = (reason or "").partition(":")[0]
    return kind if kind in ("error", "diverged", "memory") else "time"


def _more_time(facts: Mapping[str, Any]) -> str:
    """What gives a search more time; nothing where a signal ended it, after which it can simply go on."""
    ended = facts.get("ended", {}).get("reason", "cap")
    return {"cap": "; give it a larger cap", "deadline": "; give it a later --deadline"}.get(ended, "")


def last_lines(
    journal: Journal, found: Mapping[str, Winner], scores: Mapping[str, Score], families: list[str], *, cap: float,
    spent: float,
) -> Iterator[str]:  # fmt: skip
    """What a user leaves with: per family the best configuration, and what it cost."""
    for family in families:
        winner = found.get(family)
        if winner is None:
            yield f"{family}: {why_none(journal, family)}"
            continue
        test = "not measured" if winner.test_perplexity is None else f"{winner.test_perplexity:.4g}"
        decayed = "" if winner.decayed else " (before its decay)"
        measured = f" {winner.measured}" if winner.measured else ""
        quality = f"validation perplexity {winner.perplexity:.4g}{measured}, test perplexity {test}"
        size = f"{winner.bits_per_character:.3f} bits a character, {winner.parameters:,} parameters"
        score = scores.get(family)
        bleu = "" if score is None else f", BLEU {score.bleu:.1f} on {score.sentences} test sentences"
        yield f"{family}: best {winner.trial} {label(winner.config)}{decayed}: {quality}, {size}{bleu}"
    steps = journal.rows("SELECT TOTAL(seconds) AS seconds FROM charges WHERE what = 'steps'")[0]["seconds"]
    share, in_steps = spent / cap, steps / spent if spent else 0.0
    of_cap = f"{duration_text(round(spent, 1))} of {duration_text(cap)} ({100 * share:.1f} %)"
    yield f"spent {of_cap}, {100 * in_steps:.1f} % of it in optimizer steps"
