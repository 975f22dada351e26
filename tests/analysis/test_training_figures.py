"""The pictures of the ablation and of the precisions: what they draw is what the journal's rows say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.experiments.ablation import OURS, ablation_table, alike, main_effects, overfitting_table, sizes
from analysis.experiments.precision import precisions
from analysis.settings import PlotSettings
from analysis.study import Study, open_study
from tests.analysis.conftest import Written, do
from tests.training_rows import precise, row

REPORT, LONGER = {"set": "report", "steps": 100}, {"set": "longer", "steps": 400}
SHAPES = [(d, 4, layers, p) for d in (16, 32) for layers in (2, 4) for p in (0.1, 0.5)]


def ablated() -> list[dict[str, Any]]:
    """Of two seeds; a layer more or less does nothing, and dropout 2 nats for each unit of it."""
    return [
        row(REPORT, {"d_model": d, "heads": h, "layers": n, "dropout": p, "seed": seed}, 5 - d / 32 + 2 * p + seed)
        for d, h, n, p in SHAPES
        for seed in (0, 1)
    ]


@pytest.fixture
def study(write: Callable[..., Written]) -> Callable[[str, list[dict]], Study]:
    def made(name: str, rows: list[dict]) -> Study:
        written = write(name, experiment=name)
        written.trial("t001")
        for each in rows:
            written.journal.insert("rows", {"at": 0.0, "experiment": name, "value": json.dumps(each)})
        return open_study(written.folder)

    return made


def test_only_what_differs_in_one_dimension_alone_is_compared(study):
    table = ablation_table(study("ablation", ablated()))
    ours = table[table["of"] == OURS]
    assert len(table) - len(ours) == 33 and len(ours) == 2 * len(SHAPES)
    layers, dropout = (alike(ours, name) for name in ("layers", "dropout"))
    assert layers["against"].abs().max() == pytest.approx(0)
    assert dropout.groupby("dropout")["against"].mean().to_list() == pytest.approx([-0.4, 0.4])
    assert alike(ours, "heads").empty


def test_pictures_are_drawn(study, tmp_path: Path, capsys):
    made = study("ablation", [*ablated(), row(LONGER, ablated()[0]["config"], 1.0)])
    do(PlotSettings, ["experiment", str(made.folder)])
    assert {path.stem for path in made.folder.glob("*.png")} == {"main-effects", "perplexity-parameters", "overfitting"}
    assert "16 trainings here, 33 in the report" in capsys.readouterr().out
    assert len(sizes(made).data) == 33 + 16


def test_a_longer_training_is_drawn_beside_the_same_at_the_common_length(study):
    table = overfitting_table(study("ablation", [*ablated(), row(LONGER, ablated()[0]["config"], 1.0)]))
    ends = table.groupby("steps_of").last()
    assert ends["epochs"].to_dict() == {100: 2.0, 400: 8.0}
    assert ends["valid_loss"].to_dict() == pytest.approx({100: ablated()[0]["valid_loss"], 400: 1.0})


def test_what_cannot_be_drawn_says_why_and_the_rest_is_drawn(study, capsys):
    made = study("ablation", ablated())
    do(PlotSettings, ["experiment", str(made.folder)])
    assert {path.stem for path in made.folder.glob("*.png")} == {"main-effects", "perplexity-parameters"}
    assert capsys.readouterr().out.splitlines()[-1].startswith("study: 'ablation' has no longer training")


def test_curves_end_where_the_rows_do(study):
    losses = {"fp32": [1.70, 1.72], "bf16": [1.705, 1.725]}
    drawn = precisions(study("precision", precise(losses, {"fp32": 60.0, "bf16": 30.0})))
    ends = drawn.data[drawn.data["steps"] == 100].set_index(["precision", "seed"])["valid_loss"]
    wanted = {(precision, seed): loss for precision in losses for seed, loss in enumerate(losses[precision])}
    assert ends.to_dict() == pytest.approx(wanted)
    assert "bf16 1.7150" in drawn.text


def test_one_line_where_there_is_nothing_to_draw(study):
    only_long = row(LONGER, ablated()[0]["config"], 1.0)
    with pytest.raises(ValueError, match="no configuration of the report's yet"):
        main_effects(study("ablation", [only_long]))
