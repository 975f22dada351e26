"""Trainers of Hugging Face and of Lightning on leases."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tune import loop
from tune.loop import Lease, Terms, newest
from tune.trainers import hugging_face, lightning, resumed


class Leases:
    """One lease after another of a trial, in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.heard = folder, list[dict[str, Any]]()

    def to(self, steps: int, metric: str) -> None:
        terms = Terms(
            trial="t001", config={}, folder=str(self.folder), output="", ends=math.inf, metric=metric, maximize=False,
            steps=steps,
        )  # fmt: skip
        loop.hold(Lease(terms, self.heard.append))

    def check(self, steps: int) -> None:
        """It ended there, and goes on from there."""
        assert self.heard[-1]["ended"] == "rung" and self.heard[-1]["steps"] == steps and not self.heard[-1]["lost"]
        kept = newest(self.folder)
        assert kept is not None and kept.name.endswith(f"{steps}")


@pytest.fixture
def leases(tmp_path: Path) -> Iterator[Leases]:
    yield Leases(tmp_path / "t001")
    loop.hold(None)


def test_hugging_faces_trainer_ends_with_its_lease_and_goes_on(leases: Leases, tmp_path: Path) -> None:
    import transformers  # 3 s that no other test needs

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            out = self.line(x)
            return {"loss": ((out - labels) ** 2).mean(), "logits": out}

    rows = [{"x": torch.randn(4), "labels": torch.ones(1)} for _ in range(64)]
    for steps in (4, 8):
        leases.to(steps, "eval_loss")
        args = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"), eval_strategy="steps", eval_steps=2, max_steps=100, report_to=[],
            per_device_train_batch_size=8, disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=Net(), args=args, train_dataset=rows, eval_dataset=rows, callbacks=[hugging_face()]
        )
        trainer.train(resume_from_checkpoint=resumed())
        leases.check(steps)


def test_of_several_evaluation_sets_all_are_reported(leases: Leases, tmp_path: Path) -> None:
    import transformers

    leases.to(4, "eval_a_loss")
    args = transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    (tmp_path / "checkpoint-4").mkdir()
    state, control = transformers.TrainerState(global_step=4), transformers.TrainerControl()
    callback = hugging_face()
    for name, value in {"a": 1.0, "b": 2.0}.items():
        callback.on_evaluate(args, state, control, metrics={f"eval_{name}_loss": value})
    assert callback.on_save(args, state, control).should_training_stop
    assert leases.heard[-1]["numbers"] == {"eval_a_loss": 1.0, "eval_b_loss": 2.0}


def test_lightnings_trainer_ends_with_its_lease_and_goes_on(leases: Leases, tmp_path: Path) -> None:
    import pytorch_lightning as pl

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, at: int) -> torch.Tensor:
            return self.line(batch).pow(2).mean()

        def validation_step(self, batch: torch.Tensor, at: int) -> None:
            self.log("loss", self.line(batch).pow(2).mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rows = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4)
    for steps in (4, 8):
        leases.to(steps, "loss")
        trainer = pl.Trainer(
            max_epochs=50, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path, callbacks=[lightning()],
        )  # fmt: skip
        trainer.fit(Net(), rows, rows, ckpt_path=resumed())
        leases.check(steps)
