"""Searches in virtual time that TensorBoard listens to, and TensorBoard's own reader of what it heard."""

import json
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.api_pb2 import ListSessionGroupsRequest, Status
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler

from tests.tune.search.world import Numbered, World
from tune.display import tensorboard
from tune.display.tensorboard import END, METRICS, PICTURE_SHARE, REASONS, TensorBoard, reason_number
from tune.search.engine import Listener
from tune.search_space import DIMENSIONS, PRECISIONS, Dimensions, Space, label
from tune.settings import Settings
from tune.store.journal import Journal, connect

ENDED = METRICS["7 trial/ended"]


class Sampled(Numbered):
    """Numbered configurations with a point of the space each, in which more may vary."""

    def __init__(self, vary: Dimensions | None = None) -> None:
        super().__init__()
        self.space = Space(family="nanogpt", precisions=PRECISIONS, vary=vary or {})

    def suggest(self, trial: str) -> dict[str, Any]:
        return super().suggest(trial) | self.space.sample(Random(self.given))


def watched(
    folder: Path, *, cap: float = 600, seed: int = 0, vary: Dimensions | None = None, pictures: bool = False
) -> tuple[World, TensorBoard]:
    """A new study in `folder`, or the one there gone on with; its TensorBoard files lie beside the journal.

    pictures: drawn before the end too; they are most of the work. Else one costs more than the search's time on two
    slots pays for, though not more than its device-seconds would.
    """
    boards: list[TensorBoard] = []

    def listen(journal: Journal) -> list[Listener]:
        dimensions = {**DIMENSIONS, **(vary or {})}
        boards.append(TensorBoard(folder / "tensorboard", journal, Settings(budget=cap), dimensions))
        return [*boards]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensorboard, "FIRST_PICTURE_SECONDS", 0.1 if pictures else 0.7 * PICTURE_SHARE * cap)
        world = World(folder, cap=cap, slots=2, seed=seed, suggestions=lambda: Sampled(vary), listen=listen)
    return world, boards[0]


def killed(folder: Path) -> None:
    """A search that is ended from outside of Python."""
    world, _ = watched(folder)
    world.run(reports=9)
    os.kill(os.getpid(), signal.SIGKILL)


def read(run: Path) -> EventAccumulator:
    """All that a run holds, nothing thinned out."""
    return EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0, "images": 0}).Reload()


def trial_runs(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Trial, family and folder of each run of a trial."""
    for run in sorted((folder / "tensorboard").glob("*/t*")):
        yield run.name.partition(" ")[0], run.parent.name, run


def hparams_table(folder: Path) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """The columns of TensorBoard's HParams page in their order, and by run the cells of its row."""
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(folder / "tensorboard"))
    multiplexer.Reload()
    asked, provider = RequestContext(), MultiplexerDataProvider(multiplexer, str(folder))
    context = Context(TBContext(data_provider=provider))
    known = context.hparams_metadata(asked, "")
    experiment = context.experiment_from_metadata(asked, "", True, known, [])
    request = ListSessionGroupsRequest(start_index=0, slice_size=10_000, include_metrics=True)
    request.allowed_statuses.extend(Status.values())
    response = Handler(asked, context, "", request).run()
    heads = [info.display_name for info in (*experiment.hparam_infos, *experiment.metric_infos)]
    names = {info.name: info.display_name for info in experiment.hparam_infos}
    tags = {info.name.tag: info.display_name for info in experiment.metric_infos}
    rows = {}
    for group in response.session_groups:
        cells = {names[name]: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()}
        rows[group.name] = cells | {tags[value.name.tag]: value.value for value in group.metric_values}
    return heads, rows


def check_all_are_complete(folder: Path, dimensions: Iterable[str] = DIMENSIONS) -> None:
    """Every trial of the journal has its config, what it cost and why it ended, and all metrics once it has a rung."""
    heads, rows = hparams_table(folder)
    assert heads == ["family", *dimensions, *METRICS.values()]
    trials = connect(folder).execute("SELECT * FROM trials").fetchall()
    assert len(trials) == len(rows) > 0
    for trial in trials:
        config = json.loads(trial["config"])
        row = rows[f"{trial['family']}/{trial['trial']} {label(config)}"]
        assert {name: row[name] for name in dimensions} == {name: config[name] for name in dimensions}
        assert row["family"] == trial["family"] and row["device-seconds"] >= 0
        ended = {"paused": 0, "running": 0, "finished": REASONS[END]}
        assert row[ENDED] == ended.get(trial["state"], reason_number(trial["reason"] or ""))
        rung = connect(folder).execute("SELECT MAX(rung) FROM reports WHERE trial = ?", (trial["trial"],)).fetchone()[0]
        if rung is not None:
            assert row["rung"] == rung and set(row) == set(heads)
