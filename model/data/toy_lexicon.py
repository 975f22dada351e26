"""The words of the toy corpus, and how Spanish ones change: agreement, conjugation, contraction."""

from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class Noun:
    """(singular, plural) in both languages; `stressed`: feminine that begins with a stressed a (el águila)."""

    english: tuple[str, str]
    spanish: tuple[str, str]
    kind: str
    feminine: bool
    stressed: bool


@dataclass(frozen=True, kw_only=True)
class Adjective:
    """Spanish: masculine, feminine singular, masculine, feminine plural; `passing`: takes estar, not ser."""

    english: str
    comparative: str
    spanish: tuple[str, str, str, str]
    passing: bool


@dataclass(frozen=True, kw_only=True)
class Determiner:
    """English singular and plural ("" where there is none); Spanish as an adjective's."""

    english: tuple[str, str]
    spanish: tuple[str, str, str, str]
    definite: bool


@dataclass(frozen=True, kw_only=True)
class Verb:
    """English base, third person, past, participle, -ing; `stative`: no progressive, its past is the imperfect."""

    english: tuple[str, str, str, str, str]
    spanish: dict[str, list[str]]
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    stative: bool


# kind, gender: English Spanish; after a slash the plural's ending, after two the plural; * before a stressed a
_NOUNS = """
person m: boy/s niño/s, man//men hombre/s, king/s rey/es, brother/s hermano/s, father/s padre/s, grandfather/s abuelo/s
person m: doctor/s médico/s, writer/s escritor/es, waiter/s camarero/s, uncle/s tío/s
person f: girl/s niña/s, woman//women mujer/es, queen/s reina/s, sister/s hermana/s, mother/s madre/s
person f: grandmother/s abuela/s, nurse/s enfermera/s, actress/es actriz//actrices, waitress/es camarera/s, aunt/s tía/s
animal m: dog/s perro/s, cat/s gato/s, horse/s caballo/s, bird/s pájaro/s, rabbit/s conejo/s, lion/s león//leones
animal f: cow/s vaca/s, hen/s gallina/s, *eagle/s águila/s, turtle/s tortuga/s
food m: cake/s pastel/es, cheese/s queso/s, egg/s huevo/s, tomato/es tomate/s
food f: apple/s manzana/s, orange/s naranja/s, soup/s sopa/s, salad/s ensalada/s
reading m: book/s libro/s, newspaper/s periódico/s, poem/s poema/s
reading f: letter/s carta/s, magazine/s revista/s, novel/s novela/s
clothing m: dress/es vestido/s, hat/s sombrero/s, shoe/s zapato/s, coat/s abrigo/s
clothing f: shirt/s camisa/s, skirt/s falda/s, jacket/s chaqueta/s
opening m: trunk/s baúl/es, drawer/s cajón//cajones
opening f: door/s puerta/s, window/s ventana/s, box/es caja/s
thing m: car/s coche/s, clock/s reloj/es, mirror/s espejo/s, pencil/s lápiz//lápices, glass/es vaso/s
thing f: house/s casa/s, table/s mesa/s, chair/s silla/s, lamp/s lámpara/s, bicycle/s bicicleta/s, key/s llave/s
instrument m: piano/s piano/s, violin/s violín//violines
instrument f: guitar/s guitarra/s, flute/s flauta/s
"""

# kinds of nouns, verb: English[/comparative] Spanish
_ADJECTIVES = """
person ser: tall/taller alto, young/younger joven, kind/kinder amable, strong/stronger fuerte, rich/richer rico
person ser: intelligent inteligente, hardworking trabajador, famous famoso, elegant elegante
person estar: tired cansado, sick enfermo, sad triste, nervous nervioso
person estar: busy ocupado, worried preocupado, angry enfadado
animal ser: fast/faster rápido, slow/slower lento, strong/stronger fuerte, wild/wilder salvaje
animal estar: hungry hambriento, tired cansado
food ser: delicious delicioso, sweet/sweeter dulce, salty/saltier salado
food estar: cold frío
reading ser: interesting interesante, long/longer largo, short/shorter corto, famous famoso, sad/sadder triste
clothing ser: elegant elegante, long/longer largo
opening ser: heavy/heavier pesado
opening estar: open abierto, closed cerrado
thing+instrument ser: strange/stranger extraño
thing+instrument+clothing ser: modern moderno
thing+instrument estar: broken roto
animal+clothing+opening+thing+instrument ser: white/whiter blanco, black/blacker negro, grey/greyer gris
clothing+opening+thing ser: red/redder rojo, yellow/yellower amarillo, green/greener verde, blue/bluer azul
animal+food+opening+thing ser: big/bigger grande, small/smaller pequeño
food+reading+clothing+thing+instrument ser: expensive caro, cheap/cheaper barato
clothing+opening+thing estar: clean limpio, dirty sucio
"""

# English singular/plural: Spanish
_DEFINITE = """
the/the: el la los las
the/the: el la los las
my/my: mi mi mis mis
your/your: tu tu tus tus
our/our: nuestro nuestra nuestros nuestras
this/these: este esta estos estas
that/those: ese esa esos esas
"""
_INDEFINITE = """
a/some: un una unos unas
/many: - - muchos muchas
/two: - - dos dos
/three: - - tres tres
"""


def _nouns() -> list[Noun]:
    nouns = []
    for line in _NOUNS.strip().split("\n"):
        head, entries = line.split(": ")
        kind, gender = head.split(" ")
        for entry in entries.split(", "):
            english, spanish = (_plural(side) for side in entry.lstrip("*").split(" "))
            nouns.append(
                Noun(
                    english=english, spanish=spanish, kind=kind, feminine=gender == "f", stressed=entry.startswith("*")
                )
            )
    return nouns


def _plural(entry: str) -> tuple[str, str]:
    singular, _, plural = entry.partition("//")
    if not plural:
        singular, _, ending = entry.partition("/")
        plural = singular + ending
    return singular, plural


def _adjectives() -> dict[str, list[Adjective]]:
    """By kind of noun."""
    adjectives: dict[str, list[Adjective]] = {}
    for line in _ADJECTIVES.strip().split("\n"):
        head, entries = line.split(": ")
        kinds, verb = head.split(" ")
        for entry in entries.split(", "):
            words, spanish = entry.split(" ")
            english, _, comparative = words.partition("/")
            adjective = Adjective(
                english=english,
                comparative=comparative or "more " + english,
                spanish=agree(spanish),
                passing=verb == "estar",
            )
            for kind in kinds.split("+"):
                adjectives.setdefault(kind, []).append(adjective)
    return adjectives


def _determiners(listed: str, *, definite: bool) -> list[Determiner]:
    determiners = []
    for line in listed.strip().split("\n"):
        english, spanish = line.split(": ")
        singular, plural = english.split("/")
        one, two, three, four = spanish.split(" ")
        determiners.append(Determiner(english=(singular, plural), spanish=(one, two, three, four), definite=definite))
    return determiners


def _verb(
    english: str, infinitive: str, subjects: str, objects: str = "", *, stative: bool = False, **irregular: str
) -> Verb:
    base, third, past, participle, progressive = english.split(" ")
    return Verb(
        english=(base, third, past, participle, progressive),
        spanish=conjugate(infinitive, irregular),
        subjects=tuple(subjects.split()),
        objects=tuple(objects.split()),
        stative=stative,
    )


NOUNS = _nouns()
ADJECTIVES = _adjectives()  # after the noun in Spanish
EARLY_ADJECTIVES = [  # (English, before the Spanish noun: bueno is buen there, grande is gran)
    ("good", ("buen", "buena", "buenos", "buenas")),
    ("bad", ("mal", "mala", "malos", "malas")),
    ("great", ("gran", "gran", "grandes", "grandes")),
    ("new", agree("nuevo")),
    ("beautiful", agree("hermoso")),
]
DEFINITE = _determiners(_DEFINITE, definite=True)
INDEFINITE = _determiners(_INDEFINITE, definite=False)
NO = Determiner(english=("", "no"), spanish=("", "", "", ""), definite=False)
NAMES = [  # (name, feminine)
    ("Ana", True),
    ("María", True),
    ("Lucía", True),
    ("Irene", True),
    ("Pedro", False),
    ("Juan", False),
    ("Carlos", False),
]

_GOODS = "food reading clothing thing instrument"
_ALL = _GOODS + " person animal opening"
VERBS = [
    _verb("eat eats ate eaten eating", "comer", "person animal", "food"),
    _verb("cook cooks cooked cooked cooking", "cocinar", "person", "food"),
    _verb(
        "read reads read read reading",
        "leer",
        "person",
        "reading",
        preterite="leí leíste leyó leímos leyeron",
        gerund="leyendo",
        participle="leído",
    ),
    _verb("write writes wrote written writing", "escribir", "person", "reading", participle="escrito"),
    _verb("buy buys bought bought buying", "comprar", "person", _GOODS),
    _verb("sell sells sold sold selling", "vender", "person", _GOODS),
    _verb(
        "see sees saw seen seeing",
        "ver",
        "person animal",
        _ALL,
        present="veo ves ve vemos ven",
        preterite="vi viste vio vimos vieron",
        imperfect="veía veías veía veíamos veían",
        participle="visto",
    ),
    _verb(
        "find finds found found finding",
        "encontrar",
        "person animal",
        _ALL,
        present="encuentro encuentras encuentra encontramos encuentran",
    ),
    _verb("draw draws drew drawn drawing", "dibujar", "person", "animal thing"),
    _verb("paint paints painted painted painting", "pintar", "person", "opening thing"),
    _verb("open opens opened opened opening", "abrir", "person", "opening", participle="abierto"),
    _verb(
        "close closes closed closed closing",
        "cerrar",
        "person",
        "opening",
        present="cierro cierras cierra cerramos cierran",
    ),
    _verb("clean cleans cleaned cleaned cleaning", "limpiar", "person", "opening thing instrument"),
    _verb("wash washes washed washed washing", "lavar", "person", "clothing"),
    _verb("break breaks broke broken breaking", "romper", "person", "thing instrument", participle="roto"),
    _verb(
        "lose loses lost lost losing",
        "perder",
        "person",
        "thing clothing reading",
        present="pierdo pierdes pierde perdemos pierden",
    ),
    _verb(
        "play plays played played playing",
        "tocar",
        "person",
        "instrument",
        preterite="toqué tocaste tocó tocamos tocaron",
    ),
    _verb("help helps helped helped helping", "ayudar", "person", "person"),
    _verb("visit visits visited visited visiting", "visitar", "person", "person"),
    _verb("call calls called called calling", "llamar", "person", "person"),
    _verb(
        "have has had had having",
        "tener",
        "person",
        _GOODS + " animal",
        stative=True,
        present="tengo tienes tiene tenemos tienen",
        stem="tendr",
    ),
    _verb(
        "want wants wanted wanted wanting",
        "querer",
        "person",
        "food reading clothing thing",
        stative=True,
        present="quiero quieres quiere queremos quieren",
        stem="querr",
    ),
    _verb("need needs needed needed needing", "necesitar", "person", "clothing thing reading", stative=True),
    _verb(
        "sleep sleeps slept slept sleeping",
        "dormir",
        "person animal",
        present="duermo duermes duerme dormimos duermen",
        gerund="durmiendo",
        preterite="dormí dormiste durmió dormimos durmieron",
    ),
    _verb("run runs ran run running", "correr", "person animal"),
    _verb("swim swims swam swum swimming", "nadar", "person animal"),
    _verb("work works worked worked working", "trabajar", "person"),
    _verb("sing sings sang sung singing", "cantar", "person"),
    _verb("dance dances danced danced dancing", "bailar", "person"),
    _verb("study studies studied studied studying", "estudiar", "person"),
    _verb("rest rests rested rested resting", "descansar", "person animal"),
    _verb("cry cries cried cried crying", "llorar", "person"),
]
SER = conjugate("ser", {"present": "soy eres es somos son", "imperfect": "era eras era éramos eran"})
ESTAR = conjugate("estar", {"present": "estoy estás está estamos están"})
HABER = conjugate("haber", {"present": "he has ha hemos han"})
IR = conjugate("ir", {"present": "voy vas va vamos van"})
PODER = conjugate("poder", {"present": "puedo puedes puede podemos pueden"})
DEBER = conjugate("deber", {})
QUERER = conjugate("querer", {"present": "quiero quieres quiere queremos quieren"})

PLACES = [
    ("in the garden", "en el jardín"),
    ("at school", "en la escuela"),
    ("at home", "en casa"),
    ("in the kitchen", "en la cocina"),
    ("in the park", "en el parque"),
    ("in the city", "en la ciudad"),
    ("on the beach", "en la playa"),
    ("near the river", "cerca del río"),
    ("behind the church", "detrás de la iglesia"),
    ("under the bridge", "debajo del puente"),
]
_NEXT = [("tomorrow", "mañana"), ("next week", "la semana que viene"), ("tonight", "esta noche")]
_SOON = [("today", "hoy"), ("tomorrow", "mañana")]
TIMES = {
    "present": [("every day", "todos los días"), ("on Mondays", "los lunes"), ("in the morning", "por la mañana")],
    "past": [("yesterday", "ayer"), ("last night", "anoche"), ("last week", "la semana pasada")],
    "progressive": [("now", "ahora")],
    "perfect": [("today", "hoy"), ("this week", "esta semana")],
    "used": [("every summer", "cada verano"), ("on Mondays", "los lunes")],
    "future": _NEXT,
    "going": _NEXT,
    "can": _SOON,
    "must": _SOON,
    "want": _SOON,
}
