"""The command behind compare.py: two studies side by side."""

from collections.abc import Iterator
from pathlib import Path

from analysis import tables as cli
from analysis import tables as formats
from analysis.plots.search import progress
from analysis.ranking import answers, ranking, where
from analysis.spending import spending
from analysis.study import Results, Study, open_studies
from tune.errors import UserError


def compare(arguments: list[str]) -> None:
    """Print what differs, and draw the best so far of each family in both. UserError for studies that do not serve."""
    parser = cli.parser("compare", "Show two studies side by side: settings, spending, winners, progress.", studies=2)
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="FOLDER", help="where the pictures go (default: here)"
    )
    flags = parser.parse_args(arguments)
    studies = open_studies(flags.studies)
    drawn = cli.table()
    for name in ("", *(study.name for study in studies)):
        drawn.add_column(name)
    for line in lines(*studies):
        drawn.add_row(*line)
    console = cli.console()
    console.print(drawn, "")
    families = [set(study.facts.get("families", {})) for study in studies]
    for family in sorted(families[0] & families[1]):
        try:
            picture = progress(Results(studies=studies), family)
        except UserError as reason:
            console.print(f"{family}: {reason}", soft_wrap=True)
            continue
        console.print(*picture.save(flags.out), f"\n{family}: {picture.text}", soft_wrap=True)


def lines(first: Study, second: Study) -> Iterator[tuple[str, ...]]:
    """Rows of three cells: settings where they differ, what was spent, the text and the winner of each family."""
    both = (first, second)
    settings = [study.facts.get("settings", {}) for study in both]
    for name in sorted({*settings[0], *settings[1]}):
        values = [str(each.get(name, "default")) for each in settings]
        if values[0] != values[1]:
            yield f"--{name.replace('_', '-')}", *values
    yield "device", first.device, second.device
    yield "spent", *(formats.duration(spending(study).spent) for study in both)
    results = [Results(studies=[study]) for study in both]
    tables = [ranking(each) for each in results]
    yield "trials", *(str(len(table)) for table in tables)
    for family in sorted({*tables[0]["family"], *tables[1]["family"]}):
        yield f"{family}: text", *(text(study, family) for study in both)
        pools = [table[table["family"] == family] for table in tables]
        found = [None if pool.empty else answers(each, pool) for each, pool in zip(results, pools, strict=True)]
        best = [None if each is None else each.winner for each in found]
        yield f"{family}: reached", *(formats.NOTHING if row is None else where(row) for row in best)
        yield f"{family}: winner", *(formats.NOTHING if row is None else row["config"] for row in best)
        for column, write in (
            ("perplexity", formats.number),
            ("test_perplexity", formats.number),
            ("bits_per_character", formats.number),
            ("parameters", formats.count),
            ("device_seconds", formats.duration),
        ):
            name = column.replace("_", " ")
            yield f"{family}: {name}", *(formats.NOTHING if row is None else write(row[column]) for row in best)


def text(study: Study, family: str) -> str:
    """The corpus of a family, so that two that differ are told apart."""
    corpus = study.corpus(family)
    words = f"vocabulary of {corpus.get('vocabulary', '?')}"
    return f"{corpus.get('name', '?')} {str(corpus.get('sha256', ''))[:8]}, {words}"
