"""A search of a user's loop in virtual time: its own lease inside, the search's own engine and ledger around it."""

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.tune.search.world import Played, opened
from tune.assembly import make_engine
from tune.backend.loop_trial import forced_end_report, report_of
from tune.devices import Devices
from tune.facts import facts_of
from tune.loop import Lease, Terms
from tune.own_loop import make_loop_context, metric_of, resume_checkpoint
from tune.own_space import choice, floats, integers
from tune.reports import Report
from tune.search.resume import last_moment, restore
from tune.search.simulator import Clock, Costs, PowerLaw
from tune.settings import Settings
from tune.store.accounting import Assignment
from tune.store.queries import ranking

SPACE = {"fault": choice("none"), "width": integers(1, 9), "rate": floats(1e-3, 1e-1, log=True)}
START, SAVE = 4.0, 0.05


class Loops(Played):
    """Trials whose loops report every `gap` seconds, on their real leases, in virtual time."""

    def __init__(
        self, folder: Path, *, cap: float, slots: int, gap: float, seed: int = 0, elapsed: float = 0.0, **asked: Any
    ) -> None:  # fmt: skip
        settings = Settings(
            budget=cap, train=lambda config: None, seed=seed,
            **({"space": SPACE} | ({} if "maximize" in asked else {"metric": "loss"}) | asked),
        )  # fmt: skip
        devices = Devices(kind="cpu", count=slots, model="core", precisions=("fp32",), cores=slots)
        folder.mkdir(exist_ok=True)
        journal, there = opened(folder)
        if not there:
            journal.write_facts(**facts_of(settings, devices, {}))
        clock, context = Clock(), make_loop_context(settings, devices)
        engine = make_engine(context, journal, [], now=clock, elapsed=elapsed)
        super().__init__(engine, clock, Costs(start_up=START, overhead=0.5), lambda *of: PowerLaw(step_seconds=gap))
        self.context = context
        self.told = restore(engine, resume_checkpoint, settings.deadline, devices.processor) if there else []
        self.folder, self.gap, self.chance, self.journal = folder, gap, random.Random(seed), journal
        self.before, self.broken, self.at_once = last_moment(journal), False, False
        metric = metric_of(settings)
        assert metric is not None
        self.metric = metric
        self.life, self.raised = math.inf if settings.life is None else settings.life, dict[int, str]()

    def length(self, assignment: Assignment) -> float:
        """As its loop uses it."""
        run, config = self.engine.running[assignment.trial], assignment.config
        now = began = self.engine.accounting.clock()
        heard: list[dict[str, Any]] = []
        place = self.folder / "checkpoints" / assignment.trial
        ends = assignment.opened + assignment.seconds - 0.1
        terms = Terms(
            trial=assignment.trial, lease=assignment.lease, config=config, folder=str(place), output="", ends=ends,
            metric=self.metric.name, maximize=self.metric.maximize, steps=assignment.steps,
            training_seconds=assignment.training_seconds, life=None if math.isinf(self.life) else self.life,
            last=assignment.rung is None,
        )  # fmt: skip
        lease, fault = Lease(terms, heard.append, clock=lambda: now), str(config.get("fault", "none"))
        now += START if run.fresh_slot else 0.5
        lease.asked = True
        if fault.startswith("restores for ") and lease.checkpoint is not None:
            now += float(fault.removeprefix("restores for "))
        lease.end_setup()
        step = 0 if lease.checkpoint is None else json.loads((lease.checkpoint / "state.json").read_text())
        returned = self.at_once and lease.checkpoint is not None
        if returned:
            lease.on_return()
        while not returned and not lease.is_over():
            now += self.gap * float(config["width"]) / 5 * self.chance.uniform(0.8, 1.2)
            step += 1
            if self.broken:
                self.raised[assignment.lease] = "error: its train raised FileNotFoundError: data.txt"
                return now - assignment.opened
            hung = fault == "says nothing" or (fault == "hangs" and step == 7)
            hung |= fault == "hangs once restored" and lease.checkpoint is not None
            if now >= ends or hung:
                now = ends
                lost = now - (began if not heard else began + sum(sum(each["seconds"].values()) for each in heard))
                self._outcomes[assignment.lease] = forced_end_report(place, heard[-1] if heard else None, lost)
                return now - assignment.opened
            if fault == "crashes" and step == 5:
                self.raised[assignment.lease] = "error: its train raised RuntimeError: mine"
                return now - assignment.opened
            if fault == "returns" and step == 6:
                lease.on_return()
                break
            loss = (1 + 0.2 * math.sin(step)) / (1 + step * float(config["rate"]))
            loss = math.nan if fault == "diverges" and step == 4 else loss

            def save(folder: Path, step: int = step) -> None:
                nonlocal now
                now += SAVE
                (folder / "state.json").write_text(json.dumps(step))

            told = {self.metric.name: 1 - loss if self.metric.maximize else loss, "seen": 10 * step}
            lease.report(told, step, None if fault == "never saves" else save)
        seconds = {what: sum(each["seconds"][what] for each in heard) for what in heard[0]["seconds"]}
        self._outcomes[assignment.lease] = report = report_of({**heard[-1], "seconds": seconds})
        assert report.ended is not None
        return now - assignment.opened

    def end(self, assignment: Assignment) -> None:
        """What its worker says."""
        if assignment.lease in self.raised:
            self.engine.on_error(assignment.trial, self.raised.pop(assignment.lease))
            return
        report = self._outcomes.pop(assignment.lease)
        assert isinstance(report, Report)
        self.engine.on_report(assignment.trial, report)

    def values(self) -> list[Mapping[str, Any]]:
        """The ranking."""
        return [dict(row) for row in ranking(self.journal)]
