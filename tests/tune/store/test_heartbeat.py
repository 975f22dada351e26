"""The laws of signs of life between machines: a driver elsewhere lives as long as its own go on."""

from dataclasses import replace
from pathlib import Path

import pytest

from tune.search.simulator import Clock
from tune.store import heartbeat as heartbeats
from tune.store.heartbeat import DRIVER, LOOK_SECONDS, SILENCE_SECONDS, Driver, DriverWatch, Pulse, beat


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> DriverWatch:
    """As a trial on another machine has it, of this process as its driver."""
    (tmp_path / heartbeats.FOLDER).mkdir()
    driver = Driver.here()
    made = DriverWatch(replace(driver, boot="elsewhere"), tmp_path, clock)
    monkeypatch.setattr(heartbeats, "boot", lambda: "elsewhere")
    beat(tmp_path, DRIVER, 0, 0.0)
    monkeypatch.setattr(heartbeats, "boot", lambda: "here")
    return made


def test_one_that_beats_lives_and_one_that_is_silent_is_gone(
    watch: DriverWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(heartbeats, "boot", lambda: "elsewhere")
    for second in range(40):
        beat(tmp_path, DRIVER, 0, float(second))
        monkeypatch.setattr(heartbeats, "boot", lambda: "here")
        clock.now = second * LOOK_SECONDS
        assert watch.alive()
        monkeypatch.setattr(heartbeats, "boot", lambda: "elsewhere")
    monkeypatch.setattr(heartbeats, "boot", lambda: "here")
    clock.now += SILENCE_SECONDS / 2
    assert watch.alive()
    clock.now += SILENCE_SECONDS
    assert not watch.alive()


def test_a_busy_one_that_holds_no_idle_worker_any_more_lives(
    watch: DriverWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """And what it held it held until the last time that this was paid for."""
    paid = True
    pulse = Pulse(tmp_path, clock, lambda seconds: paid)
    monkeypatch.setattr(heartbeats, "boot", lambda: "elsewhere")
    pulse.beat()
    paid = False
    for _ in range(40):
        clock.now += LOOK_SECONDS
        pulse.beat()
        with monkeypatch.context() as there:
            there.setattr(heartbeats, "boot", lambda: "here")
            assert watch.alive()
    last = heartbeats.last_beat(tmp_path, DRIVER)
    assert last is not None and last.at == 0.0


def test_another_driver_of_the_same_study_is_not_the_one(watch: DriverWatch, tmp_path: Path, clock: Clock) -> None:
    """Its study was resumed elsewhere: a trial of the one before must not go on."""
    clock.now = LOOK_SECONDS
    assert watch.alive()
    beat(tmp_path, DRIVER, 0, 1.0)
    clock.now = 2 * LOOK_SECONDS
    assert not watch.alive()


def test_a_process_of_another_machine_is_never_taken_for_one_of_this(tmp_path: Path) -> None:
    (tmp_path / heartbeats.FOLDER).mkdir()
    beat(tmp_path, "t001", 1, 1.0)
    found = heartbeats.last_beat(tmp_path, "t001")
    assert found is not None and found.boot == heartbeats.boot()
    assert not heartbeats.still_there(replace(found, boot="elsewhere"))
