"""English sentences with their Spanish translations, made by a small grammar: the text that comes with the project."""

from collections.abc import Iterable
from random import Random

PAIRS = 60_000

MASCULINE = {  # English/Spanish, by kind
    "person": "boy/niño king/rey brother/hermano father/padre doctor/médico writer/escritor uncle/tío waiter/camarero",
    "food": "cake/pastel cheese/queso egg/huevo sandwich/bocadillo banana/plátano cookie/bizcocho",
    "thing": "book/libro car/coche clock/reloj mirror/espejo pencil/lápiz hat/sombrero coat/abrigo glass/vaso",
}
FEMININE = {
    "person": "girl/niña queen/reina sister/hermana mother/madre nurse/enfermera aunt/tía actress/actriz",
    "food": "apple/manzana orange/naranja soup/sopa salad/ensalada onion/cebolla pear/pera",
    "thing": "letter/carta house/casa door/puerta box/caja chair/silla lamp/lámpara key/llave shirt/camisa",
}
ADJECTIVES = {
    "person": "tall/alto strong/fuerte rich/rico kind/amable happy/feliz intelligent/inteligente famous/famoso",
    "food": "sweet/dulce delicious/delicioso expensive/caro cheap/barato big/grande small/pequeño fresh/fresco",
    "thing": "red/rojo green/verde blue/azul grey/gris white/blanco black/negro strange/extraño old/viejo",
}
DETERMINERS = (  # English singular/plural, Spanish masculine, feminine, and their plurals
    "the/the/el/la/los/las a/some/un/una/unos/unas my/my/mi/mi/mis/mis your/your/tu/tu/tus/tus "
    "our/our/nuestro/nuestra/nuestros/nuestras this/these/este/esta/estos/estas that/those/ese/esa/esos/esas"
)
VERBS = {  # by the kind of their object: English present/past/Spanish infinitive, all of them regular in Spanish
    "": "run/ran/correr rest/rested/descansar sing/sang/cantar dance/danced/bailar work/worked/trabajar",
    "person": "help/helped/ayudar call/called/llamar visit/visited/visitar understand/understood/comprender",
    "food": "eat/ate/comer cook/cooked/cocinar share/shared/compartir buy/bought/comprar sell/sold/vender",
    "thing": "break/broke/romper clean/cleaned/limpiar hide/hid/esconder receive/received/recibir wash/washed/lavar "
    "draw/drew/dibujar paint/painted/pintar need/needed/necesitar",
}
ENDINGS = {  # by the infinitive's vowel and the person: I, you, third singular, we, third plural
    "present": {"a": "o as a amos an", "e": "o es e emos en", "i": "o es e imos en"},
    "past": {"a": "é aste ó amos aron", "e": "í iste ió imos ieron", "i": "í iste ió imos ieron"},
    "will": {"a": "aré arás ará aremos arán", "e": "eré erás erá eremos erán", "i": "iré irás irá iremos irán"},
}
ENDS = "today/hoy", "at home/en casa", "in the garden/en el jardín", "with Ana/con Ana", "/"
PRONOUNS = "I//0 you//1 he/él/2 she/ella/2 we//3 they/ellos/4"  # Spanish leaves out what the verb form tells


def pairs() -> list[tuple[str, str]]:
    """Return PAIRS different pairs, always the same ones; no sentence of either language comes twice."""
    random, made, seen = Random(0), dict[str, str](), set[str]()
    while len(made) < PAIRS:
        english, spanish = _sentence(random)
        if english not in made and spanish not in seen:
            made[english] = spanish
            seen.add(spanish)
    return list(made.items())


def _sentence(random: Random) -> tuple[str, str]:
    """Draw a statement, a negation or a question, such as `The tall girl did not help my brothers at home.`"""
    (kind,), (tense,) = _chosen(random, VERBS), _chosen(random, ENDINGS)
    who, spanish_who, person = _subject(random)
    base, past, infinitive = _chosen(random, VERBS[kind].split())
    present = ("does", _with_s(base)) if person == 2 else ("do", base)
    auxiliary, plain = {"present": present, "past": ("did", past), "will": ("will", f"will {base}")}[tense]
    verb = infinitive[:-2] + ENDINGS[tense][infinitive[-2]].split()[person]
    what, spanish_what, _ = _noun_phrase(random, kind) if kind else ("", "", 2)
    end, spanish_end = _chosen(random, ENDS)
    if kind == "person":
        spanish_what = f"a {spanish_what}".replace("a el ", "al ")
    after, spanish_after = f"{what} {end}", f"{spanish_what} {spanish_end}"
    mode = random.random()
    if mode < 0.5:
        return _written(who, plain, after, "."), _written(spanish_who, verb, spanish_after, ".")
    if mode < 0.75:
        return _written(who, auxiliary, "not", base, after, "."), _written(spanish_who, "no", verb, spanish_after, ".")
    return _written(auxiliary, who, base, after, "?"), "¿" + _written(verb, spanish_who, spanish_after, "?")


def _written(*parts: str) -> str:
    text = " ".join(" ".join(parts[:-1]).split())
    return text[0].upper() + text[1:] + parts[-1]


def _subject(random: Random) -> tuple[str, str, int]:
    if random.random() < 0.6:
        return _noun_phrase(random, "person")
    english, spanish, person = _chosen(random, PRONOUNS.split())
    return english, spanish, int(person)


def _noun_phrase(random: Random, kind: str) -> tuple[str, str, int]:
    """Draw a determiner, a noun and perhaps an adjective, which follows the Spanish noun; and the person of its
    verb."""
    feminine, plural = random.random() < 0.5, random.random() < 0.4
    determiner = _chosen(random, DETERMINERS.split())
    english, spanish = _chosen(random, (MASCULINE, FEMININE)[feminine][kind].split())
    if plural:
        english, spanish = _with_s(english), _agreeing(spanish, False, True)
    if random.random() < 0.4:
        adjective, quality = _chosen(random, ADJECTIVES[kind].split())
        english, spanish = f"{adjective} {english}", f"{spanish} {_agreeing(quality, feminine, plural)}"
    article = "an" if determiner[plural] == "a" and english[0] in "aeiou" else determiner[plural]
    return f"{article} {english}", f"{determiner[2 + feminine + 2 * plural]} {spanish}", 2 + 2 * plural


def _with_s(english: str) -> str:
    """Return the plural of a noun, or the third person of a verb."""
    return english + ("es" if english.endswith(("s", "x", "ch", "sh")) else "s")


def _agreeing(spanish: str, feminine: bool, plural: bool) -> str:
    """Inflect a masculine singular for gender and number."""
    if feminine and spanish.endswith("o"):
        spanish = spanish[:-1] + "a"
    many = spanish + "s" if spanish[-1] in "aeo" else (spanish + "es").replace("zes", "ces")
    return many if plural else spanish


def _chosen(random: Random, entries: Iterable[str]) -> list[str]:
    """Draw one of the entries, the same in every version of Python, and return its forms."""
    every = list(entries)
    return every[int(random.random() * len(every))].split("/")
