"""How Spanish words change: agreement of adjectives, conjugation of verbs, contraction."""

# A verb's five persons: yo, tú, él, nosotros, ellos.

_ENDINGS = {
    "present": {"a": "o as a amos an", "e": "o es e emos en", "i": "o es e imos en"},
    "preterite": {"a": "é aste ó amos aron", "e": "í iste ió imos ieron", "i": "í iste ió imos ieron"},
    "imperfect": {"a": "aba abas aba ábamos aban", "e": "ía ías ía íamos ían", "i": "ía ías ía íamos ían"},
}
_FUTURE = "é ás á emos án"


def agree(adjective: str) -> tuple[str, str, str, str]:
    """Masculine and feminine singular, masculine and feminine plural, from the first of them."""
    if adjective.endswith("o"):
        stem = adjective[:-1]
        return adjective, stem + "a", stem + "os", stem + "as"
    if adjective.endswith("dor"):
        return adjective, adjective + "a", adjective + "es", adjective + "as"
    if adjective == "joven":
        plural = "jóvenes"
    elif adjective.endswith("e"):
        plural = adjective + "s"
    else:
        plural = adjective.removesuffix("z") + ("ces" if adjective.endswith("z") else "es")
    return adjective, adjective, plural, plural


def conjugate(infinitive: str, irregular: dict[str, str]) -> dict[str, list[str]]:
    """The five persons of present, preterite, imperfect and future; one gerund, participle and infinitive.

    `irregular` overrides by those names, persons separated by spaces; "stem" is the future's.
    """
    stem, vowel = infinitive[:-2], infinitive[-2]
    forms = {tense: [stem + ending for ending in endings[vowel].split()] for tense, endings in _ENDINGS.items()}
    forms["future"] = [irregular.get("stem", infinitive) + ending for ending in _FUTURE.split()]
    forms["gerund"] = [stem + ("ando" if vowel == "a" else "iendo")]
    forms["participle"] = [stem + ("ado" if vowel == "a" else "ido")]
    forms["infinitive"] = [infinitive]
    return forms | {name: given.split() for name, given in irregular.items() if name != "stem"}


def to(phrase: str) -> str:
    """The preposition a before a phrase: a + el is al."""
    return "al " + phrase[3:] if phrase.startswith("el ") else "a " + phrase


def and_(first: str, second: str) -> str:
    """y, but e before the sound of i."""
    return f"{first} {'e' if second.lower().startswith(('i', 'hi')) else 'y'} {second}"
