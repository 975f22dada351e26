"""What the driver does for a winner is paid for, and done only where it is sure to fit in the cap."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from model.bleu import Score
from model.samples import Sample
from tests.tune.world import World
from tune import samples as samples_file
from tune.samples import taken, write_samples
from tune.winners import last_lines, winners


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
    for seconds, price, count in ((10, 1.0, 4), (4.9, 1.0, 1), (5, 4.0, 0)):
        end = world.now + seconds
        items, last = taken(rows(world, 2.0), lambda end=end: end - world.now, price, 4)
        assert len(items) == count and last == pytest.approx(2.0 if items else price)


def test_what_is_of_use_as_a_whole_only_is_given_up_as_soon_as_it_might_not_fit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of 2 s each: once that is known, those to come must fit 1.5 times over."""
    monkeypatch.setattr(samples_file.time, "monotonic", lambda: world.now)
    for seconds, count in ((11.5, 4), (10.5, 1), (1, 0)):
        end = world.now + seconds
        items, _ = taken(rows(world, 2.0), lambda end=end: end - world.now, 1.0, 4, whole=True)
        assert len(items) == count


def test_samples_are_in_the_journal_and_every_device_second_in_the_books(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = Score(bleu=12.34, chrf=30.0, sentences=128, signature="nrefs:1")
    monkeypatch.setattr(samples_file, "LOADING_SECONDS", 0.0)
    monkeypatch.setattr(samples_file, "STEPS_A_TOKEN", 0.0)
    monkeypatch.setattr(samples_file.time, "monotonic", lambda: world.now)
    monkeypatch.setattr(samples_file, "load_model", lambda folder: (None, None))
    monkeypatch.setattr(samples_file, "samples", lambda model, tokenizer, data, most: rows(world, 0.01))
    monkeypatch.setattr(samples_file, "scored", lambda model, tokenizer, data, left, price: score if data else None)
    config = {"d_model": 16, "heads": 4, "layers": 2, "dropout": 0.0, "precision": "fp32"}
    found = {family: replace(winner, config=config) for family, winner in winners(world.journal).items()}
    scores = write_samples(found, world.books, Path(), {"nanogpt": None, "translation": "pairs"}, kind="cpu")
    facts = world.journal.facts()
    assert facts["samples"]["nanogpt"][0] == {"input": "a", "output": "b", "reference": "c"}
    assert facts["bleu"] == {"translation": {"trial": found["translation"].trial} | asdict(score)}
    (line, _) = last_lines(world.journal, found, scores, ["translation"], cap=1200, spent=1)
    assert line.endswith("BLEU 12.3 on 128 test sentences")
    held = world.total("SELECT SUM(closed - opened) FROM slots")
    assert world.total("SELECT SUM(seconds) FROM charges") == pytest.approx(held) == world.books.ledger.spent <= 1200


def test_where_all_ran_out_of_memory_a_larger_cap_is_not_the_remedy(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=1)
    for trial, reason, told in (
        ("t001", "memory: ran out of it", "--memory-limit"),
        ("t002", "diverged", "larger cap"),
    ):
        row = {
            "trial": trial,
            "family": "nanogpt",
            "config": "{}",
            "state": "stopped",
            "reason": reason,
            "created": 0.0,
        }
        world.journal.insert("trials", row)
        (line, _) = last_lines(world.journal, {}, {}, ["nanogpt"], cap=600, spent=1)
        assert told in line
