"""A study from its settings to its winners: the one place where the parts meet."""

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from model.config import Data
from model.precision import native
from tune.assembly import check_cap, check_same_text, load_corpora, make_place, make_planner, prepare
from tune.devices import find_devices
from tune.duration import duration_text
from tune.facts import write_facts
from tune.hooks import Screen, TensorBoard
from tune.journal import Journal
from tune.noise import screen_apart
from tune.planner import Planner
from tune.ray_run import local_ray, run_trials
from tune.restore import close_what_a_kill_left_open, restore, spent
from tune.settings import Settings
from tune.signals import ended_in_order
from tune.space import Space
from tune.winners import export, last_lines, winners


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a search ended: its folder, and why it was ended from outside, if it was."""

    folder: Path
    interrupted: str | None

    @property
    def exit_code(self) -> int:
        """0, or as a shell tells of a signal: 128 and its number."""
        members = signal.Signals.__members__
        return 128 + members[self.interrupted] if self.interrupted and self.interrupted in members else 0


def search(settings: Settings) -> Outcome:
    """Run the search that the settings ask for. ValueError, with nothing written: a setting that cannot serve."""
    devices = find_devices(settings)
    precisions = native(torch.device(devices.kind))
    spaces = {name: Space(family=name, precisions=precisions, fix=settings.fix) for name in settings.families}
    check_cap(settings)
    corpora = load_corpora(settings)
    journal = open_journal(settings)
    check_same_text(corpora, journal.facts())
    with screen_apart(settings.out / "log.txt") as write:
        place_text = f"{devices.slots} x {devices.name}, precisions {', '.join(precisions)}"
        write(f"{settings.out}: {duration_text(settings.budget)} on {place_text}")
        for family, corpus in corpora.items():
            if corpus.builtin:
                write(f"{family}: no corpus was named, so the builtin one serves: a smoke test, not a study")
        data = {name: prepare(corpus) for name, corpus in corpora.items()}
        tensorboard = TensorBoard(settings.out / "tensorboard")
        planner = make_planner(settings, devices, spaces, journal, [Screen(write), tensorboard])
        if settings.resume:
            restore(planner, journal)
        write_facts(settings, devices, data, journal)
        place = make_place(settings, devices, planner)
        with local_ray(devices.slots, devices.gpus), ended_in_order(planner, settings.out):
            run_trials(planner, data, place, devices.gpus)
        tensorboard.close()
        for line in conclude(settings, planner, data):
            write(line)
    journal.close()
    return Outcome(folder=settings.out, interrupted=planner.stopping)


def open_journal(settings: Settings) -> Journal:
    """The journal of a new study, or of the one to go on with. ValueError: it cannot be had, or the cap is spent."""
    if not settings.resume:
        settings.check_folder()
        settings.out.mkdir(parents=True)
        return Journal(settings.out, new=True)
    journal = Journal(settings.out, new=False)
    close_what_a_kill_left_open(journal)
    if settings.budget < spent(journal):
        raise settings.too_late(spent(journal))
    return journal


def conclude(settings: Settings, planner: Planner, data: Mapping[str, Data]) -> Iterator[str]:
    """Keep the winners where people look for them, and tell what was found."""
    journal, ledger = planner.books.journal, planner.books.ledger
    found = winners(journal)
    for family, winner in found.items():
        export(winner, settings.out, data[family])
    journal.note(ended={"reason": planner.stopping or "cap", "spent": ledger.spent})
    yield from last_lines(journal, found, list(settings.families), settings.budget, ledger.spent)
    if planner.stopping:
        yield f"ended by {planner.stopping}; go on with: python tune/run.py --resume {settings.out}"
