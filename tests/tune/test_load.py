"""`--load my_families.py`: on every command that opens a study of a family of a user's own, and never on its own."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import RECIPES, Config
from model.families import FAMILIES
from model.settings import GenerateSettings
from model.training.checkpoint import config_state, export, save
from tests.forked import FORKING
from tests.model.test_use import CHARACTERS
from tune import cli, errors
from tune.errors import UserError
from tune.registry import register
from tune.search_space import SPACES
from tune.settings import Settings

MINE = """
from pathlib import Path

from beside import WIDTHS
from model.config import build_model
from model.families import Family
from model.families import FAMILIES
from dataclasses import replace
from tune.registry import register

Path(__file__).with_name("executed").touch()


@register("mine")
class Mine(Family):
    space = {"width": WIDTHS, "learning_rate": (1e-3, 1e-2)}
    batches = loss = lambda *_: None

    def build(self, config, vocabulary, pad):
        return build_model(replace(config, family="nanogpt", d_model=config.own["width"]), vocabulary=vocabulary, pad=0)
"""
BUILT_IN, PATH = set(SPACES), list(sys.path)


def forget() -> None:
    """As in a new process."""
    sys.path[:] = PATH
    sys.modules.pop("beside", None)
    for name in set(SPACES) - BUILT_IN:
        del SPACES[name], FAMILIES[name], RECIPES[name]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    forget()


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file that leaves a mark where it is executed."""
    (tmp_path / "with spaces").mkdir()
    (tmp_path / "with spaces" / "beside.py").write_text("WIDTHS = (16, 32)\n")
    file = tmp_path / "with spaces" / "model.py"  # as one of our own folders is called
    file.write_text(MINE)
    return file


def study_of(settings: Settings, folder: Path) -> Path:
    """As far as going on with it needs one."""
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps({"settings": settings.stored()}))
    return folder


def test_a_family_out_of_a_file_is_one_to_choose_and_to_fix(mine: Path) -> None:
    settings = cli.parse(Settings, ["--budget", "1h", "--load", str(mine), "--families", "mine", "--fix", "width=32"])
    assert settings.families == {"mine": 1.0} and settings.fix == {"width": 32}
    assert replace(settings, seed=1) == Settings(budget="1h", load=mine, families="mine", fix="width=32", seed=1)


@pytest.mark.parametrize("asked", ["width=16-32", "width=16,wide", "width=16.5..32", "learning_rate=1e-3-1e-2"])
def test_of_such_a_family_too_a_range_of_numbers_has_numbers(mine: Path, asked: str) -> None:
    given = ["--budget", "1h", "--load", str(mine), "--families", "mine", "--range"]
    name = asked.partition("=")[0]
    with pytest.raises(
        UserError, match=rf"^--range: '{name}' has [^\n]*: it takes [^\n]*numbers; write {name}=[^\n]*\.\."
    ):
        cli.parse(Settings, [*given, asked])
    assert list(cli.parse(Settings, [*given, "width=16..64"]).range) == ["width"]


def parsed(flags: list[str], line: Connection) -> None:
    try:
        line.send(dict(cli.parse(Settings, flags).families))
    except ValueError as refused:
        line.send(str(refused))


def elsewhere(flags: list[str]) -> Any:
    """The families, or the error, of these flags in a process that loaded nothing."""
    line, end = FORKING.Pipe()
    FORKING.Process(target=parsed, args=(flags, end), daemon=True).start()
    end.close()
    return line.recv()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("{root}/tune/run.py", "python {root}/tune/run.py"),
        ("../{name}/analysis/rank.py", "python ../{name}/tune/run.py"),
        ("{root}/.venv/lib/pytest/__main__.py", "python tune/run.py"), ("mine.py", "python tune/run.py"),
        ("ration", "ration run"),
    ],
)  # fmt: skip
def test_a_script_of_ours_is_called_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: str, said: str
) -> None:
    (tmp_path / "checkout").mkdir()
    (tmp_path / "here").mkdir()
    root = tmp_path / "checkout"
    monkeypatch.setattr(errors, "ROOT", root)
    monkeypatch.setattr(sys, "argv", [argv.format(root=root, name=root.name)])
    monkeypatch.chdir(tmp_path / "here")
    assert errors.called("tune/run.py") == said.format(root=root, name=root.name)
    monkeypatch.chdir(root)
    assert errors.called("tune/run.py") == ("ration run" if argv == "ration" else "python tune/run.py")
    assert errors.called("analysis/rank.py") == ("ration rank" if argv == "ration" else "python analysis/rank.py")


@pytest.mark.parametrize("hidden_by", ["model.py", "model/__init__.py"])
def test_a_worker_of_rays_finds_our_model_where_a_search_begins_beside_anothers(
    tmp_path: Path, repository: Path, hidden_by: str
) -> None:
    """Ray puts the folder that a search was begun in before all others."""
    (theirs := tmp_path / "theirs" / hidden_by).parent.mkdir(parents=True)
    theirs.write_text("raise RuntimeError")
    (worker := tmp_path / "default_worker.py").write_text(
        f"import sys; sys.path[:0] = [{str(tmp_path / 'theirs')!r}, {str(repository)!r}]\n"
        "import tune, model; print(model.__file__)"
    )
    found = subprocess.run([sys.executable, str(worker)], capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()) == repository / "model" / "__init__.py"


def test_the_printed_line_goes_on_and_without_the_file_one_line_says_what_is_missing(
    mine: Path, tmp_path: Path
) -> None:
    settings = Settings(budget="1h", load=mine, families="mine", fix="width=16")
    study = study_of(settings, tmp_path / "study")
    python, script, *flags = shlex.split(settings.to_go_on(study))
    assert (python, script) == ("python", "tune/run.py")
    assert elsewhere(flags) == {"mine": 1.0}
    mine.with_name("executed").unlink()
    said = elsewhere(flags[:2])
    assert f"'{study}' has a family 'mine', which is not known here: add --load '{mine}'" in said
    assert not mine.with_name("executed").exists()


def test_a_strangers_file_is_executed_only_where_it_is_typed_again(mine: Path, tmp_path: Path) -> None:
    study = study_of(Settings(budget="1h", families="nanogpt"), tmp_path / "study")
    facts = json.loads((study / "study.json").read_text())
    facts["settings"]["load"] = str(mine)
    (study / "study.json").write_text(json.dumps(facts))
    assert Settings.of_study(study).load is None
    assert Settings.from_stored(facts["settings"]).load is None
    assert cli.parse(Settings, ["--resume", str(study)]).load is None
    assert not mine.with_name("executed").exists()
    assert cli.parse(Settings, ["--resume", str(study), "--load", str(mine)]).load == mine
    assert mine.with_name("executed").exists()


def test_of_a_family_registered_in_python_the_line_says_what_to_call(tmp_path: Path) -> None:
    register("made")(type("Made", (FAMILIES["nanogpt"].__class__,), {"space": {"width": (1, 2)}, "corpus": "text",
                     "__init__": lambda self: None, "batches": None, "loss": None}))  # fmt: skip
    settings = Settings(budget="1h", families="made,nanogpt")
    study = study_of(settings, tmp_path / "study")
    said = settings.to_go_on(study)
    assert said == f"search(Settings.of_study('{study}')) in Python, once made is registered"
    assert Settings.of_study(study).families == settings.families
    forget()
    with pytest.raises(ValueError, match=r"^--resume: [^\n]* has a family 'made', which is not known here: add --load"):
        Settings.of_study(study)


def test_a_file_that_cannot_serve_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    for source, said in {
        None: r"cannot be read \(No such file or directory\): name a Python file",
        "x = 1": 'registers no family: write @register\\("NAME"\\) above the class of one',
        "x = 1\nimport nothing_of_this_name": r"cannot be executed \(ModuleNotFoundError: .*\(m.py:2\)\): mend it",
        "x = (": r"cannot be executed \(SyntaxError: .*\(m.py:1\)\): mend it",
    }.items():
        if source is not None:
            file.write_text(source)
        with pytest.raises(ValueError, match=f"^--load: '{file}' {said}$"):
            cli.parse(Settings, ["--budget", "1h", "--load", str(file), "--families", "mine"])


def test_a_winner_of_it_writes_where_its_file_is_loaded(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RECIPES["mine"] = RECIPES["nanogpt"]
    config = Config.at({"width": 16}, family="mine")
    del RECIPES["mine"]
    cli.parse(Settings, ["--budget", "1h", "--load", str(mine), "--families", "mine"])
    model = FAMILIES["mine"].build(config, CHARACTERS.vocabulary, 0)
    state = {"steps": 1, "config": config_state(config)}
    checkpoint = save(tmp_path / "checkpoints", model, {"step": torch.zeros(1)}, state)
    folder = export(checkpoint, tmp_path / "best-mine", CHARACTERS.to_json())
    forget()
    assert cli.main(GenerateSettings, [str(folder), "--prompt", "abc", "--tokens", "3"]) == 2
    assert re.match(r"model: [^\n]* 'mine' is none of [^\n]*--load FILE", capsys.readouterr().err)
    mine.write_text(f"{MINE}\n")
    cli.main(GenerateSettings, [str(folder), "--load", str(mine), "--prompt", "abc", "--tokens", "3"])
    assert capsys.readouterr().out.startswith("abc")
