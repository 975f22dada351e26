"""Makes RESULTS.md and results/README.md from results/*.json: `make results`. It is beside those files, as nothing else
reads them.

Standard library only: it runs before anything is installed. A file is {"title", "about", "rows"}; a row has FIELDS,
each a text, or null where it is not known; each claim has one figure, the newest. What `make gpu` writes beside them,
gpu-PART.json, has whole grids and is not shown: gpu.json has what is.
"""

import json
import string
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PAGES = {
    FOLDER.parent / "RESULTS.md": ("search", "cap", "gpu", "replay", "models"),
    FOLDER / "README.md": ("devices", "experiments", "kernels"),
}
"""The files that each page shows."""
FIELDS = ("claim", "against", "asked", "measured", "spread", "n", "commit", "machine", "date", "command")
SHOWN = ("claim", "measured", "asked", "against", "spread", "n")
"""Columns of the page; when and where, and the command, come after them."""
INTRODUCTION = """# Results

The search, the cap, a GPU, the replay and the models are in `RESULTS.md`; several devices for one trial, the published
reports and the kernels in `results/README.md`.

Made by `make results` from `results/*.json`: change those. How each figure came, and what failed, is in `docs/log.md`.
Bold falls short of what was asked: {short} of {rows} rows. A letter is a machine, named at the end: compare figures of
one machine only. A day is one of the log's. An empty cell was not told. `$DATA` is a folder with `tatoeba/spa.txt`
(118,964 English-Spanish pairs of tatoeba.org, as packed by www.manythings.org/anki, CC BY 2.0) and
`shakespeare/input.txt` (tiny shakespeare, of github.com/karpathy/char-rnn)."""


def files(names: tuple[str, ...]) -> dict[str, dict]:
    """Return the files' contents by name."""
    return {name: json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in names}


def line(cells: tuple[str | None, ...]) -> str:
    return f"| {' | '.join(cell or '' for cell in cells)} |"


def table(rows: list[dict], letters: dict[str, str]) -> list[str]:
    """Return the lines of a table, one a row; a command that is the one above is not repeated."""
    head = (*SHOWN, "when, where", "command")
    lines, above = [line(head), "|---" * len(head) + "|"], None
    for row in rows:
        place = ", ".join(filter(None, (row["commit"], row["date"], letters.get(row["machine"]))))
        command = "as above" if row["command"] == above else f"`{row['command']}`"
        lines.append(line((*(row[field] for field in SHOWN), place, command)))
        above = row["command"]
    return lines


def page(of: dict[str, dict]) -> str:
    """Return the text of a page for these files."""
    rows = [row for file in of.values() for row in file["rows"]]
    machines = dict.fromkeys(row["machine"] for row in rows if row["machine"])
    letters = dict(zip(machines, string.ascii_uppercase, strict=False))
    lines = [INTRODUCTION.format(short=sum("**" in row["measured"] for row in rows), rows=len(rows))]
    for file in of.values():
        about = [file["about"], ""] if file["about"] else []
        lines += ["", f"## {file['title']}", "", *about, *table(file["rows"], letters)]
    lines += ["", "## Machines", "", *(f"- {letter}: {machine}" for machine, letter in letters.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for path, names in PAGES.items():
        path.write_text(page(files(names)), encoding="utf-8")
