"""The pictures of the methods and of the stages: what they draw is what the journal's rows say."""

import json
from collections.abc import Callable

import pytest

from analysis.experiments.methods import equal_flops, methods_scatter
from analysis.experiments.stages import stage_bars, stage_pies
from analysis.settings import PlotSettings
from analysis.study import Study, open_study
from tests.analysis.conftest import Written, do
from tests.methods_rows import method_row, method_rows, stage_rows


@pytest.fixture
def study(write: Callable[..., Written]) -> Callable[[str, list[dict]], Study]:
    def made(experiment: str, rows: list[dict]) -> Study:
        written = write(experiment, experiment=experiment)
        written.trial("t001")
        for row in rows:
            written.journal.insert("rows", {"at": 0.0, "experiment": experiment, "value": json.dumps(row)})
        return open_study(written.folder)

    return made


def test_methods_are_drawn_with_all_that_was_measured(study, capsys):
    found = study("methods", method_rows())
    assert len(methods_scatter(found).data) == 48
    shapes = equal_flops(found).data
    assert len(shapes) == 6 and (shapes["times"] == 1).sum() == 4
    do(PlotSettings, ["experiment", str(found.folder)])
    assert {path.stem for path in found.folder.glob("*.png")} == {"methods", "equal-flops"}
    assert "At equal FLOPs d_model 184, heads 4, layers 2 has the least loss, 0.050 nats" in capsys.readouterr().out


def test_seeds_are_one_point_and_too_few_shapes_one_line(study):
    found = study("methods", [method_row("baseline", "nothing", seed=seed) for seed in range(3)])
    assert methods_scatter(found).data["valid_loss"].to_list() == pytest.approx([1.802])
    with pytest.raises(ValueError, match="has too few shapes of the baseline yet; go on with it"):
        equal_flops(found)


def test_stages_are_drawn_in_seconds_and_in_shares(study, capsys):
    found = study("stages", stage_rows())
    assert stage_bars(found).data.drop(columns="way").sum(axis=1).to_list() == pytest.approx([21.0, 10.5, 5.25])
    shares = stage_pies(found).data
    assert shares.drop(columns="way").sum(axis=1).to_list() == pytest.approx([1.0] * 4)
    do(PlotSettings, ["experiment", str(found.folder)])
    assert {path.stem for path in found.folder.glob("*.png")} == {"stages", "stages-bars"}
    assert "Times as fast as before, fp32: before, fp32 1.00, after, fp32 2.00" in capsys.readouterr().out
