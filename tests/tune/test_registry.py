"""A user's own family in a search: registered by name, planned like the others, and its code goes along."""

import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import ray.cloudpickle

from model.config import Config
from model.families import FAMILIES, Family
from tests.forked import FORKING
from tests.model.test_families import Bigrams
from tune.devices import Devices
from tune.dry_run import make_plan
from tune.registry import register, travelling
from tune.search_context import survey
from tune.search_space import SPACES, Space
from tune.settings import Settings

pytestmark = pytest.mark.usefixtures("forgotten")
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


def test_its_own_values_are_not_those_that_vary_frees_for_others(text: Path) -> None:
    register("made")(made(space={"width": (4, 8), "learning_rate": (1e-3, 1e-2)}))
    settings = Settings(budget="1h", families="made,nanogpt", vary="learning_rate", text_corpus=text)
    spaces = survey(settings, CORE).spaces
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
    FORKING.Process(target=elsewhere, args=(ray.cloudpickle.dumps(travelling()), end), daemon=True).start()
    end.close()
    assert line.recv() == ({"width": (4, 8)}, False)


def test_what_cannot_serve_is_refused_in_one_line() -> None:
    for name, changes, said in (
        ("nanogpt", {}, "'nanogpt' is taken"),
        ("a/b", {}, "'a/b' is taken or no name"),
        ("made", {"corpus": "images"}, "'made': corpus is 'images': choose text or pairs"),
        ("made", {"space": {"steps": (1, 2)}}, "'made': 'steps' is a column of the journal"),
        ("made", {"space": {"a b": (1, 2)}}, "'made': 'a b' is a column of the journal, or no name"),
        ("made", {"space": {"width": ()}}, r"'made': 'width' has the values \(\)"),
        ("made", {"space": {"width": (4, "wide")}}, "'made': 'width' has the values .* numbers or words"),
        ("made", {"space": {"gate": ("a/b",)}}, "'made': 'gate' has the values .* numbers or words"),
        ("made", {"space": {"width": (4, 4)}}, "'made': 'width' has the values .* each once"),
        ("made", {"space": {"precision": ("fp8",)}}, "'made': 'precision' has the values .* choose of fp32, tf32"),
    ):
        with pytest.raises(ValueError, match=f"^families: {said}[^\n]*$"):
            register(name)(made(**changes))
        assert set(SPACES) == {"translation", "nanogpt"} == set(FAMILIES)
