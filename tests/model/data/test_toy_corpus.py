"""The builtin grammar: enough different pairs, each grammatical in both languages."""

import hashlib
import itertools
import re

import pytest

from model.data import toy_corpus
from model.data.corpus import load_pairs

AGREES = {  # what a determiner may stand before: m or f, 1 or many
    **{word: {"m1"} for word in ("el", "un", "este", "ese", "nuestro")},
    **{word: {"f1"} for word in ("la", "una", "esta", "esa", "nuestra")},
    **{word: {"mm"} for word in ("los", "unos", "estos", "esos", "nuestros")},
    **{word: {"fm"} for word in ("las", "unas", "estas", "esas", "nuestras")},
    **{word: {"m1", "f1"} for word in ("mi", "tu")},
    **{word: {"mm", "fm"} for word in ("mis", "tus")},
}
SUBJECTS = "I", "You", "He|She|This|That|An?", "We", "They|These|Those|Some"
AUXILIARIES = {  # of each subject, and what its Spanish verb ends in
    "will will will will will": "ré rás rá remos rán",
    "do do does do do": "o [ae]s [ae] [aei]mos [ae]n",
    "did did did did did": "[éí] [ai]ste i?ó [ai]mos (a|ie)ron",
}
DIGEST = "40067cd3f2152225ccf342714dabde76e46310671293cb016b096c3876b8bd42"


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return toy_corpus.pairs()


def test_pairs_are_many_and_no_sentence_comes_twice(pairs: list[tuple[str, str]]) -> None:
    assert len(pairs) >= 50_000
    assert len({english for english, _ in pairs}) == len({spanish for _, spanish in pairs}) == len(pairs)


def test_each_split_has_its_part(pairs: list[tuple[str, str]]) -> None:
    """No sentence holds together so many others that held-out splits stay small."""
    corpus = load_pairs(None)
    assert len(corpus.valid) == len(corpus.test) == len(pairs) // 20 and corpus.too_long == 0


def test_pairs_are_always_the_same(pairs: list[tuple[str, str]]) -> None:
    """Losses on them are compared over versions and machines."""
    assert hashlib.sha256("\n".join(map("\t".join, pairs)).encode()).hexdigest() == DIGEST


def test_questions_and_statements_answer_each_other(pairs: list[tuple[str, str]]) -> None:
    for english, spanish in pairs:
        assert english.endswith("?") == spanish.endswith("?") == spanish.startswith("¿")
        assert english.endswith((".", "?")) and english[0].isupper() and spanish.lstrip("¿")[0].isupper()
        assert not re.search(r"  | [.?]", english + spanish)


def test_negations_are_negations_in_both(pairs: list[tuple[str, str]]) -> None:
    for english, spanish in pairs:
        assert (" not " in english) == (re.search(r"\bno\b", spanish, re.IGNORECASE) is not None), (english, spanish)


def test_spanish_contracts_and_english_has_an_before_vowels_only(pairs: list[tuple[str, str]]) -> None:
    english, spanish = ("\n".join(sentences) for sentences in zip(*pairs, strict=True))
    assert not re.search(r"\ba el\b", spanish, re.IGNORECASE) and re.search(r"\bal \w", spanish)
    assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", english, re.IGNORECASE) and re.search(r"\ban \w", english)


def test_determiners_agree_with_their_nouns_in_gender_and_number(pairs: list[tuple[str, str]]) -> None:
    """Each noun's form is of one gender and one number, whatever stands before it."""
    forms: dict[str, set[str]] = {}
    for _, spanish in pairs:
        for determiner, noun in itertools.pairwise(re.findall(r"\w+", spanish.lower().replace("al ", "a el "))):
            if determiner in AGREES:
                forms[noun] = forms.get(noun, set(AGREES[determiner])) & AGREES[determiner]
    assert len(forms) > 70 and {len(left) for left in forms.values()} == {1}
    known = {"llave": "f1", "coche": "m1", "madres": "fm", "relojes": "mm", "lápices": "mm", "actrices": "fm"}
    assert {noun: "".join(forms[noun]) for noun in known} == known


def test_determiners_are_of_one_number_in_both(pairs: list[tuple[str, str]]) -> None:
    many = r"\b(these|those|some)\b", r"\b(es[ot]?[oa]s|est[oa]s|un[oa]s)\b"
    for pair in pairs:
        english, spanish = (len(re.findall(form, text, re.IGNORECASE)) for form, text in zip(many, pair, strict=True))
        assert english == spanish, pair


def test_an_english_noun_is_plural_where_the_spanish_determiner_is(pairs: list[tuple[str, str]]) -> None:
    """`glass` and `actress` are not."""
    said = re.compile(r"(?:The|My|Your|Our) (\w+) (?:do|does|did|will) not ")
    nouns = [(match[1], spanish) for english, spanish in pairs if (match := said.match(english))]
    for noun, spanish in nouns:
        assert (re.search(r"[^s]s$", noun) is not None) == spanish.split()[0].endswith("s"), (noun, spanish)
    assert len(nouns) > 1_000


def test_an_english_verb_has_its_s_in_the_present_of_the_third_person(pairs: list[tuple[str, str]]) -> None:
    third = r"(He|She) \w+s\b(?! not)", r"(Él|Ella) \w+[ae]\b"
    for pair in pairs:
        english, spanish = (re.match(form, text) for form, text in zip(third, pair, strict=True))
        assert (english is None) == (spanish is None), pair


def test_adjectives_agree_with_the_nouns_that_they_are_said_of(pairs: list[tuple[str, str]]) -> None:
    endings = {"m1": r"o|[^aos]|gris", "f1": r"a|[^aos]|gris", "mm": "os|es", "fm": "as|es"}
    said = re.compile(r"(\w+) \w+ (\w+) no ")
    checked = [match.groups() for _, spanish in pairs if (match := said.match(spanish))]
    for determiner, adjective in checked:
        assert any(re.search(f"({endings[form]})$", adjective) for form in AGREES[determiner.lower()]), adjective
    assert len(checked) > 1_000


def test_verbs_agree_with_their_subjects(pairs: list[tuple[str, str]]) -> None:
    """As negations tell, whose Spanish verb comes after `no`."""
    negations = [pair for pair in pairs if " not " in pair[0]]
    for auxiliaries, endings in AUXILIARIES.items():
        for subject, auxiliary, ending in zip(SUBJECTS, auxiliaries.split(), endings.split(), strict=True):
            own = re.compile(rf"({subject}) (\w+ ){{0,2}}{auxiliary} not ")
            verbs = [spanish for english, spanish in negations if own.match(english)]
            assert verbs and all(re.search(rf"\b[Nn]o \w*{ending}\b", spanish) for spanish in verbs), (subject, ending)


def test_forms_by_hand(pairs: list[tuple[str, str]]) -> None:
    words = {word for pair in pairs for text in pair for word in re.findall(r"\w+", text.lower())}
    for forms in (
        "corro comes vende bailamos reciben lavé comí recibiste compró vendimos cantaron",
        "felices azules grises reyes escritores lápices actrices rojas fuertes grandes",
        "washes glasses actresses sandwiches boxes cookies keys",
    ):
        assert words >= set(forms.split())
