"""Every wrong input ends with one clear line and exit code 2, of a plan too, and nothing is written."""

import re
from pathlib import Path

import pytest

from tune import cli
from tune.settings import Settings

PAIRS = "Hello.\tHola.\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty present folder, with files to be wrong about in a folder beside it."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "empty.tsv").write_text("")
    (files / "latin1.tsv").write_bytes("Señor\tSir\n".encode("latin-1"))
    (files / "tabless.tsv").write_text(PAIRS * 300 + "no tab here\n")
    (files / "few.tsv").write_text(PAIRS)
    (files / "text.txt").write_text("to be or not to be, that is the question. " * 300)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            "--budget 5s --families nanogpt --text-corpus ../files/text.txt",
            r"--budget: '5s' does not pay .* at least \d+s",
        ),
        ("--budget 8h --translation-corpus ../files/none.tsv", r"--translation-corpus: .*none\.tsv"),
        ("--budget 8h --translation-corpus ../files/empty.tsv", r"--translation-corpus: .*empty"),
        ("--budget 8h --translation-corpus ../files/latin1.tsv", r"--translation-corpus: .*UTF-8"),
        ("--budget 8h --translation-corpus ../files/tabless.tsv", r"--translation-corpus: .*301"),
        ("--budget 8h --translation-corpus ../files/few.tsv", r"--translation-corpus: .*fewer than"),
        ("--budget 8h --text-corpus ../files/none.txt", r"--text-corpus: .*none\.txt"),
        ("--budget 8h --text-corpus ../files/latin1.tsv", r"--text-corpus: .*UTF-8"),
        ("--budget 8h --translation-corpus hub:opus-100", r"--translation-corpus: .*names no dataset.* write hub:ID"),
        ("--budget 8h --translation-corpus hub:a/b:en-es", r"--translation-corpus: 'hub:a/b:en-es' .*cannot be reach"),
        ("--budget 8h --text-corpus hub:a/b", r"--text-corpus: 'hub:a/b' .*cannot be reached .*name a file"),
        ("--budget 8h --trials-per-gpu two", r"--trials-per-gpu: 'two' is no number of trials: write 2, or auto"),
        ("--budget 8h --devices 300", r"--devices: '300' .*--oversubscribe"),
        ("--budget 8h --address nowhere", r"--address: 'nowhere' is no address"),
        ("--budget 8h --address 127.0.0.1:1", r"--address: '127\.0\.0\.1:1': no Ray cluster answers"),
    ],
)
def test_one_line_exit_2_nothing_written(
    folder: Path, capfd: pytest.CaptureFixture[str], flags: str, said: str
) -> None:
    before = sorted(folder.rglob("*"))
    for plan in ([], ["--plan"])[: 1 if "--address" in flags else 2]:
        assert cli.main(Settings, [*flags.split(), *plan]) == 2
        out, error = capfd.readouterr()
        assert out == "" and error.count("\n") == 1
        assert re.match(said, error), error
        assert sorted(folder.rglob("*")) == before
