"""A stand-in for the Hugging Face hub on this machine: the few routes that `datasets` asks for. For tests only."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

NOWHERE = "http://127.0.0.1:1"
BRANCHES = {"main": "main", "refs/convert/parquet": "export"}
CONFIGS = """---
configs:
- config_name: en-es
  data_files:
  - {split: train, path: en-es/train-*}
  - {split: validation, path: en-es/validation-*}
  - {split: test, path: en-es/test-*}
- config_name: en-fr
  data_files: [{split: test, path: en-es/test-*}]
---
"""

WIKITEXT = "wikitext-103-raw-v1"

Pair = tuple[str, str]


def pairs(first: int, last: int) -> list[Pair]:
    return [(f"We count {i}.", f"Contamos {i}.") for i in range(first, last)]


def translations(rows: list[Pair]) -> pa.Table:
    """As opus-100 has them: one column of {en, es}."""
    kind = pa.struct([("en", pa.string()), ("es", pa.string())])
    return pa.table({"translation": pa.array([{"en": en, "es": es} for en, es in rows], type=kind)})


def write(tables: Mapping[str, pa.Table | str], folder: Path) -> None:
    for name, content in tables.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content)
        else:
            pq.write_table(content, path)


SAID = "speak, all of train, validation and test! "  # what is judged has no character that is not learned from


def fill(folder: Path) -> None:
    """The datasets of the search, small, in the forms that they have on the hub; and one without text."""
    splits = {"train": pairs(0, 1000), "validation": [("we count 7", "¡Siete!"), *pairs(1000, 1050)]}
    splits["test"] = pairs(1050, 1100)
    files = {f"en-es/{part}-00000-of-00001.parquet": translations(rows) for part, rows in splits.items()}
    write({"README.md": CONFIGS, **files}, folder / "Helsinki-NLP/opus-100/main")
    write({"tiny_shakespeare.py": "raise SystemExit"}, folder / "karpathy/tiny_shakespeare/main")
    texts = {
        part: pa.table({"text": [f"{part}:\n{SAID}" * size]})
        for part, size in {"train": 2000, "validation": 100, "test": 100}.items()
    }
    write(
        {f"default/{part}/0000.parquet": text for part, text in texts.items()},
        folder / "karpathy/tiny_shakespeare/export",
    )
    parts = "".join(f"  - {{split: {part}, path: {WIKITEXT}/{part}-*}}\n" for part in splits)
    texts = {
        part: pa.table({"text": ["", f" = {part.title()} = \n", "", " Senj\u014d no Valkyria 3 : <unk> \n"] * size})
        for part, size in {"train": 500, "validation": 50, "test": 50}.items()
    }
    write(
        {"README.md": f"---\nconfigs:\n- config_name: {WIKITEXT}\n  data_files:\n{parts}---\n"}
        | {f"{WIKITEXT}/{part}-00000-of-00001.parquet": text for part, text in texts.items()},
        folder / "Salesforce/wikitext/main",
    )
    write({"train.parquet": pa.table({"score": [1, 2, 3]})}, folder / "some/scores/main")
    write({"train.parquet": pa.table({"text": [""] * 9_000})}, folder / "some/silence/main")


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve FOLDER/NAMESPACE/NAME/{main,export}/FILES. Yields the address, and the list of what has been asked for."""
    asked: list[str] = []

    class Answers(_Answers):
        root, log = folder, asked

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def ask_python(code: str, *arguments: str, endpoint: str, home: Path, cwd: Path | None = None) -> Any:
    """What `code` prints last, as JSON, in a Python of its own: its hub is at `endpoint`, its caches are in `home`."""
    here = Path(__file__).resolve().parents[2]
    own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(here)}
    own |= {"XDG_CACHE_HOME": str(home / "cache")}
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=os.environ | own | {"NO_PROXY": "127.0.0.1"}, cwd=cwd or here,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path
    log: list[str]

    def do_GET(self) -> None:
        self.log.append(f"{self.command} {self.path}")
        _, _, rest = unquote(urlsplit(self.path).path).partition("/datasets/")
        namespace, name, *words = rest.split("/") if "/" in rest else ("no", "dataset")
        repository = self.root / namespace / name
        if not repository.is_dir():
            return self._missing("RepoNotFound")
        what = words.pop(0) if words else "revision"
        branch = next((b for b in BRANCHES if "/".join(words).startswith(b)), None) if words else "main"
        branch = branch or next((b for b in BRANCHES if _commit(repository, b) == words[0]), None)
        if branch is None or not (files := repository / BRANCHES[branch]).is_dir():
            return self._missing("RevisionNotFound")
        place = "/".join(words).removeprefix(branch).removeprefix(_commit(repository, branch)).lstrip("/")
        commit = {"X-Repo-Commit": _commit(repository, branch)}
        if what == "resolve":
            return self._file(files / place, commit)
        if what == "tree":
            return self._json(_tree(files, files / place, everything="recursive=true" in self.path.lower()))
        listed = [{"rfilename": path.relative_to(files).as_posix()} for path in files.rglob("*") if path.is_file()]
        return self._json({"id": f"{namespace}/{name}", "sha": commit["X-Repo-Commit"], "siblings": listed})

    do_HEAD = do_GET

    def _file(self, path: Path, headers: dict[str, str]) -> None:
        if not path.is_file():
            return self._missing("EntryNotFound", headers)
        body = path.read_bytes()
        return self._send(200, body, headers | {"ETag": f'"{hashlib.sha1(body).hexdigest()}"'})

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _missing(self, code: str, headers: Mapping[str, str] | None = None) -> None:
        self._send(404, b"", {"X-Error-Code": code, **(headers or {})})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on the screen."""


def _commit(repository: Path, branch: str) -> str:
    return hashlib.sha1(f"{repository.name}@{branch}".encode()).hexdigest()


def _tree(root: Path, folder: Path, *, everything: bool) -> list[dict[str, Any]]:
    paths = sorted(folder.rglob("*") if everything else folder.glob("*"))
    entries = [{"path": path.relative_to(root).as_posix(), "oid": _commit(path, "main")} for path in paths]
    kinds = [{"type": "file", "size": p.stat().st_size} if p.is_file() else {"type": "directory"} for p in paths]
    return [entry | kind for entry, kind in zip(entries, kinds, strict=True)]
