"""The example that learns from images: what it reads, cuts and learns, and that experiments and searches take it."""

import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import datasets
import numpy as np
import pytest
import ray.cloudpickle
import torch
from PIL import Image

from model.config import RECIPES, Config
from model.cost.probe import FITS, Probe, try_batch
from model.data.dataset import OwnData
from model.families import FAMILIES, Family
from model.training.evaluation import evaluate
from model.training.learner import Learner
from tests.forked import FORKING
from tests.model.conftest import assert_parts_add_up
from tests.readme import REPOSITORY
from tests.tune.search.world import World
from tune import corpora, load
from tune.dry_run import make_plan
from tune.experiments.base import make_experiment_context
from tune.experiments.catalogue import EXPERIMENTS
from tune.experiments.experiment_settings import ExperimentSettings
from tune.registry import pickle_families_by_value
from tune.search_space import SPACES
from tune.settings import Settings
from tune.winners import winners

FILE, CPU = REPOSITORY / "examples" / "classifier.py", torch.device("cpu")


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleType]:
    """With fewer images."""
    load.load_families(FILE)
    module = sys.modules["loaded_classifier"]
    module.MADE_UP = {"train": 512, "valid": 64, "test": 64}  # type: ignore[attr-defined]
    yield module
    load._LOADED.pop(FILE)
    del SPACES["classifier"], FAMILIES["classifier"], RECIPES["classifier"]


@pytest.fixture(scope="module")
def family(module: ModuleType) -> Family:
    return FAMILIES["classifier"]


@pytest.fixture(scope="module")
def data(family: Family) -> OwnData:
    return family.read(None)


@pytest.fixture
def config(family: Family) -> Config:
    return Config.at({"width": 8, "blocks": 1, "batch_tokens": 32, "average": 0.0}, family="classifier")


def test_what_it_makes_up_is_learned(config: Config, data: OwnData) -> None:
    learner = Learner(config, data, CPU)
    before = evaluate(learner.model, config, data, "valid")
    for _ in range(80):
        learner.step(1.0)
    after = evaluate(learner.model, config, data, "valid")
    assert after.loss < 0.9 * before.loss and after.accuracy > 2 / data.vocabulary
    assert after.tokens == len(data.valid) and learner.tokens == 80 * 32
    assert after.bits_per_character is None and after.nats_per_word is None, "an image spells nothing"


def test_parts_of_a_batch_add_up_to_its_gradients(config: Config, data: OwnData) -> None:
    assert_parts_add_up(config, data)


def test_an_epoch_has_each_image_once_and_a_state_goes_on_with_the_same_cuts(
    config: Config, data: OwnData, family: Family
) -> None:
    batches, again = (family.training_batches(config, data, CPU) for _ in range(2))
    labels = torch.cat([next(batches).targets for _ in range(len(batches))])
    assert sorted(labels.tolist()) == sorted(data.train["label"].tolist())
    next(batches)
    again.load_state(batches.state())
    one, other = next(batches), next(again)
    assert torch.equal(one.inputs[0], other.inputs[0]) and torch.equal(one.targets, other.targets)
    with pytest.raises(ValueError, match=r"^batch_tokens: one batch is more than there is to train on"):
        family.training_batches(
            Config.at({"width": 8, "blocks": 1, "batch_tokens": 513}, family="classifier"), data, CPU
        )


def test_a_cut_is_moved_within_its_rim_and_mirrored(module: ModuleType) -> None:
    pixels = torch.arange(3 * 32 * 32).remainder(251).add(1).to(torch.uint8).view(1, 3, 32, 32)
    centre, places = 2 * (4 * module.PLACES + 4), 2 * module.PLACES**2
    assert torch.equal(module.cut(pixels, torch.tensor([centre])), pixels)
    assert torch.equal(module.cut(pixels, torch.tensor([centre + 1])), pixels.flip(3))
    corner = module.cut(pixels, torch.tensor([places - 2]))
    assert torch.equal(corner[..., :28, :28], pixels[..., 4:, 4:]) and not corner[..., 28:, :].any()


def test_a_file_is_decoded_to_one_of_the_cuts_of_its_image(
    config: Config, data: OwnData, family: Family, module
) -> None:
    items = family.items(config, data)
    for number in (0, 5):
        item, image = items[number], torch.from_numpy(data.train["pixels"][number][None].copy())
        cuts = module.cut(image.expand(2 * module.PLACES**2, -1, -1, -1), torch.arange(2 * module.PLACES**2))
        assert (cuts == item.inputs[0]).flatten(1).all(1).any() and item.targets == data.train["label"][number]


def test_a_dataset_of_the_hub_is_read_and_the_split_that_it_lacks_is_cut_from_its_end(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    shades = np.random.default_rng(0).integers(256, size=(40, 32, 32, 3), dtype=np.uint8)
    features = datasets.Features(img=datasets.Image(), label=datasets.ClassLabel(num_classes=4))
    rows = {"img": [Image.fromarray(each) for each in shades], "label": [number % 4 for number in range(40)]}
    split = datasets.Dataset.from_dict(rows, features=features)
    answer = {"a/images": SimpleNamespace(sha="1", siblings=())}
    monkeypatch.setattr(corpora, "fetch_dataset_infos", lambda names, seconds: answer)
    monkeypatch.setattr(corpora, "open_splits", lambda *_: {"train": split, "test": split.select(range(4))})
    settings = Settings(budget="3m", families="classifier", load=FILE, own_corpus="hub:a/images")
    read = corpora.load_corpora(settings).data["images"]
    assert (read.name, read.builtin) == ("hub:a/images", False)
    assert (len(read.train), len(read.valid), len(read.test), read.vocabulary) == (38, 2, 4, 4)
    there = np.concatenate([read.train, read.valid])
    assert (there["pixels"] == shades.transpose(0, 3, 1, 2)).all() and (there["label"] == np.arange(40) % 4).all()
    monkeypatch.setattr(corpora, "open_splits", lambda *_: {"train": split.remove_columns("img")})
    with pytest.raises(ValueError, match=r"^--own-corpus: 'hub:a/images': classifier raised KeyError: .*correct it$"):
        corpora.load_corpora(settings)


def test_a_binary_file_of_cifar_is_read_label_first(family: Family, tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).integers(0, 10, size=(60, 1 + 3 * 32 * 32), dtype=np.uint8)
    (tmp_path / "data_batch_1.bin").write_bytes(drawn.tobytes())
    data = family.read(tmp_path / "data_batch_1.bin")
    whole = np.concatenate([data.train, data.valid, data.test])
    assert np.array_equal(np.sort(whole["label"]), np.sort(drawn[:, 0])) and min(len(data.valid), len(data.test)) > 0
    assert np.array_equal(data.train["pixels"].reshape(-1, 3 * 32 * 32), drawn[: len(data.train), 1:])


def test_a_batch_is_tried_in_a_process_that_never_saw_its_file(
    config: Config, data: OwnData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: FORKING)
    order = Probe(
        config=config,
        device=CPU,
        limit=None,
        share=0.0,
        seconds=600,
        families=ray.cloudpickle.dumps(pickle_families_by_value()),
    )
    found = try_batch(order, data)
    assert found["ended"] == FITS and found["epoch_steps"] == len(data.train) // 32


def test_an_experiment_on_it_has_the_middle_of_its_space_and_another_is_refused(module: ModuleType) -> None:
    asked = {"budget": "2h", "families": "classifier", "load": FILE, "fix": "blocks=3", "devices": 1}
    found = make_experiment_context(EXPERIMENTS["batch_size"], ExperimentSettings(**asked))
    assert found.config.own == {"width": 16, "blocks": 3} and isinstance(found.data, OwnData)
    assert found.data.builtin and "classifier: no other corpus was named" in " ".join(found.notes)
    with pytest.raises(ValueError, match=r"^--families: 'classifier' is not what stages is about"):
        make_experiment_context(EXPERIMENTS["stages"], ExperimentSettings(**asked))


def test_scaling_is_of_the_winner_of_a_search_of_it_whose_file_alone_is_named(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for known in (FAMILIES, RECIPES, SPACES):
        monkeypatch.delitem(known, "classifier")
    monkeypatch.delitem(load._LOADED, FILE)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    world = World(tmp_path, cap=600, slots=2, shares={"classifier": 1.0})
    world.journal.write_facts(settings={"budget": "10m", "seed": 7}, families={"classifier": 1.0})
    world.run()
    world.journal.update("trials", winners(world.journal)["classifier"].trial, {"config": '{"width": 32, "blocks": 1}'})
    of = {"name": "scaling", "of": str(tmp_path), "load": str(FILE), "budget": "2h", "devices": "1"}
    found = make_experiment_context(EXPERIMENTS["scaling"], ExperimentSettings.from_flags(of))
    assert (found.config.family, found.config.seed) == ("classifier", 7)
    assert found.config.own == {"width": 32, "blocks": 1}


def test_a_search_of_it_is_planned_and_its_images_are_kept_as_they_were_read(module: ModuleType, data: OwnData) -> None:
    settings = Settings(budget="3m", families="classifier", load=FILE, devices=1, fix="width=8,blocks=1")
    assert make_plan(settings).families["classifier"].started
    kept = corpora.load_corpora(settings).data["images"]
    assert kept.sha256 == data.digest() == kept.digest() and kept.folder is not None
    with pytest.raises(ValueError, match=r"^--own-corpus: '.*no.png' cannot be read"):
        Settings.from_flags({"budget": "3m", "load": str(FILE), "families": "classifier", "own_corpus": "/no/no.png"})
