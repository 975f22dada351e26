"""The ranking: its order, sections and answers; efficiency and front; conditions; what half of it predicts."""

import json
import math
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pandas as pd
import pytest

from analysis.efficiency import efficiency, fit_predict_curve, front
from analysis.ranking import Answers, answers, ranking, select, winner
from analysis.settings import ORDERS, RankSettings
from analysis.stability import moment, stability, tau
from analysis.study import EFFICIENCY_COLUMNS, Results, open_study
from tests.analysis.conftest import FACTS, Printed, Written, do, one_line, results_of
from tests.training_rows import whole
from tune.errors import UserError
from tune.reports import LARGEST_LOG
from tune.store.journal import connect
from tune.store.queries import best_so_far


def table(*studies: Written, by: str = "perplexity-per-parameter") -> pd.DataFrame:
    return ranking(results_of(*studies), by=by)


def test_six_rows_by_hand(six: Written) -> None:
    """5.5 / 4 M and 5 / 2 M after their decay; 6.5 / 8 M at rung 1; 9 / 1 M and 8.5 / .5 M at rung 0; one diverged."""
    ranked = table(six)
    assert ranked["trial"].tolist() == ["t3", "t2", "t5", "t1", "t4", "t6"]
    assert ranked["section"].tolist() == ["decayed", "decayed", "rung", "rung", "rung", "failed"]
    assert ranked["rung"].tolist()[:5] == [1, 1, 1, 0, 0]
    assert ranked["perplexity_per_million"].tolist()[:5] == pytest.approx([1.375, 2.5, 0.8125, 9.0, 17.0])
    assert ranked["place"].tolist()[:5] == [1, 2, 1, 1, 2]
    assert ranked["front"].tolist() == [False, True, False, False, True, False]
    assert ranked["device_seconds"].tolist() == [12, 11, 14, 10, 13, 15]


def test_other_orders_by_hand_change_places_and_nothing_else(six: Written) -> None:
    by_hand = {
        "perplexity": ["t2", "t3", "t5", "t4", "t1", "t6"],
        "parameters": ["t2", "t3", "t5", "t4", "t1", "t6"],
        "device-seconds": ["t2", "t3", "t5", "t1", "t4", "t6"],
        "memory": ["t3", "t2", "t5", "t4", "t1", "t6"],
    }
    columns = {
        "perplexity-per-parameter": "perplexity_per_million",
        "device-seconds": "device_seconds",
        "memory": "memory_bytes",
    }
    assert {*by_hand, "perplexity-per-parameter", "efficiency"} == {*ORDERS}
    whole = table(six).drop(columns="place").sort_values("trial", ignore_index=True)
    for by in ("efficiency", *by_hand):
        ranked = table(six, by=by)
        assert ranked["trial"].tolist() == by_hand.get(by, ranked["trial"].tolist())
        for _, section in ranked[ranked["section"] != "failed"].groupby(["section", "rung"]):
            ordered = section[columns.get(by, by)]
            assert ordered.is_monotonic_decreasing if by == "efficiency" else ordered.is_monotonic_increasing
        pd.testing.assert_frame_equal(ranked.drop(columns="place").sort_values("trial", ignore_index=True), whole)


def answered(*studies: Written) -> tuple[Results, Answers, pd.Series]:
    """The answers, and the winner."""
    results = results_of(*studies)
    found, first = answers(results, ranking(results)), winner(results, ranking(results))
    assert found is not None and first is not None
    return results, found, first


def three(found: Answers) -> list[pd.Series]:
    return [row for row in (found.per_parameter, found.efficiency, found.perplexity) if row is not None]


def test_the_three_answers(six: Written) -> None:
    """From rung 0, the only level with five trials, there as they were there; the winner from the finalists."""
    results, found, first = answered(six)
    there = results.reached[results.reached["level"] == "rung 0"]
    assert [row["trial"] for row in three(found)] == ["t5", there.loc[there["efficiency"].idxmax(), "trial"], "t5"]
    assert found.perplexity["perplexity"] == 7.0 and found.among == 5
    assert (first["trial"], first["perplexity"]) == ("t2", 5.0)


def test_without_a_curve_the_answers_are_of_the_winners_level(write: Callable[..., Written]) -> None:
    study = write()
    for number in range(4):
        study.trial(f"t{number}", parameters=10**number)
        study.report(f"t{number}", 5.0 + number)
    study.report("t3", 4.0, rung=1)
    _, found, first = answered(study)
    assert found.efficiency is None and {row["trial"] for row in (*three(found), first)} == {"t3"}


@pytest.mark.parametrize("loss", [800.0, -800.0])
def test_where_perplexities_are_cut_off_losses_say_which_is_best_as_in_the_search(
    write: Callable[..., Written], loss: float
) -> None:
    study = write()
    for number, more in enumerate((2.0, 1.0, 3.0)):
        study.trial(f"t{number}", created=number, parameters=10**6 * (3 - number))
        study.report(f"t{number}", math.exp(min(loss, LARGEST_LOG)), valid_loss=loss + more)
    _, found, first = answered(study)
    with closing(connect(study.folder)) as journal:
        assert best_so_far(journal)["nanogpt"]["trial"] == first["trial"] == found.perplexity["trial"] == "t1"


def test_why_trials_have_no_place_is_told_of_their_own_study(write: Callable[..., Written], printed: Printed) -> None:
    work = write("work", experiment="scaling", corpora={"nanogpt": {"sha256": "b" * 64, "vocabulary": 90}})
    work.journal.insert("rows", {"at": 0.0, "experiment": "scaling", "value": json.dumps(whole({}, {}))})
    young = write("young")
    for study in (work, young):
        study.trial("t1")
    text = printed(RankSettings, work.folder, young.folder)
    for said in ("ranks no trials", "no trial has completed a rung yet"):
        assert text.count(said) == 1, said


def test_efficiency_is_among_all_that_completed_a_rung(six: Written) -> None:
    """Five completed rung 0: t2, t3 and t5, which went on from it, and t1 and t4, which are measured against them."""
    ranked = table(six).set_index("trial").loc[["t1", "t2", "t3", "t4", "t5"]]
    expected = efficiency(ranked["parameters"].to_numpy(), np.array([9.0, 8.0, 7.5, 8.5, 7.0]))
    assert ranked[EFFICIENCY_COLUMNS].to_numpy() == pytest.approx(expected)
    assert set(ranked["efficiency_at"]) == {"rung 0"}


def test_efficiency_is_taken_from_the_highest_level_with_a_curve(six: Written) -> None:
    for trial in ("t1", "t4"):
        six.report(trial, 7.0, rung=1)
    assert set(table(six)["efficiency_at"].dropna()) == {"rung 1"}
    six.trial("t7", parameters=3_000_000)
    six.report("t7", 2.0)
    six.report("t7", 6.0, rung=None, final=1)
    ranked = table(six, by="efficiency")
    decayed = ranked[ranked["section"] == "decayed"]
    assert decayed["trial"].iloc[decayed["efficiency"].argmax()] == "t7"
    assert decayed["efficiency_at"].tolist() == ["rung 1", "rung 1", "rung 0"], "no order over curves of two rungs"


def test_what_was_measured_again_counts_as_measured_last(six: Written) -> None:
    six.report("t1", 8.0, rung=0)
    assert table(six).set_index("trial").loc["t1", "perplexity"] == 8.0


def test_a_trial_without_a_rung_and_one_that_is_not_finite_have_no_rank(write: Callable[..., Written]) -> None:
    study = write()
    study.trial("t7", state="running")
    study.trial("t8")
    study.report("t8", float("inf"))
    results = results_of(study)
    ranked = ranking(results)
    assert ranked["section"].tolist() == ["unranked"] * 2 and ranked["place"].isna().all()
    assert answers(results, ranked) is None


def test_families_are_never_mixed(write: Callable[..., Written]) -> None:
    study = write("both")
    for number, (trial, family) in enumerate((("t1", "nanogpt"), ("t2", "translation"), ("t3", "nanogpt"))):
        study.trial(trial, family=family, created=number)
        study.report(trial, 5.0 + number)
    assert table(study)["family"].tolist() == ["nanogpt", "nanogpt", "translation"]
    assert table(study)["place"].tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("facts", "mixed"),
    [
        ({}, True),
        ({"corpora": {"nanogpt": FACTS["corpora"]["nanogpt"] | {"sha256": "b" * 64}}}, False),
        ({"corpora": {"nanogpt": FACTS["corpora"]["nanogpt"] | {"vocabulary": 66}}}, False),
        ({"rung_seconds": {"nanogpt": [11.0]}}, False),
        ({"settings": {"rungs": "tokens"}}, False),
        ({"devices": FACTS["devices"] | {"name": "another"}}, False),
        ({"devices": FACTS["devices"] | {"slots": 7}}, True),
        ({"recipes": {"nanogpt": {"context": 256}}}, False),
        ({"recipes": {"nanogpt": {"context": 256, "evaluation_window": 64}}}, True),
        ({"recipes": {}}, False),
    ],
)
def test_studies_share_a_section_only_where_they_compare(
    write: Callable[..., Written], facts: dict[str, object], mixed: bool
) -> None:
    known: dict[str, object] = {"recipes": {"nanogpt": {"context": 64}}}
    first, second = write("first", **known), write("second", **known | facts)
    for study, perplexity in ((first, 5.0), (second, 4.0)):
        study.trial("t1")
        study.report("t1", perplexity)
    ranked = table(first, second)
    assert (ranked["group"].nunique() == 1) == mixed
    assert ranked["place"].tolist() == ([1, 2] if mixed else [1, 1])
    assert ranked["front"].tolist() == ([True, False] if mixed else [True, True])


def test_rungs_of_equal_tokens_are_of_no_seconds_and_of_their_own_study(
    write: Callable[..., Written], printed: Printed
) -> None:
    """Of how many tokens follows from the step times that each search measured."""
    for name in ("first", "second"):
        study = write(name, settings={"rungs": "tokens"})
        study.trial("t1")
        study.report("t1", 5.0)
    text = printed(RankSettings, study.folder, study.folder.parent / "first")
    assert text.count("nanogpt, shakespeare, vocabulary of 65: rung 0") == 2 and "of training" not in text


@pytest.mark.parametrize("rungs", ["seconds", "tokens"])
def test_after_the_decay_devices_are_no_matter(write: Callable[..., Written], rungs: str) -> None:
    """One section, one front, one level of the answers."""
    rows = {"a": [(1_000_000, 9.0), (2_000_000, 8.0)], "b": [(500_000, 5.0), (3_000_000, 4.0)]}
    about = {"settings": {"rungs": rungs}}
    studies = [write(name, devices=FACTS["devices"] | {"name": name}, **about) for name in rows]
    for study, ends in zip(studies, rows.values(), strict=True):
        for number, (parameters, perplexity) in enumerate(ends):
            study.trial(f"t{number}", parameters=parameters)
            study.report(f"t{number}", perplexity + 1, rung=0)
            study.report(f"t{number}", perplexity, rung=None, final=1, whole_perplexity=perplexity)
    results, found, first = answered(*studies)
    ranked = ranking(results).sort_values(["study", "trial"])
    assert ranked["group"].nunique() == 1 and ranked["front"].tolist() == [False, False, True, True]
    assert found.among == 4 and found.perplexity["perplexity"] == first["perplexity"] == 4.0


def test_rungs_are_ordered_without_a_written_ladder(write: Callable[..., Written]) -> None:
    study = write(rung_seconds={})
    for rung in (0, 2, 1):
        study.trial(f"t{rung}")
        study.report(f"t{rung}", 5.0, rung=rung)
    assert table(study)["rung"].tolist() == [2, 1, 0]


def test_what_varies_beside_the_space_has_columns_of_its_own(write: Callable[..., Written]) -> None:
    first, second = write("first"), write("second")
    first.trial("t1", learning_rate=0.006)
    second.trial("t1", width=64)
    ranked = table(first, second).set_index("study")
    names = list(ranked)
    place = names.index("precision")
    assert names[place + 1 : place + 3] == ["learning_rate", "width"]
    assert ranked["config"].tolist() == ["d128 h4 l4 p.1 fp32 lr.006", "d128 h4 l4 p.1 fp32 width64"]
    assert ranked["learning_rate"].dropna().to_dict() == {"first": 0.006}
    assert ranked["width"].dropna().to_dict() == {"second": 64}


def front_by_definition(parameters: np.ndarray, perplexity: np.ndarray) -> list[bool]:
    """The reference: nobody is at most as large and at most as bad, and ahead in one of the two."""
    points = list(zip(parameters, perplexity, strict=True))
    return [not any(s <= size and p <= value and (s, p) != (size, value) for s, p in points) for size, value in points]


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_its_definition(seed: int) -> None:
    random = np.random.default_rng(seed)
    parameters, perplexity = random.integers(1, 8, (2, 30)).astype(float)  # with many ties
    assert front(parameters, perplexity).tolist() == front_by_definition(parameters, perplexity)


def test_efficiency_is_unknown_under_five_sizes() -> None:
    """Many trials of few sizes do not say how a curve goes between them."""
    for size in (np.arange(1.0, 5.0), np.repeat([1.0, 2.0], 9), np.ones(7)):
        assert np.isnan(efficiency(size, np.arange(1.0, len(size) + 1))).all()
    assert np.isfinite(efficiency(np.arange(1.0, 6.0), np.ones(5))).all()


def test_a_curve_of_few_sizes_does_not_bend() -> None:
    """However many trials there are of each: it is a line from its first size to its last."""
    sizes = np.logspace(4, 6, 5)
    losses = np.repeat([3.0, 2.0, 1.8, 2.0, 3.0], 4) + np.tile([-0.1, 0.0, 0.0, 0.1], 5)
    first, middle, last = fit_predict_curve(np.repeat(sizes, 4), np.exp(losses), sizes[[0, 2, 4]])[0]
    assert middle == pytest.approx((first + last) / 2)


def test_efficiency_is_the_distance_below_the_curve() -> None:
    sizes = np.logspace(4, 7, 9)
    perplexity = 100 * sizes**-0.2
    perplexity[4] *= np.exp(-0.3)
    value, low, high = efficiency(sizes, perplexity).T
    assert value[4] == pytest.approx(0.3, abs=0.02) and value.argmax() == 4
    assert np.abs(np.delete(value, 4)).max() < 0.02
    assert (low <= high).all() and low[4] > 0


@pytest.mark.parametrize("trials", [5, 20])
def test_nine_in_ten_intervals_hold_the_true_efficiency_however_few_the_trials(trials: int) -> None:
    random, held = np.random.default_rng(trials), []
    for _ in range(1000 // trials):
        sizes, noise = np.exp(random.uniform(11, 16, trials)), random.normal(0, 0.02, trials)
        _, low, high = efficiency(sizes, np.exp(noise) * 100 * sizes**-0.2).T
        held += [*((low <= -noise) & (-noise <= high))]
    assert 0.86 < np.mean(held) < 0.94


def test_one_outlier_does_not_move_the_curve() -> None:
    sizes = np.logspace(4, 7, 12)
    clean = 100 * sizes**-0.2
    broken = clean.copy()
    broken[-1] *= 50
    assert fit_predict_curve(sizes, broken, sizes[:-1])[0] == pytest.approx(np.log(clean[:-1]), abs=0.05)


def test_efficiency_knows_neither_order_nor_units_of_size() -> None:
    random = np.random.default_rng(1)
    sizes, perplexity = np.exp(random.normal(14, 1, 20)), np.exp(random.normal(2, 0.3, 20))
    shuffle = random.permutation(20)
    first = efficiency(sizes, perplexity)[:, 0]
    assert efficiency(1e-6 * sizes, perplexity)[:, 0] == pytest.approx(first)
    assert efficiency(sizes[shuffle], perplexity[shuffle])[:, 0] == pytest.approx(first[shuffle])


TABLE = pd.DataFrame(
    {
        "layers": [2, 4, 8],
        "perplexity": [9.0, float("nan"), 7.0],
        "precision": ["bf16", "fp32", "bf16"],
        "front": [True, False, True],
    },
    index=[4, 5, 8],
)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("layers<=4 and precision=='bf16'", [4]),
        ("not (layers==8 or layers==2)", [5]),
        ("2 < layers <= 8", [5, 8]),
        ("perplexity > 0", [4, 8]),
        ("precision in ('fp32', 'tf32')", [5]),
        ("layers not in [2, 4]", [8]),
        ("front and layers > -1", [4, 8]),
        ("layers > 100", []),
    ],
)
def test_conditions_select(condition: str, rows: list[int]) -> None:
    assert select(TABLE, condition).index.tolist() == rows


secret = 4
NO_CONDITIONS = ("", "layers", "layers <", "layers = 4", "1 == 1", "width < 4", "precision < 4", "layers == bf16")
REACHING = (
    *("__import__('os').system('true')", "layers.__class__ == 1", "layers.max() == 8", "layers == @secret"),
    *("`layers` == 4", "(lambda: layers)() == 1", "[x for x in layers] == 1", "f'{layers}' == '4'", "layers[0] == 2"),
)
HEAVY = ("layers ** 9 ** 9 > 1", "precision == 'a' * 1000000000", "(" * 300 + "layers" + ")" * 300, "1 " * 10_000)


@pytest.mark.parametrize("condition", [*NO_CONDITIONS, *REACHING, *HEAVY, "layers == 1\0"])
def test_what_is_no_condition_is_refused_in_one_line(condition: str) -> None:
    with one_line(r"^--where: "):
        select(TABLE, condition)


def test_tau_by_hand() -> None:
    """Of six pairs four agree and two do not; where one order has a tie, five of its six pairs count."""
    order = np.array([1.0, 2.0, 3.0, 4.0])
    assert tau(order, order) == 1 and tau(order, -order) == -1
    assert tau(order, np.array([2.0, 1.0, 4.0, 3.0])) == pytest.approx((4 - 2) / 6)
    assert tau(order, np.array([1.0, 1.0, 2.0, 3.0])) == pytest.approx(5 / (6 * 5) ** 0.5)
    assert np.isnan(tau(order, np.ones(4))) and np.isnan(tau(order[:2], order[:2]))


@pytest.fixture
def turned(write: Callable[..., Written]) -> Written:
    """Three trials whose order by perplexity turns round after half of the spending; another begins only then."""
    study = write("turned")
    for number, trial in enumerate(("t1", "t2", "t3", "t4")):
        study.trial(trial, parameters=10 ** (4 + number))
    for number, trial in enumerate(("t1", "t2", "t3")):
        study.report(trial, 5.0 + number, rung=0, at=10.0 * number, steps=1)
        study.charge("steps", 10.0, trial=trial, at=10.0 * number)
        study.report(trial, 4.0 - number, rung=1, at=60.0 + number, steps=2)
        study.charge("steps", 10.0, trial=trial, at=60.0 + number)
    study.report("t4", 9.0, rung=0, at=70.0, steps=1)
    return study


def rows(study: Written, share: float = 0.5) -> pd.DataFrame:
    return stability(open_study(study.folder), share).set_index("measure")


def test_an_order_that_turns_round_and_one_that_sizes_hold(turned: Written) -> None:
    found = rows(turned)
    assert set(found["trials"]) == {3, 0}
    assert found.loc["perplexity", ["then", "end"]].tolist() == ["rung 0", "rung 1"]
    assert found.loc["perplexity", "tau"] == -1
    assert found.loc["perplexity_per_million", "tau"] == found.loc["perplexity_per_million", "tau_of_size"] == 1
    assert found.loc["perplexity", ["leader", "leader_at_end"]].tolist() == ["t1", 3]
    assert found.loc["efficiency", "trials"] == 0 and np.isnan(found.loc["efficiency", "tau"])


def test_half_is_of_the_device_seconds_and_not_of_the_clock(turned: Written) -> None:
    study = open_study(turned.folder)
    assert [moment(study, share) for share in (0.1, 0.5, 0.6)] == [0.0, 20.0, 60.0]


def test_who_was_not_trained_on_predicts_nothing(turned: Written) -> None:
    found = rows(turned, 0.99)
    assert set(found["trials"]) == {0} and found["tau"].isna().all()


def test_only_what_completed_the_same_rung_is_in_one_order(turned: Written) -> None:
    """One of four was at another rung then, and is not compared with those that the others had there."""
    turned.trial("t5", parameters=10)
    turned.report("t5", 1.0, rung=1, at=15.0)
    turned.report("t5", 9.0, rung=2, at=65.0)
    found = rows(turned)
    assert found.loc["perplexity", "trials"] == 3 and found.loc["perplexity", "tau"] == -1


def test_a_curve_that_rung_has_only_since_makes_no_trial_one_that_went_on(write: Callable[..., Written]) -> None:
    """Four completed rung 2 before half and two after it, when there are sizes enough for efficiency there too."""
    study = write("curved")
    for number in range(6):
        trial = f"t{number}"
        study.trial(trial, parameters=10 ** (4 + number))
        study.report(trial, 5.0 - 0.1 * number, rung=1, at=1.0)
        study.report(trial, 4.0 - 0.1 * number, rung=2, at=2.0 if number < 4 else 70.0)
    study.charge("steps", 10.0, trial="t0", at=2.0)
    study.charge("steps", 10.0, trial="t0", at=71.0)
    assert rows(study)["trials"].eq(0).all()


def test_what_failed_has_no_order(turned: Written) -> None:
    turned.journal.update("trials", "t2", {"state": "failed", "reason": "diverged"})
    assert rows(turned).loc["perplexity", "trials"] == 0


def test_the_command_says_it_in_a_table_and_as_json(turned: Written, printed: Printed) -> None:
    for form, said in ((), "-1.00"), (["--json"], '"tau": -1.0'):
        assert said in printed(RankSettings, turned.folder, "--stability", "0.5", *form)


def test_one_family_of_several_and_few_trials_are_a_line(turned: Written, printed: Printed) -> None:
    turned.trial("t9", family="translation")
    for family, said in (("nanogpt", "Kendall's tau"), ("translation", "too few trials: it takes 3")):
        text = printed(RankSettings, turned.folder, "--stability", "0.5", "--family", family)
        other = {"nanogpt": "translation", "translation": "Kendall"}[family]
        assert said in text and other not in text.replace(said, "")
    with pytest.raises(UserError, match=r"^--family: 'none'"):
        do(RankSettings, [str(turned.folder), "--stability", "0.5", "--family", "none"])


def test_a_study_that_was_charged_nothing_is_one_line(write: Callable[..., Written]) -> None:
    study = write()
    study.trial("t1")
    with pytest.raises(ValueError, match="charged nothing"):
        do(RankSettings, [str(study.folder), "--stability", "0.5"])
