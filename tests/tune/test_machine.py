"""What a machine gives a process: its cores; the folder of a search's Ray: closed to others, gone afterwards, swept
where a SIGKILL left it and nowhere else.
"""

import errno
import fcntl
import gc
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.conftest import small_files
from tune import machine
from tune.errors import UserError, is_disk_error
from tune.machine import (
    LONGEST,
    PREFIX,
    core_count,
    cpu_name,
    excluded_from_gc,
    private_folder,
    write_folder_whole,
)

HOLD = "from tune.machine import private_folder\nwith private_folder() as held: print(held, flush=True); input()"


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go: a name short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


QUOTA, PERIOD = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8), ({"cpu.max": "max 100000"}, 8), ({"cpu.max": "250000 100000"}, 2), ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "9900000 100000"}, 8), ({QUOTA: "-1", PERIOD: "100000"}, 8),
        ({QUOTA: "300000", PERIOD: "100000"}, 3),
    ],
)  # fmt: skip
def test_a_container_has_the_cores_that_it_is_given_the_time_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert core_count(tmp_path) == cores


ARM = "processor\t: {}\nCPU implementer\t: {}\nCPU architecture: 8\nCPU part\t: {}\n\n"


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nCPU part\t: 0x1\n", "Some CPU @ 2.0GHz"),
        (ARM.format(0, "0x41", "0xd0c") + ARM.format(1, "0x41", "0xd0c"), "arch 0x41 0xd0c"),
        (ARM.format(0, "0x41", "0xd4f") + ARM.format(1, "0x41", "0xd4f"), "arch 0x41 0xd4f"),
        (ARM.format(0, "0x41", "0xd05") + ARM.format(1, "0x41", "0xd0b"), "arch 0x41 0xd05 0xd0b"),
        ("processor\t: 0\n", "arch"), (None, "arch"),
    ],
)  # fmt: skip
def test_processors_of_two_kinds_have_two_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str | None, name: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "arch")
    if told is not None:
        (tmp_path / "cpuinfo").write_text(told)
    assert cpu_name(tmp_path) == name


def test_it_is_closed_to_others_and_gone_afterwards(place: Path) -> None:
    """After Ctrl-C too."""
    with pytest.raises(KeyboardInterrupt), private_folder() as folder:
        assert folder.parent == place and stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "ray").mkdir(mode=0o777)
        raise KeyboardInterrupt
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_is_swept_and_what_is_in_use_or_a_strangers_is_not(place: Path) -> None:
    strange = [place / f"{PREFIX}{name}" for name in ("open", "unlocked", "link")]
    strange[0].mkdir(mode=0o755)
    (strange[0] / machine.LOCK).touch()
    strange[1].mkdir(mode=0o700)
    strange[2].symlink_to(strange[0])
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folders = [Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout]
    holders[0].send_signal(signal.SIGKILL)
    holders[0].communicate()
    assert all(folder.exists() for folder in folders)
    with private_folder():
        assert [folder.exists() for folder in folders] == [False, True]
    holders[1].communicate("\n")
    assert sorted(place.iterdir()) == sorted(strange)


def test_sockets_have_room_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux takes 107 bytes; where the usual place has too long a name it is /tmp."""
    assert f"at most {LONGEST} bytes" in (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    for name in (LONGEST, LONGEST + 1):
        monkeypatch.setenv("RAY_TMPDIR", "/" + "x" * (name - 1))
        folder = machine.temp_root() / f"{PREFIX}12345678"
        session = "session_2026-01-01_00-00-00_000000_1234567"
        assert len(str(folder / "ray" / session / "sockets" / "plasma_store")) <= 107
        assert (folder.parent == Path("/tmp")) == (name > LONGEST)


@pytest.mark.parametrize("lacking", [(tempfile, "TemporaryFile"), (fcntl, "flock")], ids=["files", "locks"])
@pytest.mark.parametrize("length", [None, LONGEST + 1])
def test_a_place_that_takes_no_files_or_no_locks_is_one_line_that_names_the_place_that_was_tried(
    lacking: tuple[object, str], length: int | None, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is /tmp where the one that was named is too long for sockets."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "none to have")

    if length is not None:
        monkeypatch.setenv("RAY_TMPDIR", "/" + "x" * (length - 1))
    monkeypatch.setattr(*lacking, refuse)
    tried = place if length is None else "/tmp"
    rule = rf"cannot be used \(none to have\): name a folder of at most {LONGEST} bytes that takes files and locks"
    with pytest.raises(UserError, match=f"^RAY_TMPDIR: '{tried}' {rule}$"):
        private_folder().__enter__()
    assert not list(place.iterdir())


def test_a_place_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/proc/no")
    with pytest.raises(UserError, match=r"^RAY_TMPDIR: '/proc/no' cannot be used \(No such file or directory\): name"):
        private_folder().__enter__()


def test_what_is_imported_is_looked_through_for_garbage_neither_then_nor_later() -> None:
    frozen, made = gc.get_freeze_count(), []
    with excluded_from_gc():
        with excluded_from_gc():
            made.append([])
        assert not gc.isenabled() and gc.get_freeze_count() <= frozen, "some may be gone, as what other threads held"
        made.append([])
    assert gc.isenabled() and gc.get_freeze_count() > frozen
    assert not any(each is one for each in gc.get_objects() for one in made)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_disk_that_cannot_be_told_to_keep_folders_has_them_and_one_that_cannot_keep_files_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def sync(file: int) -> None:
        if stat.S_ISDIR(os.stat(file).st_mode) == (kind == "folder"):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(OSError, match="Invalid") if kind == "file" else nullcontext():
        write_folder_whole(tmp_path / "made", lambda place: (place / "file").write_text("all"))
    assert [path.name for path in tmp_path.rglob("*")] == ([] if kind == "file" else ["made", "file"])


def test_a_copy_that_a_disk_does_not_take_is_the_disks_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "large").write_bytes(bytes(5000))
    with small_files(), pytest.raises(OSError) as refused:
        write_folder_whole(
            tmp_path / "made", lambda place: shutil.copytree(tmp_path / "from", place, dirs_exist_ok=True)
        )
    assert is_disk_error(refused.value) and [path.name for path in tmp_path.iterdir()] == ["from"]


def test_a_folder_stays_where_what_is_to_replace_it_cannot_get_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder_whole(tmp_path / "made", lambda place: (place / "file").write_text("old"))
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if (path / "file").read_text() == "new":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="Input"):
        write_folder_whole(tmp_path / "made", lambda place: (place / "file").write_text("new"))
    assert (tmp_path / "made" / "file").read_text() == "old"
