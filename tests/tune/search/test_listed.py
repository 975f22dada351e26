"""Laws of a list: each configuration is trained whole, in order and side by side, as far as the cap pays for them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tune.search.world import STEP_SECONDS, World
from tune.errors import UserError
from tune.reports import Evaluation, Report
from tune.search.listed import ListEntry
from tune.search.successive_halving import DIVERGED_TO_GIVE_UP

LISTED = [
    ListEntry(config={"number": number}, steps=steps, seconds=steps * STEP_SECONDS)
    for number, steps in enumerate((400, 300, 300, 200, 160, 120, 90, 60, 60, 40), 1)
]

ENDS = {each.config["number"]: each.steps for each in LISTED}
"""Of each its steps, by number."""


def world(folder: Path, listed: list[ListEntry] = LISTED, **about: Any) -> World:
    folder.mkdir(exist_ok=True)
    return World(folder, **{"cap": 400.0, "slots": 2} | about, shares={"nanogpt": 1.0}, listed=listed)


def ends(of: World) -> dict[int, int]:
    """Of those that came to their ends, their steps by number."""
    rows = of.rows("SELECT trial, steps FROM reports WHERE final")
    return {of.engine.trials[row["trial"]].config["number"]: row["steps"] for row in rows}


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_each_is_trained_to_its_own_end_in_order_and_side_by_side(tmp_path: Path, slots: int) -> None:
    search = world(tmp_path, slots=slots)
    while search.begin():
        pass
    assert len(search.engine.running) == slots
    search.run()
    assert ends(search) == ENDS
    assert [each.config["number"] for each in search.assignments if each.checkpoint is None] == [*ENDS]
    assert all(each.rung is None for each in search.assignments), "each with its decay"
    assert search.total("SELECT COUNT(*) FROM trials WHERE state != 'finished'") == 0
    assert search.spent <= 400
    idle = search.total("SELECT TOTAL(seconds) FROM charges WHERE what = 'idle'")
    assert idle < 0.1 * search.spent


def test_what_the_cap_does_not_pay_for_is_not_begun_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    search = world(tmp_path, cap=75.0).run()
    listing: Any = search.families["nanogpt"].policy
    assert search.spent <= 75
    done, left = ends(search), {each.config["number"] for each in listing.left_out}
    assert done and left and done.keys() | left == ENDS.keys()
    assert 1 in left, "the dearest is left out first"
    assert len(search.engine.trials) == len(done), "none is half trained"
    again = world(tmp_path, cap=400.0)
    assert again.told == [] and again.spent <= 75
    again.run()
    assert ends(again) == ENDS and not again.families["nanogpt"].leases
    assert again.total("SELECT COUNT(*) FROM reports WHERE final") == len(again.engine.trials) == len(LISTED), "once"


def test_one_that_had_no_time_left_to_save_its_steps_goes_on_at_the_price_of_taking_them_again(tmp_path: Path) -> None:
    search = world(tmp_path)
    first = search.report_after(60, steps=400, lost=400, step_seconds=STEP_SECONDS, ended="lease")
    again = search.taken()
    assert again.trial == first.trial and again.seconds > 400 * STEP_SECONDS


def test_what_has_a_later_turn_is_left_out_before_anything_that_is_dearer(tmp_path: Path) -> None:
    listed = [LISTED[0], *(replace(each, turn=1) for each in LISTED[1:])]
    search = world(tmp_path, listed, cap=75.0).run()
    listing: Any = search.families["nanogpt"].policy
    assert 1 in ends(search) and listing.left_out


@pytest.mark.parametrize("cap", [60.0, 65.0, 70.0, 75.0])
def test_a_later_turn_waits_for_what_runs_of_an_earlier_one_to_tell_what_it_leaves(tmp_path: Path, cap: float) -> None:
    """A lease reserves more than it is expected to take, so that beside it the next of its turn seems too dear."""
    listed = [*LISTED[:2], *(replace(each, turn=1) for each in LISTED[2:])]
    assert {1, 2} < ends(world(tmp_path, listed, cap=cap).run()).keys()


def test_guesses_far_off_are_corrected_by_what_the_first_took(tmp_path: Path) -> None:
    """Ten times too much: by them the cap would pay for the first few; ten times too little: it pays for less than it
    looks, and nothing but what runs is ever in want of more."""
    for times in (0.1, 4.0):
        guessed = [replace(each, seconds=times * each.seconds) for each in LISTED]
        search = world(tmp_path / str(times), guessed, cap=240.0).run()
        assert ends(search) == ENDS, times
        assert search.spent <= 240


def test_a_guess_is_corrected_by_the_one_that_is_nearest_to_it(tmp_path: Path) -> None:
    """What is small was guessed ten times too dear, and what is large as it is."""
    small, large = (
        ListEntry(config={}, steps=steps, seconds=times * steps * STEP_SECONDS)
        for steps, times in ((100, 10), (4000, 1))
    )
    listed = [replace(each, config={"number": number}) for number, each in enumerate((small, large, large, small), 1)]
    search = world(tmp_path, listed, cap=2000.0, slots=1).run()
    rows = search.rows("SELECT price, MIN(lease) FROM leases GROUP BY trial ORDER BY trial")
    *_, another, last = (row["price"] for row in rows)
    assert another > 0.8 * large.seconds and last < 0.5 * small.seconds


def test_what_the_evaluation_at_an_end_takes_is_part_of_the_price_of_another_training(tmp_path: Path) -> None:
    search = world(tmp_path, slots=1)
    assert search.engine.next_assignment()
    search.now += 56
    evaluated = Evaluation(loss=2.0, seconds=30.0)
    report = Report(
        steps=400, tokens=400, training_seconds=20.0, step_seconds=STEP_SECONDS, valid=evaluated, whole=evaluated,
        seconds={"start": 5.0, "steps": 20.0, "evaluation": 30.0}, ended="final",
    )  # fmt: skip
    search.engine.on_report("t001", report)
    assert search.families["nanogpt"].cost_model.segment(None, 0.0) >= 30.0


@pytest.mark.parametrize(("cap", "step", "goes_on"), [(400.0, STEP_SECONDS, True), (150.0, 10 * STEP_SECONDS, False)])
def test_what_was_cut_short_has_what_its_rest_takes_or_leaves_it_to_others(
    tmp_path: Path, cap: float, step: float, goes_on: bool
) -> None:
    search = world(tmp_path, cap=cap, slots=1)
    first = search.taken()
    half = LISTED[0].steps // 2
    search.now += 6 + half * step
    report = Report(
        steps=half, tokens=half, training_seconds=half * step, step_seconds=step, valid=Evaluation(loss=2.0),
        seconds={"start": 5.0, "steps": half * step, "evaluation": 1.0}, ended="lease",
    )  # fmt: skip
    search.engine.on_report(first.trial, report)
    again = search.taken()
    assert (again.trial == first.trial) == goes_on
    assert again.seconds < 0.5 * first.seconds or not goes_on


def ends_in_turn(of: World) -> list[int]:
    """The steps of those that came to their ends, as they were begun."""
    return [row["steps"] for row in of.rows("SELECT steps FROM reports WHERE final ORDER BY trial")]


def test_two_alike_but_for_their_steps_are_two_and_what_is_not_in_the_list_is_refused(tmp_path: Path) -> None:
    twice = [LISTED[0], replace(LISTED[0], steps=100)]
    search = world(tmp_path, twice).run()
    assert ends_in_turn(search) == [400, 100]
    search.journal.close()
    with pytest.raises(UserError, match="t002 is not in the list"):
        world(tmp_path, twice[:1])


@pytest.mark.parametrize("cap", [30.0, 400.0])
def test_of_two_alike_the_shorter_may_be_begun_first_and_the_longer_stays_to_be_done(
    tmp_path: Path, cap: float
) -> None:
    """As where the cap pays for the shorter one alone."""
    twice = [LISTED[0], replace(LISTED[0], steps=100, seconds=100 * STEP_SECONDS)]
    search = world(tmp_path, twice, cap=30.0).run()
    listing: Any = search.families["nanogpt"].policy
    assert ends(search) == {1: 100} and [each.steps for each in listing.left_out] == [400]
    again = world(tmp_path, twice, cap=cap).run()
    assert ends_in_turn(again) == ([100] if cap == 30.0 else [100, 400])


@pytest.mark.parametrize("diverging", [{3}, {1, 2, 3, 4}])
def test_what_does_not_fit_in_memory_or_diverges_stops_none_of_the_others(tmp_path: Path, diverging: set[int]) -> None:
    search = world(tmp_path, memory_limit=0.9e9)
    search.diverging = dict.fromkeys(diverging, 1.0)
    search.run()
    reasons = {row["reason"].partition(":")[0] for row in search.rows("SELECT reason FROM trials")}
    assert {"diverged", "memory", "decayed"} == reasons and not diverging & ends(search).keys()
    over = search.total("SELECT COUNT(*) FROM trials WHERE state IN ('finished', 'stopped')")
    assert over == len(LISTED)


def test_however_many_diverge_a_list_goes_on_as_that_is_a_result(tmp_path: Path) -> None:
    many = [replace(LISTED[-1], config={"number": number}) for number in range(1, DIVERGED_TO_GIVE_UP + 3)]
    search = world(tmp_path, many, cap=1000.0, slots=1)
    search.diverging = dict.fromkeys(range(1, DIVERGED_TO_GIVE_UP + 1), 1.0)
    search.run()
    assert len(ends(search)) == 2 and len(search.engine.trials) == len(many)


def test_the_last_one_needs_its_price_and_no_margin(tmp_path: Path) -> None:
    """A lease is no longer than what is left, and what is cut short goes on."""
    search = world(tmp_path, [LISTED[0]], cap=LISTED[0].seconds + 11.0, slots=1).run()
    assert ends(search) == {1: LISTED[0].steps}


def test_what_the_cap_left_no_time_for_a_step_is_trained_under_a_larger_one(tmp_path: Path) -> None:
    """As where its process took long to start."""
    search = world(tmp_path, [LISTED[0]], cap=LISTED[0].seconds + 11.0, slots=1)
    first = search.report_after(LISTED[0].seconds + 10.0, ended="lease")
    search.run()
    listing: Any = search.families["nanogpt"].policy
    assert [*map(tuple, search.rows("SELECT state, reason FROM trials"))] == [("paused", "cap")]
    assert listing.left_out == [LISTED[0]]
    again = world(tmp_path, [LISTED[0]], cap=400.0).run()
    assert ends(again) == {1: LISTED[0].steps} and [each.trial for each in again.assignments] == [first.trial]


def test_a_lease_as_long_as_was_wanted_is_not_cut_by_the_cap_whatever_share_a_slot_has(tmp_path: Path) -> None:
    """As a third of a device, by which some lengths are no round numbers: what made no step on it would go on."""
    listed = [replace(LISTED[0], config={"number": number}, seconds=40 + 1.37 * number) for number in range(1, 31)]
    search = world(tmp_path, listed, cap=50_000.0, slots=1, trials_each=3)
    began = [search.report_after(5.0, ended="lease").trial for _ in listed]
    assert len({*began}) == len(listed) == search.total("SELECT COUNT(*) FROM trials WHERE state = 'stopped'")


@pytest.mark.parametrize("sound", [0, 5])
def test_errors_that_are_alike_end_a_list_of_which_none_came_to_its_end(tmp_path: Path, sound: int) -> None:
    search = world(tmp_path, slots=1)
    search.raising = lambda assignment: "error: mine" if assignment.config["number"] > sound else None
    search.run()
    assert ends(search).keys() == {each.config["number"] for each in LISTED[:sound]}
    assert (len(search.engine.trials) == len(LISTED)) == bool(sound)
