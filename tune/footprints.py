"""Footprints: what trials took of memory, in the journal and in what is known of their family at once."""

from collections.abc import Mapping
from typing import Any

from tune.books import Books
from tune.family import Family
from tune.records import Running


class Footprints:
    """What each lease tells of memory."""

    def __init__(self, families: Mapping[str, Family], books: Books) -> None:
        self._families, self._books = families, books

    def learn(self, run: Running, progress: Mapping[str, Any]) -> int:
        """In how large parts memory ran out, and at the end of a lease on which it did not what the trial took.

        Returns into how many parts the trial's batches are cut now.
        """
        micro_batches: int = progress["micro_batches"]
        while run.micro_batches < micro_batches:
            self._note(run, run.micro_batches, None)
            run.micro_batches *= 2
        if progress["ended"] and not progress["ran_out"]:
            self._note(run, micro_batches, progress["limited_bytes"])
        return micro_batches

    def hopeless(self, run: Running) -> None:
        """A trial ran out of memory, and smaller parts did not help or would not have."""
        memory = self._families[run.assignment.family].memory
        self._note(run, memory.most(run.assignment.config), None)

    def _note(self, run: Running, micro_batches: int, measured: int | None) -> None:
        assignment = run.assignment
        memory = self._families[assignment.family].memory
        predicted = memory.predicted(assignment.config, micro_batches)
        self._books.note_memory(assignment, micro_batches, predicted, measured)
        memory.learn(assignment.config, micro_batches, measured)
