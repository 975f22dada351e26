"""The search context: what the settings of a search come to on this machine, checked before anything is written."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from model.config import OLD_DEFAULTS, Config, Data, family_recipe, pad_of
from model.cost.probe import LEAST_STEPS, step_seconds
from model.data.corpus import CORPORA
from model.data.dataset import OwnData, PairData, TextData
from model.data.resident import clear_memoized
from model.families import BUILT_IN, FAMILIES
from model.training.learner import dry_batch, missing_for_compiling
from model.training.memory import give_back_freed, machine_bytes, ran_out
from tune.corpora import load_corpora
from tune.devices import Devices
from tune.errors import UserError, error_text
from tune.facts import facts_of
from tune.flags import AUTO, invalid, under_flag
from tune.load import Loop
from tune.own_space import OwnSpace
from tune.recipe import (
    FILLING_TOKENS,
    LEAST_EPOCH_STEPS,
    LEAST_TOKENS_A_WEIGHT,
    NOMINAL,
    WINDOWS,
    Recipe,
    StepPrices,
    launches,
    most_weights,
    recipe,
    unused_settings,
)
from tune.reports import Metric
from tune.search.earlier import (
    ALIKE,
    Conditions,
    EarlierStudy,
    WarmStart,
    describe_reuse,
    extra_memory_bytes,
    learn_from_studies,
    read_earlier_study,
    suggested_model_size,
)
from tune.search.family import FIRST_OVERHEAD_SECONDS, FIRST_START_UP_SECONDS
from tune.search.ladder import CONFIRM_SHARE, WALL_CLOCK_MULTIPLE
from tune.search.listed import ListEntry
from tune.search.memory_model import MemoryModel, first_overhead
from tune.search_space import (
    EXTRA_WIDTHS,
    PER_LAYER,
    SPACES,
    Dimensions,
    Space,
    Value,
    extend_widths,
    layer_weights,
    least_rows,
    merge_dimensions,
    recipe_field_values,
)
from tune.settings import Settings
from tune.store.journal import Journal, study_facts
from tune.units import at_most_text, bytes_text, duration_text

SHORTEST_RUNG_SECONDS = 4.0
"""Least training at rung 0."""


@dataclass(frozen=True, kw_only=True)
class ListedStudy:
    """A study of a list. experiment: whose list it is; evaluation_tokens: of the validation subset, and as many of the
    training split; lines: yields the lines to print on the trials that came to their ends."""

    experiment: str
    listed: Sequence[ListEntry]
    evaluation_tokens: int
    lines: Callable[[Journal], Iterable[str]]


@dataclass(frozen=True, kw_only=True)
class SearchContext:
    """The context of a search; each mapping is by family.

    settings: with each corpus named; devices: shared as the settings ask; recipes: what is not searched of a trial's
    Config; prices: of steps, as measured for the recipes, none in a resumed study; probed: seconds of a device that
    measuring took; trial_memory_limit: bytes to which a trial is limited; learned: from earlier studies; notes: lines
    for the user, such as which texts are used and why; begun: when the search was asked for, on the monotonic clock;
    loop: a user's own, in place of all families; listed: a list, in place of a search.
    """

    settings: Settings
    devices: Devices
    spaces: Mapping[str, Space | OwnSpace]
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    prices: Mapping[str, StepPrices] = field(default_factory=dict)
    probed: float = 0.0
    data: Mapping[str, Data] = field(default_factory=dict)
    memories: Mapping[str, MemoryModel]
    trial_memory_limit: int | None = None
    learned: Mapping[str, WarmStart] = field(default_factory=dict)
    notes: Sequence[str] = ()
    begun: float
    loop: Loop | None = None
    listed: ListedStudy | None = None

    @property
    def dimensions(self) -> Dimensions:
        """Return the dimensions of the configurations of all families, with their values."""
        if self.listed:
            return merge_dimensions(
                {name: (value,) for name, value in each.config.items()} for each in self.listed.listed
            )
        return merge_dimensions(space.unrestricted.dimensions for space in self.spaces.values())

    def config(self, family: str, point: Mapping[str, Any]) -> Config:
        """Return the Config of a trial at a point of a family's space."""
        return whole_config(self.recipes[family], family, point, self.settings.seed)

    @property
    def metric(self) -> Metric | None:
        """Return the metric by which a user's loop is judged; None: perplexity."""
        return None if self.loop is None else self.loop.metric

    def facts(self) -> dict[str, Any]:
        """Return the facts of the study, as study.json and the journal keep them."""
        recipes = {name: asdict(each) for name, each in self.recipes.items()}
        facts: dict[str, Any] = {"experiment": self.listed.experiment} if self.listed else {}
        facts |= {"learned": {name: each.stored() for name, each in self.learned.items()}} if self.learned else {}
        return facts_of(self.settings, self.devices, self.data, recipes=recipes, **facts)


def whole_config(recipe: Recipe, family: str, point: Mapping[str, Any], seed: int = 0) -> Config:
    """Return the Config of a trial at a point of a family's space, with the family's recipe."""
    return Config.at(recipe.at(point), family=family, seed=seed)


def make_search_context(settings: Settings, devices: Devices) -> SearchContext:
    """Return the context of a search of families on these devices. UserError: a setting that cannot serve."""
    begun = time.monotonic()
    spaces = {name: settings.space_of(name, devices.precisions) for name in settings.families}
    check_cap(settings, devices.slots)
    if settings.resume is None:
        check_idle(settings)
    recipes, learned = ({}, {}) if settings.resume is None else load_stored_recipes(settings.resume, spaces)
    earlier = [] if recipes else [read_earlier_study(folder, spaces) for folder in settings.learn_from]
    texts = load_corpora(settings, devices.kind)
    of_kind = texts.data if settings.address is None else {kind: replace(each) for kind, each in texts.data.items()}
    data = {name: of_kind[FAMILIES[name].corpus] for name in settings.families}  # other machines lack this one's cache
    spaces = {name: limit_model_size(space, settings, data[name], settings.set) for name, space in spaces.items()}
    measured = {
        name: measured_prices(settings, devices, space, data[name])
        for name, space in spaces.items() if not recipes
    }  # fmt: skip
    of = {name: [each[name] for each in earlier if name in each] for name in spaces}
    recipes = recipes or {
        name: make_recipe(settings, devices, space, data[name], round_prices(*measured[name]), of[name])
        for name, space in spaces.items()
    }
    for name, space in spaces.items():
        check_batch(settings, space, recipes[name], data[name])
        spaces[name], recipes[name] = apply_vary(space, recipes[name], settings.vary, data[name])
        spaces[name] = limit_model_size(spaces[name], settings, data[name], recipes[name].config)
        first_configs(settings, spaces[name])
        check_learns(whole_config(recipes[name], name, spaces[name].default(), settings.seed), data[name])
    memories = {
        name: make_memory(
            name, recipes[name], each, devices.kind,
            learned[name].beyond if name in learned else extra_memory_bytes(of[name], devices.kind),
        )
        for name, each in data.items()
    }  # fmt: skip
    shared = devices.with_sharing(settings, max(memories[name].predicted(spaces[name].default(), 1) for name in spaces))
    if settings.trials_per_gpu == AUTO:
        # trials_each decides how much of the cap one trial can use, and so the recipe; the study keeps it
        found = make_search_context(replace(settings, trials_per_gpu=shared.trials_each), devices)
        return replace(found, probed=found.probed + sum(seconds for _, seconds in measured.values()), begun=begun)
    if devices.kind == "cuda":  # the texts lie there for the measuring, and trials bring their own
        clear_memoized()
        give_back_freed()
    devices = shared
    asked, notes = memory_limit(settings, devices)
    compiles = devices.kind == "cpu" and any(FAMILIES[name].compiles for name in spaces) and not settings.address
    if compiles and (lacking := missing_for_compiling()):
        slow = "steps are not compiled, so long trainings are up to 1.4 times slower"
        what, remedy = lacking
        notes.append(f"no {what}: {slow}; {remedy}")
    limits = [limit for limit in (asked, devices.trial_bytes) if limit is not None]
    for memory in memories.values():
        memory.limit = min(limits, default=math.inf)
    check_memory(settings, spaces, memories)
    here = {name: make_conditions(devices, recipes[name], data[name]) for name in spaces}
    if earlier:
        cap = settings.budget / devices.share
        learned = {
            name: learn_from_studies(of[name], here[name], space, settings.families[name] * cap)
            for name, space in spaces.items()
        }
    reuse = [describe_reuse(name, each, here[name]) for name in spaces for each in of[name]]
    return SearchContext(
        settings=texts.settings, devices=devices, spaces=spaces, recipes=recipes, data=data, learned=learned,
        prices={name: prices for name, (prices, _) in measured.items()},
        probed=sum(seconds for _, seconds in measured.values()), memories=memories,
        trial_memory_limit=asked if devices.trials_each == 1 else min(limits),
        notes=[*texts.notes, *notes, *reuse], begun=begun,
    )  # fmt: skip


def check_idle(settings: Settings) -> None:
    """Check that the settings have a use. UserError: something was asked for that changes nothing of any family; only
    translation_corpus and text_corpus may be idle, as a file of settings may name the texts of other families."""
    idle = [name for name in settings.set if all(name in unused_settings(family) for family in settings.families)]
    kinds = {FAMILIES[name].corpus for name in settings.families}
    if settings.set.get("architecture") == "nanogpt" and settings.set.get("taps"):
        raise invalid("set", f"'taps={settings.set['taps']}': the architecture nanogpt has none: leave it out")
    what = {"set": f"'{idle[0]}' "} if idle else {}
    what |= {"skip_bad_lines": ""} if settings.skip_bad_lines and "pairs" not in kinds else {}
    what |= {"own_corpus": f"'{settings.own_corpus}' "} if settings.own_corpus and kinds <= {*CORPORA} else {}
    for flag, given in what.items():
        raise invalid(flag, f"{given}changes nothing of {' or '.join(settings.families)}: leave it out")
    if settings.skip_bad_lines and not isinstance(settings.translation_corpus, Path):
        raise invalid("skip_bad_lines", "works only with --translation-corpus FILE")


def limit_model_size(space: Space, settings: Settings, data: Data, recipe: Mapping[str, Any]) -> Space:
    """Return the space without models larger than --at-most, by this recipe. UserError: all are, or their size does not
    follow from d_model and layers."""
    most, name = settings.at_most, space.family
    if most is None:
        return space
    if name not in PER_LAYER:
        raise invalid(
            "at_most", f"how large {name!r} is does not follow from its d_model and layers: leave one of both out"
        )
    longest = {"context": max(space.dimensions["context"])} if "context" in space.dimensions else {}
    common = {**recipe, **replace(space, small_enough=None).default(), **longest, "heads": 1}

    def weights(d_model: Value, layers: Value) -> int:
        config = Config.at({**common, "d_model": d_model, "layers": layers}, family=name)
        return FAMILIES[name].parameters(config, data.vocabulary, pad_of(data))

    known = cache(weights)
    least = min(map(known, space.dimensions["d_model"], repeat(min(space.dimensions["layers"]))))
    if least > most:
        raise invalid(
            "at_most", f"{at_most_text(most)!r} holds no {name}, of which the smallest has {least:,}: write more"
        )
    try:
        return replace(space, small_enough=lambda d_model, layers: known(d_model, layers) <= most)
    except UserError:
        what = f"{at_most_text(most)!r} holds no {name} of those that --fix and --range leave"
        raise invalid("at_most", f"{what}: write more, or leave more of them") from None


def first_configs(settings: Settings, space: Space | OwnSpace) -> list[dict[str, Value]]:
    """Return the configurations of --first that name a dimension of this space, completed; of a resumed study
    without those in a precision that this device lacks. UserError: one is not in it."""
    here = space.given if isinstance(space, OwnSpace) else space.dimensions
    wanted = [{name: each[name] for name in each if name in here} for each in settings.first]
    if settings.resume is not None and isinstance(space, Space):
        native = space.dimensions.get("precision", ())
        wanted = [each for each in wanted if "precision" not in each or each["precision"] in native]
    with under_flag("first"):
        return [space.nearest(each) for each in wanted if each]


def check_batch(settings: Settings, space: Space, recipe: Recipe, data: Data) -> None:
    """Check that a batch that was asked for has a row. UserError: it is shorter, and would be trained as one row."""
    if settings.resume is not None or isinstance(data, OwnData) or space.family not in PER_LAYER:
        return
    row, given = data.row[1] if isinstance(data, PairData) else recipe.context, space.ranges.get("batch_tokens")
    asked = {"set": settings.set.get("batch_tokens", row)}
    if given and "context" not in settings.vary:  # else each context has its own
        asked["range"] = min(given.values or (given.low,))
    for flag, batch in asked.items():
        if float(batch) < row:
            rule = f"a step of {space.family} has at least one row of {row} tokens"
            raise invalid(flag, f"'batch_tokens={batch:g}': {rule}: write batch_tokens={row} or more")


def apply_vary(space: Space, recipe: Recipe, vary: Sequence[str], data: Data) -> tuple[Space, Recipe]:
    """Return space and recipe with what --vary frees, and with the wider models that the recipe is large enough for;
    where contexts vary, the recipe evaluates all on windows that they divide."""
    names, own = tuple(name for name in vary if name not in SPACES[space.family]), recipe.config
    longest = len(data.valid) // WINDOWS if isinstance(data, TextData) else math.inf
    values, own_values = recipe_field_values(names, own, longest), {name: own[name] for name in names}
    if space.family in PER_LAYER:
        values |= extend_widths(space, recipe.weights)
    space = replace(space, vary=values, own=own_values)
    if "context" in values and recipe.evaluation_window is None:  # else a study is resumed
        if space.is_user_set("context"):
            check_contexts(space, recipe, longest)
        window = max(recipe.context, *map(int, space.dimensions["context"]))
        recipe = replace(recipe, evaluation_window=window)
    return space, recipe


def check_contexts(space: Space, recipe: Recipe, longest: float) -> None:
    """Check the contexts of a range. UserError: one is no power of two times the recipe's, leaves a batch too few rows,
    or leaves the validation split too few windows."""
    own, rows = recipe.context, least_rows(recipe.config)
    batch = max(map(int, space.dimensions.get("batch_tokens", (recipe.batch_tokens,))))

    def fault(context: int) -> str | None:
        times = max(context, own) // min(context, own)
        if max(context, own) % min(context, own) or times & (times - 1):
            return f"is no power of two times the recipe's {own}, so that not all are judged on the same tokens"
        if context > own and rows * context > batch:
            return f"leaves fewer than {rows} rows of a batch of {batch:,} tokens"
        return f"leaves fewer than {WINDOWS} windows of the validation split" if own < context > longest else None

    if odd := [value for value in map(int, space.dimensions["context"]) if fault(value)]:
        known = ",".join(str(value) for value in map(int, space.vary["context"]) if not fault(value))
        raise invalid("range", f"'context={odd[0]}' {fault(odd[0])}: write context={known}")


def make_recipe(
    settings: Settings, devices: Devices, space: Space, data: Data, prices: StepPrices, earlier: Sequence[EarlierStudy]
) -> Recipe:
    """Return the recipe of a family in a new study; it is for models wider than the reports' only where the text has
    the tokens for them."""
    name, built_in = space.family, space.family in PER_LAYER
    d_models, layers = (space.dimensions.get(each, ()) for each in ("d_model", "layers"))
    fit = space.small_enough or (lambda d_model, layers: True)
    sizes, larger = (
        [layer_weights(name, {"d_model": d, "layers": n}) for d in each for n in layers if fit(d, n)]
        if built_in else [0.0] for each in (d_models, EXTRA_WIDTHS)
    )  # fmt: skip
    if larger and built_in and not space.is_user_set("d_model"):
        widest = max(larger)
        sizes.append(max(*sizes, min(widest, data.training_tokens / LEAST_TOKENS_A_WEIGHT)))
    each = settings.trials_per_gpu if devices.kind == "cuda" and isinstance(settings.trials_per_gpu, int) else 1
    share, part = devices.cores_each / each, settings.families[name]
    wall = share * min(wall_clock_limit(settings, devices), settings.deadline or math.inf)
    found = recipe(
        base=family_recipe(name, settings.set.get("architecture")), given=settings.set, family=name, kind=devices.kind,
        seconds=min(part * settings.budget, wall * min(1.0, part * each * devices.slots)),
        prices=prices, text_tokens=data.training_tokens,
        windowed_tokens=len(data.valid) if isinstance(data, TextData) else None, sizes=(min(sizes), max(sizes)),
    )  # fmt: skip
    weights = suggested_model_size(earlier, found.weights, found.weights * found.tokens)
    if weights == found.weights:
        return found
    return found.around(min(max(min(weights, most_weights(name, data.training_tokens)), min(sizes)), max(sizes)))


def make_conditions(devices: Devices, recipe: Recipe, data: Data) -> Conditions:
    """Return the conditions under which this search's figures of a family hold."""
    return Conditions(
        kind=devices.kind, processor=devices.processor, share=devices.share,
        text=(data.sha256, data.vocabulary), recipe={name: getattr(recipe, name) for name in ALIKE},
        compute=recipe.weights * recipe.tokens,
    )  # fmt: skip


def wall_clock_limit(settings: Settings, devices: Devices) -> float:
    """Return the seconds of wall clock in which a search uses its cap; inf if it is patient."""
    slots = devices.share * devices.slots
    return math.inf if settings.patient else WALL_CLOCK_MULTIPLE * settings.budget / slots


PRICED_SECONDS, MEASURED_SHARE = 0.25, 0.005
"""Most seconds that measuring a shape's steps may take, also as a share of a family's device-seconds."""
DEAREST_SHARE = 0.003
"""Most that a shape's fewest steps may take by nominal prices for it to be measured, as a share of these."""
LEAST_WIDTH = 32
"""Least d_model of a model that is measured."""


def measured_prices(settings: Settings, devices: Devices, space: Space, data: Data) -> tuple[StepPrices, float]:
    """Measure the prices of a family's steps; return them and the seconds of a device that this took.

    The default configuration is measured; on a GPU it gives the price of a kernel, and the widest one, in a batch that
    fills the GPU, the FLOP/s. Narrower models are measured where steps would take too much of what the family has;
    where none is narrow enough, the prices are nominal.
    """
    here = devices.kind != "cuda" or torch.cuda.is_available()
    if not here or space.family not in PER_LAYER:
        return NOMINAL[devices.kind], 0.0
    family, default, taken = FAMILIES[space.family], space.default(), list[float]()
    seconds = min(PRICED_SECONDS, MEASURED_SHARE * settings.budget * settings.families[space.family])
    filling = min(FILLING_TOKENS[devices.kind], data.training_tokens // LEAST_EPOCH_STEPS)

    most = DEAREST_SHARE * settings.budget * settings.families[space.family] / LEAST_STEPS

    def least(config: Config) -> tuple[float, float] | None:
        """Return the FLOPs of a step, and its seconds; None where no model is narrow enough."""
        while (flops := family.step_flops(config, data)) > most * NOMINAL[devices.kind].flops:
            half, odd = divmod(config.d_model, 2)
            if odd or half % config.heads or half < LEAST_WIDTH:
                return None
            config = replace(config, d_model=half)
        taken.extend(some := step_seconds(config, data, torch.device(devices.kind), seconds=seconds))
        return flops, min(some)

    launch = 0.0
    if devices.kind == "cuda":
        if small := least(Config.at(default, family=space.family)):
            launch = small[1] / launches(space.family, float(default["layers"]))
        widest = [{**default, "d_model": width} for width in space.dimensions["d_model"]]
        default = [each for each in widest if space.contains(each)][-1]
    config = Config.at(default, family=space.family)
    if (filled := least(replace(config, batch_tokens=max(config.batch_tokens, filling)))) is None:
        return NOMINAL[devices.kind], sum(taken)
    return StepPrices(flops=filled[0] / filled[1], launch_seconds=launch), sum(taken)


def round_prices(prices: StepPrices, seconds: float) -> StepPrices:
    """Round prices to powers of two, if measuring took any seconds: so the same command mostly has the same recipe."""
    known = {name: value for name, value in asdict(prices).items() if value and seconds}
    return replace(prices, **{name: 2.0 ** round(math.log2(value)) for name, value in known.items()})


def load_stored_recipes(study: Path, families: Collection[str]) -> tuple[dict[str, Recipe], dict[str, WarmStart]]:
    """Return the recipes of a resumed study, and what it learned from others when it began. UserError: there are none,
    or they are damaged."""
    stored: Any = study_facts(study)
    learned = stored.get("learned") or {}
    if not isinstance(stored.get("recipes"), dict):
        raise invalid("resume", f"'{study}' has a damaged study.json, without recipes: name another study")
    try:
        recipes = {name: Recipe.from_stored({**OLD_DEFAULTS, **stored["recipes"][name]}) for name in families}
        return recipes, {name: WarmStart.from_stored(learned[name]) for name in families if learned}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise invalid("resume", f"'{study}' has a damaged study.json ({error}): name another study") from None


def check_learns(config: Config, data: Data) -> None:
    """Train a model on two rows on the CPU. UserError: a user's own family fails, or a built-in one does not fit in
    memory; any other failure of a built-in one is a bug, and is raised as it is."""
    doing = ""
    try:
        for step in dry_batch(replace(config, precision="fp32"), data):
            doing = step
    except Exception as error:
        if config.family in BUILT_IN and ran_out(error):
            shape = f"d_model {config.d_model}, {config.layers} layers"
            rule = "two rows of it do not fit in the memory of this machine"
            raise UserError(f"--families: {config.family!r} with {shape}: {rule}: ask for smaller ones") from None
        if config.family in BUILT_IN or isinstance(error, UserError):
            raise
        line = f"its {doing} raised {error_text(error)} on two rows on the CPU"
        raise UserError(f"--families: {config.family!r}: {line}: correct it; nothing was spent") from error


def check_cap(settings: Settings, slots: int) -> None:
    """Check cap and deadline. UserError: they do not pay for a rung and a last segment of one trial of each family, on
    all cores of a trial and so many slots, or for the trainings of --confirm."""
    segment = FIRST_OVERHEAD_SECONDS + SHORTEST_RUNG_SECONDS
    trial = FIRST_START_UP_SECONDS + 2 * segment
    parts = settings.families.values() if settings.resume is None else ()  # else it may go on with fewer slots
    soonest = max([trial, *(trial / (share * slots) for share in parts)])
    if settings.deadline is not None and settings.deadline < soonest:
        asked, late = duration_text(settings.deadline), duration_text(math.ceil(soonest))
        each = " of each family" if soonest > trial else ""
        raise invalid("deadline", f"{asked!r} leaves no time for one trial{each}: write at least {late}")
    least = max(trial, 2 * settings.confirm * segment / CONFIRM_SHARE)
    smallest = max(settings.cores_per_trial * least / share for share in settings.families.values())
    if settings.budget < smallest and settings.resume is None:  # else it has spent more already
        asked, enough = duration_text(settings.budget), duration_text(math.ceil(smallest))
        what = f"a last comparison of {2 * settings.confirm} trainings" if settings.confirm else "one rung of one trial"
        raise invalid("budget", f"{asked!r} does not pay for {what}: write at least {enough}")


def memory_limit(settings: Settings, devices: Devices) -> tuple[int | None, list[str]]:
    """Return the bytes to which a trial is limited: those asked for, at most a machine's; and a line if it has less."""
    asked, there = settings.memory_limit, devices.memory_bytes or (None if settings.address else machine_bytes())
    if asked is None or there is None or asked <= there:
        return asked, []
    return there, [f"--memory-limit: there are only {bytes_text(there)}: using that"]


def make_memory(family: str, recipe: Recipe, data: Data, kind: str, beyond: float = 0.0) -> MemoryModel:
    """Return the memory model of one family on this text, without a limit. beyond: bytes that trials of earlier studies
    took above the first guess."""

    def estimate(config: Mapping[str, Any], micro_batches: int) -> int:
        whole = whole_config(recipe, family, config)
        return FAMILIES[family].memory_estimate(whole, data, micro_batches=micro_batches, device=torch.device(kind))

    def most(config: Mapping[str, Any]) -> int:
        return FAMILIES[family].most_micro_batches(whole_config(recipe, family, config), data)

    return MemoryModel(overhead=first_overhead(family, kind) + beyond, estimate=estimate, most=most)


def check_memory(settings: Settings, spaces: Mapping[str, Space], memories: Mapping[str, MemoryModel]) -> None:
    """Check the memory limits. UserError: no config of a family fits in its limit."""
    for name, memory in memories.items():
        if any(memory.micro_batches(config) for config in spaces[name].configs()):
            continue
        least = min(map(memory.smallest, spaces[name].configs()))
        there, needed = bytes_text(memory.limit), bytes_text(least + 1e6)
        rule = f"no configuration of {name}, of which the smallest needs about {needed}"
        if settings.memory_limit is not None and settings.memory_limit <= memory.limit:
            raise invalid("memory_limit", f"'{there}' holds {rule}: write that or more")
        if settings.trials_per_gpu != 1:
            what = f"'{settings.trials_per_gpu}' leaves a trial {there}, {rule}: write fewer"
            raise invalid("trials_per_gpu", what)
        raise invalid("families", f"{name!r}: a GPU's {there} hold {rule}: leave it out, or take a larger GPU")
