"""A million pairs of the hub prepared as a search prepares them, in a process that is looked at from outside."""

import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.model.stand_in import serving, translations
from tests.soak.search import Bench, Row
from tune.errors import ROOT

PAIRS, SHORT_PAIRS = 1_000_000, 20_000
MOST_SECONDS, MOST_BYTES = 180.0, 2e9
WORDS = 50_000
SHOWN = ("reading train", "splitting", "learning a vocabulary", "tokenizing")
PREPARE = """
from tune.corpora import load_corpora
from tune.settings import Settings

asked = Settings(budget="1h", families="translation", translation_corpus="hub:soak/pairs")
data = load_corpora(asked).data["pairs"]
print(sum(map(len, (data.train, data.valid, data.test))), data.training_tokens, len(data.rows))
"""


def corpus(bench: Bench) -> Iterator[Row]:
    """One row."""
    count = SHORT_PAIRS if bench.short else PAIRS
    write_pairs(bench.folder / "hub/soak/pairs/main/train.parquet", count)
    with serving(bench.folder / "hub") as (endpoint, _):
        own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(bench.folder / "home"), "HF_HUB_OFFLINE": "0"}
        own |= {"XDG_CACHE_HOME": str(bench.folder / "cache")}
        found = watched(PREPARE, own | {"PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1", "TERM": "xterm"})
    prepared, tokens, rows = map(int, found.printed.split())
    missing = [about for about in SHOWN if about not in found.shown]
    yield Row(
        what="corpus",
        asked=f"{count:,} pairs of the hub prepared within {MOST_SECONDS / 60:.0f} min on two cores and "
        f"{MOST_BYTES / 1e9:.0f} GB, with a progress bar for each part",
        measured=f"{prepared:,} pairs, {tokens:,} target tokens in {rows:,} rows: {found.seconds:.0f} s, "
        f"{found.peak / 1e9:.2f} GB at most; not shown: {', '.join(missing) or 'none'}",
        kept=prepared == count and found.seconds < MOST_SECONDS and found.peak < MOST_BYTES and not missing,
        details=[{"seconds by part": found.parts}],
    )


class Watched:
    """What a process printed and showed on its terminal, how long it took, and the most memory it held: bytes.

    parts: seconds from its begin to when each part was first shown.
    """

    def __init__(self) -> None:
        self.printed, self.shown, self.seconds, self.peak = "", "", 0.0, 0
        self.parts: dict[str, float] = {}


def watched(code: str, environment: dict[str, str]) -> Watched:
    """Run `code` in a Python of its own, with a terminal on its standard error."""
    found, (ours, theirs), begun = Watched(), pty.openpty(), time.monotonic()
    words = [sys.executable, "-c", code]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=theirs, env=os.environ | environment, cwd=ROOT, text=True
    ) as process:
        os.close(theirs)
        reader = threading.Thread(target=_read, args=(ours, found, begun))
        reader.start()
        assert process.stdout is not None
        found.printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    reader.join()
    found.seconds, found.peak = time.monotonic() - begun, used.ru_maxrss * 1024
    assert process.returncode == 0, found.shown
    return found


def _read(terminal: int, found: Watched, begun: float) -> None:
    """Until the process has closed it, which Linux tells as an error."""
    try:
        while said := os.read(terminal, 65536):
            found.shown += said.decode(errors="replace")
            for about in re.findall("|".join(SHOWN), found.shown[-1000:]):
                found.parts.setdefault(about, time.monotonic() - begun)
    except OSError:
        os.close(terminal)


def write_pairs(path: Path, count: int) -> None:
    """Pairs whose words follow Zipf's law and whose lengths are a language's: a few repeat, most are of their own."""
    path.parent.mkdir(parents=True)
    chance = np.random.default_rng(0)
    syllables = np.array([first + second for first in "bcdfglmnprst" for second in "aeiou"])
    sides = [["".join(chance.choice(syllables, 1 + place % 4)) for place in range(WORDS)] for _ in range(2)]
    below = np.cumsum(1 / (np.arange(WORDS) + 2.7))
    kind = translations([("", "")]).schema
    with pq.ParquetWriter(path, kind) as writer:
        for first in range(0, count, 100_000):
            some = min(100_000, count - first)
            lengths = np.clip(np.exp(chance.normal(2.1, 0.6, some)), 1, 60).astype(int)
            lines = [sentences(words, below, lengths + chance.integers(0, 3, some), chance) for words in sides]
            writer.write_table(pa.Table.from_batches(translations(list(zip(*lines, strict=True))).to_batches(), kind))


def sentences(words: list[str], below: np.ndarray, lengths: np.ndarray, chance: np.random.Generator) -> list[str]:
    """Of so many words each."""
    drawn = iter(np.searchsorted(below, chance.random(lengths.sum()) * below[-1]).tolist())
    return [" ".join(words[next(drawn)] for _ in range(length)).capitalize() + "." for length in lengths.tolist()]
