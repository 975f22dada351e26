"""The command of experiments: what it lists and plans, and that a wrong word is one line and exit code 2."""

import json
import re
import shlex
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from model.config import OLD_DEFAULTS, Config
from tests.scaling_rows import all_rows
from tests.tune.display.conftest import Sampled
from tests.tune.search.world import World
from tune import cli
from tune.devices import Devices
from tune.errors import ROOT
from tune.experiments import experiment_settings
from tune.experiments.base import make_experiment_context
from tune.experiments.catalogue import EXPERIMENTS
from tune.experiments.experiment_settings import ExperimentSettings
from tune.experiments.scaling import tables
from tune.experiments.tables import final_tables
from tune.reports import EPOCHS_AS_NEW
from tune.search.family import FIRST_OVERHEAD_SECONDS, FIRST_START_UP_SECONDS
from tune.search_space import SPACES
from tune.settings import Settings
from tune.store.journal import Journal
from tune.units import parse_duration
from tune.winners import winners

pytestmark = pytest.mark.usefixtures("empty_folder", "known_prices")
HERE = ("--devices", "2", "--oversubscribe")
MODERN = ("--budget", "1h", "--set", "architecture=modern", "--plan")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small corpus of each family, by the setting that names it."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "text.txt").write_text("the cat sat on a mat\n" * 2000)
    (folder / "pairs.txt").write_text("".join(f"we count {i}\tcontamos {i}\n" for i in range(1500)))
    return {"text_corpus": folder / "text.txt", "translation_corpus": folder / "pairs.txt"}


WRONG = {
    "NAME: 'nowhere' is no experiment: write one of ablation, overfitting": ["nowhere", "--budget", "1h"],
    "NAME: missing: write one of ablation, overfitting": ["--budget", "1h"],
    "--csv: works only with --tables FOLDER": ["--list", "--csv"],
    "--budget: missing": ["scaling"],
    "--budget: '5s' does not pay for scaling: write at least": ["scaling", "--budget", "5s"],
    "--devices: '1000' is more than the": ["scaling", "--budget", "1h", "--devices", "1000"],
    "--scale: '0.0' is out of range": ["scaling", "--budget", "1h", "--scale", "0"],
    "--scale: 'some' is not a number": ["scaling", "--budget", "1h", "--scale", "some"],
    "--seeds: '0' is too few": ["scaling", "--budget", "1h", "--seeds", "0"],
    "--families: 'nanogpt,translation' are two": ["scaling", "--budget", "1h", "--families", "nanogpt,translation"],
    "unrecognized arguments: --rungs tokens": ["scaling", "--budget", "1h", "--rungs", "tokens"],
    "--fix: 'precision=tf32' is not native": ["scaling", "--budget", "1h", "--fix", "precision=tf32"],
    "--of: 'x' is for scaling: leave it out of stages": ["stages", "--budget", "1h", "--of", "x"],
    "--fix: 'layers=2' is not for --of": ["scaling", "--budget", "1h", "--of", "x", "--fix", "layers=2"],
    "--latex: works only with --tables FOLDER": ["stages", "--budget", "1h", "--latex"],
    "--set: 'context=128' is not for methods": ["methods", "--budget", "1h", "--set", "context=128"],
    "--set: 'optimizer=muon' is not": ["large_batch", "--budget", "9h", "--set", "optimizer=muon", "--plan"],
    "--markdown: beside --csv": ["--tables", "x", "--csv", "--markdown"],
    "--set: 'architecture=modern' is not for methods": ["methods", *MODERN],
    "--set: 'architecture=modern' is not for stages": ["stages", *MODERN],
    "--fix: 'precision=fp32' is not for stages": ["stages", "--budget", "1h", "--fix", "precision=fp32"],
    "--scale: '0.01' is not for scaling: leave": ["scaling", "--budget", "3h", "--scale", "0.01", "--plan"],
    "--seeds: '3' is not for loader: leave": ["loader", "--budget", "3h", "--seeds", "3", "--plan"],
    "--memory-limit: '1GB' is not for stages: leave": ["stages", "--budget", "3h", "--memory-limit", "1GB", "--plan"],
    "--devices: '1' is too few for data_parallel": ["data_parallel", "--budget", "1h", "--devices", "1", "--plan"],
    "--families: 'nanogpt' is not for estimates": ["estimates", "--budget", "1h", "--families", "nanogpt"],
    "--text-corpus: 'x' is not for estimates": ["estimates", "--budget", "1h", "--text-corpus", "x"],
    "--set: 'taps=3' is not for estimates": ["estimates", "--budget", "1h", "--set", "taps=3", "--plan"],
    "--devices: '2' is not for --list": ["--list", *HERE],
    "--oversubscribe: is not for --list": ["--list", "--oversubscribe"],
    "NAME: 'scaling' is not for --tables": ["--tables", "x", "scaling"],
    "--budget: '3m' is not for --tables": ["--tables", "x", "--budget", "3m", "--csv"],
    "--set: 'context' changes nothing of translation": ["ablation", "--budget", "1h", "--set", "context=512", "--plan"],
    "--set: 'taps=3': the architecture nanogpt has none": ["methods", "--budget", "1h", "--set", "taps=3", "--plan"],
    "--skip-bad-lines: changes nothing of nanogpt": ["stages", "--budget", "1h", "--skip-bad-lines", "--plan"],
    "--cores-per-trial: '2' applies only to searches": ["stages", "--budget", "1h", "--cores-per-trial", "2", *HERE],
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_word_is_one_line_and_nothing_is_written(said, empty_folder, capsys):
    assert cli.main(ExperimentSettings, WRONG[said]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(said) and told.err.count("\n") == 1
    assert not told.out or (told.out.startswith(WRONG[said][0]) and told.out.count("\n") == 1), "what was asked for"
    assert list(empty_folder.iterdir()) == []


def test_every_experiment_can_be_asked_for_and_is_of_its_own_family():
    assert {each.name: each.families[0] for each in EXPERIMENTS.values()} == experiment_settings.EXPERIMENTS


@pytest.mark.parametrize("count", [1, 2, 64])
def test_the_list_names_every_experiment_with_its_price_unless_it_is_refused_here(count, monkeypatch, capsys):
    """On 64, which have no row each of a batch, as on the 24 that have one."""

    def list_on(count):
        here = Devices(kind="cpu", count=count, model="core", precisions=("fp32",), cores=count)
        monkeypatch.setattr("tune.experiments.catalogue.find_devices", lambda _: here)
        assert cli.main(ExperimentSettings, ["--list"]) == 0
        return capsys.readouterr().out.splitlines()

    lines = list_on(count)
    if count == 64:
        divided = [place for place, each in enumerate(EXPERIMENTS.values()) if each.divides]
        assert [lines[place] for place in divided] == [list_on(24)[place] for place in divided] and len(divided) == 2
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS) and all(" here" in line for line in lines)
    unpriced = [line.split()[0] for line in lines if "; needs 2 devices" in line]
    assert unpriced == (["data_parallel"] if count == 1 else [])


def test_the_plan_shares_out_the_budget_says_what_is_noted_of_the_text_and_writes_nothing(
    texts, empty_folder, capsys, monkeypatch
):
    noted = lambda *asked: replace(make_experiment_context(*asked), notes=["it is short"])  # noqa: E731
    monkeypatch.setattr("tune.experiments.catalogue.make_experiment_context", noted)
    asked = ["scaling", "--budget", "20m", "--plan", "--text-corpus", str(texts["text_corpus"]), *HERE]
    assert cli.main(ExperimentSettings, asked) == 0
    given, first, *planned, last = capsys.readouterr().out.splitlines()
    assert set(asked) - {"--plan"} < set(given.split()), "printed first, while all else is still to be prepared"
    assert first.startswith("scaling on 2 x") and "it is short" in planned and last == "about 20m of 20m"
    assert len([line for line in planned if line.startswith("2 x measure steps")]) == 6
    priced = [re.fullmatch(r"(\d) x .*: (\d+) s", line) for line in planned]
    seconds = [int(line[1]) * int(line[2]) for line in priced if line]
    assert sum(seconds) == pytest.approx(1200, abs=len(seconds)), "the lines add up to the total"
    assert list(empty_folder.iterdir()) == []


def test_the_plan_of_a_list_is_what_its_trainings_take_of_all_their_cores(texts, empty_folder, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    asked = ["precision", "--budget", "20h", "--plan", "--text-corpus", str(texts["text_corpus"])]
    assert cli.main(ExperimentSettings, [*asked, "--devices", "5", "--oversubscribe", "--cores-per-trial", "2"]) == 0
    _, first, *planned, last = capsys.readouterr().out.splitlines()
    seconds = [int(line.split()[-2]) for line in planned if line.endswith(" s")]
    each = sum(seconds) + len(seconds) * FIRST_OVERHEAD_SECONDS
    told = re.fullmatch("about (.+) in all, of 20h", last)
    assert first.startswith("precision on 2 x 2 CPU cores") and seconds and told
    rounded = 2 * 0.5 * len(seconds) + 0.5
    assert parse_duration(told[1]) == pytest.approx(2 * (2 * FIRST_START_UP_SECONDS + each), abs=rounded)
    assert list(empty_folder.iterdir()) == []


def test_the_plan_of_a_list_marks_what_the_cap_leaves_out(texts, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    asked = ["transfer", "--budget", "3m", "--scale", "0.02", "--plan", "--text-corpus", str(texts["text_corpus"])]
    assert cli.main(ExperimentSettings, [*asked, "--devices", "1"]) == 0
    found = re.findall(r"(d\d+) .* steps: (\d+) s(, left out)?\n", out := capsys.readouterr().out)
    paid = [int(seconds) for _, seconds, left_out in found if not left_out]
    left = len(found) - len(paid)
    assert len(paid) > 3 and left and out.endswith(f" of 3m, which does not pay for {left} of {len(found)}\n")
    assert sum(paid) + len(paid) * FIRST_OVERHEAD_SECONDS <= 180 + len(paid) / 2
    assert [size for size, _, _ in found[:3]] == ["d128"] * 3 and not any(left_out for _, _, left_out in found[:3])


def test_the_least_cap_of_a_list_pays_for_one_of_those_that_come_first_however_many_devices_there_are(texts, capsys):
    words = f"transfer --oversubscribe --scale 0.02 --plan --devices 4 --text-corpus {texts['text_corpus']}"
    asked = words.split()
    assert cli.main(ExperimentSettings, [*asked, "--budget", "1s"]) == 2
    least = capsys.readouterr().err.split("write at least ")[1].split()[0].rstrip(",")
    assert cli.main(ExperimentSettings, [*asked, "--budget", least]) == 0
    trained = [line for line in capsys.readouterr().out.splitlines() if re.search(r" steps: \d+ s$", line)]
    assert trained and trained[0].startswith("d128 ")


def test_an_experiment_on_a_model_of_its_own_asks_for_no_text_and_tells_of_none(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tune.corpora.fetch_dataset_infos", lambda *_: pytest.fail("the hub was asked"))
    asked = list[ExperimentSettings]()
    monkeypatch.setattr("tune.experiments.catalogue.run_experiment", lambda _, settings: asked.append(settings) or 0)
    assert cli.main(ExperimentSettings, ["estimates", "--budget", "1h", "--devices", "1"]) == 0
    assert make_experiment_context(EXPERIMENTS["estimates"], asked[0]).notes == []
    said = capsys.readouterr().out
    assert said.split() == ["estimates", "--budget", "1h", "--devices", "1"]
    assert cli.main(ExperimentSettings, said.split()) == 0, "and can be typed again"
    facts = {"settings": asked[0].stored(), "experiment": "estimates"}
    (tmp_path / "study.json").write_text(json.dumps(facts), encoding="utf-8")
    said = ["estimates", "--resume", str(tmp_path)]
    for _ in range(2):
        capsys.readouterr()
        assert cli.main(ExperimentSettings, said) == 0, "and so can that of one which goes on"
        said = shlex.split(capsys.readouterr().out)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "a study"
    settings = ExperimentSettings(budget=600, families="nanogpt", text_corpus="builtin", out=folder)
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps({"settings": settings.stored(), "experiment": "scaling"}))
    return folder


def test_a_study_is_resumed_as_what_it_is(study, capsys):
    assert cli.main(Settings, ["--resume", str(study)]) == 2
    said = capsys.readouterr().err
    how = f"python {ROOT}/tune/experiment.py scaling --resume '{study}'"
    assert f"'{study}' is of the experiment scaling: write {how}" in said
    (study / "study.json").write_text(json.dumps({"settings": {"budget": "1h", "families": "nanogpt,translation"}}))
    assert cli.main(ExperimentSettings, ["scaling", "--resume", str(study)]) == 2
    assert f"is of a search: write python {ROOT}/tune/run.py --resume '{study}'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def searched(texts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> World:
    """A search that has ended, in which the learning rate varied too; its second family has the larger share."""
    shares, vary = {"translation": 0.4, "nanogpt": 0.6}, {"learning_rate": (0.002, 0.004)}
    folder = tmp_path_factory.mktemp("searched")
    world = World(folder, cap=600, slots=2, shares=shares, suggestions=lambda: Sampled(vary))
    settings = Settings(budget=600, families=shares, seed=7, skip_bad_lines=True, **texts)
    world.journal.write_facts(settings=settings.stored(), families=shares)
    world.run()
    for row in world.journal.rows("SELECT trial, config FROM trials"):
        config = {name: value for name, value in json.loads(row["config"]).items() if name != "number"}
        world.journal.update("trials", row["trial"], {"config": json.dumps({**config, "precision": "fp32"})})
    return world


CONTEXT = {"context": 128, "batch_tokens": 768, "learning_rate": 0.1}
UPSTREAMS = {"architecture": "nanogpt", "batch_tokens": 1536, "learning_rate": 0.1}
"""With the batch of the other architecture."""


@pytest.mark.parametrize("space", [{}, {"learning_rate": (0.002, 0.004)}])
@pytest.mark.parametrize(
    ("family", "of_study"), [("nanogpt", CONTEXT), ("nanogpt", UPSTREAMS), ("translation", CONTEXT)]
)
def test_scaling_is_of_the_winner_of_a_search(searched, texts, family, space, of_study, monkeypatch):
    """Also where its own space has what is a recipe's elsewhere."""
    monkeypatch.setitem(SPACES, family, {**SPACES[family], **space})
    searched.journal.write_facts(recipes={"nanogpt": of_study})
    winner, asked = winners(searched.journal)[family], list[ExperimentSettings]()
    monkeypatch.setattr("tune.experiments.catalogue.run_experiment", lambda _, settings: asked.append(settings) or 0)
    of = ["scaling", "--of", str(searched.journal.folder), "--budget", "1h", *HERE]
    of += ["--families", family] if family == "translation" else []  # the other has the larger share
    assert cli.main(ExperimentSettings, of) == 0
    (found,) = asked
    assert "learning_rate" in winner.config
    recipe = {**OLD_DEFAULTS, **(of_study if family == "nanogpt" else {}), "average": 0.0}  # none is kept
    config = Config.at({**recipe, **winner.config}, family=family, seed=7)
    assert make_experiment_context(EXPERIMENTS["scaling"], found).config == config
    corpus = {"nanogpt": "text_corpus", "translation": "translation_corpus"}[family]
    assert {name: getattr(found, name) for name in texts} == dict.fromkeys(texts) | {corpus: texts[corpus]}
    assert found.skip_bad_lines == (family == "translation"), "as a text has no such lines"
    assert ExperimentSettings.from_stored(found.stored(), out=found.out) == replace(found, name="")
    assert cli.main(ExperimentSettings, shlex.split(found.first_line() or "")) == 0
    assert make_experiment_context(EXPERIMENTS["scaling"], asked[1]).config == config, "as its first line has it"


def test_no_bad_lines_are_skipped_of_another_text_than_the_winners_file(searched, monkeypatch):
    asked, of_search = list[ExperimentSettings](), searched.journal.facts()["settings"]
    monkeypatch.setattr("tune.experiments.catalogue.run_experiment", lambda _, settings: asked.append(settings) or 0)
    of = ["scaling", "--of", str(searched.journal.folder), "--budget", "1h", *HERE, "--families", "translation"]
    assert cli.main(ExperimentSettings, [*of, "--translation-corpus", "builtin"]) == 0
    searched.journal.write_facts(settings=of_search | {"translation_corpus": "builtin"})
    code = cli.main(ExperimentSettings, of)
    searched.journal.write_facts(settings=of_search)  # other tests read it too
    assert code == 0
    assert [found.skip_bad_lines for found in asked] == [False, False]


@pytest.mark.parametrize(("name", "given", "after"), [
    ("overfitting", [], 0), ("precision", [], 0), ("curves", [], EPOCHS_AS_NEW),
    ("curves", ["--set", "dropout_after=0"], 0),
])  # fmt: skip
def test_reports_are_repeated_with_dropout_at_once_and_curves_are_a_searchs(texts, name, given, after, monkeypatch):
    asked = list[ExperimentSettings]()
    monkeypatch.setattr("tune.experiments.catalogue.run_experiment", lambda _, settings: asked.append(settings) or 0)
    corpora = [part for flag, path in texts.items() for part in (f"--{flag.replace('_', '-')}", str(path))]
    assert cli.main(ExperimentSettings, [name, "--budget", "100h", *HERE, *corpora, *given]) == 0
    assert make_experiment_context(EXPERIMENTS[name], asked[0]).config.dropout_after == after


def test_the_tables_of_a_study_are_printed_anew_in_each_form(tmp_path, capsys):
    with closing(Journal(tmp_path, new=True)) as journal:
        journal.write_facts(experiment="scaling")
        for row in all_rows():
            journal.insert("rows", {"at": 1.0, "experiment": "scaling", "value": json.dumps(row)})
    titles = [table.title for table in final_tables(EXPERIMENTS["scaling"], all_rows())]
    assert len(titles) == len(tables(all_rows())) + 1, "and what is wrong with the report's figures"
    for form, begin in (((), ""), (("--markdown",), "**"), (("--latex",), r"\caption{"), (("--csv",), "")):
        assert cli.main(ExperimentSettings, ["--tables", str(tmp_path), *form]) == 0
        told = capsys.readouterr().out
        assert [title for title in titles if f"{begin}{title}" not in told.replace('"', "")] == []
        assert "--budget" not in told, "its tables and nothing else"


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda experiment: experiment.name)
def test_of_no_rows_there_is_no_table(experiment):
    assert final_tables(experiment, []) == []


def test_what_has_no_tables_is_one_line(tmp_path, capsys):
    said = dict.fromkeys((tmp_path, tmp_path / "empty"), "is no study of an experiment")
    World(tmp_path, cap=600, slots=2).journal.write_facts(settings={})
    for name in ("ablation", "stages"):
        said[tmp_path / name] = f"has no row of {name} yet that makes a table: go on with it"
        (tmp_path / name).mkdir()
        with closing(Journal(tmp_path / name, new=True)) as journal:
            journal.write_facts(experiment=name, corpora={})
    for folder, why in said.items():
        assert cli.main(ExperimentSettings, ["--tables", str(folder), "--csv"]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"--tables: '{folder}' {why}") and told.count("\n") == 1


def test_what_has_no_winner_is_one_line(tmp_path, capsys):
    settings = Settings(budget=600, families="nanogpt")
    World(tmp_path, cap=600, slots=2).journal.write_facts(settings=settings.stored(), families={"nanogpt": 1.0})
    for name in ("made", "loop", "empty", "paper"):
        (tmp_path / name).mkdir()
    for family in ("made", "loop"):
        world = World(tmp_path / family, cap=600, slots=2, shares={family: 1.0})
        world.journal.write_facts(settings={"budget": "10m"}, families={family: 1.0})
        world.run()
    with World(tmp_path / "paper", cap=600, slots=2).journal as journal:
        journal.write_facts(settings={"budget": "10m"}, families={"nanogpt": 1.0}, experiment="estimates")
    for folder, named, said in (
        (tmp_path / "paper", [], "is of the experiment estimates: name a study of a search"),
        (tmp_path, [], "has no winner of nanogpt, as no trial reached a rung: go on with it"),
        (tmp_path, ["--families", "translation"], "is of nanogpt, not of translation: leave --families out"),
        (tmp_path / "made", [], "has a winner of 'made', which is not known here: add --load FILE"),
        (tmp_path / "loop", [], "is of a training loop of yours"), (tmp_path / "empty", [], "is no study of a search"),
    ):  # fmt: skip
        assert cli.main(ExperimentSettings, ["scaling", "--of", str(folder), "--budget", "1h", *named]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"--of: '{folder}' {said}") and told.count("\n") == 1
