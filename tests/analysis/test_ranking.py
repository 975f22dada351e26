from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from analysis.efficiency import efficiency
from analysis.ranking import Answers, answers, ranking
from analysis.settings import ORDERS
from analysis.study import EFFICIENCY, Results, open_studies, open_study
from tests.analysis.conftest import FACTS, Written


def table(*studies: Written, by: str = "quotient") -> pd.DataFrame:
    return ranking(Results(studies=open_studies([study.folder for study in studies])), by=by)


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
        "memory": ["t2", "t3", "t5", "t1", "t4", "t6"],
    }
    assert {*by_hand, "quotient", "efficiency"} == {*ORDERS}
    whole = table(six).drop(columns="place").sort_values("trial", ignore_index=True)
    for by in ("efficiency", *by_hand):
        ranked = table(six, by=by)
        assert ranked["trial"].tolist() == by_hand.get(by, ranked["trial"].tolist())
        pd.testing.assert_frame_equal(ranked.drop(columns="place").sort_values("trial", ignore_index=True), whole)


def answered(*studies: Written) -> tuple[Results, Answers]:
    results = Results(studies=open_studies([study.folder for study in studies]))
    found = answers(results, ranking(results))
    assert found is not None
    return results, found


def three(found: Answers) -> list[pd.Series]:
    return [row for row in (found.quotient, found.efficiency, found.perplexity) if row is not None]


def test_the_three_answers(six: Written) -> None:
    """From rung 0, the only level with five trials, there as they were there; the winner from the finalists."""
    results, found = answered(six)
    there = results.reached[results.reached["level"] == "rung 0"]
    assert [row["trial"] for row in three(found)] == ["t5", there.loc[there["efficiency"].idxmax(), "trial"], "t5"]
    assert found.perplexity["perplexity"] == 7.0 and found.among == 5
    assert (found.winner["trial"], found.winner["perplexity"]) == ("t2", 5.0)


def test_the_three_answers_are_of_one_level_and_nobody_there_is_better(searched: Written) -> None:
    results, found = answered(searched)
    assert len({row["level"] for row in three(found)}) == 1
    there = results.reached[results.reached["level"] == found.perplexity["level"]]
    assert len(there) == found.among
    assert found.perplexity["perplexity"] == there["perplexity"].min()
    assert found.efficiency is not None and found.efficiency["efficiency"] == there["efficiency"].max()
    assert (
        found.quotient["perplexity"] / found.quotient["parameters"] == (there["perplexity"] / there["parameters"]).min()
    )


def test_without_a_curve_the_answers_are_of_the_winners_level(write: Callable[..., Written]) -> None:
    study = write()
    for number in range(4):
        study.trial(f"t{number}", parameters=10**number)
        study.report(f"t{number}", 5.0 + number)
    study.report("t3", 4.0, rung=1)
    _, found = answered(study)
    assert found.efficiency is None and {row["trial"] for row in (*three(found), found.winner)} == {"t3"}


def test_efficiency_is_among_all_that_completed_a_rung(six: Written) -> None:
    """Five completed rung 0: t2, t3 and t5, which went on from it, and t1 and t4, which are measured against them."""
    ranked = table(six).set_index("trial").loc[["t1", "t2", "t3", "t4", "t5"]]
    expected = efficiency(ranked["parameters"].to_numpy(), np.array([9.0, 8.0, 7.5, 8.5, 7.0]))
    assert ranked[EFFICIENCY].to_numpy() == pytest.approx(expected)
    assert set(ranked["efficiency_at"]) == {"rung 0"}


def test_efficiency_is_taken_from_the_highest_level_with_a_curve(six: Written) -> None:
    for trial in ("t1", "t4"):
        six.report(trial, 7.0, rung=1)
    assert set(table(six)["efficiency_at"].dropna()) == {"rung 1"}


def test_what_was_measured_again_counts_as_measured_last(six: Written) -> None:
    six.report("t1", 8.0, rung=0)
    assert table(six).set_index("trial").loc["t1", "perplexity"] == 8.0


def test_a_trial_without_a_rung_and_one_that_is_not_finite_have_no_rank(write: Callable[..., Written]) -> None:
    study = write()
    study.trial("t7", state="running")
    study.trial("t8")
    study.report("t8", float("inf"))
    results = Results(studies=[open_study(study.folder)])
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
        ({"devices": FACTS["devices"] | {"name": "another"}}, False),
        ({"devices": FACTS["devices"] | {"slots": 7}}, True),
    ],
)
def test_studies_share_a_section_only_where_they_compare(
    write: Callable[..., Written], facts: dict[str, object], mixed: bool
) -> None:
    first, second = write("first"), write("second", **facts)
    for study, perplexity in ((first, 5.0), (second, 4.0)):
        study.trial("t1")
        study.report("t1", perplexity)
    ranked = table(first, second)
    assert (ranked["group"].nunique() == 1) == mixed
    assert ranked["place"].tolist() == ([1, 2] if mixed else [1, 1])
    assert ranked["front"].tolist() == ([True, False] if mixed else [True, True])


def test_after_the_decay_devices_are_no_matter(write: Callable[..., Written]) -> None:
    """One section, one front, one level of the answers."""
    rows = {"a": [(1_000_000, 9.0), (2_000_000, 8.0)], "b": [(500_000, 5.0), (3_000_000, 4.0)]}
    studies = [write(name, devices=FACTS["devices"] | {"name": name}) for name in rows]
    for study, ends in zip(studies, rows.values(), strict=True):
        for number, (parameters, perplexity) in enumerate(ends):
            study.trial(f"t{number}", parameters=parameters)
            study.report(f"t{number}", perplexity + 1, rung=0)
            study.report(f"t{number}", perplexity, rung=None, final=1, whole_perplexity=perplexity)
    results, found = answered(*studies)
    ranked = ranking(results).sort_values(["study", "trial"])
    assert ranked["group"].nunique() == 1 and ranked["front"].tolist() == [False, False, True, True]
    assert found.among == 4 and found.perplexity["perplexity"] == found.winner["perplexity"] == 4.0


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
