"""What others' tools read of a study: Optuna its storage, nanoGPT's sample.py the winner."""

import pickle
import shlex
import sqlite3
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import optuna
import pytest
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError

from analysis.exporting import distribution
from analysis.settings import ExportSettings
from model.config import Config, build_model
from model.data.tokenizer import CharacterTokenizer, SubwordTokenizer, Tokenizer
from model.inference import write_upstream
from model.training import checkpoint as checkpoints
from tests.analysis.conftest import Printed, Written, do, one_line, results_of, search, study_of_loop
from tests.conftest import small_files
from tune.errors import UserError
from tune.own_space import LOOP


def loaded(file: Path, name: str) -> optuna.Study:
    return optuna.load_study(study_name=name, storage=f"sqlite:///{file}")


def test_optuna_has_every_trial_as_the_journal_has_it(tmp_path: Path, printed: Printed) -> None:
    study = search(tmp_path / "runs" / "searched")
    file = tmp_path / "study.db"
    assert f"optuna-dashboard sqlite:///{file}\n" in printed(ExportSettings, study.folder, "--optuna", file)
    found, table = loaded(file, "searched nanogpt"), results_of(study)
    told = {trial.user_attrs["trial"]: trial for trial in found.trials}
    assert sorted(told) == sorted(table.trials["trial"]) and len(told) == 24
    reached = table.reached.drop_duplicates("trial", keep="last").set_index("trial")
    for row in table.trials.to_dict("records"):
        trial = told[row["trial"]]
        assert trial.params == {name: row[name] for name in trial.params} and "d_model" in trial.params
        wanted = "FAIL" if row["failed"] else "COMPLETE" if reached["final"][row["trial"]] else "PRUNED"
        assert trial.state == TrialState[wanted]
        if not row["failed"]:
            assert trial.value == reached["perplexity"][row["trial"]]
            assert list(trial.intermediate_values) == sorted(trial.intermediate_values)
            assert trial.value in trial.intermediate_values.values()
    assert found.best_trial.user_attrs["trial"] == reached[reached["final"]]["perplexity"].idxmin()
    assert {trial.state for trial in found.trials} == {TrialState.FAIL, TrialState.COMPLETE, TrialState.PRUNED}


def test_each_family_is_a_study_of_its_own(write: Callable[..., Written], tmp_path: Path) -> None:
    """And what a dimension can be is told by what it was; one that a trial does not have is not there."""
    study = write("two")
    study.trial("t1", family="nanogpt", width=3)
    study.trial("t2", family="translation", state="running")
    study.report("t1", 5.0, steps=10)
    do(ExportSettings, [str(study.folder), "--optuna", str(tmp_path / "new.db")])
    (first,), (second,) = (loaded(tmp_path / "new.db", f"two {name}").trials for name in ("nanogpt", "translation"))
    assert (first.params["width"], first.intermediate_values) == (3, {10: 5.0}) and "width" not in second.params
    assert second.state == TrialState.RUNNING and second.value is None


@pytest.mark.parametrize(("asked", "best"), [("maximize", "t2"), ("metric", "t0")])
def test_of_a_users_loop_it_is_the_metric_and_the_best_is_the_rankings(tmp_path: Path, asked: str, best: str) -> None:
    study, file = study_of_loop(tmp_path / "loop", asked, "accuracy", [0.5, 0.7, 0.9]), tmp_path / "new.db"
    do(ExportSettings, [str(study.folder), "--optuna", str(file)])
    found = loaded(file, f"loop {LOOP}")
    assert found.direction.name == asked.upper().replace("METRIC", "MINIMIZE")
    assert found.user_attrs["value"] == "accuracy" and found.best_trial.user_attrs["trial"] == best
    assert [trial.value for trial in found.trials] == [0.5, 0.7, 0.9]
    assert [trial.intermediate_values for trial in found.trials] == [{1: 0.5}, {2: 0.7}, {3: 0.9}]


@pytest.mark.parametrize(
    ("values", "made"),
    [
        ([2, 4, 2], IntDistribution(2, 4)),
        ([16, 512], IntDistribution(16, 512, log=True)),
        ([0.0, 0.5], FloatDistribution(0.0, 0.5)),
        ([1, 1e-3], FloatDistribution(1e-3, 1, log=True)),
        (["fp32", "bf16", "fp32"], CategoricalDistribution(["bf16", "fp32"])),
        ([True, False], CategoricalDistribution([False, True])),
        (["none", 1], CategoricalDistribution(["none", 1])),
    ],
)
def test_a_dimension_is_the_range_of_what_was_tried(values: list[object], made: object) -> None:
    assert distribution(values) == made


def test_nothing_is_written_over(six: Written, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("mine", "link", "none/new"):
        with one_line(r"^--optuna: '.*' cannot be written \(.*\): name a new file"):
            do(ExportSettings, [str(six.folder), "--optuna", str(tmp_path / name)])
    assert (tmp_path / "mine").read_text() == "mine" and not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["what?", "a%20b", "{a}"])
def test_a_file_whose_path_no_address_has_is_refused_before_it_is_made(six: Written, tmp_path: Path, name: str) -> None:
    with one_line(r"^--optuna: '.*' has '.' in its path, which .*: name another file or folder$"):
        do(ExportSettings, [str(six.folder), "--optuna", str(tmp_path / name)])
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_what_opens_a_storage_can_be_typed_though_its_folder_has_a_space(
    six: Written, tmp_path: Path, printed: Printed
) -> None:
    (tmp_path / "a folder").mkdir()
    file = tmp_path / "a folder" / "storage"
    told = printed(ExportSettings, six.folder, "--optuna", file)
    assert shlex.split(told.removeprefix(f"{file}: ")) == ["optuna-dashboard", f"sqlite:///{file}"]


FULL = OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))


@pytest.mark.parametrize("error", [FULL, StorageInternalError("see above"), KeyboardInterrupt()])
def test_what_a_disk_does_not_take_or_a_user_interrupts_leaves_nothing_behind(
    six: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """It would open as if it were whole. Optuna wraps some of SQLAlchemy's errors in its own."""

    def full(*_: object) -> None:
        raise error from FULL

    monkeypatch.setattr(optuna.Study, "add_trials", full)
    said = r"^--optuna: '.*new' cannot be written \(database or disk is full\): name a new file"
    with pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else one_line(said):
        do(ExportSettings, [str(six.folder), "--optuna", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()


def test_something_is_asked_for(six: Written) -> None:
    with pytest.raises(UserError, match=r"^--optuna: missing: write --optuna FILE, or --nanogpt FOLDER$"):
        do(ExportSettings, [str(six.folder)])


CHARACTERS = CharacterTokenizer("\n abcdef")
WORDS = SubwordTokenizer.train(["a bad cafe"], 260, marks=False)


def won(study: Written, architecture: str, tokenizer: Tokenizer = CHARACTERS) -> torch.nn.Module:
    """A winner of that study, as a search leaves it."""
    config = Config(family="nanogpt", d_model=16, heads=4, layers=2, context=8, architecture=architecture)
    made = build_model(config, vocabulary=tokenizer.vocabulary, pad=0)
    state = {"steps": 7, "config": asdict(config)}
    saved = checkpoints.save(study.folder / "checkpoints" / "t2", made, {"step": torch.zeros(1)}, state)
    checkpoints.export(saved, study.folder / "best-nanogpt", tokenizer.to_json())
    path = str(saved.relative_to(study.folder))
    study.report("t2", 4.0, rung=None, final=1, steps=7, checkpoint=path)
    return made


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (folder := tmp_path / "clone").mkdir()
    (folder / "sample.py").touch()
    return folder


@pytest.mark.parametrize("name", ["none", "none" * 100])
def test_what_is_no_clone_of_nanogpt_is_refused_before_anything_is_written(
    six: Written, tmp_path: Path, name: str
) -> None:
    """Also where it may not be looked at."""
    won(six, "nanogpt")
    words = ["--optuna", str(tmp_path / "new.db"), "--nanogpt", str(tmp_path / name)]
    with one_line(r"^--nanogpt: '.*none' has no sample\.py: name a clone of "):
        do(ExportSettings, [str(six.folder), *words])
    assert not (tmp_path / "new.db").exists() and not (tmp_path / "none").exists()


def test_a_winner_is_laid_where_nanogpt_looks_for_it(six: Written, clone: Path, printed: Printed) -> None:
    """Names, shapes and values; what tests/model/nn/test_gpt.py knows of upstream's logits holds of them."""
    made = won(six, "nanogpt")
    said = printed(ExportSettings, six.folder, "--nanogpt", clone)
    assert "python sample.py --out_dir=out-six --device=cpu" in said
    kept = torch.load(clone / "out-six" / "ckpt.pt")  # as sample.py does: plain tensors and values alone
    assert kept.keys() == {"model", "model_args", "config", "iter_num", "best_val_loss"}
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 16, "block_size": 8, "vocab_size": 9, "bias": False, "dropout": 0.1}
    assert kept["model_args"] == sizes and kept["iter_num"] == 7 and kept["best_val_loss"] == pytest.approx(1.386, 1e-3)
    wanted = made.state_dict()
    assert kept["model"].keys() == wanted.keys()
    assert all(torch.equal(kept["model"][name], tensor) for name, tensor in wanted.items())
    meta = pickle.loads((clone / "data" / kept["config"]["dataset"] / "meta.pkl").read_bytes())
    assert [meta["stoi"][character] for character in "bad"] == CHARACTERS.encode("bad")
    assert len(meta["itos"]) == meta["vocab_size"] == 9 and all(meta["stoi"][meta["itos"][n]] == n for n in range(9))


@pytest.mark.parametrize(
    ("architecture", "tokenizer", "why"),
    [
        ("modern", CHARACTERS, "model: its architecture is 'modern': .*--set architecture=nanogpt$"),
        ("nanogpt", WORDS, "model: .* has a vocabulary of its own: "),
        (None, CHARACTERS, "study: .* has no winner of nanogpt: "),
    ],
)
def test_why_nanogpt_cannot_have_a_winner_is_one_line(
    six: Written, clone: Path, architecture: str | None, tokenizer: Tokenizer, why: str
) -> None:
    if architecture:
        won(six, architecture, tokenizer)
    with one_line(f"^{why}"):
        do(ExportSettings, [str(six.folder), "--nanogpt", str(clone)])
    assert [each.name for each in clone.iterdir()] == ["sample.py"]


def test_what_samples_from_a_winner_can_be_typed_though_its_study_has_a_space(
    tmp_path: Path, clone: Path, printed: Printed
) -> None:
    study = search(tmp_path / "runs" / "a study")
    study.trial("t2")
    won(study, "nanogpt")
    told = printed(ExportSettings, study.folder, "--nanogpt", clone).rpartition(": ")[2]
    assert shlex.split(told) == ["python", "sample.py", "--out_dir=out-a study", "--device=cpu"]


def test_an_earlier_export_is_not_written_over(six: Written, clone: Path) -> None:
    won(six, "nanogpt")
    words = [str(six.folder), "--nanogpt", str(clone)]
    do(ExportSettings, words)
    with pytest.raises(UserError, match=r"^--nanogpt: .*out-six' cannot be written"):
        do(ExportSettings, words)


def test_an_export_to_nanogpt_that_fails_leaves_nothing_behind(six: Written, clone: Path) -> None:
    won(six, "nanogpt")
    (taken := clone / "data" / "six").mkdir(parents=True)
    with one_line(r"^--nanogpt: '.*data/six' cannot be written \(File exists\): "):
        do(ExportSettings, [str(six.folder), "--nanogpt", str(clone)])
    assert not (clone / "out-six").exists()
    taken.rmdir()
    with small_files(), one_line(r"^--nanogpt: '.*out-six' cannot be written \(File too large\): "):
        write_upstream(six.folder / "best-nanogpt", clone, "six", steps=7, loss=1.0)
    do(ExportSettings, [str(six.folder), "--nanogpt", str(clone)])


def test_nanogpt_reads_a_character_as_the_model_does_though_it_looks_like_an_unknown_one(
    six: Written, clone: Path
) -> None:
    won(six, "nanogpt", tokenizer := CharacterTokenizer("\n abc\ufffd"))
    do(ExportSettings, [str(six.folder), "--nanogpt", str(clone)])
    meta = pickle.loads((clone / "data" / "six" / "meta.pkl").read_bytes())
    assert [meta["stoi"][character] for character in "cab\ufffd"] == tokenizer.encode("cab\ufffd")
    assert "".join(map(meta["itos"].get, range(tokenizer.vocabulary))) == tokenizer.characters + "\ufffd"
