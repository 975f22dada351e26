"""The arrows between the folders, read from syntax trees: what may import what, and what an entry script may hold."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ERRORS = "tune.errors"  # anyone may import it
LOAD = "tune.load"  # a user's file is executed in one way
FOLDERS = ("tune", "model", "kernels", "analysis")
# What the replay shares with the search: the contest, and how flags and amounts are read. Of Ray its schedulers only.
VIRTUAL_ALLOWED = (
    *("tune.virtual", ERRORS, "tune.rungs", "tune.ladder", "tune.standings", "tune.cli", "tune.duration", "tune.sizes"),
    *("ray.tune.schedulers", "ray.tune.experiment"),
)
# Plain files: how a budget is typed, where Ray keeps its files, and the form of the peaks that searches use.
KERNELS_ALLOWED = (ERRORS, "tune.duration", "tune.private", "model.kept_peaks")
# Each folder's forbidden imports, and what is allowed all the same.
FORBIDDEN = {
    "tune": (("analysis", "tune.virtual"), ()),
    "tune/replay.py": (("analysis",), ()),
    "tune/virtual": (("tune", "analysis", "model", "kernels", "ray"), VIRTUAL_ALLOWED),
    "model": (("tune", "analysis", "kernels", "ray", "model.experiments"), (ERRORS, LOAD)),
    "model/experiments": (("tune", "analysis", "kernels", "ray"), (ERRORS,)),
    "analysis": (("tune", "model", "kernels", "ray"), (ERRORS, "tune.journal", "tune.queries")),
    "kernels": (("tune", "model", "analysis", "ray"), KERNELS_ALLOWED),
    "kernels/torch_yardsticks.py": (
        ("tune", "model", "analysis", "ray"), (*KERNELS_ALLOWED, "model.peak", "model.precision"),
    ),
    "kernels/run.py": (
        ("tune", "model", "analysis"),
        (*KERNELS_ALLOWED, "tune.journal", "tune.ledger", "tune.board.event_file"),
    ),
}
# These load nothing heavy into --help, into analysis or into kernels: the standard library and each other.
PLAIN = (
    *("tune.duration", "tune.sizes", "tune.disk", "tune.flag", "tune.forms", "tune.settings", "tune.dimensions"),
    *(ERRORS, LOAD, "tune.space", "tune.signals", "tune.private"),
    *("tune.rungs", "tune.ladder", "tune.standings", "tune.journal", "tune.queries", "tune.ledger", "tune.stopwatch"),
    "model.kept_peaks",
)
# Entries by name; beside them, every file that runs as a script is one.
ENTRIES = (
    *("tune/run.py", "tune/experiment.py", "tune/replay.py", "model/translate.py", "model/generate.py"),
    *("kernels/run.py", "analysis/rank.py", "analysis/spend.py"),
)
IMPORT_PATH = "sys.path[0] = str(Path(__file__).resolve().parents[1])"


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names, anywhere in the file: `from a.b import c` is a.b.c."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def inside(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def import_faults(path: str, tree: ast.Module) -> Iterator[str]:
    forbidden, allowed = next(
        FORBIDDEN[key] for key in (path, path.rpartition("/")[0], path.partition("/")[0]) if key in FORBIDDEN
    )
    for name in imported(tree):
        if inside(name, forbidden) and not inside(name, allowed):
            yield f"imports {name}"
        if name.startswith("."):
            yield f"imports {name}, a relative name"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "ray" and "tune" in [alias.name for alias in node.names]:
            yield "writes from ray import tune"


def plain_faults(path: str, tree: ast.Module) -> Iterator[str]:
    """Plain files as a whole; the command line until its settings are right, so outside of its functions."""
    if path in {f"{name.replace('.', '/')}.py" for name in PLAIN}:
        names = list(imported(tree))
    elif path == "tune/cli.py":
        names = [name for node in tree.body if not isinstance(node, ast.FunctionDef) for name in imported(node)]
    else:
        return
    for name in names:
        if name.partition(".")[0] not in sys.stdlib_module_names and not inside(name, PLAIN):
            yield f"imports {name}, which is not in the standard library"


def is_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def entry_faults(path: str, tree: ast.Module) -> Iterator[str]:
    """An entry sets the import path before it imports anything of ours, and defines nothing."""
    if path not in ENTRIES and not any(map(is_guard, tree.body)):
        return
    statements = tree.body[1:] if ast.get_docstring(tree) else tree.body
    paths = [node for node in statements if ast.unparse(node) == IMPORT_PATH]
    before = statements[: statements.index(paths[0])] if paths else []
    if not paths or any(name.partition(".")[0] in FOLDERS for node in before for name in imported(node)):
        yield "does not set the import path before it imports ours"
    for node in statements:
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr) and not is_guard(node) and node not in paths:
            yield f"defines something: {ast.unparse(node).splitlines()[0]}"


def faults(root: Path) -> list[str]:
    """Everything under `root` that breaks an arrow, as `path: what is wrong`."""
    found = []
    with_torch = []
    for file in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        path, tree = file.relative_to(root).as_posix(), ast.parse(file.read_text(encoding="utf-8"))
        checks = (*import_faults(path, tree), *plain_faults(path, tree), *entry_faults(path, tree))
        found += [f"{path}: {fault}" for fault in checks]
        if path.startswith("kernels/") and any(inside(name, ("torch",)) for name in imported(tree)):
            with_torch.append(path)
    found += [f"{path}: imports torch, as {with_torch[0]} does already" for path in with_torch[1:]]
    found += [f"{path.relative_to(root)}: is a package" for path in (root / "tests").rglob("__init__.py")]
    return found


def test_no_arrow_is_broken(repository):
    assert faults(repository) == []


def test_the_folders_are_really_read(repository):
    assert (repository / "tune" / "run.py").exists()
    assert "tune.cli.main" in imported(ast.parse((repository / "tune" / "run.py").read_text()))


ENTRY = f'"""Doc."""\nimport sys\nfrom pathlib import Path\n{IMPORT_PATH}\nfrom tune.cli import main\n'

BROKEN = {
    "model/a.py": ("import ray.train", "imports ray.train"),
    "model/b.py": ("def f():\n    from tune.space import Space", "imports tune.space.Space"),
    "model/c.py": ("from analysis import rank", "imports analysis.rank"),
    "model/d.py": ("from model.experiments.lars import take_lars", "imports model.experiments.lars.take_lars"),
    "model/experiments/a.py": ("import ray", "imports ray"),
    "analysis/a.py": ("import ray", "imports ray"),
    "analysis/b.py": ("from tune import ledger", "imports tune.ledger"),
    "analysis/c.py": ("import model.gpt", "imports model.gpt"),
    "kernels/a.py": ("import ray", "imports ray"),
    "kernels/b.py": ("from model.peak import peak_flops", "imports model.peak.peak_flops"),
    "model/kept_peaks.py": ("import torch", "imports torch, which is not in the standard library"),
    "kernels/run.py": (ENTRY.replace("tune.cli", "tune.study"), "imports tune.study.main"),
    "tune/a.py": ("from ray import tune", "writes from ray import tune"),
    "tune/b.py": ("import analysis.ranking", "imports analysis.ranking"),
    "tune/c.py": ("from . import space", "a relative name"),
    "tune/study.py": ("from tune.virtual.world import World", "imports tune.virtual.world.World"),
    "tune/virtual/a.py": ("from tune.planner import Planner", "imports tune.planner.Planner"),
    "tune/virtual/b.py": ("import ray", "imports ray"),
    "tune/d.py": ('if __name__ == "__main__":\n    pass', "does not set the import path"),
    "tune/settings.py": ("import numpy as np", "imports numpy, which is not in the standard library"),
    "tune/space.py": ("from tune.study import search", "imports tune.study.search, which is not"),
    "tune/cli.py": ("import torch\ndef main():\n    import ray", "imports torch, which is not"),
    "tune/run.py": (ENTRY + "def f():\n    pass", "defines something: def f():"),
    "tune/replay.py": (ENTRY + "x = 1", "defines something: x = 1"),
    "tune/experiment.py": (ENTRY.replace(IMPORT_PATH, ""), "does not set the import path"),
    "model/generate.py": (f"import model.gpt\n{IMPORT_PATH}", "does not set the import path"),
    "tests/model/__init__.py": ("", "is a package"),
}


@pytest.mark.parametrize("path", BROKEN)
def test_a_broken_arrow_is_found(path, tmp_path):
    source, said = BROKEN[path]
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(source)
    (found,) = faults(tmp_path)
    assert found.startswith(f"{path}: ") and said in found


def test_torch_in_a_second_file_of_kernels_is_found(tmp_path):
    (tmp_path / "kernels").mkdir()
    for name in ("yardsticks.py", "sums.py"):
        (tmp_path / "kernels" / name).write_text("from torch import nn")
    assert faults(tmp_path) == ["kernels/yardsticks.py: imports torch, as kernels/sums.py does already"]


ALLOWED = {
    "tune/a.py": "import ray.tune\nfrom model.gpt import GPT",
    "tune/run.py": ENTRY + 'if __name__ == "__main__":\n    sys.exit(main())',
    "tune/virtual/a.py": "from tune.rungs import Contest\nfrom ray.tune.schedulers import FIFOScheduler",
    "tune/settings.py": "import math\nfrom tune.space import Space",
    "tune/cli.py": "from tune.settings import Settings\ndef main():\n    from tune.study import search",
    "analysis/a.py": "import pandas\nfrom tune.journal import connect\nfrom tune import journal\nimport analysis.b",
    "kernels/a.py": "from model.kept_peaks import Peaks\nfrom tune.duration import parse_duration",
    "kernels/torch_yardsticks.py": "import torch\nfrom model.peak import peak_flops",
    "kernels/run.py": ENTRY.replace("tune.cli", "tune.ledger") + "import ray",
}


@pytest.mark.parametrize("path", ALLOWED)
def test_what_is_allowed_is_left_alone(path, tmp_path):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(ALLOWED[path])
    assert faults(tmp_path) == []
