"""The laws of memory: predicted before launch, learned from what ran out, and nothing runs out of it twice."""

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.tune.search.world import (
    LIMIT,
    MOST_MICRO_BATCHES,
    RUNS_OUT_SECONDS,
    START_UP_SECONDS,
    Numbered,
    World,
    estimated_bytes,
    known_memory,
)
from tune.reports import Report
from tune.search.family import MOST_REFUSALS
from tune.search.memory_model import MemoryModel, first_overhead
from tune.units import bytes_text, parse_bytes

CAP = 2400.0


def memory() -> MemoryModel:
    return known_memory(LIMIT)


def test_batches_are_cut_into_as_many_parts_as_a_config_asks_for_or_more() -> None:
    for number in range(400):
        need = memory().micro_batches({"number": number})
        asked = memory().micro_batches({"number": number, "micro_batches": 4})
        assert asked == (need and max(need, 4))


def test_batches_are_cut_no_smaller_than_they_must_be() -> None:
    known = memory()
    for number in range(400):
        parts = known.micro_batches({"number": number})
        if parts is None:
            assert known.smallest({"number": number}) >= LIMIT and known.refusal({"number": number})
        else:
            assert known.predicted({"number": number}, parts) < LIMIT and known.refusal({"number": number}) is None
            assert parts == 1 or known.predicted({"number": number}, parts // 2) >= LIMIT


def test_what_ran_out_is_not_tried_again_nor_is_what_needs_more() -> None:
    known = memory()
    config = next({"number": n} for n in range(1000) if known.micro_batches({"number": n}) == 2)
    known.learn(config, 2, None)
    for number in range(400):
        parts = known.micro_batches({"number": number})
        assert parts is None or estimated_bytes({"number": number}, parts) < estimated_bytes(config, 2)


def test_what_is_known_does_not_depend_on_the_order() -> None:
    learned = [(1, None), (2, 3e8), (3, 9e8), (4, 1e7)]
    states = set()
    for order in itertools.permutations(learned):
        known = memory()
        for number, measured in order:
            known.learn({"number": number}, 1, measured)
        states.add(round(known.predicted({"number": 5}, 1)))
    assert len(states) == 1


def test_without_a_limit_everything_fits() -> None:
    known = MemoryModel(estimate=estimated_bytes)
    known.learn({"number": 1}, 1, 1e15)
    known.learn({"number": 1}, 1, None)
    assert known.micro_batches({"number": 999}) == 1


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Trials that need more than their family's first guess says, under a limit that some of them cannot keep to."""
    made = World(tmp_path_factory.mktemp("study"), cap=CAP, slots=2, memory_limit=LIMIT).run()
    return made


def out_of_memory(world: World) -> dict[str, set[int]]:
    """The leases of each trial on which memory ran out."""
    found: dict[str, set[int]] = {}
    for row in world.rows("SELECT trial, lease FROM memory WHERE measured IS NULL"):
        found.setdefault(row["trial"], set()).add(row["lease"])
    return found


def test_a_configuration_that_cannot_fit_is_written_down_and_not_launched(world: World) -> None:
    refused = world.rows(
        "SELECT trial, state, reason FROM trials WHERE reason LIKE 'memory: needs about %' ORDER BY trial"
    )
    assert refused and {row["state"] for row in refused} == {"stopped"}
    assert not {row["trial"] for row in refused} & {assignment.trial for assignment in world.assignments}
    told = {row["trial"] for row in world.rows("SELECT trial FROM decisions WHERE action = 'stop'")}
    assert {row["trial"] for row in refused} <= told


def test_almost_nothing_is_lost_to_it_and_the_rest_goes_on(world: World) -> None:
    """What was charged to trials that never fitted, and for each that ran out another start-up and a step in vain;
    none runs out twice.
    """
    assert out_of_memory(world) and all(len(leases) == 1 for leases in out_of_memory(world).values())
    hopeless = "SELECT trial FROM trials WHERE reason LIKE 'memory: ran out%'"
    lost = world.total(f"SELECT TOTAL(seconds) FROM charges WHERE trial IN ({hopeless})")
    lost += len(out_of_memory(world)) * (START_UP_SECONDS + RUNS_OUT_SECONDS)
    assert 0 < lost <= 0.02 * CAP
    assert 0.97 * CAP <= world.spent <= CAP
    assert world.total("SELECT COUNT(*) FROM reports WHERE final") == 2


class OneInSix(Numbered):
    """Of its configurations one in so many fits in memory, and that easily."""

    def suggest(self, trial: str) -> dict[str, Any]:
        small, large = ({"number": 1000 * self.given + rest} for rest in (0, 100))
        assert estimated_bytes(small, 1) < 0.01 * LIMIT < 0.9 * LIMIT < estimated_bytes(large, MOST_MICRO_BATCHES)
        self.given += 1
        return large if self.given % 6 else small


def test_only_configurations_in_a_row_that_do_not_fit_are_the_end_of_new_ones(tmp_path: Path) -> None:
    shares = {"nanogpt": 1.0}
    world = World(tmp_path, cap=CAP, slots=1, memory_limit=LIMIT, suggestions=OneInSix, shares=shares).run()
    refused = world.total("SELECT COUNT(*) FROM trials WHERE reason LIKE 'memory: needs about %'")
    assert refused > MOST_REFUSALS and 0.97 * CAP <= world.spent <= CAP


@pytest.mark.parametrize("parts", [2, None])
def test_what_ran_out_of_memory_in_a_search_is_known_not_to_fit(tmp_path: Path, parts: int | None) -> None:
    """In so many times the parts that it was cut into it did; None: in none."""
    world = World(tmp_path, cap=CAP, slots=1, memory_limit=LIMIT, shares={"nanogpt": 1.0})
    lease, known = world.taken(), world.families["nanogpt"].memory
    world.now += 9
    if parts is None:
        world.engine.on_out_of_memory(lease.trial)
    else:
        fits = lease.micro_batches * parts
        report = Report(steps=5, tokens=5, training_seconds=0.5, micro_batches=fits, ran_out=True)
        world.engine.on_report(lease.trial, report)
    assert known.micro_batches(lease.config) == (parts and lease.micro_batches * parts)


def test_a_family_of_a_users_own_is_taken_to_need_beside_its_model_what_any_of_ours_does() -> None:
    ours = [first_overhead(family, "cpu") for family in ("translation", "nanogpt")]
    assert first_overhead("mine", "cpu") == max(ours) and first_overhead("mine", "cuda") == 0


def test_a_process_that_ran_out_is_not_used_again(world: World) -> None:
    for leases in out_of_memory(world).values():
        for lease in leases:
            (used,) = world.rows("SELECT slot, closed FROM leases WHERE lease = ?", lease)
            (slot,) = world.rows("SELECT closed FROM slots WHERE slot = ?", used["slot"])
            assert slot["closed"] == pytest.approx(used["closed"], abs=1e-6)


def test_a_resumed_study_knows_what_it_knew(tmp_path: Path) -> None:
    seed, chance = 2, random.Random(2)
    world = World(tmp_path, cap=CAP, slots=2, memory_limit=LIMIT, seed=seed)
    for kill in range(3):
        world.run(reports=chance.randrange(1, 15))
        before = {name: family.memory.predicted({"number": 7}, 2) for name, family in world.families.items()}
        world = World(tmp_path, cap=CAP, slots=2, memory_limit=LIMIT, seed=seed + 10 * kill)
        assert before == {
            name: pytest.approx(family.memory.predicted({"number": 7}, 2)) for name, family in world.families.items()
        }
    world.run()
    assert max(Counter(trial for trial, leases in out_of_memory(world).items() for _ in leases).values()) == 1


def test_an_amount_of_memory_is_read_as_it_is_written_and_nothing_else_is() -> None:
    for text, size in (("2GB", 2 * 10**9), ("512MB", 512 * 10**6), ("1.5GB", 1500 * 10**6)):
        assert parse_bytes(text) == size and bytes_text(size) == text
    for text in ("", "2", "2TB", "GB", "-2GB", "2 GB", "2gb", "nanGB", "1.2.3GB"):
        with pytest.raises(ValueError, match="write 2GB"):
            parse_bytes(text)


@pytest.mark.parametrize("times", [0.5, 8.0])
def test_what_ran_out_on_one_machine_took_no_more_because_another_has_more(tmp_path: Path, times: float) -> None:
    """Where a study goes on, it knows what it knew: another machine's memory says nothing of an earlier trial."""
    about: dict[str, Any] = {"cap": CAP, "slots": 2, "shares": {"nanogpt": 1.0}}
    before = World(tmp_path, memory_limit=LIMIT, **about).run(25)
    assert before.total("SELECT COUNT(*) FROM memory WHERE measured IS NULL")
    after = World(tmp_path, memory_limit=times * LIMIT, **about)
    known, knew = after.families["nanogpt"].memory, before.families["nanogpt"].memory
    assert known.state() == knew.state() and not any("does not tell" in line for line in after.told)
    twice = World(tmp_path, memory_limit=LIMIT, **about)
    assert twice.families["nanogpt"].memory.state() == knew.state()
