"""Training loops of a user's own: searches whose trials crash, hang, never save, return early, report NaN, texts or
nothing, beside sound ones; and what reporting costs a loop.
"""

import json
from collections.abc import Iterator
from typing import Any

from tests.soak.accounts import adds_up, number, rows, spent
from tests.soak.search import Bench, Row, Search

# cap in seconds, slots, seconds between two reports
SEARCHES = (
    *((45, slots, 0.05) for slots in (1, 2, 4)),
    *((45, slots, 0.2) for slots in (1, 2, 4)),
    *((45, slots, 0.5) for slots in (1, 2, 4)),
    *((60, slots, 1.0) for slots in (1, 2, 4)),
    *((60, slots, 2.0) for slots in (1, 2, 4)),
    *((120, slots, 4.0) for slots in (1, 2)),
    *((120, slots, 8.0) for slots in (1, 2, 4)),
)
SHORT = ((60, 2, 0.2),)
OFTEN = 0.05
MOST_COST = 0.02
"""Of the seconds of a loop that reports every .05 s, what its reports may take."""
LOOP = """
import json, math, sys, time
import tune.loop as ration

def train(config):
    step, spent, began, fault = 0, 0.0, time.perf_counter(), config["fault"]
    if (saved := ration.checkpoint()) is not None:
        step = json.loads((saved / "state.json").read_text())
    while not ration.done():
        time.sleep(config["every"])
        step += 1
        if fault == "crashes" and step == 4:
            raise RuntimeError("mine")
        if fault == "exits" and step == 4:
            sys.exit(3)
        if fault == "dies" and step == 4:
            import os; os.kill(os.getpid(), 9)
        if fault == "hangs" and step == 4 or fault == "says nothing":
            time.sleep(10_000)
        if fault == "returns" and step == 4:
            return
        loss = {"not a number": math.nan, "a text": "low"}.get(fault, 1 / (1 + step * config["rate"]))
        save = None if fault == "never saves" else lambda to: (to / "state.json").write_text(json.dumps(step))
        before = time.perf_counter()
        ration.report(loss=loss, cost=spent / (before - began), step=step, save=save)
        spent += time.perf_counter() - before
"""
FAULTS = (*("crashes", "exits", "dies", "hangs", "says nothing", "returns", "not a number", "a text", "never saves"),)
SOUND = ("none", "never saves", "returns")
SPACE = """
fault = {faults}
every = [{every}]
rate = {{ low = 1e-3, high = 1.0, log = true }}
"""


def own_loops(bench: Bench) -> Iterator[Row]:
    """Two rows: the cap whatever loops do, and what reporting costs."""
    searches = SHORT if bench.short else SEARCHES
    found = [_search(bench, *asked) for asked in searches]
    good = [each for each in found if each["spent"] <= each["cap"] and each["adds up"] and each["as it should"]]
    lost = sum(each["sound that failed"] for each in found)
    yield Row(
        what="loops of a user's own that crash, hang, never save, return early, report NaN, texts, nothing",
        asked=f"spent <= cap in {len(found)} of {len(found)}; one line each; no sound trial fails",
        measured=f"{len(good)} of {len(found)}; {lost} sound trials failed; "
        f"{100 * min(each['spent'] / each['cap'] for each in found):.0f} to "
        f"{100 * max(each['spent'] / each['cap'] for each in found):.1f} % used",
        kept=len(good) == len(found) and not lost,
        details=found,
    )
    cost = max(each["cost"] for each in found if bench.short or each["every"] == OFTEN)
    yield Row(
        what="reports every .05 s",
        asked="< 2 % of the seconds of their loop",
        measured=f"{100 * cost:.2f} % at most, checkpoints included",
        kept=0 < cost < MOST_COST,
    )


def _search(bench: Bench, cap: int, slots: int, every: float) -> dict[str, Any]:
    study = bench.folder / f"loops-{cap}s-{slots}-slots-every-{every}s"
    code = study.parent / f"{study.name}-code"
    code.mkdir()
    (code / "train.py").write_text(LOOP)
    faults = ["none", "none", *bench.chance.sample(FAULTS, 4)]
    (code / "space.toml").write_text(SPACE.format(faults=json.dumps(list(dict.fromkeys(faults))), every=every))
    search = Search(
        bench.observer, "--train", code / "train.py:train", "--space", code / "space.toml", "--metric", "loss",
        "--budget", f"{cap}s", "--devices", str(slots), "--oversubscribe", "--seed", str(bench.chance.randrange(1000)),
        "--out", study,
    )  # fmt: skip
    exit_code = search.finish()
    trials = rows(study, "SELECT config, state, reason FROM trials")
    failed = [trial for trial in trials if trial["state"] == "failed"]
    return {
        "study": study.name, "cap": cap, "slots": slots, "every": every, "exit": exit_code, "spent": spent(study),
        "adds up": adds_up(study),
        "as it should": bool(trials) and (not exit_code or bool(failed)) and "Traceback" not in search.printed,
        "sound that failed": sum(json.loads(trial["config"])["fault"] in SOUND for trial in failed),
        "reasons": sorted({str(trial["reason"]) for trial in failed}), "trials": len(trials),
        "cost": number(study, """
            SELECT MAX(json_extract(numbers, '$.cost')) FROM reports JOIN trials USING (trial)
            WHERE steps > 20 AND json_extract(config, '$.fault') = 'none'"""),
    }  # fmt: skip
