"""A compiled step learns what an eager one does."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from model.config import Config
from model.data.dataset import PairData, TextData
from model.nn.attention import MASK_POOL_ELEMENTS, _pool
from model.training.learner import Learner
from tests.model.conftest import losses_of

HEADERS = Path(sysconfig.get_path("include", "posix_prefix"), "Python.h")
pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or not HEADERS.exists(), reason="torch.compile needs a C++ compiler, Python's headers"
)


def test_a_compiled_step_learns_what_an_eager_one_does_and_leaves_the_dropout_masks_as_they_are(
    small_text: Config, text_data: TextData
) -> None:
    """A compiled graph writes into buffers that it takes for its own: the resident mask must not be one of them.
    Without vectors, of which all is the compiler's own: g++ takes half the time."""
    config = replace(small_text, layers=1, dropout=0.1)
    eager, learner = (Learner(config, text_data, torch.device("cpu")) for _ in range(2))
    mask = partial(_pool, 0.1, torch.float32, MASK_POOL_ELEMENTS)
    before = mask().clone()
    learner.compile()
    expected, found = [], []
    with torch._inductor.config.patch({"cpp.simdlen": 1, "cpp.vec_isa_ok": True}):
        for losses, each in ((expected, eager), (found, learner)):
            torch.manual_seed(0)
            losses += losses_of(each)
    assert learner._loss != learner._loss_of, "it fell back to eager"
    assert found == pytest.approx(expected, rel=1e-4)
    assert torch.equal(mask(), before)


def test_it_is_tried_only_where_a_compiler_and_pythons_headers_are_and_what_is_compiled_may_run(
    small_text: Config, text_data: TextData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many systems have g++ without the headers, and it takes long to fail, as it does where torch's folder, which may
    not be there yet, is on a disk that runs no programs."""
    learner, lacking = Learner(small_text, text_data, torch.device("cpu")), str(tmp_path / "none")
    with_headers = str(HEADERS.parent)
    for compiler, headers in ((sys.executable, with_headers), (sys.executable, lacking), (lacking, with_headers)):
        monkeypatch.setenv("CXX", compiler)
        monkeypatch.setattr(sysconfig, "get_path", lambda name, *_, headers=headers: headers)
        assert learner.can_compile() == (lacking not in (compiler, headers))
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "not" / "yet"))
    for flags in (0, os.ST_NOEXEC):
        there = {tmp_path: SimpleNamespace(f_flag=flags)}
        monkeypatch.setattr(os, "statvfs", there.__getitem__)
        assert learner.can_compile() == (not flags)


def test_what_could_not_be_compiled_is_not_tried_again_in_this_process(
    small_text: Config, text_data: TextData, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fails)
    monkeypatch.setattr("model.training.learner.MISCOMPILED", set())
    first, second, other = (
        Learner(config, text_data, torch.device("cpu"))
        for config in (small_text, replace(small_text, layers=1), replace(small_text, architecture="nanogpt"))
    )
    first.compile()
    first.take_steps([1.0])
    assert (first.steps, second.can_compile(), other.can_compile()) == (1, False, True)


def test_an_error_that_is_not_the_compilers_is_no_reason_to_compile_no_more(
    small_text: Config, text_data: TextData, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("of the model")

    learner = Learner(small_text, text_data, torch.device("cpu"))
    monkeypatch.setattr(torch, "compile", lambda function, **_: partial(function))
    monkeypatch.setattr("model.training.learner.MISCOMPILED", set())
    monkeypatch.setattr(learner.family, "losses", fails)
    learner.compile()
    with pytest.raises(ValueError, match="of the model"):
        learner.take_steps([1.0])
    assert learner.can_compile()


def test_a_compiled_translator_and_a_gpt_that_recomputes_learn_what_eager_ones_do(
    small_pairs: Config, small_text: Config, pair_data: PairData, text_data: TextData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their graphs and gradients, that is, without the minute that C++ takes."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    recomputing = replace(small_text, dropout=0.1, layers=1, checkpointing=True)
    for config, data in ((replace(small_pairs, dropout=0.0, layers=1), pair_data), (recomputing, text_data)):
        eager, compiled = (Learner(config, data, torch.device("cpu")) for _ in range(2))
        compiled.compile()
        expected, found = [], []
        for losses, learner in ((expected, eager), (found, compiled)):
            torch.manual_seed(0)
            losses += losses_of(learner, 4)
        assert compiled._loss != compiled._loss_of, "it fell back to eager"
        assert found == pytest.approx(expected, rel=1e-3) and found[-1] < found[0], "rounded otherwise, and no more"


def test_a_warm_process_compiles_one_configuration_after_the_other(
    small_text: Config, text_data: TextData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than torch keeps versions of a function."""
    compiled: list[int] = []

    def counting(module: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        compiled[-1] += 1
        return module.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counting))
    with torch._dynamo.config.patch(recompile_limit=2):
        for d_model in (16, 24, 32):
            compiled.append(0)
            learner = Learner(replace(small_text, d_model=d_model, layers=1), text_data, torch.device("cpu"))
            learner.compile()
            learner.step(1.0)
    assert all(compiled), compiled
