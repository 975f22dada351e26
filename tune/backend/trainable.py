"""The Ray trainable: one process that trains one trial after another, each on a lease, and reports what it used."""

import dataclasses
import json
import time
from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tune.machine import excluded_from_gc

with excluded_from_gc():
    import torch

from model.config import Config, Data
from model.cost.allocations import ALL_STEPS, AT_ONCE, TURNS, count_allocations, step_ratio
from model.cost.peak_flops import peak_flops
from model.data.dataset import PairData, TextData
from model.data.tokenizer import Tokenizer
from model.families import FAMILIES, Family, register_family
from model.nn.precision import native_precisions, repeat_exactly, upstream_precision, use_processor_facts
from model.training.checkpoint import trained_model
from model.training.evaluation import score, translate_in_chunks
from model.training.graph import make_learner
from model.training.learner import Learner
from model.training.memory import MemoryLimit, ran_out
from model.training.time_budget import CHECKPOINT_BYTES, DISK_BYTES, FIRST_SECONDS, Segment
from model.training.train import train
from tune.backend.leased import LeasedTrial, TrialEnvironment
from tune.errors import is_disk_error
from tune.reports import Report, merge, to_row
from tune.search_space import DIMENSIONS

SENTENCES = 64
"""Sentence pairs of the validation split, the same ones for all trials, translated for BLEU."""
COUNTING_TIMES = 2.0
"""Largest time of a step while its allocations are counted, and of a plain one that is timed beside it, in multiples of
a step in training."""
SCORE_SECONDS = 2.0
"""Seconds at the end of a lease, kept to compute a score from the translations."""


class TrainingTrial(LeasedTrial):
    """Trainable that trains what its lease says, to the end of that or to its goal."""

    def setup(
        self,
        config: dict[str, Any],
        data: Mapping[str, Data],
        environment: TrialEnvironment,
        families: Mapping[str, Family],
    ) -> None:
        """Take the first lease. Once a process. data: by family, from the object store, shared and read-only; families:
        a user's."""
        self._data, self._disk = data, DISK_BYTES  # bytes a second
        opened = self.take_first_lease(config, environment)
        for name, family in families.items():
            register_family(name, family)
        torch.set_num_threads(environment.threads)
        use_processor_facts(environment.processor)
        if environment.deterministic and environment.device == "cuda":
            repeat_exactly()
            Learner.may_compile = False  # when it is compiled follows from the clock
        self._limit = MemoryLimit(environment.memory_limit, torch.device(environment.device))
        self._reports = self._train(opened, config["peak_flops"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next lease, in the same, warm process. Returns True."""
        opened = self._take(new_config)
        self._reports.close()
        self._reports = self._train(opened, new_config["peak_flops"])
        return True

    def _next_result(self) -> dict[str, Any]:
        """Train until the next report is due. Returns `report`; or `ran_out`: memory did, and smaller parts of a batch
        do not help."""
        try:
            report = self._measured(self._train_on())
            if report.ended == "final" and self._environment.listed:
                report = self._scored(report)
            if report.ended:
                self._note_lease_over()
            return {"report": json.dumps(to_row(report))}
        except Exception as error:
            self._note_lease_over()
            if is_disk_error(error) or not ran_out(error):
                raise
            self._limit.lift()
            return {"ran_out": True}

    def _train_on(self) -> Report:
        begun = time.monotonic()
        merged: Report | None = None
        self._trains = True
        try:
            for report in self._reports:
                merged = merge(merged, report)
                if merged.ended or merged.valid or time.monotonic() - begun >= self._environment.report_every:
                    break
        finally:
            self._trains = False
        assert merged is not None, "the trial was asked to go on after its end"
        return merged

    def _measured(self, report: Report) -> Report:
        """Return a report with what this process knows of its device and of its memory limit."""
        rate, writing = report.tokens_per_second, report.seconds.get("checkpoint")
        if report.ended and report.checkpoint and writing:
            written = CHECKPOINT_BYTES * report.parameters / writing
            if written > self._disk or writing > FIRST_SECONDS:  # a short write tells little: its start took the time
                self._disk = written
        return dataclasses.replace(
            report,
            limited_bytes=max(report.memory_bytes, self._limit.counted_bytes()),
            peak_flops=self._peak,
            mfu=rate * self._flops_per_token / self._peak if rate else None,
        )

    def _scored(self, report: Report) -> Report:
        """Return the last report of a trial of a list with the quality of its translations; on text with what its steps
        allocate, and their time over that of plain ones; as far as its lease, memory and disk allow that."""
        began, data = time.monotonic(), self._data[self._config.family]
        ends = self._held_until - self._ahead - SCORE_SECONDS

        def in_time() -> None:
            if time.monotonic() > ends:
                raise TimeoutError

        step = COUNTING_TIMES * (report.step_seconds or 0.0)
        try:
            if isinstance(data, PairData) and report.checkpoint and report.valid:
                report = self._translated(report, Path(report.checkpoint), data, in_time)
            elif isinstance(data, TextData) and report.valid:
                if time.monotonic() + ALL_STEPS * step < ends:
                    report = self._counted(report, data)
                if time.monotonic() + 2 * (1 + TURNS) * AT_ONCE[self._environment.device] * step < ends:
                    report = self._timed(report, data)
        except Exception as error:
            if not (isinstance(error, OSError) or ran_out(error)):  # a time-out is an OSError
                raise
        report = dataclasses.replace(report, checkpoint=None if report.valid else report.checkpoint)
        more = report.seconds.get("evaluation", 0.0) + time.monotonic() - began
        return dataclasses.replace(report, seconds={**report.seconds, "evaluation": more})

    def _translated(self, report: Report, checkpoint: Path, data: PairData, in_time: Callable[[], None]) -> Report:
        """Return a report with BLEU and chrF of the first translations of the validation split."""
        tokenizer = Tokenizer.from_json(data.tokenizer)
        model = trained_model(self._config, checkpoint, tokenizer, torch.device(self._environment.device))
        chunks = translate_in_chunks(model, tokenizer, data, data.valid, SENTENCES, in_time)
        found = score([pair for chunk in chunks for pair in chunk])
        return dataclasses.replace(report, bleu=found.bleu, chrf=found.chrf)

    def _counted(self, report: Report, data: Data) -> Report:
        """Return a report with what a few steps of a new learner allocate."""
        device = torch.device(self._environment.device)
        found = count_allocations(partial(Learner, self._config, data, device, report.micro_batches), device)
        return dataclasses.replace(report, step_bytes=found.peak_bytes, step_allocations=found.count)

    def _timed(self, report: Report, data: Data) -> Report:
        """Return a report with the time of its steps over that of its shape as the recipe trains it, in upstream's
        precision."""
        device, own = torch.device(self._environment.device), self._assignment["config"]
        shape = {**{name: own[name] for name in DIMENSIONS}, "precision": upstream_precision(native_precisions(device))}
        recipe = self._environment.recipes[self._config.family]
        plain = Config.at(recipe(shape), family=self._config.family, seed=self._config.seed)
        if self._config == plain:
            return dataclasses.replace(report, step_ratio=1.0)
        one = make_learner(self._config, data, device, report.micro_batches)
        return dataclasses.replace(report, step_ratio=step_ratio(one, make_learner(plain, data, device)))

    def cleanup(self) -> None:
        """Stop training. Nothing is left half-written: checkpoints appear whole or not at all."""
        self._reports.close()

    def _train(self, opened: float, peak: float | None) -> Generator[Report, None, None]:
        assignment, place = self._assignment, self._environment
        family = assignment["family"]
        trained = self._config = Config.at(place.recipes[family](assignment["config"]), family=family, seed=place.seed)
        self._flops_per_token = FAMILIES[family].flops_per_token(trained, self._data[family])
        self._peak = peak or peak_flops(trained.precision, place.device)
        self._limit.begin()
        segment = Segment(
            device_seconds=assignment["seconds"] - (time.monotonic() - opened),
            steps=assignment["steps"],
            training_seconds=assignment["training_seconds"],
            micro_batches=assignment["micro_batches"],
            dry_step=place.memory_limit is not None,
            final=assignment["rung"] is None,
            whole=not place.listed,
            watched=not place.listed,
            curve=place.listed,
            peak_flops=self._peak,
            disk_bytes=self._disk,
        )
        return train(
            trained,
            self._data[family],
            segment,
            folder=place.folder / "checkpoints" / assignment["trial"],
            checkpoint=Path(assignment["checkpoint"]) if assignment["checkpoint"] else None,
            evaluation_tokens=place.evaluation_tokens[family],
            device=place.device,
            threads=place.threads,
            stop=self._should_stop,
        )
