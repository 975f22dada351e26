"""Laws of the last comparison's verdict: how often it is wrong, and what it is said of."""

import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from analysis.confirm import difference, last_comparison_lines
from analysis.page import contents
from analysis.plots.search import front, progress
from analysis.ranking import answers, ranking, section_title, winner
from analysis.settings import RankSettings
from analysis.study import open_study
from tests.analysis.conftest import Printed, Written, results_of
from tune.arithmetic import student

BLOCKS = 24


def drawn(rng: np.random.Generator, *seeds: int, by_seed: float, by_text: float, apart: float) -> Any:
    """Losses of two configurations (seeds, blocks): the text has its own say in each of them, and so has each seed."""
    text = rng.normal(2.0, 0.5, BLOCKS)
    return [
        text + rng.normal(0, by_text, BLOCKS) + rng.normal(0, by_seed, (count, 1)) + number * apart
        for number, count in enumerate(seeds)
    ]


@pytest.mark.parametrize("seeds", [(2, 2), (4, 4), (2, 6)])
@pytest.mark.parametrize(("by_seed", "by_text"), [(0.01, 0.001), (0.01, 0.03), (0.001, 0.03)])
def test_two_alike_seldom_differ_significantly_and_two_far_apart_mostly_do(
    seeds: tuple[int, int], by_seed: float, by_text: float
) -> None:
    """Whatever it is that spreads them: far is eight standard errors."""
    rng, draws = np.random.default_rng(0), 400
    error = math.sqrt(sum(by_seed**2 / count for count in seeds) + 2 * by_text**2 / BLOCKS)
    found = {
        apart: sum(
            abs(nats) > half
            for _ in range(draws)
            for nats, half in [difference(*drawn(rng, *seeds, by_seed=by_seed, by_text=by_text, apart=apart))]
        )
        for apart in (0.0, 8 * error)
    }
    assert found[0.0] <= 0.1 * draws and found[8 * error] >= 0.85 * draws


def test_what_all_texts_and_seeds_agree_on_is_the_difference_and_turned_round_it_is_its_negative() -> None:
    rng = np.random.default_rng(1)
    first = rng.normal(2.0, 0.5, (1, BLOCKS)) + np.zeros((2, 1))
    assert difference(first, first + 0.25) == (pytest.approx(0.25), pytest.approx(0.0, abs=1e-9))
    one, other = drawn(rng, 2, 2, by_seed=0.01, by_text=0.01, apart=0.02)
    nats, half = difference(one, other)
    assert difference(other, one) == (pytest.approx(-nats), pytest.approx(half))


def test_the_fewer_degrees_of_freedom_the_wider() -> None:
    quantiles = [student(freedom) for freedom in (1, 1.5, 2, 5, 30, 1e9)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert student(5) == pytest.approx(2.571, rel=0.01) and student(30) == pytest.approx(2.042, rel=0.01)


def compared(study: Written, losses: dict[str, list[float | None]], blocks: int = BLOCKS) -> None:
    """Two trials at rung 1, one of which had its last segment, and their trainings with other seeds. None: none came
    to its end."""
    for number, (of, each) in enumerate(losses.items()):
        study.trial(of, d_model=64 * (number + 1), created=number, parameters=10**6)
        study.report(of, 9.0 - number, rung=1)
        for seed, loss in enumerate(each, 1):
            name = f"{of}{seed}"
            study.trial(name, d_model=64 * (number + 1), seed=seed, created=10 + number + seed, parameters=10**6)
            study.journal.insert(
                "decisions", {"at": 0.0, "trial": name, "action": "confirm", "reason": "", "report": 0}
            )
            if loss is not None:
                nats = [2048 * (loss + 0.3 * math.sin(block)) for block in range(blocks)]
                found = {"test_loss": sum(nats) / 2048 / blocks, "test_blocks": json.dumps(nats)}
                found |= {"whole_loss": loss, "whole_perplexity": math.exp(loss), "valid_loss": loss}
                found |= {"training_seconds": 30.0, "steps": 900}
                study.report(name, math.exp(loss), rung=None, final=1, **found)
    nats = {"valid_loss": math.log(4.0), "whole_loss": math.log(4.0), "whole_perplexity": 4.0}
    study.report(next(iter(losses)), 4.0, rung=None, final=1, **nats, training_seconds=90.0)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (
            [2.0, 2.002],
            r"^significant difference: t1 \(d64 .*\) is better than t2 \(d128 .*\) by 0\.500 ± 0\.\d+ nats a token",
        ),
        (
            [1.0, 1.002],
            r"^significant difference: t2 \(d128 .*\) is better than t1 .* by 0\.500 ± "
            r".* 900 steps \(30\S*\) and 900 .* 2 other ",
        ),
        ([1.4, 1.6], r"^no significant difference: t1 .* and t2 .* differ by 0\.001 ± \d\.\d+ nats a token"),
        ([2.0, None], r"^no significance test: .* 2 and 1 trainings with other seeds .* it takes 2 each"),
    ],
)
def test_it_is_said_in_one_line_of_the_ranking(
    write: Callable[..., Written], second: list[float | None], said: str
) -> None:
    study = write()
    compared(study, {"t1": [1.5, 1.502], "t2": second})
    (line,) = last_comparison_lines(open_study(study.folder), "nanogpt")
    assert "\n" not in line
    assert re.search(said, line), line


def test_of_a_test_split_of_one_block_it_is_said_what_to_do(write: Callable[..., Written]) -> None:
    study = write()
    compared(study, {"t1": [1.5, 1.502], "t2": [2.0, 2.002]}, blocks=1)
    (line,) = last_comparison_lines(open_study(study.folder), "nanogpt")
    assert line.startswith("no significance test: ") and "same blocks" not in line
    assert "is one block, and it takes 2: it needs more data" in line


def test_of_several_texts_each_is_told_of_its_own_comparison(write: Callable[..., Written], printed: Printed) -> None:
    one, other = write("one", corpora={"nanogpt": {"sha256": "b" * 64, "vocabulary": 90}}), write("other")
    for study in (one, other):
        compared(study, {"t1": [1.5, 1.502], "t2": [2.0, 2.002]})
    lines = printed(RankSettings, one.folder, other.folder).splitlines()
    said = [line.split(":")[0] for line in lines if ": significant difference:" in line]
    assert sorted(said) == ["nanogpt of one", "nanogpt of other"]


def test_without_one_nothing_is_said(searched: Written) -> None:
    assert last_comparison_lines(open_study(searched.folder), "nanogpt") == []


@pytest.mark.parametrize(("terms", "later", "better"), [
    ({"seconds": 99, "decision": 4}, {"t3": [1.0, 1.002], "t4": [2.0, 2.002]}, "t3"),
    ({"seconds": 99, "decision": 4}, {"t3": [1.0, 1.002], "t4": [2.0, None]}, "t1"),
    ({"seconds": 60, "decision": 2, "families": {}}, {}, "t1"),  # another processor, or a larger least gain
])  # fmt: skip
def test_the_last_comparison_that_came_to_its_end_counts(
    write: Callable[..., Written], terms: dict[str, Any], later: dict[str, list[float | None]], better: str
) -> None:
    study = write(caps=[{"at": 0, "seconds": 60}, {"at": 9, **terms}])
    compared(study, {"t1": [1.5, 1.502], "t2": [2.0, 2.002], **later})
    (line,) = last_comparison_lines(open_study(study.folder), "nanogpt")
    assert line.startswith(f"significant difference: {better} ")


def test_trainings_that_were_not_equally_long_are_not_tested(write: Callable[..., Written]) -> None:
    study = write()
    compared(study, {"t1": [1.5, 1.502], "t2": [2.0, 2.002]})
    study.journal.rows("UPDATE reports SET training_seconds = 60 WHERE trial IN ('t11', 't12')")
    (line,) = last_comparison_lines(open_study(study.folder), "nanogpt")
    assert line.startswith("no significance test: t1 ") and line.endswith(
        "one had 2.0 times the training seconds of the other."
    )


def test_who_was_trained_anew_has_a_place_but_is_on_no_curve(write: Callable[..., Written]) -> None:
    """One that was not measured on all that the others were has none: it would take it from them."""
    study = write()
    compared(study, {"t1": [1.5, 1.502, 1.6, 1.7], "t2": [2.0, 2.002]})
    for trial in ("t11", "t22"):
        study.journal.rows("UPDATE reports SET whole_perplexity = NULL WHERE trial = ?", trial)
    results = results_of(study)
    ranked = ranking(results)
    decayed = ranked[ranked["section"] == "decayed"]
    assert set(decayed["trial"]) == {"t1", "t12", "t13", "t14", "t21"} and decayed["on_whole"].all()
    others = ranked[ranked["section"] == "unranked"]
    assert set(others["trial"]) == {"t11", "t22"} and section_title(others, results).endswith(": not ranked")
    found, first = answers(results, ranked), winner(results, ranked)
    assert found is not None and first is not None and first["trial"] == "t1"
    assert found.among == 1, "to train one anew is no further trial"
    assert found.efficiency is None and results.reached["efficiency"].isna().all(), "two configurations make no curve"


def test_wherever_a_winner_is_told_it_may_be_one_trained_anew(bare: None, write: Callable[..., Written]) -> None:
    study = write()
    compared(study, {"t1": [1.30, 1.302], "t2": [2.0, 2.002]})
    study.charge("steps", 100.0, trial="t1")
    results = results_of(study)
    ranked = ranking(results)
    first, found = winner(results, ranked), answers(results, ranked)
    assert first is not None and found is not None and first["trial"] == found.perplexity["trial"] == "t11"
    assert found.among == 2, "of those that were trained anew there is none but itself"
    assert ranked.loc[ranked["front"] & (ranked["section"] == "decayed"), "trial"].tolist() == ["t11"]
    named = [text.get_text() for text in front(results, "nanogpt").figure.axes[0].texts]
    assert [text.split()[:2] for text in named] == [["winner:", "t11"]]
    assert progress(results, "nanogpt").data["trial"].iloc[-1] == "t11"
    (answer,) = contents(results.studies[0], None)["answers"]
    assert "(t11)" in answer["lead"] and ", of 2 there " in answer["why"], "as in the ranking"
