"""What other caps are expected to buy, where the law is known; and where what an hour buys is too little."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.tune.search.alone import OVERHEAD, Search, bare, left
from tune.reports import TIE
from tune.search.forecast import Favour, Progress
from tune.search.ladder import Rules
from tune.search.other_caps import TIMES, End, FamilyHistory, OtherCaps, StudyConditions
from tune.search.policy import Finish, HandBack
from tune.search.successive_halving import ENOUGH, TOO_LITTLE
from tune.units import parse_duration

TABLES = ("trials", "leases", "reports", "charges", "decisions", "slots")


def asking(gain: float, **about: Any) -> Search:
    """One that hands back what brings less than so many nats a second."""
    return Search(rules=Rules(least_gain=gain), **about).run()


def test_four_of_five_that_go_on_with_twice_the_cap_find_what_was_predicted() -> None:
    inside, narrow, searches = 0, 0, 16
    for seed in range(searches):
        before = Search(seed=seed, seconds=900.0).run()
        twice = before.predicted().rows[-1]
        assert (twice.cap, twice.how) == (1800.0, "continued")
        after = Search(seed=seed, seconds=1800.0, journal=before.accounting.journal).run()
        found = min(before.best, after.best)
        inside += twice.low <= found <= twice.high
        middle = math.sqrt(twice.low * twice.high)
        narrow += abs(math.log(found / middle)) < 0.3 * math.log(twice.high / middle)
    assert inside / searches >= 0.7, "so often it is found"
    assert narrow / searches <= 0.8, "and not because anything would be"


@pytest.mark.parametrize("seed", range(6))
def test_a_larger_cap_is_never_expected_to_bring_less(seed: int) -> None:
    search = Search(seed=seed, seconds=900.0)
    for reports in (25, 10, math.inf):
        search.run(reports)
        over = reports == math.inf
        losses = [row.loss for row in search.predicted(over=over).rows]
        assert len(losses) == len(TIMES) and losses == sorted(losses, reverse=True)
    for cap in (450.0, 900.0, 1800.0, 7200.0):
        rows = search.predicted(over=cap == 900.0, cap=cap).rows
        assert [row.cap for row in rows] == [times * cap for times in TIMES]
        assert all(row.low <= row.loss <= row.high for row in rows)
        assert all(row.loss >= search.best for row in rows if row.cap <= 900.0), "less is not more"
        assert all(row.loss <= search.best for row in rows if row.how == "continued"), "what was found stays"


def test_what_was_found_under_its_own_cap_is_not_predicted() -> None:
    search = Search().run()
    half, whole, twice = search.predicted().rows
    assert (half.how, whole.how, twice.how) == ("new search", "this search", "continued")
    assert whole.low == whole.high == whole.loss == pytest.approx(search.best)
    assert search.predicted().decayed and half.low < half.loss < half.high


def test_of_a_trial_that_had_its_end_only_the_way_from_there_is_in_doubt() -> None:
    search = Search().run()
    (name, tokens), *_ = search.rows("SELECT trial, MAX(tokens) FROM reports WHERE final GROUP BY trial")
    behind = FamilyHistory(on_rungs=0.0, tokens={}, ends=[End(trial=name, loss=search.best, tokens=tokens)], anew=0)
    caps = OtherCaps(search.policy, behind)
    ends = [caps.expected(name, times * tokens) for times in (1.0, 1.5, 2.0, 4.0)]
    assert ends[0] == (pytest.approx(search.best), 0.0)
    losses, doubts = zip(*ends, strict=True)
    assert [*losses] == sorted(losses, reverse=True) and [*doubts] == sorted(doubts)


def test_before_the_first_decay_losses_are_at_a_constant_rate_and_all_is_still_to_come() -> None:
    search = Search(seconds=600.0).run(15)
    predicted = search.predicted(over=False)
    assert not predicted.decayed and {row.how for row in predicted.rows[1:]} == {"continued"}
    reached = min(standing.losses[standing.rung] for standing in search.policy.trials.values() if standing.losses)
    assert predicted.rows[1].loss < reached


def test_what_the_last_two_take_that_are_trained_anew_is_not_predicted_for_the_leader() -> None:
    search = Search(seeds=2).run(15)
    without, anew = (search.predicted(over=False, seeds=seeds).rows[1] for seeds in (0, 2))
    assert {without.how, anew.how} == {"continued"} and anew.loss > without.loss


def test_what_a_decay_gives_another_is_as_sure_as_the_law_was_of_those_that_had_one() -> None:
    search = Search().run()
    (name, tokens), *_ = search.rows("SELECT trial, MAX(tokens) FROM reports WHERE final GROUP BY trial")
    predict = search.policy.standings.forecast_at
    first, second, *_ = (each for each in search.policy.trials if predict(each, tokens) and each != name)

    def doubt(*trials: str) -> float:
        ends = [End(trial=trial, loss=search.best, tokens=tokens) for trial in trials]
        return OtherCaps(search.policy, FamilyHistory(on_rungs=0.0, tokens={}, ends=ends, anew=0)).expected(
            first, tokens
        )[1]

    (_, by_law), (_, of_one) = (predict(each, tokens) or (0.0, 0.0) for each in (first, name))
    assert by_law < doubt(name, second) < doubt(name) == pytest.approx(math.hypot(by_law, of_one))


def test_whom_the_prior_speaks_against_is_not_predicted_to_have_the_cap() -> None:
    search = Search().run(15)
    leader = search.predicted(over=False).rows[1].trial
    unlikely = Search(favour=lambda trial: Favour(promise=1e-9 if trial == leader else 1.0)).run(15)
    assert {leader} < unlikely.policy.trials.keys() and unlikely.predicted(over=False).rows[1].trial != leader


def test_whom_the_last_rung_made_worse_is_not_predicted_to_have_the_cap() -> None:
    """Though by the law it would still be ahead."""
    search = Search().run(15)
    leader = search.predicted(over=False).rows[1].trial
    at = search.policy.trials[leader]
    search.policy.on_promoted(leader, at.rung + 1, 1.0)
    search.policy.on_reported(leader, at.rung + 1, at.losses[at.rung] + 1.1 * TIE, progress=at.progress)
    assert search.predicted(over=False).rows[1].trial != leader


def test_what_a_trial_learned_in_its_decay_is_not_predicted_to_stay_when_it_goes_on() -> None:
    search = Search().run()
    twice = [search.predicted(decay_share=share).rows[-1] for share in (0.0, 0.4, 0.9)]
    assert {row.how for row in twice} == {"continued"} and twice[0].loss < twice[1].loss < twice[2].loss


@pytest.mark.parametrize(
    ("spent", "charged", "now", "deadline", "left", "wall"),
    [
        (60.0, 10.0, 30.0, None, 40.0, 70.0), (60.0, 45.0, 30.0, None, 5.0, 70.0), (60.0, 10.0, 90.0, None, 40.0, 20.0),
        (60.0, 10.0, 30.0, 75.0, 40.0, 45.0), (110.0, 10.0, 90.0, None, 0.0, 10.0),
    ],
)  # fmt: skip
def test_a_family_has_left_what_its_share_has_and_the_cap_and_the_wall_clock(
    spent: float, charged: float, now: float, deadline: float | None, left: float, wall: float
) -> None:
    """On two slots, where a cap of 100 s is to be used in 100 s; longer only as far as both take for it."""
    conditions = StudyConditions(
        cap=100.0, families={"one": 0.5, "other": 0.5}, slots=2, share=1.0, deadline=deadline, patient=False, over=False
    )
    means = conditions.resources_at("one", 1.0, spent=spent, charged=charged, now=now)
    assert (means.left, means.wall_left) == (left, wall)


def test_families_that_share_a_slot_have_their_parts_of_the_time_to_a_deadline() -> None:
    conditions = StudyConditions(
        cap=100.0, families={"one": 0.25, "other": 0.75}, slots=1, share=1.0, deadline=70.0, patient=False, over=False
    )
    means = conditions.resources_at("one", 1.0, spent=20.0, charged=5.0, now=30.0)
    assert (means.left, means.wall_left) == (20.0, 10.0)


def test_of_too_few_sizes_nothing_is_predicted() -> None:
    predicted = Search(sizes=False).run().predicted()
    assert not predicted.rows and predicted.why == "too few sizes for a law of losses: 1 of at least 2 were seen " \
        "after their warm-up"  # fmt: skip


def test_before_any_trial_was_seen_twice_nothing_is_predicted() -> None:
    search = Search().run(4)
    predicted = search.predicted(over=False)
    assert (
        not predicted.rows
        and predicted.why
        and predicted.why.startswith("no law of losses: it takes a trial seen at two rungs")
    )


@pytest.mark.parametrize("loss", [0.0, -0.1])
@pytest.mark.parametrize("of", ["final", "rung = 0"])
def test_where_a_loss_reaches_zero_nothing_is_predicted_and_that_is_why(of: str, loss: float) -> None:
    """At a rung, or only after a decay."""
    search = Search().run()
    search.accounting.journal.rows(f"UPDATE reports SET valid_loss = {loss}, whole_loss = NULL WHERE {of}")
    predicted = Search(journal=search.accounting.journal).predicted()
    assert not predicted.rows and predicted.why == "losses reach zero, of which no law tells"


@pytest.mark.parametrize("slots", [1, 3])
def test_where_much_is_asked_of_an_hour_nothing_is_spent_after_the_rungs(slots: int) -> None:
    search = asking(1e9, slots=slots)
    assert search.rows("SELECT * FROM leases WHERE purpose != 'rung'") == []
    last = search.on_decision("hand back")[-1]
    left = search.seconds - search.spent
    assert last["reason"].endswith(TOO_LITTLE) and left > 0.5 * search.ladder.kept
    assert float(last["reason"].split()[0]) == pytest.approx(left, abs=25.0), "and it says how much"


def test_where_nothing_is_asked_or_little_nothing_changes() -> None:
    alike = [Search().run(), asking(0.0), asking(1e-12)]
    for table in TABLES:
        one, *others = ([tuple(row) for row in each.rows(f"SELECT * FROM {table}")] for each in alike)
        assert all(each == one for each in others)


@pytest.mark.parametrize("seed", range(3))
def test_the_more_is_asked_of_an_hour_the_more_is_handed_back_and_the_last_second_brings_as_much(seed: int) -> None:
    spent = [asking(gain, seed=seed, seconds=1500.0).spent for gain in (0.0, 3e-4, 1e-3, 3e-2)]
    assert spent == sorted(spent, reverse=True) and spent[0] > spent[1] > spent[-1]
    search = asking(gain := 3e-4, seed=seed, seconds=1500.0)
    (end,) = search.rows("SELECT * FROM reports WHERE final")
    ahead = [search.policy.standings.forecast_at(end["trial"], end["steps"] * times) for times in (1.0, 1.01)]
    now, then = (each[0] for each in ahead if each)
    assert (now - then) / (0.01 * end["training_seconds"]) == pytest.approx(gain, rel=0.1)
    finish, hand_back = search.on_decision("finish", "hand back")
    assert finish["reason"].endswith(TOO_LITTLE) and hand_back["reason"].endswith(TOO_LITTLE)


def test_without_a_law_the_cap_is_spent_and_that_is_told() -> None:
    search = asking(1e9, sizes=False)
    assert search.spent > 0.97 * search.seconds
    (finish,) = search.on_decision("finish")
    assert finish["reason"].endswith("no scaling law yet, gains unknown")


@pytest.fixture(scope="module", params=[2e-4, 4e-4])
def uncut(request: pytest.FixtureRequest) -> Search:
    """It handed back some of its cap: too little for its last lease to have a margin, or enough."""
    search = asking(request.param, seconds=900.0)
    assert (search.assignments[-1].steps is None) == (request.param < 4e-4)
    assert search.spent < 800.0
    return search


def cut_before_its_end(leases: int, uncut: Search) -> Search:
    """The same search, so many leases before its end; the next have begun."""
    search = Search(rules=uncut.frame.rules, seconds=900.0).run(len(uncut.assignments) - leases)
    while search.begin():
        pass
    return search


def end(search: Search) -> Any:
    """The trial that had its decay, and its steps then."""
    (found,) = search.rows("SELECT trial, steps FROM reports WHERE final")
    return found["trial"], found["steps"]


@pytest.mark.parametrize("leases", [1, 2, 9])
def test_killed_at_any_moment_it_hands_back_as_much(uncut: Search, leases: int) -> None:
    """But for what the margin of a slot's start leaves to a last segment."""
    killed = cut_before_its_end(leases, uncut)
    assert leases > 1 or killed.assignments[-1].rung is None, "in its last segment"
    again = Search(rules=uncut.frame.rules, seconds=900.0, journal=killed.accounting.journal)
    assert not again.notes, "the journal tells all"
    again.run()
    assert end(again) == (end(uncut)[0], pytest.approx(end(uncut)[1], rel=0.1))
    assert again.on_decision("hand back")[-1]["reason"].endswith(TOO_LITTLE) and again.spent <= 900.0


def test_a_last_segment_that_is_cut_short_goes_on_to_the_same_end(uncut: Search) -> None:
    search = cut_before_its_end(1, uncut)
    (_, _, lease), whole = search.events.pop(), search.segment(search.assignments[-1])
    assert whole and lease.rung is None
    before = search.engine.trials[lease.trial].steps
    seconds = {name: each / 2 for name, each in whole.seconds.items()}
    search.clock.now += sum(seconds.values())
    half = replace(whole, steps=(before + whole.steps) // 2, ended="stopped", seconds=seconds)
    search.engine.on_report(lease.trial, half)
    search.run()
    assert search.on_decision()[-2]["action"] == "go on"
    assert end(search) == (end(uncut)[0], pytest.approx(end(uncut)[1], rel=0.02))


def test_beside_the_leaders_last_segment_no_other_is_trained_that_is_not_expected_to_gain_on_it() -> None:
    saved = 0.0
    for seed in range(8):
        less, all_of_it = (asking(gain, seed=seed, seconds=4800.0, slots=8, deadline=1200.0) for gain in (1e-6, 0.0))
        assert less.spent <= all_of_it.spent and less.best <= all_of_it.best + TIE
        saved += all_of_it.spent - less.spent
        if less.spent < 0.9 * all_of_it.spent:
            assert any(row["reason"].endswith(TOO_LITTLE) for row in less.on_decision("hand back"))
    assert saved / 8 > 0.15 * 4800.0


def test_a_trial_goes_on_from_before_its_decay_only_to_more_training_than_it_had() -> None:
    """Also where it climbed meanwhile."""
    for reached in (60.0, 90.0):
        policy = bare(seconds=600.0)
        policy.on_promoted("a", 0, 5.0)
        policy.on_reported("a", 0, 3.0, progress=Progress(seconds=5.0))
        policy.on_finishing("a")
        policy.on_finished("a", 100.0)
        policy.refit(policy.make_ladder(660.0))
        policy.on_resumed({"a": 60.0})
        if reached > 60.0:
            policy.on_promoted("a", 1, 30.0)
            policy.on_reported("a", 1, 2.9, progress=Progress(seconds=reached))
        moves = [policy.decide(left(ENOUGH * 100.0 - reached + OVERHEAD + beyond)) for beyond in (-0.5, 0.5)]
        assert [type(move) for move in moves] == [HandBack, Finish], moves


def test_the_front_trains_none_for_less_than_it_had() -> None:
    first = Search(seconds=900.0, rules=Rules(front=True)).run()
    more = Search(seconds=1000.0, rules=Rules(front=True), journal=first.accounting.journal).run()
    ends: dict[str, list[int]] = {}
    for row in more.rows("SELECT trial, steps FROM reports WHERE final ORDER BY report"):
        ends.setdefault(row["trial"], []).append(row["steps"])
    assert len(ends) > 1 and all(steps == sorted(steps) for steps in ends.values())


@pytest.mark.parametrize("seeds", [0, 2])
def test_a_larger_cap_trains_no_winner_for_less_than_it_had_and_says_how_much_more_would_do(seeds: int) -> None:
    first = Search(seconds=900.0, seeds=seeds).run()
    small = Search(seconds=950.0, seeds=seeds, journal=first.accounting.journal).run()
    assert small.spent == pytest.approx(first.spent)
    told = small.on_decision("hand back")[-1]["reason"]
    cap = 950.0 + parse_duration(told.split("; it takes ")[1].removesuffix(" more of a slot"))
    enough = Search(seconds=cap, seeds=seeds, journal=small.accounting.journal).run()
    assert 0.99 * cap < enough.spent <= cap
    ends = enough.rows("SELECT trial, steps FROM reports WHERE final ORDER BY report")
    steps = {row["trial"]: [each["steps"] for each in ends if each["trial"] == row["trial"]] for row in ends}
    assert all(each == sorted(each) for each in steps.values())


@pytest.mark.parametrize("seed", range(4))
def test_a_study_that_handed_back_goes_on_under_a_larger_cap_as_far_as_is_asked(seed: int) -> None:
    before = asking(5e-4, seed=seed, seconds=900.0)
    journal, spent = before.accounting.journal, before.spent
    as_before = Search(seed=seed, seconds=1000.0, rules=Rules(least_gain=5e-4), journal=journal).run()
    assert spent <= as_before.spent < 900.0
    again = as_before.rows("SELECT trial FROM reports WHERE final GROUP BY trial HAVING COUNT(*) > 1")
    assert again == [], "what a trial has had is not done again"
    all_of_it = Search(seed=seed, seconds=2000.0, journal=journal).run()
    assert 1900.0 < all_of_it.spent <= 2000.0 and all_of_it.best <= before.best
