"""The pictures of scaling: what they draw is what the journal's rows say."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.experiments.scaling import communication, published_speed_ups, speed_up, speed_ups, steps_table
from analysis.settings import PlotSettings
from analysis.study import Study, open_study
from tests.analysis.conftest import Written, do
from tests.scaling_rows import all_rows, step
from tune.errors import UserError


@pytest.fixture
def scaled(write: Callable[..., Written]) -> Callable[[list[dict]], Study]:
    def made(rows: list[dict]) -> Study:
        study = write("scaled", experiment="scaling")
        study.trial("t001")
        for row in rows:
            study.journal.insert("rows", {"at": 0.0, "experiment": "scaling", "value": json.dumps(row)})
        return open_study(study.folder)

    return made


def test_parts_of_a_step_and_speed_ups(scaled, tmp_path: Path):
    study = scaled(all_rows())
    parts = communication(study).data
    assert set(parts["devices"]) == {2, 4} and len(parts) == 6 + 4
    together = (parts["unsynced_seconds"] + parts["exposed_seconds"]) / parts["step"]
    assert together.to_list() == pytest.approx([1.0] * len(parts))
    drawn = speed_up(study)
    assert (drawn.data["low"] <= drawn.data["speed_up"]).all() and (drawn.data["speed_up"] <= drawn.data["high"]).all()
    assert {path.suffix for path in drawn.save(tmp_path)} == {".png", ".csv"}


def test_speed_ups_by_hand(scaled):
    rows = [step(1, 32), step(1, 64), step(2, 64)]
    for row, seconds in zip(rows, (1.0, 2.0, 1.25), strict=True):
        row["step_seconds"] = [seconds, seconds * 0.9, seconds * 1.1]
    found = speed_ups(steps_table(scaled(rows))).set_index(["kind", "devices", "batch"])
    assert found.loc["weak", 2, 32]["speed_up"] == pytest.approx(1.6)
    assert found.loc["strong", 2, 64]["speed_up"] == pytest.approx(1.6)
    assert found.loc["weak", 2, 32]["low"] == pytest.approx(1.6 * 0.9 / 1.1)


def test_the_reports_speed_ups_are_of_its_own_epochs():
    theirs = published_speed_ups()
    assert theirs["speed_up"].round(2).to_list() == [1, 1, 1, 1.23, 1.71, 1.84, 1.69, 2.22, 2.36]
    assert theirs["printed"].to_list() == [1, 1, 1, 1.18, 1.42, 1.45, 1.41, 1.55, 1.56]


def test_a_point_that_was_measured_again_counts_once_and_one_that_was_skipped_not_at_all(scaled):
    old, new, skipped = step(1, 32), step(1, 32), step(1, 128)
    new["step_seconds"] = [1.0, 1.0, 1.0]
    table = steps_table(scaled([old, new, skipped | {"skipped": "why"}]))
    assert table[["batch", "step"]].to_numpy().tolist() == [[32, 1.0]]


def test_one_line_where_there_is_nothing_to_draw(scaled, write):
    empty = write("empty")
    empty.trial("t001")
    with pytest.raises(ValueError, match=r"has no row of scaling; make one: python tune/experiment\.py scaling"):
        do(PlotSettings, ["speedup", str(empty.folder)])
    with pytest.raises(ValueError, match=r"is a search, of which there is no such picture: name a study of .*scaling"):
        do(PlotSettings, ["experiment", str(empty.folder)])
    alone = scaled([row for row in all_rows() if row["devices"] == 1])
    for draw in (speed_up, communication):
        with pytest.raises(ValueError, match="measured one device only; measure more with --devices"):
            draw(alone)


def test_a_study_is_drawn_as_the_experiment_that_it_is(scaled, capsys):
    study = scaled(all_rows())
    do(PlotSettings, ["experiment", str(study.folder)])
    assert {path.stem for path in study.folder.glob("*.png")} == {"speed-up", "communication"}
    assert "times as fast as on one" in capsys.readouterr().out


def test_a_picture_is_not_written_through_a_link_in_the_study(scaled, tmp_path):
    study = scaled(all_rows())
    (tmp_path / "outside.csv").write_text("mine")
    (study.folder / "speed-up.csv").symlink_to(tmp_path / "outside.csv")
    with pytest.raises(UserError, match=r"^--out: .*speed-up\.csv' is a link"):
        do(PlotSettings, ["experiment", str(study.folder)])
    assert (tmp_path / "outside.csv").read_text() == "mine"
