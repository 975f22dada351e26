"""A long text prepared, from its file to mapped tokens, against the tokenizers library on one thread, in turns."""

import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import TypeVar

import numpy as np
import tokenizers

from model.data.corpus import PIECE, load_text
from model.data.dataset import prepare_text
from tests.bench.table import Row
from tune.errors import ROOT

TURNS = 3
BYTES, SHORT_BYTES = 500_000_000, 80_000_000
PART = 4
"""The library has that part of the text, whose begin is like the rest; so has a process of ours, to compare memory."""
LINES = 30
"""Of Tatoeba after each file of code."""
ASKED, MOST_BYTES = 1.6, 2e9
ONE_THREAD = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
T = TypeVar("T")
Spent = dict[str, float]
"""CPU seconds of parts, bytes of memory at most."""


def text(data: Path, *, short: bool) -> Iterator[Row]:
    """CPU seconds, the training of the tokenizer told apart; the most memory."""
    with tempfile.TemporaryDirectory(prefix="ration-") as name:
        folder, size = Path(name), SHORT_BYTES if short else BYTES
        write_text(folder / "text", data, size)
        with (folder / "text").open("rb") as file:
            (folder / "part").write_bytes(file.read(size // PART).rpartition(b"\n")[0])
        part = _spent("ours", folder / "part", folder)
        turns = [
            (_spent("ours", folder / "text", folder), _spent("plain", folder / "part", folder, **ONE_THREAD))
            for _ in range(TURNS)
        ]
    whole = f"a text of {size / 1e6:.0f} MB from its file to mapped tokens"
    learning = sorted(ours["learning"] for ours, _ in turns)[TURNS // 2]
    rates = [(size / ours["preparing"], size / PART / plain["all"]) for ours, plain in turns]
    own, library = (sorted(each)[TURNS // 2] / 1e6 for each in zip(*rates, strict=True))
    times = sorted(one / other for one, other in rates)
    yield Row(
        what=f"{whole}, CPU time less that of learning the vocabulary",
        against=f"tokenizers on one thread, {PIECE:,} characters at a time: {library:.1f} MB a CPU second",
        asked=f">= {ASKED}x",
        measured=f"{times[TURNS // 2]:.2f}x ({times[0]:.2f} to {times[-1]:.2f}): {own:.1f} MB a CPU second; "
        f"learning took {learning:.0f} s",
        reached=None if short else times[TURNS // 2] >= ASKED,
    )
    most = max(ours["most"] for ours, _ in turns)
    yield Row(
        what=f"{whole}, resident memory at most",
        against=f"of its first {1 / PART:.0%}: {part['most'] / 1e6:.0f} MB",
        asked=f"< {MOST_BYTES / 1e9:.0f} GB, and no more for a longer text", measured=f"{most / 1e6:.0f} MB",
        reached=None if short else most < min(MOST_BYTES, 1.1 * part["most"]),
    )  # fmt: skip


def write_text(path: Path, data: Path, size: int) -> None:
    """The sources of Python and of its packages, each once before one comes again, and Tatoeba's lines between them."""
    from tests.bench.contenders import PAIRS  # not in the processes below, whose memory counts: it brings torch

    chance, lines = random.Random(0), (data / PAIRS).read_bytes().splitlines(keepends=True)
    places = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    files = sorted({file.resolve() for place in places for file in place.rglob("*.py")})
    with path.open("wb") as written:
        while written.tell() < size:
            chance.shuffle(files)
            for file in files:
                with suppress(UnicodeDecodeError):
                    written.write(file.read_bytes().decode().encode() + b"".join(chance.sample(lines, LINES)))
                if written.tell() >= size:
                    break


def _spent(who: str, path: Path, folder: Path, **environment: str) -> Spent:
    """Of a process of its own."""
    code = f"import sys; from tests.bench.long_text import {who}; {who}(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(path), str(folder)]
    given = os.environ | environment | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=given, text=True)
    spent: Spent = json.loads(done.stdout)
    return spent


def ours(path: str, folder: str) -> None:
    """Prepare a text."""
    laps, began = Laps(), process_time()
    data = prepare_text(load_text(Path(path), track=laps), laps, Path(folder))
    learning = laps.begun["tokenizing"] - laps.ended["learning a vocabulary"]
    preparing = process_time() - began - learning
    Path(folder, "tokenizer").write_text(json.dumps(json.loads(data.tokenizer)["bpe"]), encoding="utf-8")
    _tell(learning=learning, preparing=preparing)


def plain(path: str, folder: str) -> None:
    """Encode a text with the tokenizer that is there, and keep the ids: in pieces, which is quicker than by line."""
    bpe, began = tokenizers.Tokenizer.from_file(str(Path(folder, "tokenizer"))), process_time()
    with Path(path).open(encoding="utf-8") as file, Path(folder, "ids").open("wb") as written:
        while piece := file.read(PIECE):
            written.write(np.array(bpe.encode_batch_fast([piece])[0].ids, dtype=np.uint16).data)
    _tell(all=process_time() - began)


class Laps:
    """A track that notes when each part first began and last ended."""

    def __init__(self) -> None:
        self.begun: dict[str, float] = {}
        self.ended: dict[str, float] = {}

    def __call__(self, items: Iterable[T], about: str, total: int) -> Iterable[T]:
        self.begun.setdefault(about, process_time())
        yield from items
        self.ended[about] = process_time()


def _tell(**parts: float) -> None:
    """What a process spent, with the most memory that it held, as the system has it: in KiB."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(json.dumps(parts | {"most": 1024 * int(status["VmHWM"][:-2])}))
