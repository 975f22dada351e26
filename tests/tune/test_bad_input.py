"""Every wrong input ends with one clear line and exit code 2, and nothing is written."""

import re
from pathlib import Path

import pytest

from tests.model.stand_in import ask_python, fill, serving
from tune import cli
from tune.settings import Settings

PAIRS = "Hello.\tHola.\n"
MANY = """
import contextlib, io, json, sys
from tune import cli
from tune.settings import Settings

def answer(flags):
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = cli.main(Settings, ["--budget", "8h", *flags.split()])
    return code, out.getvalue(), error.getvalue()

print(json.dumps([answer(flags) for flags in sys.argv[1:]]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty present folder, with files to be wrong about in a folder beside it."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "empty.tsv").write_text("")
    (files / "latin1.tsv").write_bytes("Señor\tSir\n".encode("latin-1"))
    (files / "tabless.tsv").write_text(PAIRS * 300 + "no tab here\n")
    (files / "few.tsv").write_text(PAIRS)
    (files / "taken").mkdir()
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--budget 8", r"--budget: '8' has no unit"),
        ("--budget -1h", r"--budget: '-1h'"),
        ("--budget 0s", r"--budget: '0s'"),
        ("--budget 5s", r"--budget: '5s' does not pay .* at least \d+s"),
        ("--budget 8h --families opera", r"--families: 'opera'"),
        ("--budget 8h --fix width=4", r"--fix: .*width"),
        ("--budget 8h --fix precision=fp8", r"--fix: .*fp8"),
        ("--budget 8h --fix heads=3", r"--fix: .*heads=3"),
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
        ("--budget 8h --out ../files/taken", r"--out: .*taken.* exists"),
        ("--budget 8h --out ../files/empty.tsv/x", r"--out: .*cannot be made"),
        ("--budget 8h --vary heads", r"--vary: 'heads' varies already: choose of learning_rate, batch_tokens"),
        ("--budget 8h --vary warmth", r"--vary: 'warmth' is nothing of a recipe .* write learning_rate"),
        ("--budget 8h --vary batch_tokens --rungs tokens", r"--vary: 'batch_tokens' makes .* leave it out"),
        ("--budget 8h --trials-per-gpu 0", r"--trials-per-gpu: '0' is too few: write 1 or more, or auto"),
        ("--budget 8h --trials-per-gpu two", r"--trials-per-gpu: 'two' is no number of trials: write 2, or auto"),
        ("--budget 8h --devices 300", r"--devices: '300' .*--oversubscribe"),
        ("--budget 8h --address nowhere", r"--address: 'nowhere' is no address"),
        ("--budget 8h --address 127.0.0.1:1", r"--address: '127\.0\.0\.1:1': no Ray cluster answers"),
        ("--resume ../files/taken", r"--resume: .*taken"),
    ],
)
def test_one_line_exit_2_nothing_written(
    folder: Path, capfd: pytest.CaptureFixture[str], flags: str, said: str
) -> None:
    before = sorted(folder.rglob("*"))
    assert cli.main(Settings, flags.split()) == 2
    out, error = capfd.readouterr()
    assert out == "" and error.count("\n") == 1
    assert re.search(said, error), error
    assert sorted(folder.rglob("*")) == before


def test_a_dataset_of_the_hub_that_cannot_serve_is_one_line_and_nothing_written(tmp_path: Path) -> None:
    said = {
        "--translation-corpus hub:no/such": "is not on the hub",
        "--translation-corpus hub:Helsinki-NLP/opus-100:xx": "has no configuration 'xx'",
        "--translation-corpus hub:Helsinki-NLP/opus-100:en-es#en,de": "has no field 'de'",
        "--translation-corpus hub:some/scores": "has no text field",
        "--text-corpus hub:some/silence --families nanogpt": "has too little text",
    }
    fill(tmp_path / "datasets")
    here = tmp_path / "here"
    here.mkdir()
    with serving(tmp_path / "datasets") as (endpoint, _):
        answers = ask_python(MANY, *said, endpoint=endpoint, home=tmp_path / "home", cwd=here)
    for (flags, sentence), (code, out, error) in zip(said.items(), answers, strict=True):
        flag, name = flags.split()[:2]
        assert (code, out) == (2, "") and error.count("\n") == 1
        assert error.startswith(f"{flag}: {name!r} {sentence}"), error
    assert list(here.iterdir()) == []
