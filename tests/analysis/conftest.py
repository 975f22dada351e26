"""Journals written by hand, with the journal's own schema."""

import json
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import exp
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest

from analysis import style
from analysis.plots import dimensions
from analysis.study import Results, Study, open_studies, open_study
from tune.cli import parse
from tune.errors import UserError
from tune.flags import Flags
from tune.own_space import LOOP
from tune.store.journal import Journal

FACTS: dict[str, Any] = {
    "cap_seconds": 1000.0,
    "families": {"nanogpt": 1.0},
    "created": 1767225600.0,
    "devices": {"kind": "cpu", "slots": 1, "name": "CPU core"},
    "corpora": {"nanogpt": {"name": "shakespeare", "sha256": "a" * 64, "builtin": False, "vocabulary": 65}},
    "rung_seconds": {"nanogpt": [10.0, 20.0, 40.0]},
}


@pytest.fixture(scope="session", autouse=True)
def quick_pictures() -> Iterator[None]:
    """No law asks how fine a picture is, or how exact an interval in it."""
    before = style.DPI, dimensions.DRAWS
    style.DPI, dimensions.DRAWS = 30, 4
    yield
    style.DPI, dimensions.DRAWS = before


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the law is of no picture: a page that says of one of the family and one of the budget why it has none."""

    def draw(*_: object) -> NoReturn:
        raise UserError("it is not drawn here")

    monkeypatch.setattr("analysis.page.FAMILY_PICTURES", (draw,))
    monkeypatch.setattr("analysis.page.BUDGET_PICTURES", (draw,))


def do(kind: type[Flags], words: Sequence[str]) -> None:
    """What an entry does with these flags, in this process; its UserError is raised."""
    pkgutil.resolve_name(kind.command.entry_point)(parse(kind, words))


@contextmanager
def one_line(match: str) -> Iterator[None]:
    """What is done is refused by a UserError that has this, in one line."""
    with pytest.raises(UserError, match=match) as error:
        yield
    assert "\n" not in str(error.value)


Printed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """printed(kind, *flags): what a command says"""

    def said(kind: type[Flags], *words: str | Path) -> str:
        do(kind, [str(word) for word in words])
        return capsys.readouterr().out

    return said


class Written:
    """A journal under construction: every helper writes one row with the columns given."""

    def __init__(self, folder: Path, **facts: Any) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.journal = Journal(folder, new=True)
        self.journal.rows("PRAGMA synchronous = OFF")  # as in tests/tune/search/world.py
        self.journal.write_facts(**(FACTS | facts))

    def slot(self, slot: int = 0, *, opened: float = 0.0, closed: float | None = None) -> None:
        self.journal.insert("slots", {"slot": slot, "opened": opened, "closed": closed})

    def trial(self, trial: str, *, state: str = "paused", reason: str | None = None, created: float = 0.0,
              parameters: int = 1_000_000, family: str = "nanogpt", **config: Any) -> None:  # fmt: skip
        point = {"d_model": 128, "heads": 4, "layers": 4, "dropout": 0.1, "precision": "fp32"} | config
        values = {"trial": trial, "family": family, "config": json.dumps(point), "parameters": parameters}
        self.journal.insert("trials", values | {"state": state, "reason": reason, "created": created})

    def report(
        self, trial: str, perplexity: float | None, *, rung: int | None = 0, at: float = 0.0, **columns: Any
    ) -> None:
        self.journal.insert("reports", {"trial": trial, "at": at, "rung": rung, "perplexity": perplexity} | columns)

    def charge(
        self, what: str, seconds: float, *, at: float = 0.0, slot: int | None = None, trial: str | None = None
    ) -> None:
        self.journal.insert("charges", {"at": at, "slot": slot, "trial": trial, "what": what, "seconds": seconds})

    def lease(
        self, trial: str, slot: int, *, rung: int | None, price: float, opened: float, charged: float | None
    ) -> int:
        """Still open where `charged` is None."""
        values = {"trial": trial, "slot": slot, "purpose": "final" if rung is None else "rung", "rung": rung}
        times = {"opened": opened, "closed": None if charged is None else opened + charged, "charged": charged}
        return self.journal.insert("leases", values | times | {"price": price, "reserved": price * 1.2})


def results_of(*studies: Any) -> Results:
    """Of what has a folder each."""
    return Results(studies=open_studies([study.folder for study in studies]))


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[..., Written]]:
    """write(name, **facts) -> Written: a new study in runs/ of a temporary folder"""
    written: list[Written] = []

    def new(name: str = "study", **facts: Any) -> Written:
        written.append(Written(tmp_path / "runs" / name, **facts))
        return written[-1]

    yield new
    for one in written:
        one.journal.close()


def study_of_rows(folder: Path, experiment: str, rows: list[dict[str, Any]]) -> Study:
    """Of an experiment, with these rows of it."""
    study = Written(folder, experiment=experiment)
    study.trial("t001")
    with study.journal.transaction():
        for row in rows:
            study.journal.insert("rows", {"at": 0.0, "experiment": experiment, "value": json.dumps(row)})
    study.journal.close()
    return open_study(folder)


def study_of_trials(folder: Path, experiment: str, rows: list[dict[str, Any]], **facts: Any) -> Study:
    """Of a list, whose trials came to what these say, or diverged where that is no loss; each of the others reported
    four times on its way, the second one twice, as after a kill."""
    texts = {"nanogpt": FACTS["corpora"]["nanogpt"] | {"training_tokens": rows[0]["tokens"] / rows[0]["epochs"]}}
    study = Written(folder, experiment=experiment, corpora=texts, **facts)
    with study.journal.transaction():
        for number, row in enumerate(rows, 1):
            trial, known = f"t{number:03d}", {"parameters": row["parameters"], "created": number, **row["config"]}
            study.charge("steps", row["training_seconds"], trial=trial)
            if row["valid_loss"] is None:
                study.trial(trial, state="stopped", reason="diverged", **known)
                study.report(trial, None, rung=None, ended="diverged", steps=row["steps"], tokens=row["tokens"])
                continue
            study.trial(trial, state="finished", **known)
            for part in (0, 1, 0, 1, 2, 3):
                steps, _, seconds, loss, valid = row["curve"][part]
                tokens = row["tokens"] * steps / row["steps"]
                told = {"steps": steps, "tokens": tokens, "training_seconds": seconds, "train_loss": loss}
                told |= {"valid_loss": valid, "accuracy": 0.4, "trained_loss": valid - 0.1, "trained_accuracy": 0.5}
                told |= {"trained_perplexity": exp(valid - 0.1), "nats_per_word": 1.5 * valid, "final": int(part == 3)}
                told |= {name: row.get(name) for name in ("step_seconds", "step_bytes")}
                study.report(trial, exp(valid), rung=None, **told)
    study.journal.close()
    return open_study(folder)


def study_of_loop(folder: Path, asked: str, name: str, values: list[float], **settings: str) -> Written:
    """Of one trial for each of these values of what is asked for."""
    study = Written(folder, families={LOOP: 1.0}, corpora={}, settings={asked: name, "train": "x.py", **settings})
    for number, value in enumerate(values):
        study.trial(f"t{number}", family=LOOP, parameters=0, place=number, created=number)
        columns = {"numbers": json.dumps({name: value, "loss": number}), "steps": 1 + number, "training_seconds": 1.0}
        study.report(f"t{number}", None, valid_loss=-value if asked == "maximize" else value, **columns)
        study.charge("steps", 1000.0, trial=f"t{number}")
    study.journal.close()
    return study


@pytest.fixture
def six(write: Callable[..., Written]) -> Written:
    """Six trials, ranked by hand in test_ranking.py."""
    study = write("six")
    study.slot()
    # trial, parameters, perplexity at rung 0, 1 and after the decay
    rows = [
        ("t1", 1_000_000, 9.0, None, None),
        ("t2", 2_000_000, 8.0, 7.0, 5.0),
        ("t3", 4_000_000, 7.5, 6.0, 5.5),
        ("t4", 500_000, 8.5, None, None),
        ("t5", 8_000_000, 7.0, 6.5, None),
        ("t6", 1_000_000, None, None, None),
    ]
    for number, (trial, parameters, first, second, last) in enumerate(rows):
        broken = trial == "t6"
        study.trial(trial, parameters=parameters, created=number, d_model=16 * 2**number,
                    state="failed" if broken else "paused", reason="diverged" if broken else None)  # fmt: skip
        for rung, perplexity in ((0, first), (1, second)):
            if perplexity is not None:
                study.report(trial, perplexity, rung=rung, memory_bytes=(9 - number) * 2**20, bits_per_character=1.0)
        if last is not None:
            study.report(trial, last, rung=None, final=1, test_perplexity=last + 0.5)
        study.charge("steps", 10.0 + number, trial=trial, slot=0, at=100.0)
    return study


@pytest.fixture
def searched(tmp_path: Path) -> Written:
    return search(tmp_path / "runs" / "searched")


SEGMENTS = ((0, 0, 10), (1, 10, 20), (2, 20, 40), (None, 40, 60))
"""Rung, and training seconds from and to; the last is a decay."""


def search(folder: Path) -> Written:
    """As a search would be: 24 trials of nanogpt on two slots, three rungs, two decays, one divergence."""
    study = Written(folder, ended={"reason": "cap"}, settings={"budget": "1000s", "seed": "3", "oversubscribe": True})
    random, clock = Random(0), [0.0, 0.0]
    with study.journal.transaction():
        for slot in (0, 1):
            study.slot(slot)
        for number in range(24):
            trial, width, luck = f"t{number:03d}", random.choice([16, 64, 256]), random.gauss(0, 0.01)
            study.trial(trial, parameters=12 * 4 * width**2 + number, d_model=width, created=number,
                        precision=random.choice(["fp32", "bf16"]), dropout=random.choice([0.0, 0.1]),
                        state="stopped" if number else "finished",
                        reason="diverged" if number == 23 else None)  # fmt: skip
            taken = {"at": 0.0, "trial": trial, "micro_batches": 1}
            study.journal.insert("memory", taken | {"predicted": 2**20 * width, "measured": 1.2 * 2**20 * width})
            for rung, since, until in SEGMENTS[: 1 + (number < 8) + (number < 3) + (number < 2)]:
                slot, price = clock.index(min(clock)), until - since + 1
                lease = study.lease(trial, slot, rung=rung, price=price, opened=clock[slot], charged=price * 1.1)
                study.charge("start", 1.0, slot=slot, trial=trial, at=clock[slot] + 1)
                clock[slot] += price * 1.1
                study.charge("steps", until - since, slot=slot, trial=trial, at=clock[slot])
                for seconds in ((since + until) / 2, until):
                    loss = 1 + 16 / width + 2 * seconds**-0.5 + luck
                    final = rung is None and seconds == until
                    study.report(
                        trial, exp(loss), rung=rung if seconds == until else None, at=clock[slot], lease=lease,
                        valid_loss=loss, tokens_per_second=1e9 / loss, mfu=0.25, final=int(final), memory_bytes=2**25,
                        test_perplexity=exp(loss) if final else None, training_seconds=seconds,
                        steps=round(10 * seconds),
                    )  # fmt: skip
        for slot in (0, 1):
            study.journal.update("slots", slot, {"closed": clock[slot]})
    return study
