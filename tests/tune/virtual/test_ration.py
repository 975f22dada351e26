"""Laws of our own contest in virtual time: the search's ledger agrees, and nothing is wasted."""

import math
import time

import pytest
from tune.curves.world import Machine, Ration, Stretch, World

from tests.tune.virtual.made import curve, play, settings, table
from tune.curves.benchmark import Amount, Cell, diverging, search
from tune.curves.recorded import Table
from tune.curves.supply import Supply
from tune.search.forecast import Standings
from tune.store.journal import Journal
from tune.store.ledger import GRACE_SECONDS, Ledger


@pytest.mark.parametrize("workers", [1, 3, 8])
@pytest.mark.parametrize("diverge", [0.0, 0.4])
@pytest.mark.parametrize(("share", "times"), [(0.02, math.inf), (0.3, math.inf), (0.1, 1.2), (0.3, 2.0)])
def test_the_search_s_own_ledger_agrees_and_never_refuses(workers, diverge, share, times):
    """Every stretch of the contest is a lease on the real ledger, under the replay's clock."""
    made = table(30)
    curves = diverging(made.curves, diverge, seed=1)
    cap = share * made.exhaustive
    machine = Machine(workers=workers, deadline=times * cap / workers)
    world = World(curves, cap, machine, Supply(curves, suggest="order", seed=1))
    ledger = Ledger(cap=world.cap + GRACE_SECONDS * workers, clock=lambda: world.now)

    class Audited(World):
        def _begin(self, slot: int, stretch: Stretch) -> None:
            fresh = slot not in self._open
            super()._begin(slot, stretch)
            if fresh:
                ledger.open(slot)
            run = next(run for run in self._running if run.slot == slot)
            ledger.reserve(slot, run.end - self.now)

        def _hand_back(self, slot: int) -> None:
            super()._hand_back(slot)
            if slot in ledger.open_slots:
                ledger.hand_back(slot)

        def _pass(self, until: float) -> None:
            super()._pass(until)
            for run in self._running:
                if run.end <= until:
                    ledger.release(run.slot)
            assert ledger.spent == pytest.approx(self.spent)

    world.__class__ = Audited
    player = Ration(world)
    decide = player.contest.next

    def audited_decide(left):
        start_up = 0.0 if world.slot_is_open else world.machine.start_up
        exact = ledger.left - GRACE_SECONDS * (workers - len(ledger.open_slots)) - start_up
        assert exact - world.machine.thaw * left.running - 1e-6 <= left.seconds <= exact + 1e-6
        return decide(left)

    player.contest.next = audited_decide
    world.play(player)
    assert ledger.spent == pytest.approx(world.spent) and world.spent > 0


def test_nothing_is_left_unspent_that_a_trial_could_use():
    for workers in (1, 4, 8):
        world = play(table(40, reports=40), "ration", share=0.2, workers=workers)
        assert world.spent >= 0.99 * world.cap


def test_a_quarter_diverging_costs_nothing_after_divergence():
    cell = Cell(table=table(40), scheduler="ration", budget=Amount(text="20%", times=0.2), workers=2)
    outcomes = [search(cell, settings(diverge=0.25), seed) for seed in range(5)]
    assert all(outcome.after_divergence <= 0.02 for outcome in outcomes)


def test_what_ran_out_of_memory_is_never_tried_again():
    made = Table(name="memory", curves=tuple(curve(number, memory=1e9 * (number % 2 + 1)) for number in range(10)))
    world = play(made, "ration", share=2.0, memory_limit=1.5e9)
    assert sorted(world.trials) == list(range(10))
    assert world.unfit == pytest.approx(5 * world.machine.thaw)
    assert all(world.curve(trial).memory_bytes == 1e9 for trial in world.reports)


class Journaled(World):
    """A world that writes what a search would: a lease and its reservation, then reports with their charge."""

    journal: Journal

    def _begin(self, slot: int, stretch: Stretch) -> None:
        super()._begin(slot, stretch)
        lease = {"slot": slot, "trial": str(stretch.trial), "purpose": "rung", "rung": 0, "price": 1.0, "reserved": 1.0}
        with self.journal.transaction():
            self.journal.insert("leases", lease | {"opened": self.now})
            self.journal.insert("decisions", {"at": self.now, "trial": "", "action": "promote", "reason": "leads"})

    def _train(self, stretch: Stretch, reports: int) -> None:
        before = self.reports.get(stretch.trial, 0)
        super()._train(stretch, reports)
        for report in range(before, reports):
            with self.journal.transaction():
                loss = self.curve(stretch.trial).losses[report]
                row = {"trial": str(stretch.trial), "at": self.now, "valid_loss": loss, "training_seconds": 1.0}
                self.journal.insert("reports", row)
                for what in ("steps", "evaluation", "checkpoint"):
                    self.journal.insert("charges", {"at": self.now, "what": what, "seconds": 1.0})


def test_ten_thousand_trials_on_a_thousand_slots_and_their_journal_within_a_minute_of_one_core(tmp_path):
    made = table(10_000, reports=10)
    world = Journaled(
        made.curves, 0.5 * made.exhaustive, Machine(workers=1000), Supply(made.curves, suggest="order", seed=0)
    )
    world.journal = Journal(tmp_path, new=True)
    started = time.process_time()
    world.play(Ration(world))
    assert time.process_time() - started < 60
    assert world.spent >= 0.99 * world.cap
    assert len(world.journal.rows("SELECT report FROM reports")) == sum(world.reports.values()) > 20_000


def test_a_decision_looks_at_few_trials_however_many_there_are(monkeypatch):
    looks, waits = [0], Standings._waits

    def counted(self, trial, rung):
        looks[0] += 1
        return waits(self, trial, rung)

    monkeypatch.setattr(Standings, "_waits", counted)

    def looks_a_stretch(trials: int) -> float:
        looks[0] = 0
        world = play(table(trials, reports=10), "ration", share=0.5, workers=trials // 10)
        return looks[0] / world.stretches

    assert looks_a_stretch(3000) < 2 * looks_a_stretch(300)
