"""Suggestions of configurations: by a prior on what is promising, by results through TPE, or by uniform draws."""

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
from tune.search_space import ASPECT, PER_LAYER, VARIABLE_RECIPE_FIELDS, Config, Dimension, Space, Value, layer_weights

ENOUGH_RESULTS = 20
"""Fewest results at a rung for the sampler to learn from it: from fewer, five dimensions teach it noise. It learns from
the highest such rung."""
AS_PROMISING = 0.9
"""Least promise of the prior's favourites, as a share of the highest."""
MOST_CONFIGS, DRAWS = 5_000, 1_000
"""Configurations of the largest space that is looked through whole for each suggestion; draws from a larger one."""
FAVOURED, MODEL_DRAWS = 200, 32
"""Candidates for one suggestion, of which one is taken by what the trials tell: trainings that the prior favours; draws
of the TPE model."""
WORST_LOSS = 1e3
"""Loss that a failed trial counts as, where no other of its rung has a worse one."""

SIZE_SPREAD = math.log(3)
"""Standard deviation of the prior on log size."""
ASPECT_SPREAD = math.log(2)
"""Standard deviation of the prior on the log of the aspect ratio: layers follow each other, so depth takes longer."""
HEAD_WIDTH, FEWEST_HEADS = 64.0, 4
"""Width of a head, as in GPT-2, as long as that leaves so many heads: at equal seconds of a core more heads were worse
in 112 of 115 pairs of trials of searches of 20 minutes to 8 hours that were alike otherwise (docs/log.md, day 28)."""
HEAD_WIDTH_SPREAD = math.log(2)
"""Standard deviation of the prior on the log of the head width."""
DROPOUT_SPREAD = 0.022
"""Standard deviation of the prior on dropout for a text that is seen once; it grows with the square root of how often a
leader of that size sees it."""
TURNS = {"translation": 15.0, "nanogpt": 30.0}
"""Epochs after which a model without dropout is past its best that has one weight in its layers for each token of the
text; with r weights for each it is earlier, by the cube root of r. MORE_DROPOUT is best there, and as much more each
time that the text is seen twice as often. nanogpt was better without after 7 epochs, level after 14, and better with it
after an hour (docs/log.md, days 28, 32). Epochs are those that a recipe expects, about one and a half times what a
leader has."""
MORE_DROPOUT = 0.1
MOST_DROPOUT = {"nanogpt": 0.1}
"""Highest dropout that is favoured for a family, on a megabyte of text, where more was no better: d384 l4 ended lower
without any after 28 epochs than d384 l6 with .5 after 110. On a smaller text it is higher by the cube root of how much
smaller that is: on 60 KB .2 and .3 won, on 100 to 250 KB none of .1 to .5 was better than none (docs/log.md, days 25,
27, 33, 34)."""
SLOWER_PRECISION = 0.1
"""Factor in the promise of a configuration whose precision is not the fastest."""
RECIPE_SPREAD = math.log(4)
"""Standard deviation of the prior on the log of what varies of the recipe, whose own value was tuned on other texts and
devices."""
BELOW_ALL = 16.0
"""How many times below every other value 0 counts as being."""


class Suggester:
    """Source of the configurations of one family, none twice.

    search: "random": each that is left is equally likely; "prior": the default one, then the most promising of all;
    "tpe": the same until there are enough results, then by these. prior: how promising a config is before anything is
    known of it; outlook: what it is expected to have at its end, as soon as the trials tell; first: what earlier
    studies found, tried in place of the default one; asked: what is tried before all of that; alike: dimensions that
    change nothing at the start of a training: of configs that differ only in these one is suggested as long as there
    are others, and in place of the default one the most promising that differs from it only so.
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
        self._whole_space = space.unrestricted
        self._seed = seed
        self._given: dict[str, Config] = {}
        self._keys: set[frozenset[tuple[str, Value]]] = set()
        self._taken: set[frozenset[tuple[str, Value]]] = set()
        """Those in the space that this device can train: a study may have gone on from another one."""
        self._trainings: set[frozenset[tuple[str, Value]]] = set()
        self._results: dict[int, dict[str, float | None]] = {}

    @property
    def has_more(self) -> bool:
        """Whether there is a config that was not tried yet."""
        return len(self._taken) < self._space.count

    def suggest(self, trial: str) -> Config:
        """Return a config that was not tried yet; there must be one."""
        assert self.has_more, "every config was tried"
        asked = next((config for config in self._asked if _key(config) not in self._keys), None)
        uniform = self._search == "random"
        config = asked or (self._first_new(self._space.uniform, self._rng()) if uniform else self._promising())
        self.note_tried(trial, config)
        return config

    def favour(self, trial: str) -> Favour:
        """Return how promising a trial was before anything was known: all alike where draws are uniform."""
        uniform = self._search == "random" or isinstance(self._space, OwnSpace)
        return NO_FAVOUR if uniform else self._prior(self._given[trial])

    def favourites(self) -> list[Config]:
        """Return the configs that the prior finds about as promising as any, with the recipe's own values of what
        varies of it."""
        assert isinstance(self._space, Space), "of a loop there is no prior"
        own = {name: value for name, value in self._space.default().items() if name in VARIABLE_RECIPE_FIELDS}
        kept = {name: values for name, values in self._space.vary.items() if name not in VARIABLE_RECIPE_FIELDS}
        configs = [{**config, **own} for config in replace(self._space, vary=kept).configs()]
        promises = [self._prior(config).promise for config in configs]
        least = AS_PROMISING * max(promises)
        return [config for config, promise in zip(configs, promises, strict=True) if promise >= least]

    def note_tried(self, trial: str, config: Config) -> None:
        """Note that a config is taken, now or by an earlier run of the study. UserError: it is in no space of the
        family."""
        if not self._whole_space.contains(config):
            raise UserError(f"config: {config!r} of {trial} is in no space of its family: do not trust that study")
        self._given[trial] = config
        self._keys.add(_key(config))
        if self._space.contains(config):
            self._taken.add(_key(config))
        self._trainings.add(self._identity(config))

    def tell(self, trial: str, rung: int, loss: float | None, progress: Progress = NO_PROGRESS) -> None:
        """Learn the loss of a trial at a rung, and its progress there; None: it failed on the way there."""
        self._outlook.tell(trial, self._given[trial], progress)
        self._results.setdefault(rung, {})[trial] = loss

    def _first_new(self, draw: Callable[[random.Random], Config], rng: random.Random) -> Config:
        """Return the first draw that was not given yet; where there is none, the first such config of the space."""
        every = itertools.chain((draw(rng) for _ in range(DRAWS)), self._space.configs())
        return next(config for config in every if _key(config) not in self._keys)

    def _promising(self) -> Config:
        """Return the default config first, or what earlier studies found; then the most promising of those that are
        left."""
        for config in self._first:
            if _key(config) not in self._keys:
                return config
        rng = self._rng()
        draws = self._by_results(rng) if self._search == "tpe" and self._rungs_to_learn_from() else self._by_prior(rng)
        most = 1 if isinstance(self._space, OwnSpace) else FAVOURED  # nothing is known of a loop but its results
        if favoured := self._favoured(draws, most):
            return favoured[most_promising(favoured, self._prior, self._outlook)]
        return self._first_new(self._space.sample, rng)

    def _favoured(self, draws: Iterable[Config], most: int) -> list[Config]:
        """Return the first so many draws that are valid and were not tried: one for each new training; where no
        training is new, any of them."""
        new, apart = list[Config](), dict[frozenset[tuple[str, Value]], Config]()
        for config in draws:
            if _key(config) in self._keys or not self._space.contains(config):
                continue
            new.append(config)
            if (training := self._identity(config)) not in self._trainings:
                apart.setdefault(training, config)
            if len(apart) == most:
                break
        return [*apart.values()] or new[:most]

    def _identity(self, config: Config) -> frozenset[tuple[str, Value]]:
        """Return what sets a config apart from the first step on."""
        return _key({name: value for name, value in config.items() if name not in self._alike})

    def _best_of(self, config: Config) -> Config:
        """Return the most promising of the configs whose training is the same as this one's at first; among equals this
        one."""
        others = [config | {name: value} for name in self._alike for value in self._space.dimensions.get(name, ())]
        there = [config, *(other for other in others if self._space.contains(other))]
        return max(there, key=lambda each: self._prior(each).promise)

    def _rng(self) -> random.Random:
        """Return the random generator for the suggestion to make now, which follows from the seed and the number made
        before."""
        return random.Random(f"{self._seed} {len(self._given)}")

    def _by_prior(self, rng: random.Random) -> Iterator[Config]:
        """Return all of a small space, or many draws, those first that the prior favours; for a loop draws in any
        order, as nothing is known of it."""
        if isinstance(self._space, OwnSpace):
            return (self._space.sample(rng) for _ in range(FAVOURED))
        small = self._space.count <= MOST_CONFIGS
        drawn = self._whole if small else self._with_promise(map(self._space.sample, [rng] * DRAWS))
        return (config for _, config in sorted(drawn, key=lambda each: (each[0], rng.random()), reverse=True))

    @cached_property
    def _whole(self) -> list[tuple[float, Config]]:
        return self._with_promise(self._space.configs())

    def _with_promise(self, configs: Iterable[Config]) -> list[tuple[float, Config]]:
        """Return each config with its promise by the prior."""
        return [(self._prior(config).promise, config) for config in configs]

    def _by_results(self, rng: random.Random) -> Iterator[Config]:
        """Return draws of Optuna's sampler, which knows the results of the highest rung with enough of them, and what
        runs."""
        study = self._study(rng.getrandbits(32))
        return (self._ask(study) for _ in range(MODEL_DRAWS))

    def _rungs_to_learn_from(self) -> list[int]:
        """Return the rungs with enough results to learn from."""
        return [rung for rung, losses in self._results.items() if len(losses) >= ENOUGH_RESULTS]

    def _ask(self, study: optuna.Study) -> Config:
        trial = study.ask(self._distributions())
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return self._space.complete(trial.params)

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
            if not self._space.contains(config):  # it cannot be trained on this processor
                return
            there = {name: each for name, each in distributions.items() if name in config}
            params = {name: config[name] for name in there}
            study.add_trial(optuna.trial.create_trial(state=state, params=params, distributions=there, value=loss))

        results = self._results[max(self._rungs_to_learn_from())]
        worst = max([WORST_LOSS, *(loss for loss in results.values() if loss is not None)])
        for trial, loss in results.items():
            add(self._given[trial], complete, worst if loss is None else loss)
        known = set[str]().union(*self._results.values())
        for config in (config for trial, config in self._given.items() if trial not in known):
            add(config, running, None)
        return study


def distribution(of: Dimension) -> optuna.distributions.BaseDistribution:
    """Return a dimension as a distribution of Optuna's."""
    if of.values:
        return optuna.distributions.CategoricalDistribution(of.values)
    if of.whole:
        return optuna.distributions.IntDistribution(int(of.low), int(of.high), log=of.log)
    return optuna.distributions.FloatDistribution(of.low, of.high, log=of.log)


def prior(
    default: Config, *, family: str, weights: float, tokens: float, text_tokens: float, begins: float = 0.0
) -> Callable[[Config], Favour]:
    """Return a function that tells how promising a config is before anything is known.

    weights, tokens: as in Recipe, for a text of `text_tokens`; begins: the tokens from which on there is dropout.

    It judges size: how near its layers are to so many weights; aspect ratio; head width: heads narrower than HEAD_WIDTH
    take time; dropout, which helps where the text is seen many times, and costs where it is not; precision: where rungs
    are equal in device-seconds, a slow one has fewer steps; and what varies of the recipe, whose own value is in the
    `default` config. Of a user's own family nothing is known.
    """
    if family not in PER_LAYER:
        return lambda config: NO_FAVOUR
    freed = [name for name in VARIABLE_RECIPE_FIELDS if name in default]
    most_dropout = MOST_DROPOUT.get(family, 1.0) * math.cbrt(max(1.0, SMALL_TEXT_TOKENS / text_tokens))

    def favour(config: Config) -> Favour:
        own = layer_weights(family, config)
        size = math.log(own / weights) / SIZE_SPREAD
        aspect = math.log(float(config["d_model"]) / float(config["layers"]) / ASPECT) / ASPECT_SPREAD
        suited = min(HEAD_WIDTH, float(config["d_model"]) / FEWEST_HEADS)
        width = math.log(float(config["d_model"]) / float(config["heads"]) / suited) / HEAD_WIDTH_SPREAD
        epochs = life_share(family) * tokens / text_tokens * math.sqrt(weights / own)  # about as a step's seconds grow
        turns = TURNS[family] / (own / text_tokens) ** (1 / 3)
        best = min(most_dropout, max(0.0, MORE_DROPOUT * (1 + math.log2(epochs / turns))))
        spread = DROPOUT_SPREAD * math.sqrt(epochs)
        dropout, none = (((rate - best) / spread) ** 2 / 2 for rate in (float(config["dropout"]), 0.0))
        precision = 1.0 if config["precision"] == default["precision"] else SLOWER_PRECISION
        recipe = sum((_apart(float(config[name]), float(default[name])) / RECIPE_SPREAD) ** 2 for name in freed)
        promise = precision * math.exp(-(size**2 + aspect**2 + width**2 + recipe) / 2 - dropout)
        late = math.exp(min(0.0, none - dropout))
        return Favour(promise=promise, late=late, begins=begins if config["dropout"] else 0.0)

    return favour


def prior_of(recipe: Recipe, default: Config, family: str, text_tokens: float) -> Callable[[Config], Favour]:
    """Return the prior of a search by this recipe."""
    return prior(
        default, family=family, weights=recipe.weights, tokens=recipe.tokens, text_tokens=text_tokens,
        begins=recipe.dropout_after * text_tokens,
    )  # fmt: skip


def _apart(value: float, own: float) -> float:
    """Return the log of the ratio of a value to the recipe's own; where one of them is 0, that of BELOW_ALL."""
    if value == own:
        return 0.0
    return math.log(value / own) if min(value, own) > 0 else math.log(BELOW_ALL)


def _key(config: Config) -> frozenset[tuple[str, Value]]:
    return frozenset(config.items())
