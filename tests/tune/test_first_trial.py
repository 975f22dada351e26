"""Until its first trial trains, a search has loaded nothing that only later parts of it need."""

import json
import subprocess
import sys
from pathlib import Path

LATER = {
    *("matplotlib", "datasets", "huggingface_hub", "sacrebleu", "jinja2", "numba", "sympy"),
    *("torch._dynamo", "torch._inductor"),
    *("analysis", "kernels", "tune.curves", "tune.experiments"),
}
CODE = """
import json, sys
from contextlib import nullcontext
from pathlib import Path

import model.data.toy_corpus
import tune.study
from tune.settings import Settings

called = []
model.data.toy_corpus.PAIRS = 6000
tune.study.start_local_ray = lambda context: nullcontext()
tune.study.run_trials = lambda *given, **named: called.extend(given)
out = Path(sys.argv[1], "study")
tune.study.run(Settings(budget=240.0, translation_corpus="builtin", text_corpus="builtin", out=out))
assert called

import tune.backend.trainable
from model.config import Config
from model.data.dataset import prepare_text
from model.data.corpus import load_text
from model.training.time_budget import Segment
from model.training.train import train

data = prepare_text(load_text(None))
for optimizer in ("muon", "adamw"):
    config = Config(family="nanogpt", d_model=32, heads=2, layers=1, context=16, optimizer=optimizer)
    segment = Segment(device_seconds=1e6, steps=2)
    list(train(config, data, segment, folder=Path(sys.argv[1], optimizer), evaluation_tokens=64))
print(json.dumps([*sys.modules]))
"""


def test_when_a_search_asks_for_its_first_trial_and_that_is_not_compiled_nothing_for_later_is_loaded(
    tmp_path: Path,
) -> None:
    """One process is the driver, and then the trial."""
    told = subprocess.run([sys.executable, "-c", CODE, tmp_path], capture_output=True, text=True, check=True)
    loaded = set(json.loads(told.stdout.splitlines()[-1]))
    assert {"torch", "ray.tune", "tune.study", "model.training.train"} <= loaded and LATER.isdisjoint(loaded)
