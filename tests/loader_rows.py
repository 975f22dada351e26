"""Rows as the loader experiment leaves them, of loops that take what a small model of them says."""

from typing import Any

from tests.training_rows import same, whole

USE, LOAD, PASS = 20e-3, 30e-3, 2e-3
"""Seconds of a batch: to use it, to make it, and to pass it on from another process."""


def source(name: str, wait: float, none: float, **more: float) -> dict[str, Any]:
    """One of them, whose loop waits for so long; none: seconds of the whole loop without workers."""
    figures = {"empty": LOAD, "wait": wait, "whole": USE + wait, "first": 0.05, "gain": none / (USE + wait)} | more
    return {"name": name, "start_seconds": 1.0} | {kind: same(value) for kind, value in figures.items()}


def workers(of: str, most: int, *, slows: float = 0.0) -> dict[str, Any]:
    """Each of so many workers slows the loop by some seconds; text has batches of our own too."""
    waits = [LOAD, *(max(PASS, LOAD / count + PASS - USE) + slows * count for count in range(1, most + 1))]
    found = [source(str(count), wait, USE + LOAD, empty=LOAD / max(1, count)) for count, wait in enumerate(waits)]
    if of == "text":
        found.append(source("own", 1e-4, USE + LOAD, empty=1e-4))
    return row({"measure": "workers", "of": of, "workers": list(range(most + 1))}, found)


def settings() -> dict[str, Any]:
    """Of two workers."""
    names = ["2, 1 ahead", "2, 2 ahead", "2, begun anew"]
    return row({"measure": "settings", "of": "images", "workers": 2}, [source(each, PASS, USE) for each in names])


def row(asked: dict[str, Any], sources: list[dict[str, Any]]) -> dict[str, Any]:
    """What all rows have."""
    rounds = {f"{sources[0]['name']} loop whole": [0.1] * 9}
    return whole(asked, {}, 2, rows=128, batches=32, items=50_000, sources=sources, rounds=rounds)


def all_rows(most: int = 10, **of: float) -> list[dict[str, Any]]:
    """Images, text and settings."""
    return [workers("images", most, **of), workers("text", most, **of), settings()]
