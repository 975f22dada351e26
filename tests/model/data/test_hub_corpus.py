"""Corpora of datasets: fields found, splits kept apart, what is missing cut."""

from collections.abc import Iterable

import pyarrow as pa
import pytest
from datasets import Dataset

from model.data.corpus import LONGEST_CHARACTERS, Pair, PairCorpus, normalised
from model.data.dataset import prepare_pairs
from model.data.hub import OUR_SPLITS, HubName, find_pair_fields, find_text_field, pairs_from, text_from
from tests.model.stand_in import pairs, translations

NAME = HubName.parse("hub:a/b", "--corpus")
PARTS = ("train", "valid", "test")
TEXT, LARGE, NUMBER = pa.string(), pa.large_string(), pa.int64()
BOTH = pa.struct([("en", TEXT), ("es", TEXT)])


def splits_of(tables: dict[str, pa.Table]) -> dict[str, Dataset]:
    """Datasets by our names of their splits."""
    return {OUR_SPLITS[part]: Dataset(table) for part, table in tables.items()}


def sentences(rows: list[Pair]) -> set[str]:
    return {normalised(sentence) for pair in rows for sentence in pair}


def check_apart(corpus: PairCorpus) -> None:
    """No sentence, on either side, stands in two splits."""
    train, valid, test = (sentences(getattr(corpus, part)) for part in PARTS)
    assert train and valid and test and not (train & valid or train & test or valid & test)


def test_a_pair_is_dropped_if_and_only_if_it_shares_a_sentence_with_a_split_after_its_own() -> None:
    shared = [("WE COUNT 501", "otra"), ("other", "¿contamos 502?"), ("Contamos 501.", "crossed")]
    held_out = [("WE COUNT 601", "otra"), ("other", "¿contamos 602?")]
    kept = [("only here", "solo"), *pairs(500, 520)]
    rows = {"train": shared + pairs(0, 500), "validation": held_out + kept, "test": pairs(600, 620)}
    corpus = pairs_from(NAME, splits_of({part: translations(some) for part, some in rows.items()}))
    check_apart(corpus)
    assert (corpus.train, corpus.valid, corpus.test) == (pairs(0, 500), kept, rows["test"])


def test_pairs_that_are_too_long_are_left_out_of_every_split_and_counted() -> None:
    long = "a" * LONGEST_CHARACTERS
    for extra in [(long + "b", "corta"), ("short", long + "b")]:
        rows = {"train": [*pairs(0, 500), extra], "validation": [*pairs(500, 520), (long, "justa")]}
        rows["test"] = [extra, *pairs(600, 620)]
        corpus = pairs_from(NAME, splits_of({part: translations(some) for part, some in rows.items()}))
        assert corpus.too_long == 2
        assert (corpus.train, corpus.test) == (pairs(0, 500), pairs(600, 620)) and corpus.valid == rows["validation"]


@pytest.mark.parametrize("there", [("train",), ("train", "test"), ("train", "valid")])
def test_a_missing_split_is_cut_from_train(there: tuple[str, ...]) -> None:
    tables = {part: translations(pairs(*((0, 1000) if part == "train" else (990, 1030)))) for part in there}
    corpus = pairs_from(NAME, splits_of(tables))
    check_apart(corpus)
    assert not sentences(corpus.valid) & sentences(corpus.test)
    own = [getattr(corpus, part) for part in there[1:]]
    assert all(rows == pairs(990, 1030) for rows in own)
    cut = [getattr(corpus, part) for part in PARTS if part not in there]
    assert all(len(rows) == (1000 if len(there) == 1 else 990) // 20 for rows in cut)
    assert len(corpus.train) + sum(map(len, cut)) == (1000 if len(there) == 1 else 990)


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ("valid", pairs(1000, 1062)),
        ("valid", pairs(2000, 2003)),
        ("test", [(source, "") for source, _ in pairs(1000, 1060)]),
    ],
    ids=["a copy of another", "a few", "blind"],
)
def test_a_split_of_which_hardly_a_pair_is_left_is_cut_from_train(part: str, rows: list[Pair]) -> None:
    """Which then has those few, and told, as it is not the dataset's own."""
    parts = {"train": pairs(0, 1000), "valid": pairs(1000, 1060), "test": pairs(1000, 1060)} | {part: rows}
    if part == "test":
        parts["valid"] = pairs(1060, 1120)
    corpus = pairs_from(NAME, splits_of({name: translations(some) for name, some in parts.items()}))
    check_apart(corpus)
    few = {pair for pair in rows if all(pair)} - {*parts["test"]}
    assert corpus.cut == (part,) and len(getattr(corpus, part)) == 50 and len(corpus.train) == 950 + len(few)
    assert {*corpus.train, *getattr(corpus, part)} == {*pairs(0, 1000), *few}
    (other,) = {"valid", "test"} - {part}
    assert getattr(corpus, other) == parts[other] and prepare_pairs(corpus).cut == (part,)


def test_rows_without_two_sides_are_left_out_and_counted() -> None:
    rows = [("", "nada"), ("nothing", " "), (None, "nada"), ("  cafe\u0301 ", "café")]
    corpus = pairs_from(NAME, splits_of({"train": translations(rows + pairs(0, 400))}))
    everything = corpus.train + corpus.valid + corpus.test
    assert len(everything) == 401 and ("café", "café") in everything and corpus.bad_lines == 3


def test_the_hash_is_of_what_is_in_the_splits() -> None:
    def sha256(rows: list[Pair]) -> str:
        return pairs_from(NAME, splits_of({"train": translations(rows)})).sha256

    assert sha256(pairs(0, 300)) == sha256(pairs(0, 300)) != sha256(pairs(0, 301))


def test_whoever_tracks_the_work_is_told_how_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    about = []

    def track(items: Iterable, what: str, total: int) -> list:
        about.append(what)
        counted = list(items)
        assert len(counted) == total
        return counted

    monkeypatch.setattr("model.data.hub.ROWS", 70)
    monkeypatch.setattr("model.data.corpus.CHUNK", 70)
    corpus = pairs_from(NAME, splits_of({"train": translations(pairs(0, 999))}), track=track)
    assert len(corpus.train + corpus.valid + corpus.test) == 999
    prepare_pairs(corpus, track)
    assert about == ["reading train", "splitting", "learning a vocabulary", *["tokenizing"] * 3]


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"--corpus: 'hub:a/b' has 9 pairs .*at least 256"):
        pairs_from(NAME, splits_of({"train": translations(pairs(0, 9))}))


def test_pairs_that_leave_too_few_to_be_judged_on_are_refused() -> None:
    rows = [("always", "siempre")] * 1000 + pairs(0, 55)
    with pytest.raises(
        ValueError, match=r"--corpus: 'hub:a/b' leaves 3 pairs for the split 'test', fewer than 8: name"
    ):
        pairs_from(NAME, splits_of({"train": translations(rows)}))


def test_text_keeps_its_splits_and_its_rows_are_lines() -> None:
    tables = {"train": ["one\n", "two", "", "drei\r\n"] * 900, "validation": ["x y"] * 900, "test": ["z" * 409]}
    splits = splits_of({part: pa.table({"text": rows}) for part, rows in tables.items()})
    corpus = text_from(NAME, splits)
    train, valid, test = ("".join(getattr(corpus, part)) for part in PARTS)
    assert train == "\n".join(["one", "two", "", "drei"] * 900)
    assert valid == "\n".join(["x y"] * 900) and test == "z" * 409


@pytest.mark.parametrize("part", ["validation", "test"])
@pytest.mark.parametrize("rows", [["z"], [" "] * 900])
def test_text_without_enough_to_be_judged_on_is_refused(part: str, rows: list[str]) -> None:
    tables = {"train": ["one two"] * 2_000, "validation": ["x y"] * 900, "test": ["x y"] * 900, part: rows}
    with pytest.raises(ValueError, match=r"^--corpus: 'hub:a/b' has too little text [^\n]* 409 or more in each split"):
        text_from(NAME, splits_of({name: pa.table({"text": each}) for name, each in tables.items()}))


@pytest.mark.parametrize(("there", "shares"), [(("train",), (0.9, 0.05, 0.05)), (("train", "test"), (0.95, 0.05))])
def test_missing_text_is_cut_from_the_end_of_train(there: tuple[str, ...], shares: tuple[float, ...]) -> None:
    splits = splits_of({part: pa.table({"text": [f"{part} word " * 1000]}) for part in there})
    corpus = text_from(NAME, splits)
    cut = ["".join(getattr(corpus, part)) for part in PARTS if part == "train" or part not in there]
    assert "".join(cut) == "train word " * 1000
    assert [len(part) for part in cut] == [pytest.approx(11_000 * share, abs=1) for share in shares]


@pytest.mark.parametrize(
    ("schema", "fields", "found"),
    [
        ({"id": NUMBER, "translation": BOTH}, "", [("translation", "en"), ("translation", "es")]),
        ({"translation": BOTH}, "#es,en", [("translation", "es"), ("translation", "en")]),
        ({"Spanish": TEXT, "English": LARGE, "id": NUMBER}, "", [("English",), ("Spanish",)]),
        ({"source": TEXT, "target": TEXT}, "", [("source",), ("target",)]),
        ({"note": TEXT, "a": TEXT, "b": TEXT}, "#b,a", [("b",), ("a",)]),
        ({"meta": pa.struct([("en", TEXT)]), "en": TEXT, "es": TEXT}, "#en,es", [("en",), ("es",)]),
    ],
)
def test_the_fields_of_pairs_are_found_or_taken_as_named(
    schema: dict[str, pa.DataType], fields: str, found: list[tuple[str, ...]]
) -> None:
    assert find_pair_fields(HubName.parse(f"hub:a/b{fields}", "--corpus"), pa.schema(schema)) == found


@pytest.mark.parametrize(
    ("schema", "fields", "found"),
    [
        ({"text": TEXT, "title": TEXT}, "", ("text",)),
        ({"story": TEXT, "id": NUMBER}, "", ("story",)),
        ({"text": TEXT, "title": TEXT}, "#title", ("title",)),
    ],
)
def test_the_field_of_text_is_found_or_taken_as_named(
    schema: dict[str, pa.DataType], fields: str, found: tuple[str, ...]
) -> None:
    assert find_text_field(HubName.parse(f"hub:a/b{fields}", "--corpus"), pa.schema(schema)) == found


@pytest.mark.parametrize(
    ("schema", "fields", "said"),
    [
        ({"a": TEXT, "b": TEXT, "c": TEXT}, "", "has the text fields a, b, c, of which two .*such as #en,es"),
        ({"a": TEXT, "b": NUMBER}, "", "has the text fields a, of which two"),
        ({"a": TEXT, "b": TEXT}, "#a", "has the text fields a, b, of which two"),
        ({"a": TEXT, "b": TEXT}, "#a,en", "has no field 'en' with text in it: name of the text fields a, b"),
        ({"a": TEXT, "b": NUMBER}, "#a,b", "has no field 'b' with text in it"),
        ({"b": NUMBER}, "", "has no text field"),
        ({"en": TEXT, "es": TEXT}, "#en,en", "names the field 'en' twice: source and target are two; write them"),
    ],
)
def test_fields_that_are_not_two_texts_are_refused(schema: dict[str, pa.DataType], fields: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        find_pair_fields(HubName.parse(f"hub:a/b{fields}", "--corpus"), pa.schema(schema))
