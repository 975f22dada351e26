import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.figures import lines, trainings
from analysis.plots.search import progress
from analysis.ranking import ranking
from analysis.settings import PlotSettings
from analysis.study import Results, open_studies
from tests.analysis.conftest import FACTS, Printed, Written, search, study_of_trials
from tests.training_rows import row


def two(write: Callable[..., Written], **facts: object) -> tuple[Written, Written]:
    """Studies with one trial each; `facts` are the second's."""
    studies = write("a", settings={"budget": "1h", "seed": "0"}), write("b", **({"settings": {"budget": "1h"}} | facts))
    for study, perplexity in zip(studies, (6.0, 4.0), strict=True):
        study.trial("t1", parameters=1000)
        for rung, (at, value) in enumerate(((10.0, 9.0), (20.0, perplexity), (30.0, perplexity + 1))):
            study.charge("steps", 10.0, trial="t1", at=at)
            study.report("t1", value, rung=rung, at=at)
    return studies


def test_only_settings_that_differ_are_shown(write: Callable[..., Written]) -> None:
    shown = {name: values for name, *values in lines(*open_studies([study.folder for study in two(write)]))}
    assert shown["--seed"] == ["0", "default"] and "--budget" not in shown
    assert shown["nanogpt: perplexity"] == ["7.000", "5.000"]


def test_perplexities_of_other_tokens_are_marked(write: Callable[..., Written]) -> None:
    studies = two(write)
    for alike in (True, False):
        shown = {name for name, *_ in lines(*open_studies([study.folder for study in studies]))}
        assert ("nanogpt: perplexity" in shown) == ("nanogpt: perplexity, not of the same tokens" not in shown) == alike
        studies[1].report("t1", 5.0, rung=None, final=1, whole_perplexity=5.0)


def test_the_best_so_far_is_what_leads_the_ranking_and_ends_with_what_was_spent(write: Callable[..., Written]) -> None:
    table = progress(Results(studies=open_studies([study.folder for study in two(write)])), "nanogpt").data
    rows = table[table["study"] == "b"]
    assert rows["perplexity"].tolist() == [9, 4, 5, 5]
    assert rows["device_seconds"].tolist() == [10, 20, 30, 30]


def test_the_best_so_far_is_at_each_moment_the_first_of_the_ranking_then(searched: Written) -> None:
    """And so neither what diverged later nor a lower loss at a lower rung."""
    (study,) = open_studies([searched.folder])
    searched.report("t023", 1.0, rung=2, at=5.0)
    searched.report("t010", 1.1, rung=0, at=400.0)
    results = Results(studies=[study])
    drawn = progress(results, "nanogpt").data
    for at in sorted(results.reached["at"].unique())[::-4]:
        first = ranking(Results(studies=[replace(study, until=at)]), by="perplexity").iloc[0]
        told = [row for row in drawn.to_dict("records") if row["at"] <= at][-1]
        assert (told["trial"], told["perplexity"]) == (first["trial"], first["perplexity"]), at


@pytest.mark.parametrize("alike", [True, False])
def test_two_studies_are_printed_and_drawn_where_their_texts_are_one(
    write: Callable[..., Written], alike: bool, tmp_path: Path, printed: Printed
) -> None:
    corpora = FACTS["corpora"] if alike else {"nanogpt": FACTS["corpora"]["nanogpt"] | {"sha256": "b" * 64}}
    told = printed(PlotSettings, "compare", *(each.folder for each in two(write, corpora=corpora)), "--out", tmp_path)
    assert "nanogpt: winner" in told and ("do not compare" in told) != alike
    assert (tmp_path / "progress-nanogpt.png").exists() == alike


def test_of_one_list_in_two_studies_each_training_that_both_have_is_compared(tmp_path: Path, printed: Printed) -> None:
    """The second one's are twice and eight times as fast, and cost as much less; each has one that the other
    has not."""
    sizes = {16: 1.0, 32: 1.0, 64: 2.0}, {16: 0.5, 32: 0.125, 128: 1.0}
    for name, seconds in zip("ab", sizes, strict=True):
        rows = [row({"steps": 100}, {"d_model": d, "heads": 4, "seed": 0}, 3.0) for d in seconds]
        for each, taken in zip(rows, seconds.values(), strict=True):
            each["training_seconds"] = taken
            each["curve"] = [[*looked[:2], taken * looked[2] / 4, *looked[3:]] for looked in each["curve"]]
        study_of_trials(tmp_path / name, "ablation", rows)
    _, told = printed(PlotSettings, "compare", tmp_path / "a", tmp_path / "b", "--csv").split("\n\n")
    title, columns, *cells, means = csv.reader(told.splitlines())
    assert title == ["2 trainings that both have"] and [each[0].split()[0] for each in cells] == ["d16", "d32"]
    for what, ratios, mean in (("tokens/s", (2, 8), 4), ("device-s", (1 / 2, 1 / 8), 1 / 4)):
        one, other, ratio = (columns.index(f"{what}, {name}") for name in ("a", "b", "ratio"))
        assert [float(each[ratio]) for each in cells] == pytest.approx(ratios)
        of_all = [float(each[other].replace(",", "")) / float(each[one].replace(",", "")) for each in cells]
        assert of_all == pytest.approx(ratios, rel=1e-3) and float(means[ratio]) == pytest.approx(mean)


def test_two_searches_have_no_such_table(searched: Written, write: Callable[..., Written]) -> None:
    """Though they may have trained one configuration to its end."""
    first, second = open_studies([searched.folder, search(write("x").folder.parent / "again").folder])
    assert list(trainings(first, second)) == []
