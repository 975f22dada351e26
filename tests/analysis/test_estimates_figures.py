"""The pictures of estimates and of batch sizes: what they draw is what the journal's rows say."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.experiments.batch_size import batch_size
from analysis.experiments.estimates import estimates
from analysis.settings import PlotSettings
from analysis.study import Study, open_study
from tests import batch_size_rows, estimates_rows
from tests.analysis.conftest import Written, do


@pytest.fixture
def made(write: Callable[..., Written]) -> Callable[[str, list[dict]], Study]:
    def study_of(name: str, rows: list[dict]) -> Study:
        study = write(name, experiment=name)
        study.trial("t001")
        for row in rows:
            study.journal.insert("rows", {"at": 0.0, "experiment": name, "value": json.dumps(row)})
        return open_study(study.folder)

    return study_of


def test_the_right_formula_is_on_the_line_and_the_reports_is_not(made):
    table = estimates(made("estimates", estimates_rows.all_rows())).data.set_index(["formula", "by"])
    ratio = table["measured"] / table["estimated"]
    assert ratio.loc["right", "FlopCounterMode"].to_list() == pytest.approx([1.0] * 5)
    assert ratio.loc["right", "published"].between(0.95, 1.05).all(), "its measurements agree with the right formula"
    assert (ratio.loc["report's"] > 2.5).all() and len(table) == 2 * 3 * 5


def test_batches_that_did_not_fit_have_no_time(made, tmp_path: Path, capsys):
    study = made("batch_size", batch_size_rows.all_rows())
    table = batch_size(study).data.set_index("batch")
    assert table["epoch_seconds"].dropna().index.to_list() == [32, 128, 512, 950]
    assert set(table.index[table["ended"] == "out of memory"]) == {955, 2048, 8192}
    do(PlotSettings, ["experiment", str(study.folder), "--out", str(tmp_path / "here")])
    assert {path.name for path in (tmp_path / "here").iterdir()} == {"batch-size.png", "batch-size.csv"}
    told = capsys.readouterr().out
    assert "fastest with 950 rows" in told and "Out of memory: 955, 2,048, 8,192." in told
    assert "950 rows are the largest batch that fits, 960 were foretold" in told


def test_the_largest_batch_fits_though_it_ran_out_of_memory_when_it_was_timed(made):
    once = batch_size_rows.largest() | {"timed": {"ended": "out of memory"}}
    drawn = batch_size(made("batch_size", [*(batch_size_rows.batch(rows) for rows in (32, 512, 2048)), once]))
    ended = drawn.data.set_index("batch")["ended"].to_dict()
    assert ended == {32: "fits", 128: "fits", 512: "fits", 950: "fits", 955: "out of memory", 2048: "out of memory"}
    assert drawn.data.set_index("batch")["memory_bytes"].dropna().index.to_list() == [32, 128, 512, 950]
    memory = drawn.figure.axes[1]
    shown = {line.get_label(): list(line.get_xdata()) for line in memory.lines}
    assert shown["out of memory"] == [955, 2048]
    assert shown["largest that fits: 950"] == [950, 950] and shown["foretold: 960"] == [960, 960]


def test_one_line_where_there_is_nothing_to_draw(made):
    with pytest.raises(ValueError, match="has no block of estimates yet"):
        estimates(made("estimates", [estimates_rows.parameters()]))
    with pytest.raises(ValueError, match="timed no batch yet"):
        batch_size(made("batch_size", [batch_size_rows.batch(8192)]))
