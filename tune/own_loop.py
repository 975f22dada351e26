"""A search of a user's own training loop, where it differs from a search of families: its search context, its family,
and what is kept and printed at its end. This process reads the loop's file, and never executes it.
"""

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray.cloudpickle

from tune.devices import Devices
from tune.errors import UserError, check_not_hidden, is_user_code
from tune.load import Loop, layers, parse_loop_name
from tune.loop import RECORD, best_checkpoint, newest_checkpoint, read_record
from tune.machine import write_folder_whole
from tune.own_space import LOOP, OwnSpace, fixed_values
from tune.reports import Metric
from tune.search.family import CostModel, Family
from tune.search.forecast import NO_FAVOUR
from tune.search.ladder import Frame, Ladder
from tune.search.memory_model import MemoryModel
from tune.search.successive_halving import SuccessiveHalving
from tune.search.suggest import Suggester
from tune.search_context import SHORTEST_RUNG_SECONDS, SearchContext, check_cap, first_configs, wall_clock_limit
from tune.search_flags import train_text
from tune.search_space import label
from tune.settings import Settings
from tune.store.journal import Journal, as_mapping
from tune.store.queries import ranking
from tune.winners import resolve_inside

FIRST_LEASE_SECONDS, FIRST_LEASE_SHARE = 120.0, 0.05
"""Length of a first lease, in which a trial is to report once: the larger of so many seconds and such a share of what
its family has."""


def make_loop_context(settings: Settings, devices: Devices) -> SearchContext:
    """Return the context of a search of a loop. UserError: a setting that cannot serve."""
    begun = time.monotonic()
    check_cap(settings, devices.slots)
    loop = loop_of(settings)
    check_not_hidden("tune", str(loop.folder))
    varying = {name: each for name, each in settings.own_space.given.items() if name not in loop.fixed}
    return SearchContext(
        settings=settings, devices=devices.with_sharing(settings, 0.0), spaces={LOOP: OwnSpace(given=varying)},
        memories={LOOP: MemoryModel()}, begun=begun, loop=loop,
    )  # fmt: skip


def metric_of(settings: Settings) -> Metric | None:
    """Return the metric by which a loop is judged; None: it is a search of families."""
    name = settings.maximize or settings.metric
    return None if name is None else Metric(name=name, maximize=settings.maximize is not None, tie=0.0)


def loop_of(settings: Settings) -> Loop:
    """Return the loop that is to train. UserError: a function that cannot go to another process."""
    metric = metric_of(settings)
    assert metric is not None
    asked: dict[str, Any] = {"metric": metric, "life": settings.life, "fixed": fixed_values(settings.own_space.given)}
    if isinstance(settings.train, str):
        file, function = parse_loop_name(settings.train)
        return Loop(folder=file.parent, file=file, function=function, **asked)
    assert settings.train is not None
    *_, (inner, _) = within = [*layers(settings.train)]
    if any(getattr(holds.get("parameter_registry"), "references", None) for _, holds in within):
        what = f"what ray.tune.with_parameters gave {train_text(settings.train)!r} is in Ray's object store"
        raise UserError(f"--train: {what}, which a loop's process cannot reach: give it by functools.partial")
    module = sys.modules.get(inner.__module__)
    file = Path(getattr(module, "__file__", None) or Path.cwd() / "here")
    if module is not None and module.__name__ != "__main__" and is_user_code(file):
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        pickled = ray.cloudpickle.dumps(settings.train)
    except Exception as error:
        what = f"{train_text(settings.train)!r} cannot go to another process"
        raise UserError(
            f"--train: {what} ({error!s:.80}): keep such things inside of it, or name FILE:function"
        ) from None
    # the folder above its package, from which Python imported it
    name = module.__spec__.name if module is not None and module.__spec__ is not None else ""  # of `python -m` too
    inside = name.count(".") + (file.stem == "__init__")
    return Loop(folder=file.absolute().parents[inside], pickled=pickled, **asked)


def make_loop_family(
    context: SearchContext, first: float, by_now: float, price_of: Callable[[str | None, int], float],
    ladder: Ladder | None,
) -> Family:  # fmt: skip
    """Return the one family of such a search; arguments as of assembly.make_family."""
    settings, loop, space = context.settings, context.loop, context.spaces[LOOP]
    assert loop is not None
    share, walls = context.devices.share, (wall_clock_limit(settings, context.devices), settings.deadline or math.inf)
    costs = CostModel()
    frame = Frame(
        slots=context.devices.slots, shortest=SHORTEST_RUNG_SECONDS, overhead=costs.segment(None, 0.0),
        start_up=costs.start_up, metric=loop.metric,
    )  # fmt: skip
    return Family(
        seconds=by_now / share, policy=SuccessiveHalving(frame, ladder or frame.fit(first / share, *walls), price_of),
        cost_model=costs, memory=context.memories[LOOP],
        equal_tokens=settings.rungs == "tokens" or loop.life is not None, life_steps=loop.life or math.inf,
        seed=settings.seed, first_lease=max(FIRST_LEASE_SECONDS, FIRST_LEASE_SHARE * first / share),
        suggestions=Suggester(
            space, seed=settings.seed, search=settings.search, prior=lambda config: NO_FAVOUR,
            asked=first_configs(settings, space),
        ),
    )  # fmt: skip


def resume_checkpoint(folder: Path, *, undecayed: bool) -> tuple[str, int] | None:
    """Return path and steps of the checkpoint from which a trial goes on. undecayed: ignored, as a loop's checkpoints
    know no decay."""
    found = newest_checkpoint(folder)
    return None if found is None else (str(found), read_record(found).steps)


def loop_change_warnings(settings: Settings, journal: Journal) -> Iterator[str]:
    """Yield a warning where a study goes on with another file than before."""
    before, now = as_mapping(journal.facts().get("settings")).get("train"), settings.train
    if isinstance(now, str) and ".py" in str(before) and before != now:
        yield f"warning: the study's loop was {before}: its trials go on in {now}"


def keep_best(loop: Loop, journal: Journal) -> str | None:
    """Copy the best checkpoint to `best-loop`, where people look for it, and return a line on it; None: no trial
    reached a rung."""
    metric = loop.metric
    row = next((row for row in ranking(journal) if row["loss"] is not None), None)
    if row is None:
        return None
    config = json.loads(row["config"])
    place = best_checkpoint(resolve_inside(journal.folder, f"checkpoints/{row['trial']}"))
    saved = None if place is None else read_record(place)
    record = {
        "trial": row["trial"],
        "config": {**loop.fixed, **config},
        "metric": metric.name,
        "value": metric.to_reported(row["loss"]),
        "saved": None if saved is None else {"value": metric.to_reported(saved.loss), "step": saved.steps},
    }
    kept = journal.folder / f"best-{LOOP}"
    export(place, kept, record)
    found = f"{LOOP}: best {row['trial']} {label(config)}: {metric.text(row['loss'])} within {row['steps']:,} steps"
    if saved is None:
        return f"{found}; it saved nothing, so there is its configuration alone: {kept}"
    what = "it" if saved.loss == row["loss"] else metric.text(saved.loss)
    return f"{found}; {what} was saved at step {saved.steps:,}: {kept}"


def export(checkpoint: Path | None, folder: Path, record: dict[str, object]) -> None:
    """Write a folder with a copy of a checkpoint and with what is said of it, whole or not at all."""

    def fill(place: Path) -> None:
        if checkpoint is not None:
            shutil.copytree(checkpoint, place, dirs_exist_ok=True)
        (place / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")

    write_folder_whole(folder, fill)
