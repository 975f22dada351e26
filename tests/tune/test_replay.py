"""Laws of the replay: the cap holds, time is charged as in the search, peers are asked fairly, tables are read."""

import json
import math
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from tune import replaying
from tune.ledger import Ledger
from tune.ordering import cheap_and_random, shuffled
from tune.replay_ablations import IDEAS
from tune.replay_ration import Ration
from tune.replay_settings import SCHEDULERS, Amount, ReplaySettings, parse
from tune.replay_supply import Supply
from tune.replay_tables import Curve, Table, load
from tune.replay_world import Machine, Stretch, World

ROOT = Path(__file__).resolve().parents[2]


def curve(number: int, *, reports: int = 8, seed: int = 0, memory: float | None = None) -> Curve:
    rng = random.Random(f"{seed} {number}")
    low, height, power = rng.uniform(2, 3), rng.uniform(1, 2), rng.uniform(0.3, 0.8)
    losses = tuple(low + height * (report + 1) ** -power for report in range(reports))
    config = {"width": number % 5, "depth": number // 5}
    return Curve(
        config=config, parameters=1000 * (number + 1), seconds_per_report=rng.uniform(2, 20), losses=losses,
        memory_bytes=memory,
    )  # fmt: skip


def table(configs: int = 20, **options) -> Table:
    return Table(name="made", curves=tuple(curve(number, **options) for number in range(configs)))


def write(path: Path, made: Table) -> Path:
    rows = (
        {
            "config": each.config, "parameters": each.parameters, "memory_mb": None,
            "seconds_per_report": each.seconds_per_report, "valid_loss": list(each.losses),
        }
        for each in made.curves
    )  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def settings(**changes) -> ReplaySettings:
    return ReplaySettings(**{"tables": (), "budgets": (Amount(text="20%", times=0.2),), "seeds": 3} | changes)


def play(made: Table, scheduler: str, *, share: float = 0.3, seed: int = 0, **machine) -> World:
    world = World(
        made.curves, share * made.exhaustive, Machine(**machine), Supply(made.curves, suggest="order", seed=seed)
    )
    world.play(replaying.player(scheduler, world))
    return world


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("seed", range(6))
def test_no_scheduler_spends_more_than_the_cap_or_passes_the_deadline(scheduler, seed):
    rng = random.Random(seed)
    made, workers = table(rng.randint(1, 30), seed=seed, reports=rng.randint(1, 30)), rng.choice([1, 2, 5, 8])
    share = rng.choice([0.01, 0.1, 0.4, 2.0])
    deadline = rng.choice([math.inf, 2 * share * made.exhaustive / workers])
    world = play(made, scheduler, share=share, seed=seed, workers=workers, deadline=deadline)
    assert world.spent <= world.cap * (1 + 1e-9)
    assert world.now <= deadline * (1 + 1e-9)
    trained = sum(count * world.curve(trial).seconds_per_report for trial, count in world.reports.items())
    assert trained <= world.spent + 1e-6
    assert not ray.is_initialized()


@pytest.mark.parametrize("workers", [1, 3, 8])
@pytest.mark.parametrize("diverge", [0.0, 0.4])
@pytest.mark.parametrize(("share", "times"), [(0.02, math.inf), (0.3, math.inf), (0.1, 1.2), (0.3, 2.0)])
def test_the_search_s_own_ledger_agrees_and_never_refuses(workers, diverge, share, times):
    """Every stretch of the contest is a lease on the real ledger, under the replay's clock."""
    made = table(30)
    curves = replaying.diverging(made.curves, diverge, seed=1)
    cap = share * made.exhaustive
    machine = Machine(workers=workers, deadline=times * cap / workers)
    world = World(curves, cap, machine, Supply(curves, suggest="order", seed=1))
    ledger = Ledger(cap=world.cap + 0.3 * workers, clock=lambda: world.now)

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
        exact = ledger.left - 0.3 * (workers - len(ledger.open_slots)) - start_up
        assert exact - world.machine.thaw * left.running - 1e-6 <= left.seconds <= exact + 1e-6
        return decide(left)

    player.contest.next = audited_decide
    world.play(player)
    assert ledger.spent == pytest.approx(world.spent) and world.spent > 0


def test_a_slot_is_charged_from_its_start_up_until_it_is_handed_back():
    made = Table(name="two", curves=(curve(0, reports=4), curve(1, reports=2)))

    class Both:
        def next(self, world):
            trial = world.draw()
            return "hand back" if trial is None else Stretch(trial, len(world.curve(trial).losses))

        def told(self, trial, reports, fits):
            pass

    world = World(
        made.curves, 1e6, Machine(workers=2, start_up=5.0, thaw=1.0), Supply(made.curves, suggest="order", seed=0)
    )
    world.play(Both())
    assert world.spent == pytest.approx(2 * 6.0 + made.exhaustive)


def test_regret_is_nil_for_the_oracle_and_for_all_once_everything_fits():
    made = table(12)
    for scheduler in ("oracle", "random", "ration"):
        cell = replaying.Cell(table=made, scheduler=scheduler, budget=Amount(text="300%", times=3.0), workers=2)
        assert replaying.search(cell, settings(), seed=0).regret == pytest.approx(0.0)


def test_nothing_is_left_unspent_that_a_trial_could_use():
    for workers in (1, 4, 8):
        world = play(table(40, reports=40), "ration", share=0.2, workers=workers)
        assert world.spent >= 0.99 * world.cap


def test_a_quarter_diverging_costs_nothing_after_divergence():
    cell = replaying.Cell(table=table(40), scheduler="ration", budget=Amount(text="20%", times=0.2), workers=2)
    outcomes = [replaying.search(cell, settings(diverge=0.25), seed) for seed in range(5)]
    assert all(outcome.after_divergence <= 0.02 for outcome in outcomes)


def test_what_ran_out_of_memory_is_never_tried_again():
    made = Table(name="memory", curves=tuple(curve(number, memory=1e9 * (number % 2 + 1)) for number in range(10)))
    world = play(made, "ration", share=2.0, memory_limit=1.5e9)
    assert sorted(world.trials) == list(range(10))
    assert world.unfit == pytest.approx(5 * world.machine.thaw)
    assert all(world.curve(trial).memory_bytes == 1e9 for trial in world.reports)


def test_every_scheduler_draws_the_same_configurations_in_the_same_order():
    made = table(25)
    orders = [play(made, scheduler, share=0.2, seed=3).trials for scheduler in SCHEDULERS if scheduler != "oracle"]
    shortest = min(len(order) for order in orders)
    assert shortest > 1 and len({tuple(order[:shortest]) for order in orders}) == 1


def test_orders_hand_out_everything_once_and_cheap_ones_first():
    configs = [5, 3, 9, 1, 7]
    order = list(cheap_and_random(configs, float, random.Random(0)))
    assert sorted(order) == sorted(configs) == sorted(shuffled(configs, random.Random(0)))
    assert order[0] == 1 and order[2] == min(set(configs) - set(order[:2]))


@pytest.mark.parametrize("idea", IDEAS)
def test_each_idea_can_be_left_out_and_is_back_afterwards(idea):
    cells = [
        replaying.Cell(
            table=table(30, reports=30), scheduler=scheduler, budget=Amount(text="10%", times=0.1), workers=4
        )
        for scheduler in ("ration", f"without {idea}", "ration")
    ]
    before, without, after = (replaying.search(cell, settings(), seed=0) for cell in cells)
    assert before == after and 0 <= without.regret < math.inf


def test_hypervolume_of_two_points_by_hand():
    small = Curve(config={}, parameters=99, seconds_per_report=1.0, losses=(3.0,))
    large = Curve(config={}, parameters=9999, seconds_per_report=1.0, losses=(2.0,))
    widest = Curve(config={}, parameters=999999, seconds_per_report=1.0, losses=(4.0,))
    area = replaying.hypervolume([(small, 3.0), (large, 2.0)], [small, large, widest])
    assert area == pytest.approx(math.log(1e4) * 1.0 + math.log(1e2) * 1.0)


def test_rows_are_json_and_one_a_cell(tmp_path, capsys):
    path = write(tmp_path / "made.jsonl", table())
    flags = [
        str(path),
        "--budget",
        "10%,40s",
        "--workers",
        "1,2",
        "--seeds",
        "2",
        "--schedulers",
        "ration,random",
        "--json",
    ]
    assert replaying.main(flags) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 8
    assert {"table", "scheduler", "budget", "workers", "mean_regret", "standard_error", "p90_regret", "unspent"} <= set(
        rows[0]
    )
    assert all(row["mean_regret"] >= 0 and 0 <= row["unspent"] <= 1 for row in rows)
    assert replaying.main(flags[:-1]) == 0
    assert "regret by budget" in capsys.readouterr().out


def test_the_entry_script_runs_from_anywhere(tmp_path):
    path = write(tmp_path / "made.jsonl", table())
    command = [
        sys.executable,
        str(ROOT / "tune/replay.py"),
        path.name,
        "--budget",
        "10%",
        "--seeds",
        "1",
        "--schedulers",
        "ration",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "ration" in done.stdout, done.stderr


def test_a_journal_is_a_table_for_each_family(tmp_path):
    path = tmp_path / "study" / "journal.db"
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE trials (trial TEXT, family TEXT, config TEXT, parameters INT)")
        connection.execute(
            "CREATE TABLE reports (report INTEGER PRIMARY KEY, trial TEXT, "
            "training_seconds REAL, valid_loss REAL, memory_bytes INT)"
        )
        for trial, family in (
            ("t001", "nanogpt"),
            ("t002", "nanogpt"),
            ("t003", "translation"),
            ("t004", "translation"),
        ):
            connection.execute("INSERT INTO trials VALUES (?, ?, '{\"d_model\": 64}', 1000)", (trial, family))
            for seconds in (4.0, 8.0, 16.0) if trial != "t004" else ():
                connection.execute(
                    "INSERT INTO reports VALUES (NULL, ?, ?, ?, 5000)", (trial, seconds, 5 - seconds / 8)
                )
    first, second = load(path)
    assert (first.name, len(first.curves), second.name, len(second.curves)) == (
        "study-nanogpt",
        2,
        "study-translation",
        1,
    )
    assert first.curves[0].losses == pytest.approx((4.5, 4.0, 3.5, 3.0))
    assert first.curves[0].seconds == pytest.approx(16.0) and first.curves[0].memory_bytes == 5000


BAD_FLAGS = [
    ("--budget 8", "--budget: '8' has no unit"),
    ("--budget 0%", "--budget: '0%' buys nothing"),
    ("--budget nan%", "--budget: 'nan' is not finite"),
    ("--budget -1h", "--budget: '-1h' is not a length of time"),
    ("--workers 1", "required"),
    ("--budget 5% --workers 0", "--workers: '0'"),
    ("--budget 5% --workers two", "--workers: 'two'"),
    ("--budget 5% --seeds 0", "--seeds: '0'"),
    ("--budget 5% --schedulers asha", "--schedulers: 'asha' is not known: choose from ration"),
    ("--budget 5% --diverge 1.5", "--diverge: '1.5'"),
    ("--budget 5% --memory-limit 8", "--memory-limit: '8'"),
    ("--budget 5% --start-up 5", "--start-up: '5' has no unit"),
    ("--budget 5% --deadline 0x", "--deadline: '0x'"),
    ("--budget 5% --without luck", "--without: 'luck' is not known: choose from equal-tokens"),
    ("--budget 5% --suggest best", "--suggest: 'best'"),
    ("--budget 5% --colour", "--colour"),
]


@pytest.mark.parametrize(("flags", "line"), BAD_FLAGS)
def test_a_bad_flag_ends_with_one_line(tmp_path, capsys, flags, line):
    path = write(tmp_path / "made.jsonl", table(3))
    assert replaying.main([str(path), *flags.split()]) == 2
    out, error = capsys.readouterr()
    assert out == "" and line in error and error.count("\n") == 1


BAD_TABLES = [
    (None, "cannot be read"),
    ("", "is empty"),
    ("{", "line 1 is not JSON"),
    ('{"config": {}}', "line 1 has no parameters"),
    ("[1]", "line 1 has no config"),
    ('{"config": {}, "parameters": 1, "seconds_per_report": 0, "valid_loss": [1]}', "line 1 needs"),
    ('{"config": {}, "parameters": 1, "seconds_per_report": 1, "valid_loss": []}', "line 1 needs"),
    ('{"config": {}, "parameters": 1, "seconds_per_report": 1, "valid_loss": ["x"]}', "line 1 holds"),
    ('{"config": {}, "parameters": 1, "seconds_per_report": 1, "valid_loss": [null]}', "finite loss"),
    (b"\xff\xfe\xfd", "not UTF-8"),
    (b"SQLite format 3\0 and no more", "not a study's journal"),
]


@pytest.mark.parametrize(("content", "line"), BAD_TABLES)
def test_a_bad_table_ends_with_one_line(tmp_path, capsys, content, line):
    path = tmp_path / "bad.jsonl"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert replaying.main([str(path), "--budget", "5%"]) == 2
    out, error = capsys.readouterr()
    assert out == "" and line in error and error.count("\n") == 1


def test_help_needs_no_ray():
    started = time.monotonic()
    with pytest.raises(SystemExit):
        parse(["--help"])
    assert time.monotonic() - started < 1


def test_ten_thousand_trials_on_a_thousand_slots_within_a_minute():
    made = table(10_000, reports=10)
    started = time.monotonic()
    world = play(made, "ration", share=0.5, workers=1000)
    assert time.monotonic() - started < 60
    assert world.spent >= 0.99 * world.cap
