"""The command behind report.py: one page of a study, and its figures as PNG and CSV."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from analysis import files, page, report_parts, tables
from analysis.plots.budget import bills, burn_down, memory, prices, timeline
from analysis.plots.dimensions import effects, precision
from analysis.plots.search import curve, curves, front, outlook, parallel
from analysis.ranking import ranking
from analysis.spending import spending
from analysis.study import POOL, RUNS, Results, Study, newest, open_study
from analysis.style import Picture
from tune.errors import UserError

OF_A_FAMILY = (front, curve, curves, effects, parallel, precision, outlook)
OF_THE_BUDGET = (burn_down, bills, timeline, prices, memory)


def report(arguments: list[str]) -> None:
    """Write the page and say where. UserError for a study that does not serve or a folder that cannot be written."""
    parser = tables.parser(
        "report", "Write one self-contained page of a study, and each figure as PNG and CSV.", studies="?"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write (default: report/ in the study)")
    flags = parser.parse_args(arguments)
    study = open_study(flags.studies or newest(RUNS))
    folder = flags.out or files.folder_in(study.folder, "report")
    whole = page.page(f"Ration: {study.name}", parts(study, files.folder_in(folder, "figures")))
    written = files.write(folder / "report.html", whole.encode())
    print(written)


def parts(study: Study, figures: Path) -> Iterator[str]:
    """The page from top to bottom; each picture is also saved in `figures`."""

    def drawn(draw: Callable[[], Picture]) -> str:
        try:
            picture = draw()
        except UserError as reason:
            return page.text(f"Not shown. {reason}", kind="note")
        picture.save(figures)
        return page.figure(picture)

    results, spent = Results(studies=[study]), spending(study)
    table = ranking(results)
    families = list(table["family"].unique())
    yield page.heading(study.name, 1)
    yield report_parts.head(study, spent)
    yield page.contents(
        {**{family: family for family in families}, "budget": "budget", "ranking": "ranking", "repeat": "repeat"}
    )
    for _, pool in table.groupby(POOL, sort=False, dropna=False):
        yield report_parts.answer(results, pool)
    for family in families:
        yield page.heading(family, anchor=family)
        for draw in OF_A_FAMILY:
            yield drawn(partial(draw, results, family))
        yield from report_parts.samples(study, family)
    yield page.heading("Where the cap went", anchor="budget")
    yield page.text(f"{spent.summary[0].upper()}{spent.summary[1:]}. {spent.overhead_text}")
    yield report_parts.spending_table(spent)
    for draw_budget in OF_THE_BUDGET:
        yield drawn(partial(draw_budget, study))
    yield page.heading("Ranking", anchor="ranking")
    yield from report_parts.rankings(study, table)
    yield from report_parts.stability(study)
    yield page.heading("How to repeat it", anchor="repeat")
    yield from report_parts.repeat(study)
