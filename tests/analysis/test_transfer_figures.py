"""The pictures of transfer: what they draw is what the journal's rows say."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.experiments.transfer import depth, line_of, losses_table, width
from analysis.settings import PlotSettings
from analysis.study import Study, open_study
from tests.analysis.conftest import Written, do
from tests.transfer_rows import all_rows


@pytest.fixture
def transferred(write: Callable[..., Written]) -> Callable[[list[dict]], Study]:
    def made(rows: list[dict]) -> Study:
        study = write(f"transferred-{len(rows)}", experiment="transfer")
        study.trial("t001")
        for row in rows:
            study.journal.insert("rows", {"at": 0.0, "experiment": "transfer", "value": json.dumps(row)})
        return open_study(study.folder)

    return made


def test_each_panel_has_a_line_for_each_shape_and_the_base_is_in_both(transferred, tmp_path: Path):
    study = transferred(all_rows())
    for draw, sizes in ((width, 3), (depth, 2)):
        picture = draw(study)
        lines = [plot.get_lines() for plot in picture.figure.axes]
        assert [len(each) for each in lines] == [2 * sizes + 1] * 2, "each with its best rate marked, and the base's"
    do(PlotSettings, ["experiment", str(study.folder), "--out", str(tmp_path / "drawn")])
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == {
        f"transfer-{name}.{kind}" for name in ("width", "depth") for kind in ("png", "csv")
    }


def test_a_loss_that_diverged_is_drawn_nowhere(transferred):
    rows = all_rows()
    rows[1]["losses"][0][1] = [None]
    table = losses_table(transferred(rows))
    assert table["loss"].isna().sum() == 1
    assert len(line_of(table, "d_model", 32, True)) == len(line_of(table, "d_model", 32, False)) == 7


def test_where_there_is_one_shape_only_nothing_is_drawn(transferred):
    with pytest.raises(ValueError, match="measured one d_model only; go on with it"):
        width(transferred(all_rows()[:1]))
    with pytest.raises(ValueError, match="has not measured the base yet; go on with it"):
        width(transferred(all_rows()[1:]))
