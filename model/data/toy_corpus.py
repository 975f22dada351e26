"""English sentences with their Spanish, made by a small grammar: the text that is always there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from model.data import toy_lexicon as words
from model.data.toy_lexicon import Determiner, Noun, Verb, and_, to

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
        ("I", "yo", 0),
        ("you", "tú", 1),
        ("he", "él", 2),
        ("she", "ella", 2),
        ("we", "nosotros", 3),
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
    random: Random,
    kinds: Sequence[str],
    determiners: Sequence[Determiner],
    *,
    adjectives: bool = True,
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
    return Phrase(
        english=f"{article} {described}",
        spanish=spanish,
        person=4 if plural else 2,
        feminine=noun.feminine,
        kind=kind,
        noun=noun,
    )


def choose(random: Random, items: Sequence[Item]) -> Item:
    return items[int(random.random() * len(items))]


PAIRS = 60_000
_SEED = 0

_WHO = Phrase(english="who", spanish="quién", person=2, feminine=False)
_ACTIVE_TENSES = ("present", "past", "future", "progressive", "perfect", "going", "can", "must", "want", "used")
_STATIVE_TENSES = ("present", "past", "future")
_MODES = ("statement",) * 8 + ("negative",) * 4 + ("never",) * 2 + ("question",) * 3 + ("doubt", "who", "what", "why")
_BE = {
    "present": ("am", "are", "is", "are", "are"),
    "past": ("was", "were", "was", "were", "were"),
    "future": ("will",) * 5,
}
_DESCRIBED = {"present": "present", "past": "imperfect", "future": "future"}
_AUXILIARIES = {
    "going": (words.IR, "a "),
    "can": (words.PODER, ""),
    "must": (words.DEBER, ""),
    "want": (words.QUERER, ""),
}
_PLEASES = ("me gusta", "te gusta", "le gusta", "nos gusta", "les gusta")


def pairs() -> list[tuple[str, str]]:
    """PAIRS different pairs, always the same; no sentence of either language comes twice."""
    random = Random(_SEED)
    english_seen: set[str] = set()
    spanish_seen: set[str] = set()
    made: list[tuple[str, str]] = []
    while len(made) < PAIRS:
        english, spanish = choose(random, _SENTENCES)(random)
        if english not in english_seen and spanish not in spanish_seen:
            english_seen.add(english)
            spanish_seen.add(spanish)
            made.append((english, spanish))
    return made


def _action(random: Random) -> tuple[str, str]:
    """Somebody does something: `The tall girl did not open the door yesterday.`"""
    verb = choose(random, words.VERBS)
    tense = choose(random, _STATIVE_TENSES if verb.stative else _ACTIVE_TENSES)
    mode = choose(random, _MODES)
    subject = _WHO if mode == "who" else anyone(random, verb.subjects)
    thing = _object(random, verb, subject)
    place = choose(random, words.PLACES) if random.random() < 0.25 else ("", "")
    time = choose(random, words.TIMES[tense]) if random.random() < 0.25 else ("", "")
    auxiliary, rest, plain = _english_verb(verb, tense, subject.person)
    group, spanish_tense = _spanish_verb(verb, tense, subject.person)
    actor, who = subject.subject(spanish_tense), subject.english
    what = (thing.english, to(thing.spanish) if thing.kind == "person" else thing.spanish) if thing else ("", "")
    if mode == "what" and (thing is None or thing.kind == "person" or "person" in verb.objects):
        mode = "question"
    english_end, spanish_end = (what[0], place[0], time[0]), (what[1], place[1], time[1])
    match mode:
        case "statement":
            return _say(who, plain, *english_end), _say(actor, group, *spanish_end)
        case "never" if tense in ("present", "past"):
            return _say(who, "never", plain, *english_end), _say(actor, "nunca", group, *spanish_end)
        case "negative" | "never":
            return _say(who, auxiliary, "not", rest, *english_end), _say(actor, "no", group, *spanish_end)
        case "who":
            return _ask("who", plain, *english_end), _ask_spanish("quién", group, *spanish_end)
        case "what":
            return (
                _ask("what", auxiliary, who, rest, place[0], time[0]),
                _ask_spanish("qué", group, actor, place[1], time[1]),
            )
        case "why":
            return (
                _ask("why", auxiliary, who, rest, *english_end),
                _ask_spanish("por qué", group, actor, *spanish_end),
            )
        case "doubt":
            return (_ask(auxiliary, who, "not", rest, *english_end), _ask_spanish("no", group, actor, *spanish_end))
        case _:
            return _ask(auxiliary, who, rest, *english_end), _ask_spanish(group, actor, *spanish_end)


def _quality(random: Random) -> tuple[str, str]:
    """`The girls were tired.`: ser for what they are, estar for how they are."""
    subject = anyone(random, KINDS, adjectives=False)
    adjective = choose(random, words.ADJECTIVES[subject.kind])
    return _being(
        random,
        subject,
        adjective.english,
        adjective.spanish[subject.form],
        words.ESTAR if adjective.passing else words.SER,
        subject_last=True,
    )


def _comparison(random: Random) -> tuple[str, str]:
    """`My brother is taller than the queen.`"""
    subject = anyone(random, KINDS, adjectives=False)
    other = noun_phrase(random, (subject.kind,), words.DEFINITE, adjectives=False)
    adjective = choose(random, [adjective for adjective in words.ADJECTIVES[subject.kind] if not adjective.passing])
    return _being(
        random,
        subject,
        f"{adjective.comparative} than {other.english}",
        f"más {adjective.spanish[subject.form]} que {other.spanish}",
        words.SER,
    )


def _location(random: Random) -> tuple[str, str]:
    """`Your keys are not in the kitchen.`"""
    place = choose(random, words.PLACES)
    return _being(random, anyone(random, KINDS), place[0], place[1], words.ESTAR)


def _being(
    random: Random,
    subject: Phrase,
    english: str,
    spanish: str,
    verb: dict[str, list[str]],
    *,
    subject_last: bool = False,
) -> tuple[str, str]:
    """Subject, ser or estar, and what follows, as statement, negative or question."""
    tense = choose(random, tuple(_BE))
    be, rest = _BE[tense][subject.person], "be" * (tense == "future")
    actor, form = subject.subject(_DESCRIBED[tense]), verb[_DESCRIBED[tense]][subject.person]
    mode = random.random()
    if mode < 0.5:
        return _say(subject.english, be, rest, english), _say(actor, form, spanish)
    if mode < 0.75:
        return _say(subject.english, be, "not", rest, english), _say(actor, "no", form, spanish)
    end = (spanish, actor) if subject_last else (actor, spanish)
    return _ask(be, subject.english, rest, english), _ask_spanish(form, *end)


def _existence(random: Random) -> tuple[str, str]:
    """`There are two red cars in the city.`"""
    past, mode = random.random() < 0.3, random.random()
    thing = noun_phrase(random, KINDS, [words.NO] if mode < 0.2 else words.INDEFINITE)
    be, there = _BE["past" if past else "present"][thing.person], "había" if past else "hay"
    place = choose(random, words.PLACES)
    if mode < 0.2:
        return _say("there", be, thing.english, place[0]), _say("no", there, thing.spanish, place[1])
    if mode < 0.7:
        return _say("there", be, thing.english, place[0]), _say(there, thing.spanish, place[1])
    return _ask(be, "there", thing.english, place[0]), _ask_spanish(there, thing.spanish, place[1])


def _liking(random: Random) -> tuple[str, str]:
    """`The boys like the cake.`: in Spanish the cake pleases the boys."""
    liker = anyone(random, ("person",))
    thing = noun_phrase(random, KINDS[1:], words.DEFINITE)
    past, mode = random.random() < 0.3, random.random()
    do = "did" if past else "does" if liker.person == 2 else "do"
    plain = "liked" if past else "likes" if liker.person == 2 else "like"
    pleases = _PLEASES[liker.person] + "ba" * past + "n" * (thing.person == 4)
    whom = to(liker.spanish) if liker.subject() else ""
    if mode < 0.5:
        return _say(liker.english, plain, thing.english), _say(whom, pleases, thing.spanish)
    if mode < 0.75:
        return _say(liker.english, do, "not like", thing.english), _say(whom, "no", pleases, thing.spanish)
    return _ask(do, liker.english, "like", thing.english), _ask_spanish(pleases, thing.spanish, whom)


_SENTENCES: Sequence[Callable[[Random], tuple[str, str]]] = (
    *[_action] * 12,
    _quality,
    _quality,
    _comparison,
    _location,
    _existence,
    _liking,
)


def _object(random: Random, verb: Verb, subject: Phrase) -> Phrase | None:
    if not verb.objects:
        return None
    thing = noun_phrase(random, verb.objects, DETERMINERS)
    return names(random) if thing.kind == "person" and thing.noun is subject.noun else thing


def _english_verb(verb: Verb, tense: str, person: int) -> tuple[str, str, str]:
    """(auxiliary, what follows it, the two in a statement)"""
    base, third, past, participle, progressive = verb.english
    he = person == 2
    do, be = "does" if he else "do", _BE["present"][person]
    match tense:
        case "present":
            return do, base, third if he else base
        case "past":
            return "did", base, past
        case "used":
            return "did", f"use to {base}", f"used to {base}"
        case "want":
            return do, f"want to {base}", f"{'wants' if he else 'want'} to {base}"
        case _:
            auxiliary, rest = {
                "future": ("will", base),
                "can": ("can", base),
                "must": ("must", base),
                "progressive": (be, progressive),
                "going": (be, f"going to {base}"),
                "perfect": ("has" if he else "have", participle),
            }[tense]
            return auxiliary, rest, f"{auxiliary} {rest}"


def _spanish_verb(verb: Verb, tense: str, person: int) -> tuple[str, str]:
    """The verb's words, and the tense that its person is seen by."""
    forms = verb.spanish
    match tense:
        case "progressive":
            return f"{words.ESTAR['present'][person]} {forms['gerund'][0]}", "present"
        case "perfect":
            return f"{words.HABER['present'][person]} {forms['participle'][0]}", "present"
        case "going" | "can" | "must" | "want":
            auxiliary, link = _AUXILIARIES[tense]
            return f"{auxiliary['present'][person]} {link}{forms['infinitive'][0]}", "present"
        case "past" | "used":
            own = "imperfect" if verb.stative or tense == "used" else "preterite"
            return forms[own][person], own
        case _:
            return forms[tense][person], tense


def _say(*parts: str) -> str:
    text = " ".join(filter(None, parts)).replace("can not", "cannot")
    return text[0].upper() + text[1:] + "."


def _ask(*parts: str) -> str:
    text = " ".join(filter(None, parts))
    return text[0].upper() + text[1:] + "?"


def _ask_spanish(*parts: str) -> str:
    return "¿" + _ask(*parts)
