"""The same decisions: one search left alone, and the same one killed and resumed, at fixed prices and equal tokens."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.soak.accounts import rows
from tests.soak.bench import Bench, Row
from tests.soak.kill import life
from tests.soak.search import Search

CAP_SECONDS, KILLS = 200, 5
SHORT_CAP_SECONDS, SHORT_KILLS = 80, 1
SAME = 1e-6
"""Losses as near as this are equal."""
PRICES = {"nanogpt": {"step_seconds": 0.03, "overhead_seconds": 2.5, "start_up_seconds": 12}}
"""On the high side, so that what the kills cost beside is covered."""
DECISIONS = ("start", "promote", "finish", "stop")


def measure(bench: Bench) -> Iterator[Row]:
    """One row. The two run at the same time, on a core each."""
    cap, kills = (SHORT_CAP_SECONDS, SHORT_KILLS) if bench.short else (CAP_SECONDS, KILLS)
    prices = bench.study("prices.json")
    prices.write_text(json.dumps(PRICES))
    flags = (
        "--budget", f"{cap}s", "--families", "nanogpt", "--devices", "1", "--rungs", "tokens", "--prices", prices,
        "--fix", "d_model=64,precision=fp32", "--seed", "5", "--report-every", "1s",
    )  # fmt: skip
    alone, killed = bench.study("left-alone"), bench.study("killed")
    with ThreadPoolExecutor(2) as together:
        first = together.submit(lambda: Search(bench.observer, *flags, "--out", alone).finish())
        second = together.submit(_killed, bench, killed, kills, *flags, "--out", killed)
        code, deaths = first.result(), second.result()
    story, other = decisions(alone), decisions(killed)
    apart = [
        abs(one["valid_loss"] - two["valid_loss"]) for one, two in zip(losses(alone), losses(killed), strict=False)
    ]
    winners = [[row["trial"] for row in losses(study) if row["final"]] for study in (alone, killed)]
    promoted = sum(each["action"] == "promote" for each in story)
    yield Row(
        what="same decisions",
        asked=f"killed {kills} times against left alone: same promotions and stops, same winner, losses to {SAME:g}",
        measured=f"killed {deaths} times: {'the same' if story == other else 'OTHER'} {len(story)} decisions "
        f"({promoted} promotions), winner {winners[0]} against {winners[1]}, "
        f"losses apart by at most {max(apart, default=float('nan')):.1e}",
        kept=code == 0 and deaths == kills and story == other and winners[0] == winners[1] and len(winners[0]) == 1
        and len(losses(alone)) == len(losses(killed)) and max(apart) <= SAME,
        details=[{"left alone": story, "killed": other, "losses": losses(alone), "losses, killed": losses(killed)}],
    )  # fmt: skip


def _killed(bench: Bench, study: Path, kills: int, *flags: str | Path) -> int:
    """Kill a search at random moments, go on to its end; how often it was killed while it ran."""
    lives = [life(bench, study, *flags)]
    while len(lives) < kills and lives[-1].killed:
        lives.append(life(bench, study, "--resume", study))
    if lives[-1].killed:
        lives.append(life(bench, study, "--resume", study, when="never"))
    return sum(each.killed for each in lives)


def decisions(study: Path) -> list[dict[str, Any]]:
    """What was decided, in order, with the configuration it was decided for."""
    marks = ", ".join("?" * len(DECISIONS))
    query = f"SELECT trial, config, action, rung FROM decisions JOIN trials USING (trial) WHERE action IN ({marks})"
    return rows(study, f"{query} ORDER BY decision", *DECISIONS)


def losses(study: Path) -> list[dict[str, Any]]:
    """Every result, by trial and rung; the last stretch's comes after its trial's rungs."""
    query = "SELECT trial, rung, final, steps, valid_loss FROM reports WHERE rung IS NOT NULL OR final"
    return rows(study, f"{query} ORDER BY trial, final, rung")
