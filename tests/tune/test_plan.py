"""The laws of a plan: it spends and writes nothing, adds up, and buys more with more."""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import ray

from model.cost.probe import step_seconds
from tune import cli
from tune.corpora import Corpora, load_corpora
from tune.devices import Devices
from tune.dry_run import Plan, make_plan, plan_lines
from tune.recipe import NOMINAL, SETTABLE, StepPrices, launches, unused_settings
from tune.settings import Settings

SMALL = {"d_model": 16, "heads": 4}
"""Steps of a millisecond."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few pairs and a short text."""
    folder = tmp_path_factory.mktemp("texts")
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=4)) for _ in range(200)]
    sentences = [" ".join(rng.choices(words, k=6)) for _ in range(2400)]
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b[::-1]}\n" for a, b in zip(sentences, sentences, strict=True)))
    (folder / "text.txt").write_text("\n".join(sentences))
    return folder


@pytest.fixture(autouse=True)
def quick_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """No law here asks how good what is suggested is, or how fast this machine."""
    for module in ("dry_run", "search_context"):
        monkeypatch.setattr(f"tune.{module}.step_seconds", create_autospec(step_seconds, return_value=[0.05]))
    monkeypatch.setattr("tune.search.suggest.DRAWS", 100)
    monkeypatch.setattr("tune.search.suggest.FAVOURED", 20)


@pytest.fixture(scope="module")
def planned(texts: Path) -> Callable[..., Plan]:
    """Plans, of nanogpt where no families are asked for, each made once."""
    made: dict[str, Plan] = {}

    def plan(**changes: object) -> Plan:
        given = {"budget": 600.0, "families": "nanogpt", "fix": SMALL, "devices": 2, "oversubscribe": True, **changes}
        if repr(given) not in made:
            corpora = {"translation_corpus": texts / "pairs.tsv", "text_corpus": texts / "text.txt"}
            made[repr(given)] = make_plan(Settings(**given, **corpora))
        return made[repr(given)]

    return plan


def test_nothing_is_spent_or_written(
    planned: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))  # made when torch is imported
    assert planned(seed=1).families["nanogpt"].started
    assert not ray.is_initialized()
    assert list((tmp_path / "here").iterdir()) == list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"families": "nanogpt,translation"},
        {"budget": 5400.0},
        {"rungs": "tokens"},
        {"confirm": 2},
        {"objective": "front"},
    ],
)
def test_it_adds_up_to_the_cap(planned: Callable[..., Plan], changes: dict[str, object]) -> None:
    plan = planned(**changes)
    cap = plan.settings.budget
    assert sum(plan.spending.values()) == pytest.approx(cap)
    assert 0 <= plan.spending["unspent"] <= 0.03 * cap
    families = plan.families.values()
    assert sum(each.explore + each.kept + each.anew + each.start_up for each in families) == pytest.approx(cap)
    assert sum(each.anew_seconds for each in families) == pytest.approx(plan.spending.get("--confirm", 0.0))
    for each in families:
        assert each.trained_anew == 2 * plan.settings.confirm and each.anew_seconds <= each.anew
    assert sum(rung.seconds for each in families for rung in each.rungs) == pytest.approx(plan.spending["rungs"])
    assert sum(each.finish for each in families) == pytest.approx(plan.spending["last segments"])
    assert plan.wall >= cap / plan.slots
    for family in families:
        counts = [rung.trials for rung in family.rungs]
        assert counts[0] == family.started and counts == sorted(counts, reverse=True)


def test_more_budget_starts_more_trials(planned: Callable[..., Plan]) -> None:
    started = [sum(each.started for each in planned(budget=cap).families.values()) for cap in (120.0, 600.0, 5400.0)]
    assert started == sorted(set(started))


def test_a_larger_model_takes_fewer_steps_to_a_rung_for_the_same_price(planned: Callable[..., Plan]) -> None:
    sizes = planned(fix={"d_model": 32}).families["nanogpt"].sizes
    assert len(sizes) > 1
    assert [size.parameters for size in sizes] == sorted({size.parameters for size in sizes})
    for size in sizes:
        assert size.prices == pytest.approx(sizes[0].prices, rel=0.1)
        assert [each * size.step for each in size.steps] == pytest.approx(
            [rung.training for rung in planned(fix={"d_model": 32}).families["nanogpt"].rungs], rel=0.1
        )


def test_what_does_not_fit_in_memory_is_named_and_not_started(planned: Callable[..., Plan]) -> None:
    memory = planned(fix={}, memory_limit=300_000_000).families["nanogpt"].memory
    assert 0 < len(memory.unfit) < memory.configs
    assert memory.largest < memory.limit
    assert not planned().families["nanogpt"].memory.unfit


def test_a_deadline_is_planned_for(planned: Callable[..., Plan]) -> None:
    plan = planned(budget=1200.0, deadline=150.0)
    assert sum(plan.spending.values()) == pytest.approx(1200)
    assert plan.spending["unspent"] >= 1200 - 2 * 150
    assert plan.wall < 200


H100 = Devices(
    kind="cuda", count=1, model="H100", precisions=("fp32", "tf32", "bf16", "fp16"), cores=16,
    memory_bytes=80_000_000_000,
)  # fmt: skip


def on_gpus(monkeypatch: pytest.MonkeyPatch, texts: Path, tokens: int, gpus: int, hours: float, **asked: Any) -> Plan:
    """Of nanogpt on so many, and a text with so many tokens to train on, of which only the beginning is there."""

    def loaded(settings: Settings, kind: str) -> Corpora:
        found = load_corpora(settings, kind)
        text = found.data["text"]
        train = np.broadcast_to(text.train[:1], (tokens,))
        valid = np.broadcast_to(text.valid[:1], (min(tokens // 20, 200_000),))
        return replace(found, data={"text": replace(text, train=train, valid=valid, test=valid)})

    monkeypatch.setattr("tune.search_context.measured_prices", lambda *_: (NOMINAL["cuda"], 0.0))
    monkeypatch.setattr("tune.dry_run.Speeds.prices", lambda speeds: NOMINAL["cuda"])
    monkeypatch.setattr("tune.search_context.load_corpora", loaded)
    monkeypatch.setattr("tune.dry_run.find_devices", lambda settings: replace(H100, count=gpus))
    asked |= {"families": "nanogpt", "text_corpus": texts / "text.txt", "patient": gpus == 1}  # on one it says nothing
    return make_plan(Settings(budget=hours * 3600, **asked))


@pytest.mark.parametrize(("hours", "gpus"), [(8, 1), (8, 8), (64, 1), (64, 8)])
def test_gpu_hours_are_worth_long_contexts_full_steps_many_trials_and_models_that_see_enough_tokens(
    texts: Path, monkeypatch: pytest.MonkeyPatch, hours: int, gpus: int
) -> None:
    plan = on_gpus(monkeypatch, texts, 2 * 10**9, gpus, hours)
    family = plan.families["nanogpt"]
    assert family.recipe.context >= 256 and family.started >= 30 and family.favourites
    for each in family.favourites:
        assert each.fills is not None and 0.2 <= each.fills <= 1 + 1e-9
        assert 5 <= each.seen <= 100 * max(1.0, each.epochs)  # where the text has them
    doubts = ("  The text", "  The cap", "  The space", "  A step")
    assert not [line for line in plan_lines(plan) if line.startswith(doubts)]


def test_a_text_that_is_too_small_for_the_cap_is_told_in_a_line(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = [line for line in plan_lines(on_gpus(monkeypatch, texts, 10**6, 1, 8)) if "text is small" in line]
    assert len(told) == 1 and len(told[0]) <= 120 and "--text-corpus" in told[0]


@pytest.mark.parametrize("asked", [{"fix": {"d_model": 16}}, {"at_most": 100_000}], ids=str)
def test_a_space_that_is_too_small_for_the_cap_is_told_in_a_line_by_what_bounds_it(
    texts: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    plan = on_gpus(monkeypatch, texts, 2 * 10**10, 1, 8, **asked)
    (told,) = (line for line in plan_lines(plan) if line.startswith("  The space"))
    assert len(told) <= 120 and "--" + next(iter(asked)).replace("_", "-") in told


def test_a_gpu_that_steps_leave_idle_is_told_unless_it_is_shared(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = on_gpus(monkeypatch, texts, 2 * 10**9, 1, 8, fix={"d_model": 16})
    for number, lines in ((1, 1), (4, 0)):
        shared = replace(plan, settings=replace(plan.settings, trials_per_gpu=number))
        told = [line for line in plan_lines(shared) if "--trials-per-gpu" in line]
        assert len(told) == lines and all(len(line) <= 120 for line in told)


@pytest.mark.parametrize("family", ["nanogpt", "translation"])
def test_a_step_takes_what_takes_longer_its_kernels_or_their_arithmetic(family: str) -> None:
    prices, kernels = StepPrices(flops=1e12, launch_seconds=1e-6), launches(family, 4)
    small, large = prices.step(kernels, 1e3), prices.step(kernels, 1e12)
    assert prices.step(kernels, 2e3) == small and prices.step(2 * kernels, 2e3) == 2 * small
    assert prices.step(2 * kernels, 1e12) == large and prices.step(kernels, 2e12) == 2 * large
    rates = [prices.trained(family, weights, 6 * weights * 1024) for weights in (1e3, 1e5, 1e7, 1e9)]
    assert rates == sorted(rates) and rates[0] < rates[1] and rates[-1] == pytest.approx(prices.flops)


def test_the_command_prints_it_in_lines_that_fit(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = "--budget 8h --plan --families nanogpt --fix d_model=16,layers=2,precision=fp32 --devices 2 --oversubscribe"
    assert cli.main(Settings, [*flags.split(), "--text-corpus", str(texts / "text.txt")]) == 0
    printed = capsys.readouterr().out
    assert all(len(line) <= 120 for line in printed.splitlines())
    assert re.search(r"^started +6 trials", printed, re.MULTILINE)  # all that such a space has
    assert re.search(r"^spent +[1-8]h\S* of 8h \(\d+\.\d %\)$", printed, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("family", ["nanogpt", "translation"])
def test_it_names_no_part_of_a_recipe_that_changes_nothing_of_its_family(
    planned: Callable[..., Plan], family: str
) -> None:
    plan, idle = planned(families=family), set(unused_settings(family))
    assert {line.split()[0] for line in plan_lines(plan) if line.strip()} & {*SETTABLE} == {*SETTABLE} - idle
    assert ("context" in plan.families[family].recipe.line(family)) == ("context" not in idle)


@pytest.mark.parametrize("days", [0, 1, 40])
def test_what_ends_after_a_day_has_its_date(planned: Callable[..., Plan], days: int) -> None:
    wall = days * 86_400.0 + 60
    (told,) = (line for line in plan_lines(replace(planned(), wall=wall)) if line.startswith("wall clock"))
    when = r" on \d{4}-\d\d-\d\d" if days else ""
    assert re.search(rf"it ends at \d\d:\d\d{when}$", told)


def test_it_tells_what_patience_costs_and_brings(planned: Callable[..., Plan]) -> None:
    """On many devices; on one there is no choice."""
    plan, patient = planned(devices=8), planned(devices=8, patient=True)
    assert plan.patient is not None and plan.patient[0] > plan.wall and plan.patient[1] > 0
    assert patient.patient is None and patient.wall == pytest.approx(plan.patient[0], rel=0.05)
    assert planned(devices=1).patient is None


@pytest.mark.parametrize(("changes", "steeper_has_more"), [({}, True), ({"search": "random"}, False)], ids=str)
def test_where_shapes_are_suggested_a_leader_whose_loss_falls_steeply_has_more(
    planned: Callable[..., Plan], changes: dict[str, object], steeper_has_more: bool
) -> None:
    families = planned(families="nanogpt,translation", **changes).families
    assert (families["translation"].kept > families["nanogpt"].kept) is steeper_has_more


def test_the_first_rung_passes_a_warm_up(planned: Callable[..., Plan]) -> None:
    """Before its end a loss tells who steps the fastest."""
    short, long = (planned(set={"warm_up_steps": steps}).families["nanogpt"].rungs[0].training for steps in (1, 20_000))
    assert long > 1.5 * short
