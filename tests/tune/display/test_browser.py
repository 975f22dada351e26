"""TensorBoard's pages of a small study, seen in a real browser."""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.searches import comes
from tests.tune.display.browser import Page, browser
from tests.tune.display.conftest import trial_runs, watched
from tune.display.tensorboard import METRICS
from tune.search_space import DIMENSIONS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    world, board = watched(folder, cap=300)
    world.run()
    board.closed(world.engine)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Of a TensorBoard that has read all runs."""
    words = [Path(sys.executable).parent / "tensorboard", "--logdir", folder / "tensorboard", "--port", "0"]
    with subprocess.Popen([*map(str, words), "--host", "127.0.0.1"], stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            address = next(found[1] for line in server.stderr if (found := re.search(r"at (http://\S+)", line)))
            assert comes(lambda: len(runs(address)) > len(list(trial_runs(folder))))
            yield address
        finally:
            server.kill()


def runs(address: str) -> list[str]:
    with urllib.request.urlopen(f"{address}data/runs", timeout=60) as answer:
        return list(json.loads(answer.read()))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def in_order(wanted: list[str]) -> str:
    """A condition: these texts are seen, each after the one before it."""
    return f"{json.dumps(wanted)}.reduce((from, text) => words().indexOf(text, from) + 1 || NaN, 0)"


def test_scalars_are_grouped_from_the_budget_to_the_trial(page: Page, address: str) -> None:
    page.open(f"{address}#scalars")
    page.wait_for(in_order(["1 budget", "2 best so far", "3 rungs", "4 valid", "5 train", "6 speed", "7 trial"]))
    page.wait_for("seen().filter((each) => each.matches('path.line') && each.getAttribute('d').length > 50).length > 5")


def test_hparams_show_every_trial_in_the_columns_of_the_space(page: Page, address: str, folder: Path) -> None:
    page.open(f"{address}#hparams")
    page.wait_for(in_order(["family", *DIMENSIONS, *METRICS.values()]))
    for _, family, run in trial_runs(folder):
        page.wait_for(f"words().includes({json.dumps(f'{family}/{run.name}')})")
