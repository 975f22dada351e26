"""Searches of a user's loop in virtual time: its own lease inside, the search's own engine and ledger around it."""

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tune.assembly import make_engine, make_terms
from tune.backend.loop_trial import forced, report_of
from tune.devices import Devices
from tune.loop import Lease, Terms
from tune.own_loop import newest_of, survey_loop
from tune.own_space import choice, integers, loguniform
from tune.reports import Report
from tune.search.resume import astray, close_what_a_kill_left_open, last_moment, restore
from tune.search.simulator import Clock, Costs, PowerLaw, Simulation
from tune.settings import Settings
from tune.store.accounting import Assignment
from tune.store.journal import Journal
from tune.store.queries import ranking

FAULTS = ("none", "crashes", "hangs", "never saves", "returns", "diverges", "says nothing")
SPACE = {"fault": choice("none"), "width": integers(1, 9), "rate": loguniform(1e-3, 1e-1)}
START, SAVE = 4.0, 0.05


class Loops(Simulation):
    """Trials whose loops report every `gap` seconds, on their real leases, in virtual time."""

    def __init__(self, folder: Path, *, cap: float, slots: int, gap: float, seed: int = 0, **asked: Any) -> None:
        settings = Settings(
            budget=cap, train=lambda config: None, seed=seed, **{"space": SPACE, "metric": "loss", **asked}
        )  # fmt: skip
        devices = Devices(kind="cpu", count=slots, model="core", precisions=("fp32",), cores=slots)
        new = not (folder / "journal.db").exists()
        folder.mkdir(exist_ok=True)
        journal = Journal(folder, new=new)
        journal.rows("PRAGMA synchronous = OFF")
        if not new:
            close_what_a_kill_left_open(journal)
        clock, context = Clock(), survey_loop(settings, devices)
        engine = make_engine(context, journal, [], now=clock, elapsed=0.0)
        super().__init__(engine, clock, Costs(start_up=START, overhead=0.5), lambda *of: PowerLaw(step_seconds=gap))
        self.told = [] if new else restore(engine, journal, make_terms(context, engine), newest_of)
        self.folder, self.gap, self.chance, self.journal = folder, gap, random.Random(seed), journal
        self.before = last_moment(journal)
        self.life, self.raised = math.inf if settings.life is None else settings.life, dict[int, str]()

    def length(self, assignment: Assignment) -> float:
        """As its loop uses it."""
        run, config = self.engine.running[assignment.trial], assignment.config
        now = began = self.engine.accounting.clock()
        heard: list[dict[str, Any]] = []
        place = self.folder / "checkpoints" / assignment.trial
        ends = assignment.opened + assignment.seconds - 0.1
        terms = Terms(
            trial=assignment.trial, config=config, folder=str(place), output="", ends=ends, metric="loss",
            maximize=False, steps=assignment.steps, training_seconds=assignment.training_seconds,
            life=None if math.isinf(self.life) else self.life, last=assignment.rung is None,
        )  # fmt: skip
        lease, fault = Lease(terms, heard.append, clock=lambda: now), str(config.get("fault", "none"))
        now += START if run.fresh_slot else 0.5
        lease.begins()
        step = 0 if lease.checkpoint is None else json.loads((lease.checkpoint / "state.json").read_text())
        while not lease.done():
            now += self.gap * float(config["width"]) / 5 * self.chance.uniform(0.8, 1.2)
            step += 1
            hung = fault == "says nothing" or (fault == "hangs" and step == 7)
            if now >= ends or hung:
                now = ends
                lost = now - (began if not heard else began + sum(sum(each["seconds"].values()) for each in heard))
                self._outcomes[assignment.lease] = forced(place, heard[-1] if heard else None, lost)
                return now - assignment.opened
            if fault == "crashes" and step == 5:
                self.raised[assignment.lease] = "error: its train raised RuntimeError: mine"
                return now - assignment.opened
            if fault == "returns" and step == 6:
                lease.returned()
                break
            loss = math.nan if fault == "diverges" and step == 4 else 1 / (1 + step * float(config["rate"]))

            def save(folder: Path, step: int = step) -> None:
                nonlocal now
                now += SAVE
                (folder / "state.json").write_text(json.dumps(step))

            lease.report({"loss": loss}, step, None if fault == "never saves" else save)
        merged = report_of(heard[-1])
        seconds = {what: sum(each["seconds"][what] for each in heard) for what in heard[0]["seconds"]}
        self._outcomes[assignment.lease] = report_of({**heard[-1], "seconds": seconds})
        assert merged.ended is not None
        return now - assignment.opened

    def end(self, assignment: Assignment) -> None:
        """What its worker says."""
        if assignment.lease in self.raised:
            self.engine.raised(assignment.trial, self.raised.pop(assignment.lease))
            return
        report = self._outcomes.pop(assignment.lease)
        assert isinstance(report, Report)
        self.engine.report(assignment.trial, report)

    def values(self) -> list[Mapping[str, Any]]:
        """The ranking."""
        return [dict(row) for row in ranking(self.journal)]


def check(search: Loops, cap: float) -> None:
    assert search.engine.accounting.ledger.spent <= cap
    charged = search.journal.rows("SELECT TOTAL(seconds) FROM charges")[0][0]
    held = search.journal.rows("SELECT TOTAL(closed - opened) FROM slots")[0][0]
    assert charged == pytest.approx(held, abs=0.01)


@pytest.mark.parametrize("seed", range(6))
def test_the_cap_holds_whatever_loops_do_and_nothing_of_the_others_is_lost(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    cap, slots, gap = chance.choice((120.0, 400.0)), chance.choice((1, 2, 4)), chance.choice((0.2, 0.5, 2.0, 8.0))
    search = Loops(
        tmp_path / "study", cap=cap, slots=slots, gap=gap, seed=seed, space={**SPACE, "fault": choice(*FAULTS)}
    )  # fmt: skip
    search.run()
    check(search, cap)
    for row in search.values():
        fault = json.loads(row["config"]).get("fault", "none")
        broken = {"crashes": "error", "says nothing": "error: no report within", "diverges": "diverged"}.get(fault)
        assert broken is None or row["reason"].startswith((broken, "price")) or row["state"] != "failed"
        if fault in ("none", "returns", "never saves"):
            assert row["state"] != "failed", row["reason"]


@pytest.mark.parametrize(("gap", "slots"), [(0.1, 1), (0.5, 4), (4.0, 2)])
def test_good_loops_use_the_cap_and_the_best_value_reported_wins(tmp_path: Path, gap: float, slots: int) -> None:
    search = Loops(tmp_path / "study", cap=400.0, slots=slots, gap=gap)
    search.run()
    check(search, 400.0)
    assert search.engine.accounting.ledger.spent > 0.9 * 400.0
    found = search.values()
    lowest = search.journal.rows("SELECT MIN(valid_loss) FROM reports WHERE final OR rung IS NOT NULL")[0][0]
    assert found[0]["loss"] == lowest and len(found) > 4
    assert [row["loss"] for row in found if row["loss"]] == sorted(row["loss"] for row in found if row["loss"])
    assert {row["perplexity"] for row in found} == {None}


def test_with_a_life_trials_end_there_all_at_the_same_steps(tmp_path: Path) -> None:
    search = Loops(tmp_path / "study", cap=400.0, slots=2, gap=0.5, life=64)
    search.run()
    check(search, 400.0)
    at = search.journal.rows("SELECT steps, ended FROM reports WHERE final")
    assert {row["steps"] for row in at if row["ended"] == "returned"} == {64} and max(row["steps"] for row in at) == 64
    rungs = search.journal.rows(
        "SELECT rung, COUNT(DISTINCT steps) AS several FROM reports WHERE rung > 0 GROUP BY rung"
    )
    assert {row["several"] for row in rungs} <= {1}
    states = [row["state"] for row in search.journal.rows("SELECT state FROM trials")]
    assert states.count("finished") == len(at)


def test_with_other_reports_it_is_told_first_what_takes_long(tmp_path: Path) -> None:
    """A loop that reports rarely has no rung shorter than that: nothing is told apart there."""
    search = Loops(tmp_path / "study", cap=3300.0, slots=1, gap=60.0)
    search.run()
    ladder = search.engine.families["loop"].policy.ladder
    assert ladder.first >= 60 * 0.8 / 5 and search.values()[0]["loss"] is not None


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_killed_anywhere_it_goes_on_as_what_it_was(tmp_path: Path, cut: int) -> None:
    space = {**SPACE, "fault": choice("none", "never saves", "returns")}
    search = Loops(tmp_path / "study", cap=300.0, slots=2, gap=0.5, space=space, life=200)
    search.run(cut)
    search.journal.close()
    again = Loops(tmp_path / "study", cap=300.0, slots=2, gap=0.5, space=space, life=200)
    assert not [line for line in again.told if "does not tell" in line]
    assert not list(astray(again.engine.state, again.journal)) or cut
    again.run()
    check(again, 300.0)


def test_a_trial_that_hung_does_not_make_the_others_dear(tmp_path: Path) -> None:
    """What it took until it was ended is no price of a segment."""
    search = Loops(tmp_path / "study", cap=60.0, slots=1, gap=0.2, space={**SPACE, "fault": choice("hangs", "none")})
    search.run(1)
    price = search.engine.price_of("loop")(None, 0)
    hung = search.journal.rows("SELECT TOTAL(seconds) FROM charges WHERE what = 'lost'")[0][0]
    assert price < 10 < hung
