"""What the driver does for a winner is paid for, and done only where it is sure to fit in the cap."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tune.world import World
from tune import samples as samples_file
from tune.samples import Sample, taken, write_samples
from tune.winners import winners


def rows(world: World, seconds: float) -> Iterator[Sample]:
    """Samples that take so long each on the world's clock."""
    while True:
        world.now += seconds
        yield {"input": "a", "output": "b", "reference": "c"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, cap=1200, slots=2)
    made.run()
    return made


def test_a_visit_is_charged_and_keeps_to_the_cap(world: World) -> None:
    before = world.books.ledger.spent
    with world.books.visit("t001", "evaluation") as left:
        assert left() <= 1200 - before
        world.now += left()
    assert before < world.books.ledger.spent <= 1200
    held = world.total("SELECT SUM(closed - opened) FROM slots")
    assert world.total("SELECT SUM(seconds) FROM charges") == pytest.approx(held)
    assert world.total("SELECT COUNT(*) FROM slots WHERE closed IS NULL") == 0


def test_no_sample_begins_that_might_not_fit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_file.time, "monotonic", lambda: world.now)
    end = world.now + 10
    assert len(taken(rows(world, 2.0), lambda: end - world.now, price=1.0)) == 4
    end = world.now + 5
    assert len(taken(rows(world, 2.0), lambda: end - world.now, price=1.0)) == 1
    assert taken(rows(world, 2.0), lambda: end - world.now, price=3.0) == []


def test_samples_are_in_the_journal_and_every_device_second_in_the_books(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples_file, "LOADING_SECONDS", 0.0)
    monkeypatch.setattr(samples_file, "STEPS_A_TOKEN", 0.0)
    monkeypatch.setattr(samples_file.time, "monotonic", lambda: world.now)
    monkeypatch.setattr(samples_file, "samples", lambda folder, data, most: rows(world, 0.01))
    write_samples(winners(world.journal), world.books, Path(), {"nanogpt": None, "translation": None}, kind="cpu")
    kept = world.journal.facts()["samples"]
    assert kept["nanogpt"][0] == {"input": "a", "output": "b", "reference": "c"}
    held = world.total("SELECT SUM(closed - opened) FROM slots")
    assert world.total("SELECT SUM(seconds) FROM charges") == pytest.approx(held) == world.books.ledger.spent <= 1200
