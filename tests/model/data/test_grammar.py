"""The builtin grammar: enough different pairs, each grammatical in both languages."""

import itertools
import re

import pytest

from model.data import toy_corpus
from model.data import toy_lexicon as lexicon
from model.data.toy_lexicon import agree, and_, conjugate, to


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return toy_corpus.pairs()


def test_pairs_are_many_and_no_sentence_comes_twice(pairs: list[tuple[str, str]]) -> None:
    assert len(pairs) >= 50_000
    assert len({english for english, _ in pairs}) == len({spanish for _, spanish in pairs}) == len(pairs)


def test_pairs_are_always_the_same(pairs: list[tuple[str, str]]) -> None:
    assert toy_corpus.pairs() == pairs


def test_questions_and_statements_answer_each_other(pairs: list[tuple[str, str]]) -> None:
    for english, spanish in pairs:
        assert english.endswith("?") == spanish.endswith("?") == spanish.startswith("¿")
        assert english.endswith((".", "?")) and english[0].isupper() and spanish.lstrip("¿")[0].isupper()
        assert "  " not in english + spanish


def test_negations_are_negations_in_both(pairs: list[tuple[str, str]]) -> None:
    for english, spanish in pairs:
        negated = re.search(r"\b(not|never|cannot|no)\b", english, re.IGNORECASE) is not None
        assert negated == (re.search(r"\b(no|nunca)\b", spanish, re.IGNORECASE) is not None), (english, spanish)


def test_spanish_contracts_and_avoids_a_stressed_a_after_la(pairs: list[tuple[str, str]]) -> None:
    text = "\n".join(spanish for _, spanish in pairs)
    assert not re.search(r"\b(a|de) el\b|\b(la|una) águila\b|\by I|\be (?!I)", text, re.IGNORECASE)
    assert re.search(r"\bal \w", text) and re.search(r"\bel águila\b", text, re.IGNORECASE) and " e Irene" in text


def test_english_has_an_before_vowels_only(pairs: list[tuple[str, str]]) -> None:
    text = "\n".join(english for english, _ in pairs)
    assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text, re.IGNORECASE)


def test_every_determiner_agrees_with_its_noun(pairs: list[tuple[str, str]]) -> None:
    forms = {form: 2 * plural + noun.feminine for noun in lexicon.NOUNS for plural, form in enumerate(noun.spanish)}
    stressed = {noun.spanish[0] for noun in lexicon.NOUNS if noun.stressed}
    allowed = {
        word: {
            form
            for determiner in lexicon.DEFINITE + lexicon.INDEFINITE
            for form, spanish in enumerate(determiner.spanish)
            if spanish == word
        }
        for determiner in lexicon.DEFINITE + lexicon.INDEFINITE
        for word in determiner.spanish
    }
    checked = 0
    for _, spanish in pairs:
        words = re.findall(r"\w+", spanish.lower())
        for determiner, noun in itertools.pairwise(words):
            if determiner in allowed and noun in forms and noun not in stressed:
                assert forms[noun] in allowed[determiner], spanish
                checked += 1
    assert checked > 50_000


def test_every_phenomenon_is_there(pairs: list[tuple[str, str]]) -> None:
    text = "\n".join(f"{english}\t{spanish}" for english, spanish in pairs)
    for example in (
        r"white \w+s\b.*\tL[oa]s .* blanc[oa]s",
        r"\tNo .* gustan? ",
        r"^Who .*\t¿Quién ",
        r" nunca ",
        r" más \w+ que ",
        r"\t¿?(Hay|Había) ",
        r" great (\w+ )?woman.*gran mujer",
        r" to help .* al? ",
    ):
        assert re.search(example, text, re.MULTILINE), example


@pytest.mark.parametrize(
    ("infinitive", "tense", "forms"),
    [
        ("hablar", "present", "hablo hablas habla hablamos hablan"),
        ("comer", "preterite", "comí comiste comió comimos comieron"),
        ("vivir", "present", "vivo vives vive vivimos viven"),
        ("hablar", "imperfect", "hablaba hablabas hablaba hablábamos hablaban"),
        ("vivir", "future", "viviré vivirás vivirá viviremos vivirán"),
        ("comer", "gerund", "comiendo"),
        ("hablar", "participle", "hablado"),
    ],
)
def test_regular_verbs_by_hand(infinitive: str, tense: str, forms: str) -> None:
    assert conjugate(infinitive, {})[tense] == forms.split()


def test_irregular_forms_override_and_the_stem_bends_the_future() -> None:
    forms = conjugate("tener", {"present": "tengo tienes tiene tenemos tienen", "stem": "tendr"})
    assert forms["present"][0] == "tengo" and forms["future"][3] == "tendremos" and forms["imperfect"][0] == "tenía"


@pytest.mark.parametrize(
    ("masculine", "others"),
    [
        ("alto", "alta altos altas"),
        ("verde", "verde verdes verdes"),
        ("azul", "azul azules azules"),
        ("feliz", "feliz felices felices"),
        ("trabajador", "trabajadora trabajadores trabajadoras"),
        ("joven", "joven jóvenes jóvenes"),
    ],
)
def test_adjectives_by_hand(masculine: str, others: str) -> None:
    assert agree(masculine) == (masculine, *others.split())


def test_small_words_by_hand() -> None:
    assert (to("el rey"), to("la reina"), to("él")) == ("al rey", "a la reina", "a él")
    assert (and_("Ana", "Pedro"), and_("Ana", "Irene")) == ("Ana y Pedro", "Ana e Irene")
