"""A callback for Hugging Face's Trainer and one for Lightning's, with which their loops are trials of a search.

    trainer = Trainer(..., callbacks=[hugging_face()])            # evaluates, and saves, as often as it evaluates
    trainer.train(resume_from_checkpoint=resume_checkpoint())

    trainer = lightning.Trainer(..., callbacks=[lightning()])
    trainer.fit(model, ckpt_path=resume_checkpoint())

Neither library is a dependency: each is imported where its callback is made. Outside of a search both do nothing.
"""

import shutil
from pathlib import Path
from typing import Any

import tune.loop as ration

LIGHTNING_FILE = "lightning.ckpt"


def resume_checkpoint() -> str | None:
    """Return what the trainer goes on from: a folder of Hugging Face's, or a file of Lightning's; None: it begins."""
    found = ration.checkpoint()
    if found is None:
        return None
    file = found / LIGHTNING_FILE
    return str(file if file.is_file() else found)


def hugging_face() -> Any:
    """Return a transformers.TrainerCallback that reports the metrics of each evaluation, such as `eval_loss`, with its
    checkpoint."""
    from transformers import TrainerCallback

    class Reports(TrainerCallback):
        """The callback of one trainer."""

        def __init__(self) -> None:
            self.found = dict[str, Any]()
            self.asked, self.extra = False, list[Path]()

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
            """A trainer that would save only new bests saves nothing by itself, as only what is saved is reported."""
            self.extra = []
            if ration.current_lease() is not None and args.save_strategy == "best":
                args.save_strategy = type(args.save_strategy)("no")
            return control

        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
            """Forget what was evaluated before, at `eval_on_start` or before the training, which is of no step."""
            self.found, self.asked = {}, False
            return control

        def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
            """Keep the metrics of one evaluation set, and let the trainer save after the last."""
            if ration.current_lease() is not None:
                self.found |= more["metrics"]
                self.asked = self.asked or not control.should_save
                control.should_save = True
            return control

        def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
            """Report the metrics kept, as their checkpoint is there now; where it is there for that alone, it is moved
            when it is saved, and else goes at the next."""
            if self.found:
                place = Path(args.output_dir) / f"checkpoint-{state.global_step}"
                found, self.found = self.found, {}
                take = shutil.move if self.asked else shutil.copy2
                ration.report(
                    **found, step=state.global_step,
                    save=lambda to: shutil.copytree(place, to, dirs_exist_ok=True, copy_function=take),
                )  # fmt: skip
                for before in self.extra:
                    shutil.rmtree(before, ignore_errors=True)
                self.asked, self.extra = False, [place] if self.asked else []
                control.should_training_stop = control.should_training_stop or ration.done()
            return control

    return Reports()


def lightning() -> Any:
    """Return a lightning.pytorch.Callback that reports what each validation logged."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class Reports(Callback):
        """The callback of one trainer."""

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            """Report, except after the sanity check that Lightning does first, or a validation outside of training."""
            if trainer.sanity_checking or trainer.state.fn != "fit" or ration.current_lease() is None:
                return
            ration.report(
                **{name: value for name, value in trainer.callback_metrics.items() if name not in ("step", "save")},
                step=trainer.global_step, save=lambda to: trainer.save_checkpoint(to / LIGHTNING_FILE),
            )  # fmt: skip
            trainer.should_stop = trainer.should_stop or ration.done()

    return Reports()
