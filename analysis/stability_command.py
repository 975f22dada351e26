"""The command behind stability.py: Kendall's tau between the rankings at half of a study and at its end."""

import json

import pandas as pd

from analysis import early
from analysis import tables as cli
from analysis import tables as formats
from analysis.study import RUNS, newest, open_study
from tune.errors import UserError
from tune.store.queries import DECAY

ABOUT = (
    "The same trials at one rung then and at a further one that they reached since, as far as three of them or more "
    "got. Tau of size: how far the order at the end is that by size alone, the largest first."
)
WORDS = ("family", "measure", "order then", "order at the end")


def stability(arguments: list[str]) -> None:
    """Print the table. UserError for a study that does not serve."""
    parser = cli.parser(
        "stability", "Compare the ranking at half of a study's spending with that at its end.", studies="?"
    )
    parser.add_argument("--json", action="store_true", help="the rows as json instead of the table")
    parser.add_argument(
        "--at", type=float, default=0.5, metavar="SHARE", help="of the spending, to compare with the end (default: 0.5)"
    )
    flags = parser.parse_args(arguments)
    if not 0 < flags.at < 1:
        raise UserError(f"--at: {flags.at:g} is no share: it lies between 0 and 1; write 0.5 for half")
    study = open_study(flags.studies or newest(RUNS))
    found = early.stability(study, flags.at)
    if flags.json:
        print(json.dumps(json.loads(found.to_json(orient="records", double_precision=15)), indent=1))
        return
    console, title = cli.console(), f"{study.name}: after {flags.at:.0%} of its spending, against its end"
    cli.draw(console, title, columns(found), words=WORDS, more="a wider terminal or --json has them")
    console.print(ABOUT, soft_wrap=True, style="dim")


def columns(found: pd.DataFrame) -> pd.DataFrame:
    """The rows as people read them."""
    return pd.DataFrame(
        {
            "family": found["family"],
            "measure": found["measure"].str.replace("_", " "),
            "order then": found["then"].replace(DECAY, "the decay").fillna(formats.NOTHING),
            "order at the end": found["end"].replace(DECAY, "the decay").fillna(formats.NOTHING),
            "trials": found["trials"].astype(str),
            "Kendall's tau": found["tau"].map(lambda value: formats.NOTHING if pd.isna(value) else f"{value:+.2f}"),
            "tau of size": found["tau_of_size"].map(
                lambda value: formats.NOTHING if pd.isna(value) else f"{value:+.2f}"
            ),
            "best then": [
                formats.NOTHING if pd.isna(place) else f"{leader}, at the end {place:.0f}"
                for leader, place in zip(found["leader"], found["leader_at_end"], strict=True)
            ],
        }
    )
