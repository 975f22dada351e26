"""Money for the winner's scaling: kept from the start, out of the search's reach, and of no weight in its ranking."""

import json
from pathlib import Path

import pandas as pd
import pytest

from model.config import Config
from model.data.corpus import TextCorpus
from model.data.dataset import prepare_text
from tests.tune.board.conftest import Sampled
from tests.tune.world import SHARES, World
from tune.devices import Devices
from tune.experiments.base import END_SECONDS, START_SECONDS, FoundTrial, Point, price, wall
from tune.experiments.runner import Bench
from tune.experiments.scaling import SCALING, points_of
from tune.ranking import ranking
from tune.search_context import Aside, best_of_all, check_cap, check_scaling
from tune.settings import Settings
from tune.store.accounting import Hold, affordable
from tune.winners import winners

CAP, KEPT = 1200.0, 300.0
ON_TWO = Aside(counts=(1, 2))
CAPS = (1.0, 600.0, 28_800.0, 1e7)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, cap=CAP, slots=2, suggestions=Sampled, aside=KEPT)
    made.run()
    return made


def scaled(world: World, trial: str, seconds: float, devices: int = 2) -> Hold:
    """So many seconds of the clock on a hold for the scaling of a trial, still open."""
    world.books.keep_aside(0.0)
    hold = Hold(world.books, trial, "scaling", devices=devices, seconds=2 * seconds)
    hold.trial = FoundTrial(trial).account(Point(devices=devices, asked={}, seconds=1, least=1)).charged
    world.now += seconds
    hold.charge("steps")
    return hold


@pytest.mark.parametrize("cap", CAPS)
def test_a_tenth_of_the_cap_is_kept_but_what_it_must_have_at_least_and_what_it_is_worth_at_most(cap: float) -> None:
    points, every = ON_TWO.points(cap), [*points_of(1), *points_of(2)]
    assert ON_TWO.of(cap) == pytest.approx(sorted((price(every, 0.0), cap / 10, price(every)))[1])
    assert price(points) == pytest.approx(ON_TWO.of(cap))
    assert all(point.seconds >= point.least for point in points)
    assert [point.key for point in points] == [point.key for point in every]
    assert max(point.seconds for point in points) < wall(points) < price(points)


@pytest.mark.parametrize("search", [17.0, 600.0, 28_800.0, 1e6])
def test_the_least_cap_leaves_the_search_what_it_needs(search: float) -> None:
    assert ON_TWO.rest(ON_TWO.least_cap(search)) == pytest.approx(search)
    assert ON_TWO.rest(ON_TWO.least_cap(search) - 1) < search


def test_where_nobody_asked_for_it_nothing_is_kept() -> None:
    nothing = Aside(counts=())
    assert [nothing.of(cap) for cap in CAPS] == [0] * len(CAPS)
    assert nothing.points(CAP) == [] and nothing.least_cap(34.0) == 34.0


def test_the_search_spends_the_rest_and_no_more(world: World) -> None:
    rest = CAP - KEPT
    assert 0.97 * rest <= world.books.ledger.spent <= rest
    assert sum(family.charged for family in world.families.values()) <= rest
    finals = world.journal.rows("SELECT trial FROM reports WHERE final")
    assert len(finals) == 2, "each family has its last stretch all the same"


@pytest.mark.parametrize("reports", [1, 5, 30])
def test_no_lease_can_be_had_of_what_is_kept(tmp_path: Path, reports: int) -> None:
    world = World(tmp_path, cap=CAP, slots=2, aside=KEPT)
    world.run(reports)
    ledger = world.books.ledger
    assert ledger.spent + ledger.reserved + ledger.left == pytest.approx(CAP)
    assert ledger.left <= CAP - KEPT - ledger.spent
    with pytest.raises(ValueError, match=r"^lease: 2 x .* do not fit"):
        Hold(world.books, "t001", "scaling", devices=2, seconds=(KEPT + max(0.0, ledger.left)) / 2 - 1)


def test_what_was_kept_pays_for_several_devices_at_once_inside_the_cap(world: World) -> None:
    world.books.keep_aside(0.0)
    most = affordable(world.books, 2)
    assert most >= KEPT / 2 - 1
    with Hold(world.books, "t001", "scaling", devices=2, seconds=most) as hold:
        world.now += most
        hold.charge("steps")
    assert world.books.ledger.spent <= CAP


def test_the_ranking_and_every_trial_stay_as_the_search_left_them_also_where_a_kill_ends_it(world: World) -> None:
    """Killed 20 s into a point: that is charged, n x t, to no trial; what stands of the search is as before."""
    before, trials = ranking(world.journal.folder), [tuple(row) for row in world.journal.rows("SELECT * FROM trials")]
    spent, winner = world.books.ledger.spent, winners(world.journal)["nanogpt"].trial
    charged = {name: family.charged for name, family in world.families.items()}
    with scaled(world, winner, 20.0):
        pass
    scaled(world, winner, 20.0)
    world.journal.close()
    again = World(world.journal.folder, cap=CAP, slots=2, suggestions=Sampled, aside=KEPT)
    pd.testing.assert_frame_equal(ranking(again.journal.folder), before)
    assert [tuple(row) for row in again.journal.rows("SELECT * FROM trials")] == trials
    assert 80 <= again.books.ledger.spent - spent <= 84
    assert again.total("SELECT SUM(seconds) FROM charges") == pytest.approx(again.books.ledger.spent)
    assert {name: family.charged for name, family in again.families.items()} == pytest.approx(charged)
    assert winners(again.journal)["nanogpt"].trial == winner
    again.run()
    assert again.assignments == []


def test_a_larger_cap_is_the_searchs_but_for_what_scaling_took_and_what_is_kept_anew(world: World) -> None:
    with scaled(world, winners(world.journal)["nanogpt"].trial, 20.0):
        pass
    world.journal.close()
    larger = World(world.journal.folder, cap=2 * CAP, slots=2, suggestions=Sampled, aside=KEPT)
    larger.run()
    assert 0.97 * (2 * CAP - KEPT) <= larger.books.ledger.spent <= 2 * CAP - KEPT


def test_one_winner_is_scaled_that_of_the_largest_share_which_has_one(world: World) -> None:
    found = winners(world.journal)
    assert best_of_all(world.journal, SHARES) == found["translation"], "of equal ones the first named"
    assert best_of_all(world.journal, {"translation": 0.4, "nanogpt": 0.6}) == found["nanogpt"]
    assert best_of_all(world.journal, {"opera": 0.9, "nanogpt": 0.1}) == found["nanogpt"]
    assert best_of_all(world.journal, {"opera": 1.0}) is None


def test_what_the_winner_has_a_row_of_is_not_paid_for_again(world: World) -> None:
    best = best_of_all(world.journal, SHARES)
    assert best is not None
    first, second, third, *others = ON_TWO.points(CAP)
    for point, more in ((first, {"trial": best.trial}), (second, {"trial": best.trial, "skipped": "late"}),
                        (third, {"trial": "t000"})):  # fmt: skip
        row = {"at": 0.0, "experiment": "scaling", "value": json.dumps({"key": point.key} | more)}
        world.journal.insert("rows", row)
    assert ON_TWO.to_come(CAP, world.journal, SHARES) == [second, third, *others]


@pytest.mark.parametrize("trials_each", [1, 4])
def test_whole_devices_are_charged_however_many_trials_shared_one(tmp_path: Path, trials_each: int) -> None:
    here = Devices(kind="cuda", count=2, model="GPU", precisions=("fp32",), cores=8, trials_each=trials_each)
    world = World(tmp_path, cap=CAP, slots=here.slots, trials_each=trials_each, suggestions=Sampled, aside=KEPT)
    world.run()
    spent = world.books.ledger.spent
    with scaled(world, "t001", 20.0, devices=here.slots_of(2)):
        pass
    assert world.books.ledger.spent - spent == pytest.approx(2 * 20.0)


def test_no_point_is_begun_that_would_end_after_the_deadline(world: World) -> None:
    spent, told = world.books.ledger.spent, list[str]()
    world.books.keep_aside(0.0)
    here = Devices(kind="cpu", count=2, model="core", precisions=("fp32",), cores=2)
    text = TextCorpus(name="text", sha256="", builtin=True, train="ab" * 999, valid="ab" * 99, test="ab" * 99)
    bench = Bench(
        experiment=SCALING, points=ON_TWO.points(CAP), config=Config(family="nanogpt"), data=prepare_text(text),
        devices=here, books=world.books, trials=FoundTrial("t001"), folder=world.journal.folder, write=told.append,
        wall_left=lambda: START_SECONDS + END_SECONDS + 1,
    )  # fmt: skip
    bench.measure()
    assert len(told) == len(ON_TWO.points(CAP)) and all("skipped: the deadline is too near" in line for line in told)
    assert world.books.ledger.spent == spent


def settings(**changes: object) -> Settings:
    return Settings(**{"budget": "8h", "scale_winner": "1,2,4"} | changes)


def test_more_devices_than_there_are_is_one_line_unless_one_oversubscribes() -> None:
    here = Devices(kind="cpu", count=2, model="core", precisions=("fp32",), cores=2)
    said = r"^--scale-winner: '4' is more than the 2 there are: ask for at most 2, or add --oversubscribe$"
    with pytest.raises(ValueError, match=said):
        check_scaling(settings(), here)
    check_scaling(settings(oversubscribe=True), here)
    check_scaling(settings(scale_winner="1,2"), here)
    with pytest.raises(ValueError, match=r"^--scale-winner: '1,2' .* --address names a cluster: leave one"):
        check_scaling(settings(scale_winner="1,2", address="here:1"), here)


def test_a_cap_too_small_for_both_names_one_that_serves() -> None:
    small = settings(budget="2m", scale_winner="1,2")
    said = r"^--budget: '2m' does not pay for one rung of one trial and --scale-winner 1,2: write at least \S+$"
    with pytest.raises(ValueError, match=said) as refused:
        check_cap(small, ON_TWO)
    least = str(refused.value).rpartition(" ")[2]
    check_cap(settings(budget=least, scale_winner="1,2"), ON_TWO)
