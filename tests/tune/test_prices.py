"""The laws of fixed prices: what is decided follows from them and the losses alone, however often a study is killed."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.tune.world import STEP_SECONDS, World
from tune.search.cost_model import FixedPrices, load_prices
from tune.search_context import check_same_prices

PRICES = FixedPrices(step_seconds=2 * STEP_SECONDS, overhead_seconds=2.0, start_up_seconds=30.0)


def world(folder: Path, seed: int, shares: dict[str, float]) -> World:
    return World(folder, cap=900, slots=1, shares=shares, seed=seed, fixed=PRICES)


def story(ended: World) -> list[tuple[Any, ...]]:
    """What was decided, in order, and what every result was of."""
    decisions = "SELECT trial, action, rung FROM decisions WHERE action IN ('start', 'promote', 'finish', 'stop')"
    results = "SELECT trial, rung, final, steps, valid_loss FROM reports WHERE rung IS NOT NULL OR final"
    rows = (*ended.journal.rows(f"{decisions} ORDER BY decision"), *ended.journal.rows(f"{results} ORDER BY report"))
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("shares", [{"nanogpt": 1.0}, {"nanogpt": 0.4, "translation": 0.6}], ids=["one", "two"])
@pytest.mark.parametrize("seed", range(3))
def test_killed_or_left_alone_on_whatever_machine_the_decisions_are_the_same(
    tmp_path: Path, seed: int, shares: dict[str, float]
) -> None:
    """Each run has another noise in its times, and the killed ones pay for their starts and losses beside."""
    (tmp_path / "alone").mkdir()
    (tmp_path / "killed").mkdir()
    alone = world(tmp_path / "alone", 100, shares)
    alone.run()
    chance = random.Random(seed)
    for kill in range(4):
        killed = world(tmp_path / "killed", 10 * seed + kill, shares)
        killed.run(chance.randrange(1, 6))
        if killed.planner.running:
            killed.now += chance.uniform(0, 3)
        killed.journal.close()
    killed = world(tmp_path / "killed", 99, shares)
    killed.run()
    assert len(story(alone)) > 10
    assert story(killed) == story(alone)
    assert killed.books.ledger.spent <= 900


def test_without_fixed_prices_the_noise_of_a_machine_changes_them(tmp_path: Path) -> None:
    """Or the test above would prove nothing."""
    stories = []
    for seed in range(2):
        (tmp_path / str(seed)).mkdir()
        measured = World(tmp_path / str(seed), cap=900, slots=1, shares={"nanogpt": 1.0}, seed=seed)
        measured.run()
        stories.append(story(measured))
    assert stories[0] != stories[1]


def test_a_file_of_prices_is_read(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text('{"nanogpt": {"step_seconds": 0.03, "start_up_seconds": 9}, "translation": {"step_seconds": 1}}')
    assert load_prices(file, ["nanogpt"]) == {"nanogpt": FixedPrices(step_seconds=0.03, start_up_seconds=9)}


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "[" * 100_000, '{"nanogpt": 3}', '{"nanogpt": {}}', '{"nanogpt": {"step_seconds": 0}}'),
        *('{"nanogpt": {"step_seconds": "1"}}', '{"nanogpt": {"step_seconds": NaN}}'),
        *('{"nanogpt": {"step_seconds": 1, "colour": 2}}', '{"nanogpt": {"step_seconds": true}}'),
    ],
)
def test_a_file_that_gives_no_prices_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "prices.json").write_text(text)
    with pytest.raises(ValueError, match=r"^--prices: .*write .*$"):
        load_prices(tmp_path / "prices.json", ["nanogpt"])


def test_prices_that_changed_are_refused(tmp_path: Path) -> None:
    facts = {"prices": {"nanogpt": {"step_seconds": 0.1, "overhead_seconds": 2.0, "start_up_seconds": 30.0}}}
    check_same_prices({"nanogpt": PRICES}, facts)
    with pytest.raises(ValueError, match=r"--prices: .* changed"):
        check_same_prices({}, facts)
