"""Faults of the world around a study: each ends in one clear line, and nothing that was told is lost."""

import errno
import re
import shutil
import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tune.search.world import World
from tune import cli
from tune.errors import UserError, disk_error_as_user_error
from tune.facts import check_same_text
from tune.search.engine import NOTE_SECONDS
from tune.search.resume import check_plain, damage_as_user_error
from tune.settings import Settings
from tune.store.journal import DAMAGED_REMEDY, LOCK, Journal

GONE = (errno.ESTALE, errno.EREMOTEIO, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT)
"""What a network disk says that is out of reach."""
FULL = OSError(errno.ENOSPC, "No space left on device", "/study/checkpoints/t001")
FLAGS = ["--budget", "60s", "--families", "nanogpt", "--text-corpus", "text.txt"]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a search makes whose Ray is never started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("To be, or not to be. " * 1000)
    monkeypatch.setattr("tune.settings.free_folder", lambda: tmp_path / "runs" / "new")
    return tmp_path / "runs" / "new"


def fail_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the midst of the search."""

    def run_trials(*given: object, **named: object) -> None:
        raise error

    monkeypatch.setattr("tune.study.local_ray", lambda slots, gpus, preload: nullcontext())
    monkeypatch.setattr("tune.study.run_trials", run_trials)


def reports(world: World) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in world.rows("SELECT trial, at, rung, final, valid_loss FROM reports")]


@pytest.mark.parametrize(
    "error",
    [
        *(FULL, OSError(errno.EROFS, "Read-only file system", "/study"), OSError(errno.EIO, "Input/output error")),
        *(OSError(number, "is gone", "/study") for number in GONE),
        sqlite3.OperationalError("database is locked"),
    ],
    ids=["full", "read-only", "of no name", *(errno.errorcode[number] for number in GONE), "locked"],
)
def test_what_the_disk_does_not_take_is_one_line(error: Exception) -> None:
    command = "python tune/run.py --resume x"
    with pytest.raises(UserError) as refused, disk_error_as_user_error(command):
        raise error
    said = str(refused.value)
    assert "\n" not in said and str(error.args[-1]) in said and "None" not in said and said.endswith(f" {command}")


def test_a_search_ends_with_that_line_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], study: Path
) -> None:
    fail_with(FULL, monkeypatch)
    assert cli.main(Settings, FLAGS) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert FULL.args[1] in printed.err and printed.err.endswith(f" --resume {study}\n")


def test_where_ray_has_no_place_for_its_files_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], study: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/proc/no")
    assert cli.main(Settings, FLAGS) == 2 and not study.exists()
    assert capsys.readouterr().err.startswith("RAY_TMPDIR: '/proc/no' cannot be used (No such file or directory): ")


OURS = ConnectionError("Ray is gone")


@pytest.mark.parametrize("error", [OURS, OSError(errno.ENOTCONN, "of a socket"), TimeoutError(errno.ETIMEDOUT, "")])
def test_a_fault_of_ours_is_not_taken_for_the_disks(error: OSError) -> None:
    with pytest.raises(type(error)), disk_error_as_user_error(""):
        raise error


def test_a_search_that_a_fault_of_ours_ends_holds_its_journal_no_more(
    monkeypatch: pytest.MonkeyPatch, study: Path
) -> None:
    fail_with(OURS, monkeypatch)
    with pytest.raises(ConnectionError) as kept:
        cli.main(Settings, FLAGS)
    with Journal(study, new=False) as journal:  # that nothing holds, though the error is kept, as in a notebook
        assert journal.rows("SELECT * FROM trials") == [] and kept.tb is not None


def test_a_journal_on_a_full_disk_keeps_what_was_told_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    world = World(tmp_path, cap=1200, slots=2).run(reports=5)
    pages = world.journal.rows("PRAGMA page_count")[0][0]
    world.journal.rows(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        world.run()
    told = reports(world)
    again = World(tmp_path, cap=1200, slots=2)
    assert reports(again) == told and len(told) >= 5
    again.run()
    assert again.spent <= 1200
    assert again.total("SELECT COUNT(*) FROM reports WHERE final") == 2


def test_a_disk_that_takes_no_note_of_the_drivers_life_ends_no_search(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=1)
    world.taken()
    world.journal.rows("PRAGMA query_only = ON")
    world.now += NOTE_SECONDS
    world.engine.note_alive()
    assert "alive" not in world.journal.facts()


def test_a_journal_that_another_program_writes_on_is_left_as_it_is(tmp_path: Path) -> None:
    world = World(tmp_path, cap=600, slots=1, shares={"nanogpt": 1.0}).run(reports=2)
    told = reports(world)
    stranger = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        world.run()
    stranger.execute("ROLLBACK")
    assert reports(world) == told


def test_no_device_second_is_counted_by_a_clock_that_can_be_set(repository: Path) -> None:
    """The system's clock names folders, dates studies and events, tells when a plan ends and how old a study is that
    goes on, for its deadline, how old a kept text is, and serves nothing else."""
    clock = re.compile(r"\b(?:time\.time(?:_ns)?|datetime\.now)\b")
    files = (*(repository / "tune").rglob("*.py"), *(repository / "model").rglob("*.py"))
    users = {path.relative_to(repository).as_posix() for path in files if clock.search(path.read_text())}
    boards = {"tune/display/tensorboard.py", "tune/experiments/kernels.py"}
    search = {"tune/assembly.py", "tune/facts.py", "tune/settings.py", "tune/dry_run.py"}
    assert users == search | boards | {"model/data/cache.py"}


def test_a_strangers_link_leads_nowhere(tmp_path: Path) -> None:
    names = ("log.txt", LOCK, "checkpoints", "best-nanogpt/config.json", "checkpoints/t001/.unfinished-step-1")
    for number, name in enumerate(names):
        study = tmp_path / str(number)
        (study / name).parent.mkdir(parents=True)
        (study / name).symlink_to(tmp_path / "precious")
        with pytest.raises(ValueError, match=r"^--resume: .* no links"):
            check_plain(study)
        assert not (tmp_path / "precious").exists()
    World(tmp_path, cap=600, slots=1).journal.close()
    (tmp_path / LOCK).unlink()
    (tmp_path / LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match="--resume"):
        Journal(tmp_path, new=False)
    assert not (tmp_path / "precious").exists()


HOSTILE = {
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON charges BEGIN UPDATE slots SET closed = opened; END",
    "a view for a table": "DROP TABLE decisions; CREATE VIEW decisions AS SELECT 1 AS at",
    "no table": "DROP TABLE reports",
    "a name with SQL": "UPDATE trials SET trial = 't001''; DROP TABLE trials; --' WHERE trial = 't001'",
    "a name with a path": "UPDATE trials SET trial = '../../t001' WHERE trial = 't001'",
    "a config that is no JSON": "UPDATE trials SET config = '['",
    "a config that is too deep": f"UPDATE trials SET config = '{'[' * 100_000}'",
    "a config of another kind": "UPDATE trials SET config = '7'",
    "an unknown family": "UPDATE trials SET family = 'opera'",
    "a rung that is no number": "UPDATE reports SET rung = 'up' WHERE rung = 0",
    "a loss that is no number": "UPDATE reports SET valid_loss = 'low'",
    "a time that is no number": "UPDATE reports SET at = 'now'",
    "a lease of nobody's": "UPDATE leases SET trial = 't999'",
    "a slot closed before it opened": "UPDATE slots SET closed = opened - 1000",
    "a slot that was held shorter than it was charged": "UPDATE slots SET closed = opened + 1",
    "a share of nothing": "UPDATE slots SET share = 1e-9",
    "a share of more than there is": "UPDATE slots SET share = 1e7",
    "a time beyond all": "UPDATE decisions SET at = 1e300",
    "a time before all": "UPDATE slots SET opened = -1000",
    "a charge of nobody's": "UPDATE charges SET slot = 99",
    "more steps lost than made": "UPDATE reports SET lost = steps + 1 WHERE rung = 0",
    "a gap without end": "UPDATE reports SET gap = 9e999 WHERE rung = 0",
    "a charge of all there is": "UPDATE charges SET seconds = 9e999",
    "a lease closed before it opened": "UPDATE leases SET closed = opened - 1 WHERE closed",
    "a lease before its slot": "UPDATE leases SET opened = 0; UPDATE slots SET opened = 1",
    "a price of less than nothing": "UPDATE leases SET price = -60",
    "a lease without end": "UPDATE leases SET reserved = 9e999",
    "a loss without end": "UPDATE reports SET valid_loss = -9e999 WHERE rung = 0",
    "batches in no parts": "UPDATE memory SET micro_batches = 0",
    "batches in too many parts": f"UPDATE memory SET micro_batches = {2**40}",
    "facts that are no JSON": "UPDATE study SET value = '[' WHERE key = 'caps'",
    "caps of another kind": "UPDATE study SET value = '7' WHERE key = 'caps'",
    "a cap that is no number": """UPDATE study SET value = '[{"at": 0, "seconds": NaN}]' WHERE key = 'caps'""",
}


@pytest.fixture(scope="module")
def four_reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal."""
    world = World(tmp_path_factory.mktemp("study"), cap=600, slots=1).run(reports=4)
    world.journal.close()
    return world.journal.folder / "journal.db"


@pytest.mark.parametrize("what", [*HOSTILE, "no database"])
def test_a_strangers_journal_is_refused_in_one_line(four_reports: Path, tmp_path: Path, what: str) -> None:
    shutil.copy(four_reports, tmp_path)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as stranger:
        stranger.executescript(f"PRAGMA foreign_keys = OFF; PRAGMA synchronous = OFF; {HOSTILE.get(what, '')}")
    if what not in HOSTILE:
        (tmp_path / "journal.db").write_bytes(b"\x80\x04 a pickle, say" * 1000)
    with pytest.raises(ValueError, match=r"^--resume: (.* )?damaged") as refused:
        World(tmp_path, cap=600, slots=1)
    assert "\n" not in str(refused.value) and str(refused.value).endswith(DAMAGED_REMEDY)


def test_damaged_facts_are_one_line(tmp_path: Path) -> None:
    """As a search reads them when it goes on."""
    data: Any = {"nanogpt": SimpleNamespace(sha256="", name="")}
    with Journal(tmp_path, new=True) as journal:
        for fact in ("[", "7", "[]", '{"nanogpt": 7}', '{"nanogpt": {}}', "[" * 100_000):
            journal.rows("INSERT OR REPLACE INTO study VALUES ('corpora', ?)", fact)
            with pytest.raises(ValueError, match=r"^--resume: .* damaged") as refused, damage_as_user_error(journal):
                check_same_text(data, journal.facts())
            assert "\n" not in str(refused.value) and len(str(refused.value)) < 400
