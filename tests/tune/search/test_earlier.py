"""What earlier studies teach a new one: it begins with what they knew, as far as that holds here too."""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.training.checkpoint import model_resume_checkpoint
from tests.tune.search.world import Ticking, opened
from tests.tune.test_registry import CORE
from tune.assembly import make_engine, parameters
from tune.dry_run import make_plan, plan_lines
from tune.errors import UserError
from tune.prospects import restore_policies
from tune.recipe import StepPrices
from tune.search.earlier import WarmStart, learn_from_studies, read_earlier_study
from tune.search.engine import Engine
from tune.search.family import CostModel
from tune.search.forecast import Progress, Standings
from tune.search.ladder import Rules
from tune.search.resume import restore
from tune.search.scaling_law import Observation, ScalingLaw
from tune.search.simulator import Costs, PowerLaw, Simulation
from tune.search_context import SearchContext, make_conditions, make_search_context
from tune.search_space import Config
from tune.settings import Settings
from tune.store.journal import Journal

LAW = ScalingLaw(floor=1.2, of_size=0.3, size_power=0.5, of_tokens=0.6, token_power=0.4, size_unit=2e5, token_unit=1e4)
COSTS = Costs(start_up=2.25, overhead=0.75)
CAP = 300.0


class Lawful(PowerLaw):
    """A training as the law has it, a token a step, of which large models have few in a second."""

    def __init__(self, *, parameters: int) -> None:
        super().__init__(parameters=parameters, step_seconds=0.002 * (parameters / 1e5) ** 1.5)

    def loss(self, steps: float) -> float:
        return LAW.loss(self.parameters, max(1.0, steps))


def truly(context: SearchContext, config: Config) -> float:
    """The loss of a configuration that is trained for the whole cap."""
    course = Lawful(parameters=parameters(context, "nanogpt", config))
    return course.loss(CAP / course.step_seconds)


class Made:
    """A search in virtual time; another one in the same folder goes on with it."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.settings, self.context = settings, make_search_context(settings, CORE)
        folder.mkdir(exist_ok=True)
        (folder / "study.json").write_text(json.dumps(self.context.facts()))
        self.journal, there = opened(folder)
        clock = Ticking()
        self.engine: Engine = make_engine(self.context, self.journal, [], now=clock, elapsed=0.0)
        self.told = restore(self.engine, model_resume_checkpoint, None, CORE.processor) if there else []
        self.journal.write_facts(**self.context.facts())
        self.family = self.engine.families["nanogpt"]
        self.simulation = Simulation(self.engine, clock, COSTS, self.course)

    def course(self, trial: str, family: str, config: Mapping[str, Any]) -> Lawful:
        return Lawful(parameters=parameters(self.context, family, config))

    def run(self, reports: float = math.inf) -> "Made":
        self.simulation.run(reports)
        self.journal.close()
        return self


@pytest.fixture(scope="module", autouse=True)
def measured() -> Any:
    """No device is measured for a recipe, and there is one processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tune.search_context.measured_prices", lambda *_: (StepPrices(flops=2e11), 0.0))
        patch.setattr("tune.devices.cpu_name", lambda: CORE.processor)
        patch.setattr("model.cost.probe.MEASURED_STEPS", 2)
        yield


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """For a search on a short text."""
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("to be or not to be, that is the question. " * 5000)
    return Settings(budget=CAP, families="nanogpt", text_corpus=text, set="context=64")


@pytest.fixture(scope="module")
def old(asked: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search that came to its end; a trial took a little more memory than was predicted."""
    folder = tmp_path_factory.mktemp("studies") / "old"
    Made(folder, asked).run()
    with Journal(folder, new=False) as journal:
        (row,) = journal.rows("SELECT trial, lease, predicted FROM memory WHERE event = 1")
        taken = {"predicted": row["predicted"], "measured": row["predicted"] + 50_000_000}
        journal.insert("memory", {"at": 1.0, "trial": row["trial"], "lease": row["lease"], "micro_batches": 1, **taken})
    return folder


@pytest.fixture(scope="module")
def new(asked: Settings, old: Path) -> SearchContext:
    """What another search stands on that learned from it."""
    return make_search_context(replace(asked, learn_from=(old,), seed=1), CORE)


def begun(context: SearchContext) -> Engine:
    """A search before its first trial."""
    return make_engine(context, Journal(None, new=True), [], elapsed=0.0)


def first_ones(context: SearchContext, count: int = 5) -> list[Config]:
    suggestions = begun(context).families["nanogpt"].suggestions
    return [suggestions.suggest(f"t{number:03d}") for number in range(count)]


def test_its_first_prices_are_the_earlier_ones(new: SearchContext) -> None:
    engine = begun(new)
    prices = engine.families["nanogpt"].cost_model
    assert (prices.start_up, prices.segment(None, 10.0)) == pytest.approx((COSTS.start_up, 10 + COSTS.overhead))
    ladder = engine.families["nanogpt"].policy.ladder
    assert ladder.overhead == pytest.approx(COSTS.overhead)


def test_it_takes_as_much_memory_for_granted_as_trials_took(asked: Settings, new: SearchContext) -> None:
    config = new.spaces["nanogpt"].default()
    more = new.memories["nanogpt"].predicted(config, 1) - make_search_context(asked, CORE).memories[
        "nanogpt"
    ].predicted(config, 1)
    assert more == pytest.approx(50e6)


def test_before_its_first_trial_it_knows_what_is_fast_and_what_that_comes_to(
    asked: Settings, new: SearchContext
) -> None:
    """Its first suggestions are better than those of a search that knows nothing."""
    unknowing = make_search_context(replace(asked, seed=1), CORE)
    small, large = (begun(new).families["nanogpt"].policy.outlook(size, 1e3) for size in (2e4, 1e6))
    assert small > large and begun(unknowing).families["nanogpt"].policy.outlook(2e4, 1e3) is None
    knows, does_not = ([truly(new, each) for each in first_ones(context)] for context in (new, unknowing))
    assert sum(knows) < sum(does_not) and min(knows) <= min(does_not)
    without_speeds = replace(new, learned={"nanogpt": replace(new.learned["nanogpt"], speeds=())})
    assert first_ones(new) != first_ones(without_speeds)


def test_what_won_comes_first_and_the_size_to_begin_with_nears_it(
    asked: Settings, old: Path, new: SearchContext
) -> None:
    """Where today's compute is not another by far: then only the size counts, and grows with the compute."""
    with Journal(old, new=False) as journal:
        rows = journal.rows("SELECT config FROM trials WHERE state = 'finished'")
    assert first_ones(new, 1) == [json.loads(row["config"]) for row in rows]
    own, learned = make_search_context(asked, CORE).recipes["nanogpt"], new.recipes["nanogpt"]
    assert learned.weights < own.weights and learned.tokens > own.tokens
    assert learned.weights * learned.tokens == pytest.approx(own.weights * own.tokens)
    later = make_search_context(replace(asked, learn_from=(old,), budget=100 * CAP), CORE)
    assert later.recipes["nanogpt"].weights > learned.weights
    assert later.learned["nanogpt"].first == () != new.learned["nanogpt"].first


def test_retrainings_with_other_seeds_take_no_place_of_another_configuration(
    asked: Settings, old: Path, new: SearchContext, tmp_path: Path
) -> None:
    shutil.copytree(old, tmp_path / "old")
    with Journal(tmp_path / "old", new=False) as journal:
        (best,) = (dict(row) for row in journal.rows("SELECT * FROM trials WHERE state = 'finished'"))
        journal.rows("UPDATE reports SET whole_loss = valid_loss, whole_perplexity = perplexity WHERE final")
        (end,) = (dict(row) for row in journal.rows("SELECT * FROM reports WHERE trial = ? AND final", best["trial"]))
        for seed in (1, 2, 3):
            again = {"trial": f"r{seed}", "config": json.dumps(json.loads(best["config"]) | {"seed": seed})}
            journal.insert("trials", best | again)
            journal.insert("reports", {**end, "report": None, "lease": None, "trial": again["trial"]})
            journal.insert("decisions", {"at": 1.0, "trial": again["trial"], "action": "confirm", "reason": ""})
    learned = make_search_context(replace(asked, learn_from=(tmp_path / "old",), seed=1), CORE)
    assert learned.learned["nanogpt"].first == new.learned["nanogpt"].first


def test_killed_and_resumed_without_the_earlier_study_it_decides_the_same(
    asked: Settings, old: Path, tmp_path: Path
) -> None:
    """As one that was not killed: what was learned stands in the new study."""
    there = shutil.copytree(old, tmp_path / "old")
    for reports in (1, 6):
        study = tmp_path / f"new-{reports}"
        lives = Made(study, replace(asked, learn_from=(there,), out=study)).run(reports)
        gone = there.rename(tmp_path / "gone")
        killed = Made(study, Settings.of_study(study))
        gone.rename(there)
        assert killed.told == [] and killed.context.facts()["learned"] == lives.context.facts()["learned"]
        one, other = lives.family, killed.family
        assert one.state() == other.state()
        assert one.policy.ladder == other.policy.ladder
        assert one.policy.outlook(1e5, 1e3) == other.policy.outlook(1e5, 1e3) is not None
        read_only = restore_policies(killed.journal, killed.settings, study, slots=1, share=1.0)["nanogpt"]
        assert read_only.outlook(1e5, 1e3) == one.policy.outlook(1e5, 1e3)
        for rung in range(3):
            assert one.price(None, None, rung) == other.price(None, None, rung)
        names = [f"t9{number:02d}" for number in range(4)]
        assert [one.suggestions.suggest(name) for name in names] == [other.suggestions.suggest(name) for name in names]
        killed.run()
        assert killed.engine.accounting.ledger.spent <= CAP


def test_no_second_of_another_processor_counts(asked: Settings, old: Path, new: SearchContext) -> None:
    context = make_search_context(replace(asked, learn_from=(old,)), replace(CORE, processor="another"))
    learned = context.learned["nanogpt"]
    prices, nothing = begun(context).families["nanogpt"].cost_model, CostModel()
    assert (prices.start_up, prices.segment(None, 1.0)) == (nothing.start_up, nothing.segment(None, 1.0))
    assert learned.speeds == () and learned.trials == new.learned["nanogpt"].trials != ()
    (line,) = [note for note in context.notes if "learns from" in note]
    assert "another processor" in line and "another text" not in line


def test_of_a_study_of_two_processors_no_second_counts_and_its_compute_is_that_of_what_it_spent(
    old: Path, tmp_path: Path
) -> None:
    shutil.copytree(old, moved := tmp_path / "moved")
    with Journal(moved, new=False) as journal:
        facts: Any = journal.facts()
        (caps,) = facts["caps"]
        first = {**caps, "seconds": 2 * caps["seconds"], "processor": "one"}
        journal.write_facts(caps=[first, {**caps, "processor": "another"}])
    whole, half = (read_earlier_study(folder, ["nanogpt"])["nanogpt"].ground for folder in (old, moved))
    assert half.processor == "" and half.compute == pytest.approx(whole.compute / 2)


def test_seconds_count_of_as_large_a_part_of_a_device_and_no_slow_start_keeps_a_small_search_from_one(
    old: Path, new: SearchContext
) -> None:
    name, space = "nanogpt", new.spaces["nanogpt"]
    study, here = read_earlier_study(old, [name])[name], make_conditions(new.devices, new.recipes[name], new.data[name])
    assert learn_from_studies([study], here, space, CAP) == new.learned[name]
    half = learn_from_studies([study], replace(here, share=0.5), space, CAP)
    assert (half.speeds, half.overhead, half.start_up) == ((), WarmStart().overhead, WarmStart().start_up)
    slow = replace(study, start_ups=(50.0,), overheads=(30.0,))
    small, large = (learn_from_studies([slow], here, space, seconds) for seconds in (44.0, 5000.0))
    assert (large.start_up, large.overhead) == (50.0, 30.0)
    assert small.start_up < 7 and small.overhead < 7


@pytest.mark.parametrize(
    ("change", "said"),
    [({}, "another text"), ({"context": 32}, "another context)"), ({"dropout_after": 0.0}, "another dropout_after)")],
)
def test_no_loss_of_another_text_counts(
    asked: Settings, old: Path, new: SearchContext, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    """Nor by another recipe. Seconds do, and what won is tried."""
    (tmp_path / "text.txt").write_text("whether 'tis nobler in the mind to suffer. " * 5000)
    other = {"text_corpus": tmp_path / "text.txt"} if not change else {"set": {"context": 64, **change}}
    context = make_search_context(replace(asked, learn_from=(old,), **other), CORE)
    learned = context.learned["nanogpt"]
    assert learned.trials == () and begun(context).families["nanogpt"].policy.outlook(1e5, 1e3) is None
    assert learned.speeds == new.learned["nanogpt"].speeds != ()
    (line,) = [note for note in context.notes if "learns from" in note]
    assert said in line and "another processor" not in line


def test_losses_on_another_subset_of_the_text_are_brought_to_todays_level() -> None:
    """What is predicted of a trial of which little is known follows from those of today."""

    def predicted(times: float) -> float:
        standings = Standings(lambda rung: 1.0, lambda rung, seconds: 8.0, Rules())
        standings.learn(
            [
                [Observation(size=size, tokens=tokens, loss=LAW.loss(size, tokens)) for tokens in (1e3, 2e3, 4e3, 8e3)]
                for size in (2e4, 5e4, 1e5, 2e5, 5e5, 1e6)
            ]
        )  # fmt: skip
        for size in (1e6, 5e5, 2e5, 1e5, 5e4, 2e4):
            trial = f"{size:g}"
            standings.note_departure(trial, 0)
            at = Progress(size=size, tokens=2e3, seconds=1.0)
            standings.record(trial, 0, times * LAW.loss(size, 2e3), telling=True, progress=at)
        return standings.expected(trial)[0]

    assert predicted(1.0) == pytest.approx(LAW.loss(2e4, 1.6e4), rel=0.02)
    assert predicted(1.05) / predicted(1.0) == pytest.approx(1.05, rel=0.005)


def test_a_plan_respects_it_and_says_so(asked: Settings, old: Path) -> None:
    plan = make_plan(replace(asked, learn_from=(old,), devices=1, fix={"d_model": 32, "layers": 2}))
    assert (plan.costs.start_up, plan.costs.overhead) == pytest.approx((COSTS.start_up, COSTS.overhead))
    assert any("learns from" in line for line in plan_lines(plan))


def test_where_more_varies_today_other_configurations_count_for_nothing(asked: Settings, old: Path) -> None:
    """Nor do they hinder: here batches vary, and what was learned has none."""
    context = make_search_context(replace(asked, learn_from=(old,), vary=("batch_tokens",)), CORE)
    learned = context.learned["nanogpt"]
    assert learned.speeds == learned.trials == learned.first == ()
    strange = replace(
        context, learned={"nanogpt": make_search_context(replace(asked, learn_from=(old,)), CORE).learned["nanogpt"]}
    )
    for each in (context, strange):
        assert all("batch_tokens" in config for config in first_ones(each))


def test_several_are_told_together(asked: Settings, old: Path, new: SearchContext, tmp_path: Path) -> None:
    Made(tmp_path / "again", replace(asked, seed=7)).run()
    both = make_search_context(replace(asked, learn_from=(old, tmp_path / "again")), CORE).learned["nanogpt"]
    alone = new.learned["nanogpt"]
    assert len(both.trials) > len(alone.trials) and len(both.speeds) > len(alone.speeds)
    assert both.first[0] == alone.first[0] and both.beyond == alone.beyond


def test_what_cannot_tell_anything_is_refused_in_a_line(asked: Settings, old: Path, tmp_path: Path) -> None:
    nothing, damaged = tmp_path / "nothing", shutil.copytree(old, tmp_path / "damaged")
    experiment = shutil.copytree(old, tmp_path / "experiment")
    with Journal(damaged, new=False) as journal:
        journal.write_facts(recipes={"nanogpt": {"weights": "many"}})
    with Journal(experiment, new=False) as journal:
        journal.write_facts(experiment="methods")
    loop = shutil.copytree(old, tmp_path / "loop")
    with Journal(loop, new=False) as journal:
        journal.write_facts(recipes={})
    rules = ("holds no", "damaged", "is of no search", "is of a training loop, and nanogpt is searched")
    for folder, rule in zip((nothing, damaged, experiment, loop), rules, strict=True):
        with pytest.raises(UserError, match=f"^--learn-from: [^\n]*{rule}[^\n]*$"):
            make_search_context(replace(asked, learn_from=(folder,)), CORE)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{number} a\tb {number}\n" for number in range(3000)))
    translation = Settings(budget=CAP, families="translation", translation_corpus=pairs, learn_from=old)
    with pytest.raises(UserError, match=r"^--learn-from: [^\n]*is of nanogpt, and translation is searched[^\n]*$"):
        make_search_context(translation, CORE)


def test_what_is_stored_is_read_back_and_strangers_are_refused(new: SearchContext) -> None:
    learned = new.learned["nanogpt"]
    stored = json.loads(json.dumps(learned.stored()))
    assert WarmStart.from_stored(stored) == learned
    for change in (
        {"overhead": "much"}, {"start_up": math.inf}, {"beyond": -1.0}, {"speeds": 3}, {"speeds": [[1]]},
        {"speeds": [[{}, 1.0, 1.0, 1.0]]}, {"trials": [[["a", 1, 1]]]}, {"trials": "none"}, {"first": [{"layers": []}]},
    ):  # fmt: skip
        with pytest.raises((LookupError, TypeError, ValueError)):
            WarmStart.from_stored({**stored, **change})
