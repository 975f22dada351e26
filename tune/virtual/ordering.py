"""The order in which configurations are handed out before anything is known of them."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Config = TypeVar("Config")


def shuffled(configs: Sequence[Config], rng: random.Random) -> Iterator[Config]:
    """All configs in random order."""
    return iter(rng.sample(configs, len(configs)))


def cheap_and_random(
    configs: Sequence[Config], price: Callable[[Config], float], rng: random.Random
) -> Iterator[Config]:
    """All configs: in turn the cheapest not yet handed out and one at random."""
    cheapest = iter(sorted(range(len(configs)), key=lambda index: price(configs[index])))
    at_random = shuffled(range(len(configs)), rng)
    given: set[int] = set()
    while len(given) < len(configs):
        for source in (cheapest, at_random):
            index = next((index for index in source if index not in given), None)
            if index is not None:
                given.add(index)
                yield configs[index]
