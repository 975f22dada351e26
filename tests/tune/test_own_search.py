"""Searches of a training loop of a user's own, with real Ray: killed and gone on with, and called from Python."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.searches import trains
from tests.soak.accounts import adds_up, number, rows, spent
from tests.soak.kill import ASTRAY
from tests.soak.observer import Observer
from tests.soak.search import Search
from tune.cli import main
from tune.settings import Settings

TRAIN = """
import json, sys, time
import tune.loop as ration
from model import GAIN

def train(config):
    assert not any(name.startswith("model.") for name in sys.modules)
    step, error = 0, 1.0
    if (saved := ration.checkpoint()) is not None:
        step, error = json.loads((saved / "state.json").read_text())
    while not ration.done():
        time.sleep(0.02)
        step, error = step + 1, error * (1 - GAIN * config["rate"])
        save = lambda folder: (folder / "state.json").write_text(json.dumps([step, error]))
        if config["how"] == "crashes" and step == 20:
            raise RuntimeError("mine")
        ration.report(accuracy=1 - error, error=error, step=step, save=None if config["how"] == "never saves" else save)
"""
SPACE = """
how = ["saves", "never saves", "crashes"]
rate = { low = 1e-3, high = 1e-1, log = true }
"""
CAP = 45


def test_killed_and_gone_on_with_it_keeps_its_cap_and_finds_the_best(
    tmp_path: Path, observer: Observer, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "model.py").write_text("GAIN = 1\n")
    (tmp_path / "space.toml").write_text(SPACE)
    study, loop = tmp_path / "study", ("--train", tmp_path / "train.py:train")
    asked = ("--space", tmp_path / "space.toml", "--maximize", "accuracy", "--budget", f"{CAP}s", "--devices", "2")
    search = Search(observer, *loop, *asked, "--first", "how=crashes", "--out", study)
    assert trains(search, study), search.printed
    search.kill()
    assert main(Settings, ["--resume", str(study)]) == 2
    refused = capsys.readouterr().err
    assert f"add --train '{loop[1]}'" in refused and refused.count("\n") == 1
    again = Search(observer, "--resume", study, *loop)
    assert again.finish() == 0, again.printed
    assert ASTRAY not in again.printed and "Traceback" not in again.printed
    assert 0 < spent(study) <= CAP and adds_up(study)
    best = json.loads((study / "best-loop" / "ration.json").read_text())
    lowest = number(study, "SELECT MIN(valid_loss) FROM reports WHERE rung IS NOT NULL OR final")
    assert best["metric"] == "accuracy" and best["value"] == -lowest
    assert "the study's loop was" not in again.printed
    crashed = rows(study, "SELECT reason FROM trials WHERE state = 'failed' AND config LIKE '%crashes%'")
    assert crashed and all("mine (train.py:16)" in row["reason"] for row in crashed)
    assert "accuracy" in again.printed and "perplexity" not in again.printed


def test_from_python_it_returns_the_metric_and_what_else_was_reported(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        TRAIN.replace("from model import GAIN", "GAIN = 1") + "\n"
        "from optuna.distributions import FloatDistribution\n"
        "from tune.own_space import choice\n"
        "from tune.settings import Settings\n"
        "from tune.study import search\n"
        "if __name__ == '__main__':\n"
        "    space = {'how': choice('saves'), 'rate': FloatDistribution(1e-3, 1e-1, log=True), 'steps': [1, 2]}\n"
        "    of = {'train': train, 'space': space, 'metric': 'error', 'life': 100}\n"
        "    found = search(Settings(budget='24s', oversubscribe=True, devices=2, **of))\n"
        "    found = found[found['best_error'].notna()]\n"  # one that the cap cut short has none
        "    assert list(found['best_error']) == sorted(found['best_error']) and len(found)\n"
        "    assert found['accuracy'].max() == 1 - found['error'].min() and 'perplexity' not in found\n"
        "    print(found.to_string())\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "best_error" in run.stdout and "config_steps" in run.stdout
