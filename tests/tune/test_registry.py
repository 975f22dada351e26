"""A user's own family in a search: registered by name, planned like the others, and its code goes along; out of a file
with `--load my_families.py`, on every command that opens a study of it, and never on its own.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import ray.cloudpickle
import torch

from model.config import RECIPES, Config
from model.families import FAMILIES, Family
from model.settings import GenerateSettings
from model.training.checkpoint import export, save
from tests.forked import FORKING
from tests.model.test_families import Bigrams
from tests.model.test_use import CHARACTERS
from tune import cli, errors
from tune.devices import Devices
from tune.dry_run import make_plan
from tune.errors import UserError
from tune.experiments.experiment_settings import ExperimentSettings
from tune.load import check_loop, load_families
from tune.registry import pickle_families_by_value, register
from tune.search_context import first_configs, make_search_context
from tune.search_space import SPACES, Space
from tune.settings import Settings

CORE = Devices(kind="cpu", count=1, model="core", precisions=("fp32",), cores=1)


def elsewhere(pickled: bytes, line: Connection) -> None:
    """In a process that imported no module of a family's."""
    family = ray.cloudpickle.loads(pickled)["far"]
    line.send((family.space, type(family).__module__ in sys.modules))


def made(**changes: object) -> type[Family]:
    return type("Made", (Bigrams,), changes)


def test_the_middle_of_its_space_is_tried_first_and_what_it_does_not_have_does_not_vary() -> None:
    register("made")(made(space={"width": (4, 8, 16), "gate": ("tanh", "relu")}))
    space = Space(family="made", precisions=("fp32", "bf16"), fix={"heads": 4, "gate": "relu"})
    assert space.default() == {"width": 8, "gate": "relu"}
    assert list(space.configs()) == [{"width": width, "gate": "relu"} for width in (4, 8, 16)]


def test_what_may_vary_of_the_recipe_may_be_in_its_space() -> None:
    register("made")(made(space={"width": (4, 8), "learning_rate": (1e-3, 1e-2), "weight_decay": (0.0, 0.1)}))
    points = list(Space(family="made", precisions=("fp32",)).configs())
    assert {Config.at(point, family="made").learning_rate for point in points} == {1e-3, 1e-2}
    Settings(budget="60s", families="made", rungs="tokens")
    register("made")(made(space={"width": (4, 8), "batch_tokens": (128, 256)}))
    with pytest.raises(ValueError, match="--set: 'batch_tokens' is in the space of made: --fix it, or leave it out"):
        Settings(budget="60s", families="made", set="batch_tokens=64")
    with pytest.raises(ValueError, match="--rungs: 'tokens': 'made' has batch_tokens in its space"):
        Settings(budget="60s", families="made", rungs="tokens")


def test_its_dimensions_can_be_fixed_and_its_name_is_one_to_choose() -> None:
    register("made")(made())
    settings = Settings(budget="60s", families="made=40,nanogpt=60", fix="width=8,heads=4")
    assert settings.families == {"made": 0.4, "nanogpt": 0.6} and settings.fix == {"width": 8, "heads": 4}
    with pytest.raises(ValueError, match="--families: 'bert' is no family: write translation or nanogpt or made"):
        Settings(budget="60s", families="bert")
    with pytest.raises(ValueError, match="--fix: 'width=5' is not in the space: fix width at one of 4, 8, 16"):
        Settings(budget="60s", fix="width=5")


def test_a_value_of_many_digits_is_one_to_fix_and_to_try_first() -> None:
    values, listed = (1 / 3, 1234567.5, 1e-05, 2.0), "0.3333333333333333, 1234567.5, 1e-05, 2"
    register("made")(made(space={"width": (4, 8), "drift": values}))
    for value in values:
        settings = Settings(budget="1h", families="made", fix={"drift": value})
        assert settings.fix == {"drift": value} == Settings.from_stored(settings.stored()).fix
        with pytest.raises(UserError, match=f"fix drift at one of {re.escape(listed)}$"):
            Settings(budget="1h", families="made", fix="drift=0.333333")
        first = Settings(budget="1h", families="made", first={"drift": value})
        assert first_configs(first, first.space_of("made", ("fp32",)))[0]["drift"] == value


def test_its_own_values_are_not_those_that_vary_frees_for_others(text: Path) -> None:
    register("made")(made(space={"width": (4, 8), "learning_rate": (1e-3, 1e-2)}))
    settings = Settings(budget="1h", families="made,nanogpt", vary="learning_rate", text_corpus=text)
    spaces = make_search_context(settings, CORE).spaces
    assert spaces["made"].dimensions["learning_rate"] == (1e-3, 1e-2)
    assert len(spaces["nanogpt"].dimensions["learning_rate"]) == 5


def test_it_is_planned_like_the_others(text: Path) -> None:
    register("made")(made())
    plan = make_plan(Settings(budget="2m", families="made", text_corpus=text, vary="learning_rate", devices=1))
    assert plan.families["made"].started > 3
    assert sum(plan.spending.values()) == pytest.approx(120)


def test_its_code_goes_along_to_where_its_module_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from far_beside import widths\nfrom model.families import Family\nclass Far(Family):\n    more = widths\n"
    source += "    space = {'width': widths()}\n    build = batches = loss = lambda *_: None\n"
    (tmp_path / "far_away.py").write_text(source)
    (tmp_path / "far_beside.py").write_text("def widths():\n    return 4, 8\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import far_away  # type: ignore[import-not-found]

    register("far")(far_away.Far)
    line, end = FORKING.Pipe()
    FORKING.Process(
        target=elsewhere, args=(ray.cloudpickle.dumps(pickle_families_by_value()), end), daemon=True
    ).start()
    end.close()
    assert line.recv() == ({"width": (4, 8)}, False)


def test_what_cannot_serve_is_refused_in_one_line() -> None:
    for name, changes, said in (
        ("nanogpt", {}, "'nanogpt' is taken"),
        ("a/b", {}, "'a/b' is taken or no name"),
        ("made", {"corpus": "images"}, "'made': corpus is 'images': choose text or pairs"),
        ("made", {"space": {}}, "'made' has no dimension in its space: write"),
        ("made", {"space": {"steps": (1, 2)}}, "'made': 'steps' is a column of the journal"),
        ("made", {"space": {"a b": (1, 2)}}, "'made': 'a b' is a column of the journal, or no name"),
        ("made", {"space": {"width": ()}}, r"'made': 'width' has the values \(\)"),
        ("made", {"space": {"width": (4, "wide")}}, "'made': 'width' has the values .* numbers or words"),
        ("made", {"space": {"gate": ("a/b",)}}, "'made': 'gate' has the values .* numbers or words"),
        ("made", {"space": {"width": (4, 4)}}, "'made': 'width' has the values .* each once"),
        ("made", {"space": {"optimizer": ("muon", "adamw")}}, "'made': 'optimizer' is a setting of .* built in"),
        ("made", {"space": {"precision": ("fp8",)}}, "'made': 'precision' has the values .* choose of fp32, tf32"),
        *(
            ("made", {"recipe": {field: value}}, f"'made' has in its recipe '{field}=.*: write {field}=")
            for field, value in (("warm_up_steps", 0), ("batch_tokens", 4), ("context", "64"), ("label_smoothing", 1))
        ),
    ):
        with pytest.raises(ValueError, match=f"^families: {said}[^\n]*$"):
            register(name)(made(**changes))
        assert set(SPACES) == {"translation", "nanogpt"} == set(FAMILIES)


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


def study_of(settings: Settings, folder: Path, **more: str) -> Path:
    """As far as going on with it needs one."""
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps({"settings": settings.stored()} | more))
    return folder


def test_a_family_out_of_a_file_is_one_to_choose_and_to_fix(mine: Path) -> None:
    settings = cli.parse(Settings, ["--budget", "1h", "--load", str(mine), "--families", "mine", "--fix", "width=32"])
    assert settings.families == {"mine": 1.0} and settings.fix == {"width": 32}
    assert replace(settings, seed=1) == Settings(budget="1h", load=mine, families="mine", fix="width=32", seed=1)


def test_its_code_travels_too_where_it_is_called_as_a_file_of_ours(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (theirs := tmp_path / "model").mkdir()
    (theirs / "families.py").write_text(mine.read_text().replace("from beside import WIDTHS", "WIDTHS = (16, 32)"))
    load_families(theirs / "families.py")
    pickled = ray.cloudpickle.dumps(pickle_families_by_value())
    monkeypatch.delitem(sys.modules, "loaded_families")
    assert ray.cloudpickle.loads(pickled)["mine"].space["width"] == (16, 32)


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


def asked_elsewhere(flags: list[str]) -> Any:
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
        ("{root}/.venv/lib/pytest/__main__.py", "python {root}/tune/run.py"),
        ("mine.py", "python {root}/tune/run.py"), ("run.py", "python {root}/tune/run.py"),
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
    assert errors.script_command("tune/run.py") == said.format(root=root, name=root.name)
    monkeypatch.chdir(root)
    assert errors.script_command("tune/run.py") == ("ration run" if argv == "ration" else "python tune/run.py")
    assert errors.script_command("analysis/rank.py") == (
        "ration rank" if argv == "ration" else "python analysis/rank.py"
    )


@pytest.mark.parametrize("hidden_by", ["model.py", "model/__init__.py"])
def test_a_worker_of_rays_finds_our_model_where_a_search_begins_beside_anothers(
    tmp_path: Path, repository: Path, hidden_by: str
) -> None:
    """Ray puts the folder that a search was begun in before all others; some of these may not be looked at."""
    (theirs := tmp_path / "theirs" / hidden_by).parent.mkdir(parents=True)
    theirs.write_text("raise RuntimeError")
    (worker := tmp_path / "default_worker.py").write_text(
        f"import sys; sys.path[:0] = [{str(tmp_path / 'theirs')!r}, {'/' + 300 * 'x'!r}, {str(repository)!r}]\n"
        "import tune, model; print(model.__file__)"
    )
    found = subprocess.run([sys.executable, str(worker)], capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()) == repository / "model" / "__init__.py"


def test_the_printed_line_goes_on_and_without_the_file_one_line_says_what_is_missing(
    mine: Path, tmp_path: Path
) -> None:
    settings = Settings(budget="1h", load=mine, families="mine", fix="width=16")
    study = study_of(settings, tmp_path / "study")
    python, script, *flags = shlex.split(settings.resume_command(study))
    assert (python, script) == ("python", "tune/run.py")
    assert asked_elsewhere(flags) == {"mine": 1.0}
    mine.with_name("executed").unlink()
    said = asked_elsewhere(flags[:2])
    assert f"'{study}' has a family 'mine', which is not known here: add --load '{mine}'" in said
    assert not mine.with_name("executed").exists()


def test_the_line_of_an_experiment_on_such_a_family_goes_on_too(mine: Path, tmp_path: Path) -> None:
    settings = ExperimentSettings(budget="1h", name="scaling", families="mine", load=mine)
    study = study_of(settings, tmp_path / "study", experiment="scaling")
    _, _, *words = shlex.split(settings.resume_command(study, budget="2h"))
    again = cli.parse(ExperimentSettings, words)
    assert (again.load, again.families, again.budget) == (mine, settings.families, 7200.0)


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
    said = settings.resume_command(study)
    assert said == f"search(Settings.of_study('{study}')) in Python, once made is registered"
    assert Settings.of_study(study).families == settings.families
    forget()
    with pytest.raises(ValueError, match=r"^--resume: [^\n]* has a family 'made', which is not known here: add --load"):
        Settings.of_study(study)


def test_a_file_may_begin_with_a_byte_order_mark(mine: Path) -> None:
    mine.write_text(mine.read_text(), encoding="utf-8-sig")
    assert cli.parse(Settings, ["--budget", "1h", "--load", str(mine), "--families", "mine"]).families == {"mine": 1.0}
    mine.write_text("def train(config): ...\n", encoding="utf-8-sig")
    check_loop(f"{mine}:train")


def test_a_file_that_cannot_serve_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    for source, said in {
        None: r"cannot be read \(No such file or directory\): name a Python file",
        "x = 1": 'registers no family: write @register\\("NAME"\\) above the class of one',
        "x = 1\nimport nothing_of_this_name": r"cannot be executed \(ModuleNotFoundError: .*\(m.py:2\)\): correct it",
        "x = (": r"cannot be executed \(SyntaxError: .*\(m.py:1\)\): correct it",
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
    state = {"steps": 1, "config": asdict(config)}
    checkpoint = save(tmp_path / "checkpoints", model, {"step": torch.zeros(1)}, state)
    folder = export(checkpoint, tmp_path / "best-mine", CHARACTERS.to_json())
    forget()
    assert cli.main(GenerateSettings, [str(folder), "--prompt", "abc", "--tokens", "3"]) == 2
    assert re.match(r"model: [^\n]* 'mine' is none of [^\n]*--load FILE", capsys.readouterr().err)
    mine.write_text(f"{MINE}\n")
    cli.main(GenerateSettings, [str(folder), "--load", str(mine), "--prompt", "abc", "--tokens", "3"])
    assert capsys.readouterr().out.startswith("abc")
