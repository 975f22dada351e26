"""What the driver does for a winner is paid for, and done only where it is sure to fit in the cap."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import Config, build_model
from model.data.corpus import PairCorpus
from model.data.dataset import prepare_pairs
from model.families import Transformers
from model.inference import Sample
from model.nn.translator import Translator
from model.training.checkpoint import export, save
from model.training.evaluation import Score
from model.training.time_budget import PhaseTimer
from tests.cuda.fake_cuda import fake_cuda
from tests.tune.search.world import World, add_trial
from tune import winners as samples_file
from tune.search.engine import Engine, Listener
from tune.search.successive_halving import NO_TRIAL
from tune.settings import Settings
from tune.store.heartbeat import DRIVER, HEARTBEAT_FOLDER, read_heartbeat, write_heartbeat
from tune.study import run_study
from tune.units import duration_text
from tune.winners import (
    MOST,
    UNCHARGED_SECONDS,
    Winner,
    last_lines,
    spending_lines,
    take_while_affordable,
    winners,
    write_samples,
)


def rows(world: World, seconds: float) -> Iterator[Sample]:
    """Samples that take so long each on the world's clock."""
    while True:
        world.now += seconds
        yield {"input": "a", "output": "b", "reference": "c"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, cap=1200, slots=2).run()
    return made


def test_no_sample_begins_that_might_not_fit(world: World) -> None:
    for seconds, price, count in ((10, 1.0, 4), (4.9, 1.0, 1), (5, 4.0, 0)):
        items, last = take_while_affordable(rows(world, 2.0), PhaseTimer(seconds, lambda: world.now), price, 4)
        assert len(items) == count and last == pytest.approx(2.0 if items else price)
    # what is of use as a whole only: four of 2 s each; once that is known, those to come must fit 1.5 times over
    for seconds, count in ((11.5, 4), (10.5, 1), (1, 0)):
        items, _ = take_while_affordable(rows(world, 2.0), PhaseTimer(seconds, lambda: world.now), 1.0, 4, whole=True)
        assert len(items) == count
    few = iter(["of two pairs", "no third is written"])
    assert len(take_while_affordable(few, PhaseTimer(10, lambda: world.now), 1.0, 4)[0]) == 2


SCORE = Score(bleu=12.34, chrf=30.0, sentences=128, signature="nrefs:1")


@pytest.fixture
def found(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, Winner]:
    """Winners without models: of each kind a sample takes .01 s, and pairs have this score."""
    monkeypatch.setattr(samples_file, "LOADING_SECONDS", 0.0)
    monkeypatch.setattr(samples_file, "STEPS_A_TOKEN", 0.0)
    monkeypatch.setattr(samples_file, "load_model", lambda folder, device: (None, None))
    monkeypatch.setattr(samples_file, "exported_config", lambda folder: None)
    monkeypatch.setattr(samples_file, "on_test_split", lambda *_: None)
    monkeypatch.setattr(samples_file, "samples", lambda model, tokenizer, data, most, ask: rows(world, 0.01))
    monkeypatch.setattr(samples_file, "scored", lambda model, tokenizer, data, lease, price: SCORE if data else None)
    config = {"d_model": 16, "heads": 4, "layers": 2, "dropout": 0.0, "precision": "fp32"}
    return {family: replace(winner, config=config) for family, winner in winners(world.journal).items()}


def test_samples_are_in_the_journal_and_every_device_second_is_charged(world: World, found: dict[str, Winner]) -> None:
    scores = write_samples(found, world.engine, {"nanogpt": None, "translation": "pairs"}, kind="cpu")
    facts = world.journal.facts()
    assert facts["samples"]["nanogpt"][0] == {"input": "a", "output": "b", "reference": "c"}
    assert facts["bleu"] == {"translation": {"trial": found["translation"].trial} | asdict(SCORE)}
    (line,) = last_lines(world.journal, found, scores, ["translation"])
    assert line.endswith("BLEU 12.3 on 128 test sentences") and " bits a character" in line.split(", test")[0]
    scores["translation"] = replace(SCORE, signature="nrefs:1|tok:char")
    (line,) = last_lines(world.journal, found, scores, ["translation"])
    assert line.endswith(" parameters, BLEU of characters 12.3 on 128 test sentences")
    spells_nothing = {"translation": replace(found["translation"], bits_per_character=None)}
    (line,) = last_lines(world.journal, spells_nothing, {}, ["translation"])
    assert "bits" not in line and line.endswith(" parameters")
    held = world.total("SELECT SUM(closed - opened) FROM slots")
    assert (
        world.total("SELECT SUM(seconds) FROM charges") == pytest.approx(held) == world.accounting.ledger.spent <= 1200
    )
    assert world.total("SELECT COUNT(*) FROM slots WHERE closed IS NULL") == 0


def test_of_winners_that_are_interrupted_those_that_had_written_keep_it(
    world: World, found: dict[str, Winner], monkeypatch: pytest.MonkeyPatch
) -> None:
    def until_told(model: object, tokenizer: object, data: object, *_: object) -> Iterator[Sample]:
        if not data:
            raise KeyboardInterrupt
        return rows(world, 0.01)

    monkeypatch.setattr(samples_file, "samples", until_told)
    data: Any = {"translation": "pairs", "nanogpt": None}
    with pytest.raises(KeyboardInterrupt):
        write_samples({name: found[name] for name in data}, world.engine, data, kind="cpu")
    facts: Any = world.journal.facts()
    assert len(facts["samples"]["translation"]) == MOST and facts["bleu"]["translation"]["bleu"] == SCORE.bleu


LEFT = 28.0
"""Device-seconds, for a winner that writes."""
LONG = 1_100
"""Words of one sentence of the test split."""


class Slow:
    """A winner whose every step of decoding takes `seconds`; after each `stepped` is called."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.seconds, self.stepped = 1.0, list[Callable[[], None]]()
        self.world = World(folder, cap=LEFT, slots=1)
        numbers = [(f"we count {i}", f"contamos {i}") for i in range(400)]
        test = [*numbers[390:], ("we " * LONG, "nosotros " * LONG)]
        corpus = PairCorpus(name="", sha256="", builtin=True, train=numbers[:380], valid=numbers[380:390], test=test)
        self.data = prepare_pairs(corpus)
        config = Config(family="translation", d_model=16, heads=4, layers=2)
        model = build_model(config, vocabulary=self.data.vocabulary, pad=self.data.pad)
        state = {"steps": 1, "config": asdict(config)}
        saved = save(folder / "checkpoints" / "t001", model, {"step": torch.zeros(1)}, state)
        add_trial(self.world.journal, family="translation")
        self.winner = Winner(
            trial="t001", report=1, config={}, parameters=1, perplexity=1.0, measured="",
            bits_per_character=1.0, test_perplexity=1.0, decayed=True, averaged=False, checkpoint=saved,
        )  # fmt: skip
        export(saved, folder / "best-translation", self.data.tokenizer, averaged=False)
        decode = Translator.decode

        def slow(*given: Any) -> torch.Tensor:
            self.world.now += self.seconds
            for each in self.stepped:
                each()
            return decode(*given)

        patch.setattr(Translator, "decode", slow)

    def write(self, kind: str = "cpu") -> dict[str, Score]:
        """What the end of a search has its winner do."""
        found = {"translation": self.winner}
        return write_samples(found, self.world.engine, {"translation": self.data}, kind=kind)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slow:
    (tmp_path / "study").mkdir()
    return Slow(tmp_path / "study", monkeypatch)


@pytest.mark.parametrize("seconds", [0.01, 1.0, 20.0])
def test_decoding_ends_inside_the_cap_whatever_a_step_takes_and_is_charged_to_its_lease(
    slow: Slow, seconds: float
) -> None:
    slow.seconds = seconds
    scores = slow.write()
    world, used = slow.world, slow.world.now
    assert 0 < world.accounting.ledger.spent <= LEFT and bool(scores) == (seconds < 0.1)
    (lease,) = world.journal.rows("SELECT trial, purpose, closed - opened AS held, charged, reserved FROM leases")
    assert (lease["trial"], lease["purpose"]) == ("t001", "decoding") and lease["reserved"] <= LEFT
    assert lease["charged"] == pytest.approx(lease["held"]) == pytest.approx(used)
    charged = world.total("SELECT SUM(seconds) FROM charges WHERE what = 'evaluation' AND trial = 't001' AND lease = 1")
    assert charged == pytest.approx(world.accounting.ledger.spent)


def test_a_winner_that_wrote_before_does_not_again_and_what_it_wrote_stays(slow: Slow) -> None:
    slow.seconds = 0.01
    before, at = slow.write(), slow.world.now
    facts = slow.world.journal.facts()
    assert before and slow.write() == before and slow.world.now == at
    assert slow.world.journal.facts() == facts
    slow.winner = replace(slow.winner, report=2)
    slow.write()
    assert slow.world.now > at


def test_what_a_winner_wrote_stays_where_less_is_left_for_it_than_before(slow: Slow) -> None:
    slow.seconds = 0.3
    slow.write()
    before = slow.world.journal.facts()["samples"]
    assert isinstance(before, dict) and 0 < len(before["translation"]) < MOST
    slow.write()
    assert slow.world.journal.facts()["samples"] == before
    slow.seconds, slow.winner = 1.0, replace(slow.winner, report=2)
    slow.write()
    facts: Any = slow.world.journal.facts()
    assert not facts["samples"].get("translation"), "and another winner's are not taken for its own"


@pytest.mark.parametrize(("seconds", "token_seconds"), [(0.0, 1e-6), (LEFT / 2, 1e-6), (0.0, LEFT), (0.0, None)])
def test_a_winner_whose_own_lease_had_no_time_for_the_test_split_is_measured_on_it_first(
    slow: Slow, seconds: float, token_seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where it might not fit: as it takes longer than before, or is known to, or nothing is known of it."""
    world, sums = slow.world, Transformers.sums

    def later(*given: Any) -> Any:
        world.now += seconds
        return sums(*given)

    monkeypatch.setattr(Transformers, "sums", later)
    slow.seconds, slow.winner = 0.01, replace(slow.winner, test_perplexity=None)
    subset = {"perplexity": 9.0, "valid_seconds": token_seconds, "valid_tokens": 1}
    world.journal.insert("reports", {"trial": "t001", "at": 0.0, "final": 1, "checkpoint": "any", **subset})
    slow.write()
    (row,) = world.journal.rows("SELECT * FROM reports")
    fits = seconds == 0 and token_seconds == 1e-6
    assert ((row["test_perplexity"] is None), (row["test_blocks"] is None)) == (not fits, not fits)
    assert not row["test_seconds"], "it is of none of its leases, whose prices it would change on --resume"
    assert row["perplexity"] == 9.0 and world.accounting.ledger.spent <= LEFT


def test_a_gpu_that_the_driver_has_decodes_and_is_charged_else_its_core_for_a_while(slow: Slow) -> None:
    slow.seconds = 0.1
    slow.write("cuda")
    assert slow.world.accounting.ledger.spent == 0 and slow.world.now <= UNCHARGED_SECONDS
    before, slow.winner = slow.world.now, replace(slow.winner, report=2)
    with fake_cuda() as seen:
        slow.write("cuda")
    assert seen.launches and 0 < slow.world.accounting.ledger.spent <= LEFT
    assert slow.world.accounting.ledger.spent == pytest.approx(slow.world.now - before)


def test_who_cannot_hear_of_a_search_is_refused_before_it(tmp_path: Path) -> None:
    settings = Settings(budget="1h", out=tmp_path / "study")
    with pytest.raises(ValueError, match=r"^callbacks: <built-in function len> is no Listener: inherit from"):
        run_study(settings, [len])  # type: ignore[list-item]
    assert not (tmp_path / "study").exists()


LATER = "{left} unspent at the deadline: a later --deadline goes on with them"


@pytest.mark.parametrize(("reason", "deadline", "told", "of_list"), [
    ("cap", 100.0, LATER, LATER),
    ("cap", None, "{left} unspent: {why}; a larger --budget goes on", ""),
    ("SIGINT", 100.0, "", ""),
])  # fmt: skip
def test_what_is_left_of_the_cap_is_told_with_its_reason(
    tmp_path: Path, reason: str, deadline: float | None, told: str, of_list: str
) -> None:
    (tmp_path / "study").mkdir()
    world = World(tmp_path / "study", cap=1000.0, slots=1, deadline=deadline).run()
    world.journal.write_facts(ended={"reason": reason, "near_deadline": deadline is not None})

    def lines(spent: float = 100.0) -> str:
        """What is told beside what was spent."""
        return "\n".join([*spending_lines(world.journal, cap=1000.0, spent=spent)][1:])

    *_, last = world.rows("SELECT reason, at FROM decisions WHERE action = 'hand back'")
    assert lines() == told.format(left="15m", why=last["reason"])
    if told and not of_list:
        assert "nothing is left" not in lines()
        over = last["at"]  # what comes after it, such as samples, is not the search's
        for wall, told_so in ((over, True), (2 * over, False), (None, False)):
            world.journal.write_facts(ended={"reason": reason, "wall_clock": wall})
            assert ("--patient" in lines()) == (duration_text(round(over)) in lines()) == told_so
        moment = {"at": world.now, "trial": None, "action": "hand back", "report": 0}
        world.journal.insert("decisions", moment | {"reason": NO_TRIAL})  # whatever the cap
        assert lines() == f"15m unspent: {NO_TRIAL}"
    world.journal.write_facts(experiment="methods")  # whose list says what was left out
    assert lines() == of_list.format(left="15m") and lines(950.0) == of_list.format(left="50s")


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_decoding_ends_before_the_deadline_and_after_it_nothing_is_decoded(slow: Slow, kind: str) -> None:
    slow.world.engine.wall_left = lambda: 5.0 - slow.world.now
    assert slow.write(kind) == {} and 0 < slow.world.now <= 5.0
    before, slow.world.engine.wall_left = slow.world.now, lambda: -1.0
    assert slow.write(kind) == {} and slow.world.now < before + 1


def test_killed_while_a_winner_writes_it_is_charged_to_its_last_sign_of_life(slow: Slow, tmp_path: Path) -> None:
    """What a kill leaves is the study's folder as it is at that moment."""
    left, world = tmp_path / "left", slow.world
    (tmp_path / "study" / HEARTBEAT_FOLDER).mkdir()

    def killed() -> None:
        if world.now > 4 and not left.exists():
            write_heartbeat(tmp_path / "study", DRIVER, 0, 4.2)
            shutil.copytree(tmp_path / "study", left)

    slow.seconds, slow.stepped = 0.7, [killed]
    slow.write()
    again = World(left, cap=LEFT, slots=1)
    assert again.accounting.ledger.spent == pytest.approx(4.2)
    assert again.total("SELECT SUM(seconds) FROM charges") == pytest.approx(again.accounting.ledger.spent)
    assert again.total("SELECT COUNT(*) FROM leases WHERE closed IS NULL") == 0


def test_the_driver_gives_signs_of_life_until_the_last_winner_has_written(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(found: object, engine: Engine, data: object, kind: str) -> dict[str, Score]:
        now, patience = engine.accounting.clock(), time.monotonic() + 300
        while (at := last.at if (last := read_heartbeat(engine.accounting.journal.folder, DRIVER)) else 0.0) < now:
            assert time.monotonic() < patience, "the driver gives no sign of life"
            time.sleep(0.01)
        beats.append(at)
        return {}

    beats: list[float] = []
    untrained(monkeypatch, write)
    run_study(Settings(budget=60.0, families={"nanogpt": 1.0}, text_corpus=text, out=tmp_path / "study"))
    assert len(beats) == 1


def test_who_listens_hears_of_the_end_when_all_is_charged(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hearing(Listener):
        def on_close(self, engine: Engine) -> None:
            events.append("closed")

    def write(*_: object, **__: object) -> dict[str, Score]:
        events.append("written")
        return {}

    events = list[str]()
    untrained(monkeypatch, write)
    settings = Settings(budget=60.0, families={"nanogpt": 1.0}, text_corpus=text, out=tmp_path / "study")
    run_study(settings, callbacks=[Hearing()])
    assert events == ["written", "closed"]


def untrained(monkeypatch: pytest.MonkeyPatch, write: Callable[..., dict[str, Score]]) -> None:
    """A study has no Ray and trains nothing, and this is what its winners write."""
    monkeypatch.setattr("tune.study.local_ray", lambda slots, gpus, preload: nullcontext())
    monkeypatch.setattr("tune.study.run_trials", lambda *given, **named: None)
    monkeypatch.setattr("tune.study.write_samples", write)
