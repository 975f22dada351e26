"""Every wrong loop, space or metric ends with one clear line and exit code 2, and nothing is written."""

import functools
import importlib
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tune import cli
from tune.errors import UserError
from tune.own_loop import another_loop
from tune.own_space import Dimension, choice, integers
from tune.settings import Settings
from tune.store.journal import Journal

FILES = {
    "train.py": "def train(config): ...\ndef two(a, b): ...\ndef none(): ...\nasync def later(config): ...\n"
    "class Net: ...\ndef more(config, *, data): ...\n",
    "broken.py": "def train(config:\n",
    "empty.py": "",
    "latin.py": b"# Se\xf1or\n",
    "hidden/tune.py": "",
    "hidden/train.py": "def train(config): ...\n",
    "space.toml": "width = [64, 128]\n",
    "broken.toml": "width = [64, 128\n",
    "empty.toml": "",
    "latin.toml": b"word = ['Se\xf1or']\n",
}
GOOD = {"--train": "../files/train.py:train", "--space": "../files/space.toml", "--metric": "loss"}
SPACES = {
    "width = 64": r"'width' has 64: write a list of values, or",
    "width = []": r"'width' has \[\] for its values",
    "width = [64, 64]": r"'width' has the value 64 twice",
    "width = [[1, 2]]": r"'width' has the value \[1, 2\]: write finite numbers",
    "width = [nan]": r"'width' has the value nan",
    "width = ['']": r"'width' has the value ''",
    "width = { low = 1 }": r"'width' has no high: write both ends",
    "width = { high = 1 }": r"'width' has no low: write both ends",
    "width = { low = 2, high = 1 }": r"'width' goes from 2 to 1: write a low below its high",
    "width = { low = 0, high = 1, log = true }": r"'width' goes from 0 by its logarithm: write a low above zero",
    "width = { low = 1, high = inf }": r"'width' has high = inf",
    "width = { low = 1, high = 2, log = 1 }": r"'width' has log = 1: write true or false",
    "width = { low = 0.0, high = 1.0, step = 0.0 }": r"'width' has a step of 0.0",
    "width = { low = 0.0, high = 1.0, step = 1e-9 }": r"'width' has 1,000,000,000 steps",
    "width = { min = 1, max = 2 }": r"'width' has 'min': a dimension has values, low, high",
    "width = { values = [1], low = 1, high = 2 }": r"'width' has both a list and a range",
    "width = { when = { a = 1 } }": r"'width' has neither list nor range",
    "width = { values = [1], when = 3 }": r"'width' has 3 for `when`",
    "width = { values = [1], when = { other = 1 } }": r"'width' depends on 'other', which is no dimension before it",
    "a = [1]\nwidth = { values = [1], when = { a = 2 } }": r"'width' depends on a = 2, which that never has",
    "a = { low = 1, high = 3 }\nwidth = { values = [1], when = { a = 2 } }": r"'width' depends on 'a', which is a ra",
    "'a b' = [1]": r"'a b' is no name for a dimension",
    "trial = [1]": r"'trial' is no name for a dimension, or taken",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty present folder, with files to be wrong about in a folder beside it."""
    for name, text in FILES.items():
        file = tmp_path / "files" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def check_refused(here: Path, capfd: pytest.CaptureFixture[str], said: str, *more: str, **flags: str | None) -> None:
    """These flags over the good ones; None: left out."""
    words = {**GOOD, **{f"--{name.replace('_', '-')}": value for name, value in flags.items()}}
    before = sorted(here.rglob("*"))
    given = [word for flag, value in words.items() if value is not None for word in (flag, value)]
    assert cli.main(Settings, ["--budget", "1h", *given, *more]) == 2
    out, error = capfd.readouterr()
    assert out == "" and error.count("\n") == 1 and re.match(said, error), error
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ("../files/none.py:train", r"--train: '.*none\.py' cannot be read \(No such file"),
        ("../files", r"--train: '.*files' cannot be read \(Is a directory\)"),
        ("../files/latin.py", r"--train: '.*latin\.py' cannot be read \(it is not UTF-8\)"),
        ("../files/broken.py:train", r"--train: '.*broken\.py' is no Python \(.*, line 1\): mend it"),
        ("../files/empty.py", r"--train: '.*empty\.py' is empty"),
        ("../files/train.py:trian", r"--train: '.*' has no function 'trian': there is train, two, none, more"),
        ("../files/train.py:two", r"--train: 'two' needs 2 arguments"),
        ("../files/train.py:none", r"--train: 'none' takes no argument"),
        ("../files/train.py:more", r"--train: 'more' needs 2 arguments"),
        ("../files/train.py:later", r"--train: 'later' in '.*' is async"),
        ("../files/train.py:Net", r"--train: 'Net' in '.*' is a class"),
        ("../files/hidden/train.py:train", r"--train: '.*hidden/tune\.py' lies beside it and hides"),
    ],
)
def test_a_loop(here: Path, capfd: pytest.CaptureFixture[str], train: str, said: str) -> None:
    check_refused(here, capfd, said, train=train)


@pytest.mark.parametrize("text", SPACES)
def test_a_space(here: Path, capfd: pytest.CaptureFixture[str], text: str) -> None:
    (here / "files" / "bad.toml").write_text(text)
    check_refused(here, capfd, f"--space: {SPACES[text]}", space="../files/bad.toml")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"space": "../files/none.toml"}, r"--space: '.*none\.toml' cannot be read \(No such file"),
        ({"space": "../files/broken.toml"}, r"--space: '.*broken\.toml' is no TOML \(Unclosed array"),
        ({"space": "../files/empty.toml"}, r"--space: has no dimension"),
        ({"space": "../files/latin.toml"}, r"--space: '.*latin\.toml' is not UTF-8"),
        ({"space": None}, r"--space: missing: --train needs what varies"),
        ({"metric": None}, r"--metric: missing: say what --train reports; write --metric loss"),
        ({"maximize": "accuracy"}, r"--metric: 'loss' is to be small and 'accuracy', by --maximize, large: leave"),
        ({"metric": " "}, r"--metric: ' ' is no name of a metric"),
        ({"metric": None, "maximize": "step"}, r"--maximize: 'step' is no name of a metric"),
        ({"metric": "width"}, r"--metric: 'width' is a dimension of --space too"),
        ({"life": "0"}, r"--life: '0' is too few"),
        ({"life": "many"}, r"--life: 'many' is not a whole number"),
        ({"life": "500epochs"}, r"--life: '500epochs' is not a whole number of steps, .*: write it without a unit"),
        ({"train": None}, r"--metric: is of a training loop of your own: add --train FILE"),
        ({"families": "nanogpt"}, r"--families: 'nanogpt=100': --train is in their place"),
        ({"fix": "heads=4"}, r"--fix: 'heads=4' is of the families .*: with --train write --range heads=4"),
        ({"fix": "a=1,b=2"}, r"--fix: 'a=1,b=2' is of the families .* write --range a=1 --range b=2$"),
        ({"text_corpus": "builtin"}, r"--text-corpus: is of the families"),
        ({"objective": "front"}, r"--objective: is of the families"),
        ({"budget": "5s"}, r"--budget: '5s' does not pay for one rung of one trial: write at least 17s"),
        ({"devices": "300"}, r"--devices: '300' is more than"),
        ({"trials_per_gpu": "auto"}, r"--trials-per-gpu: 'auto': what a loop of yours takes of a GPU is not known"),
    ],
)
def test_what_else_is_asked(here: Path, capfd: pytest.CaptureFixture[str], flags: dict[str, Any], said: str) -> None:
    check_refused(here, capfd, said, **flags)
    if "budget" not in flags:
        check_refused(here, capfd, r"--plan: is of the families", "--plan")


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (3, "3 is no function"),
        (Dimension, ".* is no function"),
        (lambda: None, "'<lambda>' takes no argument"),
        (lambda a, b: None, "'<lambda>' needs 2 arguments"),
    ],
)
def test_a_function(train: Any, said: str) -> None:
    with pytest.raises(UserError, match=rf"^--train: {said}[^\n]*$"):
        Settings(budget="1h", train=train, space={"width": (1, 2)}, metric="loss")


def test_a_function_that_holds_what_cannot_travel(tmp_path: Path) -> None:
    from tune.own_loop import loop_of

    file = (tmp_path / "open").open("w")

    def train(config: dict[str, Any]) -> None:
        file.write("")

    settings = Settings(budget="1h", train=train, space={"width": (1, 2)}, metric="loss")
    with pytest.raises(UserError, match=r"^--train: 'train' cannot go to another process \([^\n]*\): keep such things"):
        loop_of(settings)


def test_a_function_with_some_arguments_given_is_of_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tune.own_loop import loop_of

    (tmp_path / "given_some.py").write_text("def train(config, data): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    partial = functools.partial(importlib.import_module("given_some").train, data=3)
    loop = loop_of(Settings(budget="1h", train=functools.partial(partial), space={"width": (1, 2)}, metric="loss"))
    assert loop.folder == tmp_path
    elsewhere = "import pickle, sys; pickle.loads(bytes.fromhex(sys.stdin.read()))({})"
    assert loop.pickled
    subprocess.run([sys.executable, "-c", elsewhere], input=loop.pickled.hex(), text=True, check=True)


@pytest.mark.parametrize("space", [{}, {"width": 3}, {1: [2]}, [1, 2], {"width": object()}])
def test_a_space_from_python(space: Any) -> None:
    with pytest.raises(UserError, match=r"^--space: [^\n]*$"):
        Settings(budget="1h", train=lambda config: None, space=space, metric="loss")
    with pytest.raises(UserError, match=r"^choice: has the value None[^\n]*$"):
        choice(1, None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^integers: goes from 8 to 2[^\n]*$"):
        integers(8, 2)


def test_what_is_stored_of_a_loop_gives_the_same_settings_again_once_its_file_is_named(here: Path) -> None:
    for more in ({"metric": "loss"}, {"maximize": "val/accuracy", "life": 5000}):
        asked: dict[str, Any] = {"train": "../files/train.py:train", "space": "../files/space.toml", **more}
        original = Settings(budget="1h", **asked)
        stored = json.loads(json.dumps(original.stored()))
        assert Settings.from_stored(stored, train=original.train) == original
        with pytest.raises(UserError, match=r"^--train: missing: [^\n]*$"):
            Settings.from_stored(stored)


def test_a_study_that_goes_on_in_another_file_says_so(here: Path) -> None:
    original = Settings(budget="1h", train=GOOD["--train"], space=GOOD["--space"], metric="loss")
    with Journal(None, new=True) as journal:
        journal.note(settings=original.stored())
        assert not [*another_loop(original, journal)]
        Path("other.py").write_text("print()")
        (line,) = another_loop(replace(original, train="other.py"), journal)
    assert str(original.train) in line and line.endswith("other.py")


def test_the_printed_line_to_go_on_names_the_loop_and_its_mirror(here: Path) -> None:
    (here / "mirror").mkdir()
    settings = Settings(
        budget="1h", train=GOOD["--train"], space=GOOD["--space"], metric="loss", mirror=here / "mirror"
    )
    (here / "study").mkdir()
    (here / "study" / "study.json").write_text(json.dumps({"settings": settings.stored()}))
    _, script, *flags = shlex.split(settings.to_go_on(here / "study"))
    assert script == "tune/run.py" and str(here / "mirror") in flags
    again = cli.parse(Settings, flags)
    assert (again.train, again.mirror, again.space) == (settings.train, here / "mirror", settings.space)
