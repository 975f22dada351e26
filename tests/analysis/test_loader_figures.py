"""The picture of loader: what it draws is what the journal's rows say."""

import json

import pytest

from analysis.experiments.loader import loading
from analysis.study import open_study
from tests.loader_rows import LOAD, USE, all_rows, settings


def study_of(write, rows):
    study = write(f"loader-{len(rows)}", experiment="loader")
    study.trial("t001")
    for row in rows:
        study.journal.insert("rows", {"at": 0.0, "experiment": "loader", "value": json.dumps(row)})
    return open_study(study.folder)


def test_a_panel_for_each_kind_of_data_and_our_own_batches_beside(write, tmp_path):
    picture = loading(study_of(write, all_rows()))
    images, text = picture.figure.axes
    assert len(text.get_lines()) == len(images.get_lines()) + 1
    whole = picture.data[(picture.data["kind"] == "whole") & (picture.data["source"] == "0")]
    assert whole["seconds"].to_list() == pytest.approx([USE + LOAD] * 2)
    assert {path.suffix for path in picture.save(tmp_path)} == {".png", ".csv"}


def test_without_numbers_of_workers_there_is_no_picture(write):
    with pytest.raises(ValueError, match="has no numbers of workers yet; go on with it"):
        loading(study_of(write, [settings()]))
