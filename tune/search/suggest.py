"""Where configurations come from: a prior on what is promising, results through TPE, or uniform draws."""

import itertools
import math
import random
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import optuna

from tune.errors import UserError
from tune.own_space import OwnSpace
from tune.recipe import SMALL_TEXT_TOKENS, Recipe, life_share
from tune.search.forecast import NO_FAVOUR, NO_PROGRESS, Favour, Progress
from tune.search.outlook import Outlook, most_promising
from tune.search_space import ASPECT, FREED, PER_LAYER, Config, Dimension, Space, Value, layer_weights

ENOUGH_RESULTS = 20
"""The sampler learns from the highest rung that has at least this many; from fewer, five dimensions teach it noise."""
AS_PROMISING = 0.9
"""Of the prior at its most promising, what its favourites have at least."""
MOST_CONFIGS, DRAWS = 5_000, 1_000
"""Of a space that is looked through whole for each suggestion; of a larger one so many are drawn."""
FAVOURED, MODEL_DRAWS = 200, 32
"""For one suggestion, of which what the trials tell takes one: trainings that the prior favours; draws of the model."""
WORST_LOSS = 1e3
"""What a trial counts as that failed, where the others of its rung have no worse."""

SIZE_SPREAD = math.log(3)
"""Standard deviation of the prior on log size."""
ASPECT_SPREAD = math.log(2)
"""The same of the log of the aspect ratio: layers follow each other, so depth takes longer."""
HEAD_WIDTH, FEWEST_HEADS = 64.0, 4
"""Of a head, as GPT-2 has it, as long as there are so many heads: at equal seconds of a core more were worse in 112 of
115 pairs of trials of searches of 20 minutes to 8 hours that were alike otherwise (docs/log.md, day 28)."""
HEAD_WIDTH_SPREAD = math.log(2)
"""The same of log head width."""
DROPOUT_SPREAD = 0.022
"""How much dropout a text is worth that is seen once; it grows with the square root of how often a text is seen."""
TURNS = {"translation": 15.0, "nanogpt": 30.0}
"""After so many epochs a model without dropout is past its best that has one weight in its layers for each token of the
text, and with r weights after the cube root of r fewer; then MORE_DROPOUT is best, and as much more each time that the
text is seen twice as often. nanogpt was better without after 7 epochs, level after 14, and better with it after an hour
(docs/log.md, days 28, 32). Epochs are those that a recipe foretells, about one and a half times what a leader has."""
MORE_DROPOUT = 0.1
MOST_DROPOUT = {"nanogpt": 0.1}
"""Of a family of which more was no better on a megabyte: d384 l4 ended lower without any after 28 epochs than d384 l6
with .5 after 110. Of smaller texts as much more as the cube root of how much smaller they are: on 60 KB .2 and .3 won,
on 100 to 250 KB none of .1 to .5 was better than none (docs/log.md, days 25, 27, 33, 34)."""
SLOWER_PRECISION = 0.1
"""Promise of a precision that is not the fastest."""
RECIPE_SPREAD = math.log(4)
"""The same of the log of what of the recipe varies: its own value was tuned, on other texts and devices."""
BELOW_ALL = 16.0
"""How many times below every other value 0 counts."""


class Suggester:
    """Configurations of one family, none twice.

    search: "random": each that is left is equally likely; "prior": the default one, then the most promising of all;
    "tpe": so too until there are enough results, then as these tell. prior: how promising a config is before anything
    is known of it; outlook: what it is expected to have at its end, as soon as the trials tell; first: what earlier
    studies found, in the place of the default one; asked: what is tried before all of that; alike: dimensions in which
    trials are one training at first: of these one is promising as long as there are others, and it is the most
    promising of them that stands for the default one.
    """

    def __init__(
        self, space: Space | OwnSpace, *, seed: int, search: str, prior: Callable[[Config], Favour],
        outlook: Outlook | None = None, first: Sequence[Config] = (), asked: Sequence[Config] = (),
        alike: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._alike = alike
        self._space, self._prior, self._outlook, self._search = space, prior, outlook or Outlook(), search
        self._asked = list(asked)
        self._first = [config for config in first if space.contains(config)] or [self._best_of(space.default())]
        self._whole_space = space.whole
        self._seed = seed
        self._given: dict[str, Config] = {}
        self._keys: set[frozenset[tuple[str, Value]]] = set()
        self._trainings: set[frozenset[tuple[str, Value]]] = set()
        self._results: dict[int, dict[str, float | None]] = {}

    @property
    def more(self) -> bool:
        """Whether there is a config that was not tried yet."""
        return len(self._given) < self._space.count

    def suggest(self, trial: str) -> Config:
        """A config that was not tried yet; there must be one."""
        assert self.more, "every config was tried"
        asked = next((config for config in self._asked if _key(config) not in self._keys), None)
        uniform = self._search == "random"
        config = asked or (self._drawn(self._space.uniform, self._rng()) if uniform else self._promising())
        self.tried(trial, config)
        return config

    def favour(self, trial: str) -> Favour:
        """How promising it was before anything was known: all alike where draws are uniform."""
        uniform = self._search == "random" or isinstance(self._space, OwnSpace)
        return NO_FAVOUR if uniform else self._prior(self._given[trial])

    def favourites(self) -> list[Config]:
        """What the prior finds about as promising as it finds anything, with the recipe's own values of what varies."""
        assert isinstance(self._space, Space), "of a loop there is no prior"
        own = {name: value for name, value in self._space.default().items() if name in FREED}
        kept = {name: values for name, values in self._space.vary.items() if name not in FREED}
        configs = [{**config, **own} for config in replace(self._space, vary=kept).configs()]
        promises = [self._prior(config).promise for config in configs]
        least = AS_PROMISING * max(promises)
        return [config for config, promise in zip(configs, promises, strict=True) if promise >= least]

    def tried(self, trial: str, config: Config) -> None:
        """A config is taken, now or by an earlier run of the study. UserError: it is in no space of the family."""
        if not self._whole_space.contains(config):
            raise UserError(f"config: {config!r} of {trial} is in no space of its family: do not trust that study")
        self._given[trial] = config
        self._keys.add(_key(config))
        self._trainings.add(self._apart(config))

    def tell(self, trial: str, rung: int, loss: float | None, progress: Progress = NO_PROGRESS) -> None:
        """The loss of a trial at a rung, with so much behind it; None: it failed there."""
        self._outlook.tell(trial, self._given[trial], progress)
        self._results.setdefault(rung, {})[trial] = loss

    def _drawn(self, draw: Callable[[random.Random], Config], rng: random.Random) -> Config:
        """The first draw that was not given yet; where there is none, of all."""
        every = itertools.chain((draw(rng) for _ in range(DRAWS)), self._space.configs())
        return next(config for config in every if _key(config) not in self._keys)

    def _promising(self) -> Config:
        """The default one first, or what earlier studies found; then the most promising of those that are left."""
        for config in self._first:
            if _key(config) not in self._keys:
                return config
        rng = self._rng()
        draws = self._by_results(rng) if self._search == "tpe" and self._enough() else self._by_prior(rng)
        most = 1 if isinstance(self._space, OwnSpace) else FAVOURED  # of a loop nothing is known but its results
        if favoured := self._favoured(draws, most):
            return favoured[most_promising(favoured, self._prior, self._outlook)]
        return self._drawn(self._space.sample, rng)

    def _favoured(self, draws: Iterable[Config], most: int) -> list[Config]:
        """The first so many that are valid and were not tried: one of each new training; without any, of all."""
        new, apart = list[Config](), dict[frozenset[tuple[str, Value]], Config]()
        for config in draws:
            if _key(config) in self._keys or not self._space.contains(config):
                continue
            new.append(config)
            if (training := self._apart(config)) not in self._trainings:
                apart.setdefault(training, config)
            if len(apart) == most:
                break
        return [*apart.values()] or new[:most]

    def _apart(self, config: Config) -> frozenset[tuple[str, Value]]:
        """What sets it apart from the first step on."""
        return _key({name: value for name, value in config.items() if name not in self._alike})

    def _best_of(self, config: Config) -> Config:
        """Of those that are one training with it at first, the most promising; among equals it itself."""
        others = [config | {name: value} for name in self._alike for value in self._space.dimensions.get(name, ())]
        there = [config, *(other for other in others if self._space.contains(other))]
        return max(there, key=lambda each: self._prior(each).promise)

    def _rng(self) -> random.Random:
        """Of the suggestion to make now: it follows from the seed and how many were made before."""
        return random.Random(f"{self._seed} {len(self._given)}")

    def _by_prior(self, rng: random.Random) -> Iterator[Config]:
        """All of a small space, or many draws, those first that the prior favours; of a loop draws as they come, as
        nothing is known of it."""
        if isinstance(self._space, OwnSpace):
            return (self._space.sample(rng) for _ in range(FAVOURED))
        drawn = self._whole if self._space.count <= MOST_CONFIGS else self._told(map(self._space.sample, [rng] * DRAWS))
        return (config for _, config in sorted(drawn, key=lambda each: (each[0], rng.random()), reverse=True))

    @cached_property
    def _whole(self) -> list[tuple[float, Config]]:
        return self._told(self._space.configs())

    def _told(self, configs: Iterable[Config]) -> list[tuple[float, Config]]:
        """What the prior says of each."""
        return [(self._prior(config).promise, config) for config in configs]

    def _by_results(self, rng: random.Random) -> Iterator[Config]:
        """Draws of Optuna's sampler, which knows the results of the highest rung with enough of them, and what runs."""
        study = self._study(rng.getrandbits(32))
        return (self._ask(study) for _ in range(MODEL_DRAWS))

    def _enough(self) -> list[int]:
        """Rungs with enough results to learn from."""
        return [rung for rung, losses in self._results.items() if len(losses) >= ENOUGH_RESULTS]

    def _ask(self, study: optuna.Study) -> Config:
        trial = study.ask(self._distributions())
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return self._space.drawn(trial.params)

    def _distributions(self) -> dict[str, optuna.distributions.BaseDistribution]:
        if isinstance(self._space, OwnSpace):
            return {name: distribution(each) for name, each in self._space.given.items()}
        free = {name: values for name, values in self._space.dimensions.items() if name not in self._space.fix}
        return {name: optuna.distributions.CategoricalDistribution(values) for name, values in free.items()}

    def _study(self, seed: int) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=ENOUGH_RESULTS, multivariate=True)
        study = optuna.create_study(sampler=sampler)
        distributions = self._distributions()
        complete, running = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.RUNNING

        def add(config: Config, state: optuna.trial.TrialState, loss: float | None) -> None:
            if not self._space.contains(config):  # what this processor trains no more
                return
            there = {name: each for name, each in distributions.items() if name in config}
            params = {name: config[name] for name in there}
            study.add_trial(optuna.trial.create_trial(state=state, params=params, distributions=there, value=loss))

        results = self._results[max(self._enough())]
        worst = max([WORST_LOSS, *(loss for loss in results.values() if loss is not None)])
        for trial, loss in results.items():
            add(self._given[trial], complete, worst if loss is None else loss)
        known = set[str]().union(*self._results.values())
        for config in (config for trial, config in self._given.items() if trial not in known):
            add(config, running, None)
        return study


def distribution(of: Dimension) -> optuna.distributions.BaseDistribution:
    """Of a dimension, as Optuna has it."""
    if of.values:
        return optuna.distributions.CategoricalDistribution(of.values)
    if of.whole:
        return optuna.distributions.IntDistribution(int(of.low), int(of.high), log=of.log)
    return optuna.distributions.FloatDistribution(of.low, of.high, log=of.log)


def first_search(search: str) -> str:
    """How a search suggests configurations until it has results."""
    return "prior" if search == "tpe" else search


def prior(
    default: Config, *, family: str, weights: float, tokens: float, text_tokens: float, begins: float = 0.0
) -> Callable[[Config], Favour]:
    """How promising a config is before anything is known.

    weights, tokens: as Recipe has them, of a text of `text_tokens`; begins: the tokens from which on there is dropout.

    Its size: how near its layers are to so many weights. Its aspect ratio. Its head width: heads narrower than
    HEAD_WIDTH take time. Its dropout, which helps where the text is seen many times, and costs where it is not. Its
    precision: where rungs are equal in device-seconds, a slow one has fewer steps. What varies of the recipe,
    whose own value is in the `default` config. Of a family of a user's own nothing is known.
    """
    if family not in PER_LAYER:
        return lambda config: NO_FAVOUR
    freed = [name for name in FREED if name in default]
    dropout_spread = DROPOUT_SPREAD * math.sqrt(tokens / text_tokens)
    most_dropout = MOST_DROPOUT.get(family, 1.0) * math.cbrt(max(1.0, SMALL_TEXT_TOKENS / text_tokens))

    def dropout_at_best(config: Config) -> float:
        own = layer_weights(family, config)
        epochs = life_share(family) * tokens / text_tokens * math.sqrt(weights / own)  # as a step's seconds grow, about
        turns = TURNS[family] / (own / text_tokens) ** (1 / 3)
        return min(most_dropout, max(0.0, MORE_DROPOUT * (1 + math.log2(epochs / turns))))

    def favour(config: Config) -> Favour:
        size = math.log(layer_weights(family, config) / weights) / SIZE_SPREAD
        aspect = math.log(float(config["d_model"]) / float(config["layers"]) / ASPECT) / ASPECT_SPREAD
        suited = min(HEAD_WIDTH, float(config["d_model"]) / FEWEST_HEADS)
        width = math.log(float(config["d_model"]) / float(config["heads"]) / suited) / HEAD_WIDTH_SPREAD
        best = dropout_at_best(config)
        dropout, none = (((rate - best) / dropout_spread) ** 2 / 2 for rate in (float(config["dropout"]), 0.0))
        precision = 1.0 if config["precision"] == default["precision"] else SLOWER_PRECISION
        recipe = sum((_apart(float(config[name]), float(default[name])) / RECIPE_SPREAD) ** 2 for name in freed)
        promise = precision * math.exp(-(size**2 + aspect**2 + width**2 + recipe) / 2 - dropout)
        late = min(1.0, math.exp(none - dropout))
        return Favour(promise=promise, late=late, begins=begins if config["dropout"] else 0.0)

    return favour


def prior_of(recipe: Recipe, default: Config, family: str, text_tokens: float) -> Callable[[Config], Favour]:
    """That of a search by this recipe."""
    return prior(
        default, family=family, weights=recipe.weights, tokens=recipe.tokens, text_tokens=text_tokens,
        begins=recipe.dropout_after * text_tokens,
    )  # fmt: skip


def _apart(value: float, own: float) -> float:
    """How far by the logarithm; none at all is below all others."""
    if value == own:
        return 0.0
    return math.log(value / own) if min(value, own) > 0 else math.log(BELOW_ALL)


def _key(config: Config) -> frozenset[tuple[str, Value]]:
    return frozenset(config.items())
