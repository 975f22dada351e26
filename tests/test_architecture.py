"""What import-linter's contracts (pyproject.toml) cannot say: how an entry begins, names of files, forms of imports."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDERS = ("tune", "model", "kernels", "analysis")
# Entries by name; beside them, every file that runs as a script is one.
ENTRIES = (
    *("tune/run.py", "tune/experiment.py", "tune/replay.py", "model/translate.py", "model/generate.py"),
    *("kernels/run.py", "analysis/rank.py", "analysis/report.py", "analysis/spend.py", "analysis/plot.py"),
    *("analysis/export.py", "analysis/check_table.py"),
)
IMPORT_PATH = "sys.path[0] = str(Path(__file__).resolve().parents[1])"
CALL = re.compile(r"sys\.exit\(main\(\w+\)\)")
"""Of the one front, with the settings that it reads."""


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names, anywhere in the file: `from a.b import c` is a.b.c."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def import_faults(tree: ast.Module) -> Iterator[str]:
    for name in imported(tree):
        if name.startswith("."):
            yield f"imports {name}, a relative name"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "ray" and "tune" in [alias.name for alias in node.names]:
            yield "writes from ray import tune"


def is_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def entry_faults(path: str, tree: ast.Module) -> Iterator[str]:
    """An entry sets the import path before it imports anything of ours, calls the front, and defines nothing."""
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
    calls = [ast.unparse(each) for node in statements if isinstance(node, ast.If) for each in node.body]
    if len(calls) != 1 or not CALL.fullmatch(calls[0]) or "tune.cli.main" not in imported(tree):
        yield "does something else than to call the front"


def faults(root: Path) -> list[str]:
    """What is wrong with the files under `root`, as `path: what is wrong`."""
    found, with_torch = [], []
    files = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    for file in files:
        path, tree = file.relative_to(root).as_posix(), ast.parse(file.read_text(encoding="utf-8"))
        found += [f"{path}: {fault}" for fault in (*import_faults(tree), *entry_faults(path, tree))]
        if path.startswith("kernels/") and any(name.partition(".")[0] == "torch" for name in imported(tree)):
            with_torch.append(path)
    found += [f"{path}: imports torch, as {with_torch[0]} does already" for path in with_torch[1:]]
    found += [f"{path.relative_to(root)}: is a package" for path in (root / "tests").rglob("__init__.py")]
    names = Counter((file.relative_to(root).parts[0], file.name) for file in files if file.name != "__init__.py")
    found += [f"{folder}: {count} files have the name {name}" for (folder, name), count in names.items() if count > 1]
    return found


def test_no_rule_is_broken(repository):
    assert faults(repository) == []


def test_the_folders_are_really_read(repository):
    assert (repository / "tune" / "run.py").exists()
    assert "tune.cli.main" in imported(ast.parse((repository / "tune" / "run.py").read_text()))


GUARD = 'if __name__ == "__main__":\n    sys.exit(main(Settings))\n'
ENTRY = f'"""Doc."""\nimport sys\nfrom pathlib import Path\n{IMPORT_PATH}\nfrom tune.cli import main\n{GUARD}'

BROKEN = {
    "tune/a.py": ("from ray import tune", "writes from ray import tune"),
    "tune/c.py": ("from . import space", "a relative name"),
    "tune/d.py": (f"from tune.cli import main\n{GUARD}", "does not set the import path"),
    "tune/e.py": (ENTRY.replace("main(Settings)", "run(Settings)"), "does something else than to call the front"),
    "tune/run.py": (ENTRY + "def f():\n    pass", "defines something: def f():"),
    "tune/replay.py": (ENTRY + "x = 1", "defines something: x = 1"),
    "tune/experiment.py": (ENTRY.replace(IMPORT_PATH, ""), "does not set the import path"),
    "model/generate.py": (f"from tune.cli import main\n{IMPORT_PATH}\n{GUARD}", "does not set the import path"),
    "tests/model/__init__.py": ("", "is a package"),
}


@pytest.mark.parametrize("path", BROKEN)
def test_a_broken_rule_is_found(path, tmp_path):
    source, said = BROKEN[path]
    write(tmp_path / path, source)
    (found,) = faults(tmp_path)
    assert found.startswith(f"{path}: ") and said in found


def test_torch_in_a_second_file_of_kernels_is_found(tmp_path):
    for name in ("references.py", "sums.py"):
        write(tmp_path / "kernels" / name, "from torch import nn")
    assert faults(tmp_path) == ["kernels/sums.py: imports torch, as kernels/references.py does already"]


def test_two_files_of_one_name_are_found(tmp_path):
    for path in ("tune/search/tables.py", "tune/tables.py", "model/tables.py"):
        write(tmp_path / path, "")
    assert faults(tmp_path) == ["tune: 2 files have the name tables.py"]


def test_an_entry_that_keeps_the_rules_is_left_alone(tmp_path):
    write(tmp_path / "tune" / "run.py", ENTRY)
    assert faults(tmp_path) == []


def write(file: Path, source: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
