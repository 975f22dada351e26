"""The average of the weights: its formula; it goes on bit by bit, is measured apart, and kept where it is better."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from model.config import Config, build_model
from model.data.dataset import TextData
from model.data.tokenizer import CharacterTokenizer
from model.training import checkpoint as checkpoints
from model.training.averaging import EVERY, Average
from model.training.checkpoint import AVERAGE
from model.training.evaluation import evaluate
from tests.model.conftest import SUBSET
from tune.reports import Report

Life = Callable[..., list[Report]]
pytestmark = pytest.mark.usefixtures("eager")


def test_what_came_a_half_life_ago_counts_half() -> None:
    """A weight that was 0 and is 1 from a step on; its average a while later, by the half-life at that time."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average, begin, half_life = Average({model.weight: "weight"}, 0.1), 1000 * EVERY, 100 * EVERY
    average.update(begin)
    nn.init.ones_(model.weight)
    for steps in range(begin + 1, begin + half_life + 1):
        average.update(steps)
    assert average.tensors()["weight"].item() == pytest.approx(0.5, abs=0.03)
    with average.applied():
        assert model.weight.item() == pytest.approx(0.5, abs=0.03)
    assert model.weight.item() == 1


def kept(report: Report) -> checkpoints.Saved:
    return checkpoints.load(Path(str(report.checkpoint)))


@pytest.mark.parametrize("final", [False, True])
def test_what_it_is_measured_at_is_what_it_does_where_it_is_exported(
    final: bool, small_text: Config, text_data: TextData, tmp_path: Path, run: Life
) -> None:
    config = replace(small_text, average=0.5, decay_share=0.1)
    last = run(config, text_data, tmp_path, steps=40, final=final)[-1]
    assert last.valid is not None and last.averaged is not None and last.averaged.loss != last.valid.loss
    for averaged, told in ((False, last.valid), (True, last.averaged)):
        path, tokenizer = Path(str(last.checkpoint)), text_data.tokenizer
        exported = checkpoints.export(path, tmp_path / "best", tokenizer, averaged=averaged)
        model, _ = checkpoints.load_model(exported)
        found = evaluate(model, config, text_data, "valid", tokens=SUBSET)
        assert found is not None and found.loss == pytest.approx(told.loss, rel=1e-6)
    if final:
        better = last.averaged.loss < last.valid.loss
        checkpoints.export(path, tmp_path / "best", tokenizer, averaged=better)
        model, _ = checkpoints.load_model(tmp_path / "best")
        whole = evaluate(model, config, text_data, "valid")
        assert whole is not None and last.whole is not None and last.whole.loss == pytest.approx(whole.loss, rel=1e-6)


def test_it_goes_on_bit_by_bit_and_training_does_not_notice(
    small_text: Config, text_data: TextData, tmp_path: Path, run: Life
) -> None:
    through = run(small_text, text_data, tmp_path / "a", steps=3 * EVERY)[-1]
    first = run(small_text, text_data, tmp_path / "b", steps=EVERY + 3)[-1]
    resumed = run(small_text, text_data, tmp_path / "b", checkpoint=first.checkpoint, steps=3 * EVERY)[-1]
    one, other = (checkpoints.with_prefix(kept(report).tensors, AVERAGE) for report in (through, resumed))
    assert one and one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    without = run(replace(small_text, average=0.0), text_data, tmp_path / "c", steps=3 * EVERY)[-1]
    assert without.averaged is None and not checkpoints.with_prefix(kept(without).tensors, AVERAGE)
    assert through.valid is not None and without.valid is not None and without.valid.loss == through.valid.loss


@pytest.mark.parametrize("architecture", ["modern", "nanogpt"])
def test_what_is_exported_is_the_average_of_every_weight(tmp_path, architecture):
    """Of those that two layers share too."""
    config = Config(family="nanogpt", d_model=16, heads=4, layers=1, context=8, architecture=architecture)
    tokenizer = CharacterTokenizer("abc")
    model = build_model(config, vocabulary=tokenizer.vocabulary, pad=0)
    average = {f"{AVERAGE}{name}": torch.randn_like(each) for name, each in model.named_parameters()}
    saved = checkpoints.save(tmp_path, model, average, {"steps": 1, "config": asdict(config)})
    folder = checkpoints.export(saved, tmp_path / "best", tokenizer.to_json(), averaged=True)
    kept = dict(checkpoints.load_model(folder)[0].named_parameters())
    assert all(torch.equal(kept[name.removeprefix(AVERAGE)], tensor) for name, tensor in average.items())
