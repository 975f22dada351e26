"""Where trials stand on TensorBoard's pages: as analysis/rank.py has them, what diverged or broke apart."""

from pathlib import Path

import pytest

from tests.analysis.conftest import Written
from tune.display.standings import levels, picture, table
from tune.store.queries import ranking

BROKEN = {"t003": "diverged", "t004": "error: it died | and again", "t005": "memory"}


@pytest.fixture
def study(tmp_path: Path) -> Written:
    """Two sound trials; one that diverged after the furthest rung of all, and two that have no rung."""
    study = Written(tmp_path / "study")
    for trial, perplexity, rung in (("t001", 4.0, 0), ("t002", 3.0, 0), ("t003", 2.0, 1)):
        study.trial(trial, state="stopped" if trial in BROKEN else "paused", reason=BROKEN.get(trial))
        study.report(trial, perplexity, rung=rung, bits_per_character=1.0)
    for trial in ("t004", "t005"):
        study.trial(trial, state="stopped", reason=BROKEN[trial])
    return study


def test_the_table_numbers_the_sound_ones_and_ends_with_the_others(study: Written) -> None:
    rows = ranking(study.journal, by="quotient")
    sound, broken = (part.splitlines()[2:] for part in table(rows).split("\n\n"))
    assert [line.split(" | ")[1:3] for line in sound] == [["1", "t002"], ["2", "t001"]]
    assert [line.split()[1] for line in broken] == list(BROKEN)
    assert picture("nanogpt", rows).image.encoded_image_string


def test_what_spells_nothing_has_no_bits_a_character(tmp_path: Path) -> None:
    study = Written(tmp_path / "study")
    study.trial("t001", state="paused")
    study.report("t001", 3.0, rung=0, bits_per_character=None)
    rows = ranking(study.journal, by="quotient")
    columns, _, row = (line.strip("| ").split(" | ") for line in table(rows).splitlines())
    assert dict(zip(columns, row, strict=True))["bits/char"] == "-"


def test_a_family_of_which_nothing_is_sound_has_a_table_all_the_same(tmp_path: Path) -> None:
    study = Written(tmp_path / "study")
    study.trial("t001", state="stopped", reason="diverged")
    study.report("t001", 3.0)
    rows = ranking(study.journal)
    assert levels(rows) == {} and table(rows).endswith("| diverged |")
