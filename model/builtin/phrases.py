"""Noun phrases, names and pronouns of the builtin grammar, in agreement."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from model.builtin import lexicon as words
from model.builtin.lexicon import Determiner, Noun
from model.builtin.spanish import and_

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Phrase:
    """A noun phrase, name or pronoun; `person` 0 to 4: I, you, third singular, we, third plural."""

    english: str
    spanish: str
    person: int
    feminine: bool
    kind: str = "person"
    noun: Noun | None = None

    @property
    def form(self) -> int:
        """Which of an adjective's four forms agrees."""
        return self.feminine + 2 * (self.person > 2)

    def subject(self, tense: str = "present") -> str:
        """The Spanish subject: I, you and we stand in the verb, but I and he share an imperfect."""
        dropped = self.person in (1, 3) or (self.person == 0 and tense != "imperfect")
        return "" if dropped else self.spanish


KINDS = tuple(words.ADJECTIVES)
_NOUNS = {kind: [noun for noun in words.NOUNS if noun.kind == kind] for kind in KINDS}
DETERMINERS = words.DEFINITE + words.INDEFINITE
_PRONOUNS = [
    Phrase(english=english, spanish=spanish, person=person, feminine=spanish == "ella")
    for english, spanish, person in (
        ("I", "yo", 0), ("you", "tú", 1), ("he", "él", 2), ("she", "ella", 2), ("we", "nosotros", 3),
        ("they", "ellos", 4),
    )
]


def anyone(random: Random, kinds: Sequence[str], *, adjectives: bool = True) -> Phrase:
    """A subject: a noun phrase, or where persons may be meant a pronoun, a name or two names."""
    way = random.random()
    if "person" in kinds and way < 0.3:
        return choose(random, _PRONOUNS)
    if "person" in kinds and way < 0.45:
        return names(random)
    return noun_phrase(random, kinds, DETERMINERS, adjectives=adjectives)


def names(random: Random) -> Phrase:
    (first, feminine), (second, also) = choose(random, words.NAMES), choose(random, words.NAMES)
    if first == second or random.random() < 0.5:
        return Phrase(english=first, spanish=first, person=2, feminine=feminine)
    return Phrase(english=f"{first} and {second}", spanish=and_(first, second), person=4, feminine=feminine and also)


def noun_phrase(
    random: Random, kinds: Sequence[str], determiners: Sequence[Determiner], *, adjectives: bool = True,
) -> Phrase:
    """Determiner, noun and perhaps adjectives, most of which stand after the Spanish noun."""
    kind, determiner = choose(random, kinds), choose(random, determiners)
    noun = choose(random, _NOUNS[kind])
    plural = not determiner.english[0] or (bool(determiner.english[1]) and random.random() < 0.35)
    form = noun.feminine + 2 * plural
    early = late = ("", "")
    if adjectives and random.random() < 0.35:
        adjective = choose(random, words.ADJECTIVES[kind])
        late = adjective.english, adjective.spanish[form]
    if adjectives and random.random() < 0.12:
        english, forms = choose(random, words.EARLY_ADJECTIVES)
        early = english, forms[form]
    article, spanish = determiner.english[plural], determiner.spanish[form]
    described = " ".join(filter(None, (early[0], late[0], noun.english[plural])))
    if article == "a" and described[0] in "aeiou":
        article = "an"
    if noun.stressed and not plural and not early[1]:
        spanish = {"la": "el", "una": "un"}.get(spanish, spanish)
    spanish = " ".join(filter(None, (spanish, early[1], noun.spanish[plural], late[1])))
    return Phrase(english=f"{article} {described}", spanish=spanish, person=4 if plural else 2,
                  feminine=noun.feminine, kind=kind, noun=noun)


def choose(random: Random, items: Sequence[Item]) -> Item:
    return items[int(random.random() * len(items))]
