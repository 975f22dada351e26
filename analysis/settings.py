"""Settings of the commands of analysis; imports the standard library only."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tune.arithmetic import Expression, parse_expression
from tune.errors import UserError
from tune.flags import Command, Flags, flag_field, invalid
from tune.table_text import TableFlags

ORDERS = {
    "perplexity-per-parameter": ("perplexity_per_million", True),
    "perplexity": ("perplexity", True),
    "parameters": ("parameters", True),
    "efficiency": ("efficiency", False),
    "device-seconds": ("device_seconds", True),
    "memory": ("memory_bytes", True),
}
"""Orders of a ranking: the column that each sorts by, and whether low is good."""
TOP = 20
PICTURE_KINDS = {
    "front": "of each family size against perplexity: the front, and the fitted curve",
    "curves": "of each family, or a loop of yours, the learning curves by rung, with stops marked",
    "effects": "of each family the effect of each dimension with intervals, its importance, all configurations at once",
    "compare": "two studies side by side: settings, spending, winners, progress",
    "experiment": "what an experiment found",
    "roofline": "what kernels reach under the roofs of the machine",
}
"""What can be drawn."""
STUDY = {"metavar": "runs/STUDY", "parse": Path}
OUT = {"metavar": "FOLDER", "parse": Path}
FAMILY = {"metavar": "NAME"}


@dataclass(frozen=True, kw_only=True)
class RankSettings(TableFlags):
    """Settings of analysis/rank.py: which rows, in which order and format."""

    command: ClassVar[Command] = Command(
        script="analysis/rank.py", entry_point="analysis.ranking:rank",
        description="Rank the configurations of a study by perplexity per parameter.",
    )  # fmt: skip
    studies: tuple[Path, ...] = flag_field(
        "folder of a study (default: the newest in runs/)", default=(), nargs="*", **STUDY
    )
    by: str = flag_field("the order inside a section", default="perplexity-per-parameter", choices=tuple(ORDERS))
    family: str | None = flag_field("this family only", default=None, **FAMILY)
    front: bool = flag_field(
        "only the front: configurations than which no other is both smaller and better", default=False
    )
    where: str | None = flag_field(
        "only these, as pandas' query has it: \"layers<=4 and precision=='bf16'\"", default=None, metavar="CONDITION"
    )
    top: int = flag_field("rows of a section in the table; 0 for all", default=TOP, metavar="N", parse=int)
    stability: float | None = flag_field(
        "instead: how well the order after this share of the spending, such as 0.5, predicts that at the end",
        default=None, metavar="SHARE", parse=float,
    )  # fmt: skip
    json: bool = flag_field("the rows as json instead of the table", default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top < 0:
            raise invalid("top", f"{self.top}: at least 0; write 0 for all rows")
        table_format = "json" if self.json else self.format
        if table_format and self.top not in (0, TOP):
            raise invalid("top", f"'{self.top}' beside --{table_format}, which has all rows: leave it out")
        if self.stability is not None and not 0 < self.stability < 1:
            rule = "is no share: it lies between 0 and 1; write 0.5 for half"
            raise invalid("stability", f"{self.stability:g} {rule}")
        if self.stability is not None and len(self.studies) > 1:
            raise invalid("stability", f"{len(self.studies)} studies: it applies to one: name one study")
        for name in ("by", "front", "where", "top") if self.stability is not None else ():
            if (value := getattr(self, name)) != getattr(RankSettings, name):
                raise invalid(name, f"{value!r} applies only without --stability: leave it out")


@dataclass(frozen=True, kw_only=True)
class OneStudy(Flags):
    """Settings of commands that take one study."""

    study: Path | None = flag_field(
        "folder of a study (default: the newest in runs/)", default=None, nargs="?", **STUDY
    )


@dataclass(frozen=True, kw_only=True)
class SpendSettings(TableFlags, OneStudy):
    """Settings of analysis/spend.py: in which format."""

    command: ClassVar[Command] = Command(
        script="analysis/spend.py", entry_point="analysis.spending:spend",
        description="Say where each device-second of a study went.",
    )  # fmt: skip
    json: bool = flag_field("the figures as json instead of the table", default=False)


@dataclass(frozen=True, kw_only=True)
class ReportSettings(OneStudy):
    """Settings of analysis/report.py: where to write."""

    command: ClassVar[Command] = Command(
        script="analysis/report.py", entry_point="analysis.page:report",
        description="Write one self-contained page of a study, and each figure as PNG and CSV.",
    )  # fmt: skip
    out: Path | None = flag_field("where to write (default: report/ in the study)", default=None, **OUT)
    watch: bool = flag_field("redraw the page while the study runs", default=False)


@dataclass(frozen=True, kw_only=True)
class ExportSettings(OneStudy):
    """Settings of analysis/export.py: in which format, and where."""

    command: ClassVar[Command] = Command(
        script="analysis/export.py", entry_point="analysis.exporting:export",
        description="Write a study as others' tools read it.",
    )  # fmt: skip
    optuna: Path | None = flag_field(
        "a new SQLite file: an Optuna storage of all trials", default=None, metavar="FILE", parse=Path
    )
    nanogpt: Path | None = flag_field(
        "a clone of nanoGPT, to put the winner of a text by character where its sample.py loads it",
        default=None,
        metavar="FOLDER",
        parse=Path,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optuna is None and self.nanogpt is None:
            raise invalid("optuna", "missing: write --optuna FILE, or --nanogpt FOLDER")


@dataclass(frozen=True, kw_only=True)
class PlotSettings(TableFlags):
    """Settings of analysis/plot.py: what to draw, of which studies, and where to write."""

    command: ClassVar[Command] = Command(
        script="analysis/plot.py", entry_point="analysis.figures:plot",
        description="Draw a study, as PNG with its data as CSV.",
    )  # fmt: skip
    what: str = flag_field(
        "; ".join(f"{name}: {what}" for name, what in PICTURE_KINDS.items()), metavar="WHAT", nargs="1"
    )
    studies: tuple[Path, ...] = flag_field(
        "folder of a study (default: the newest in runs/)", default=(), nargs="*", **STUDY
    )
    family: str | None = flag_field("of front, curves, effects: this family only", default=None, **FAMILY)
    out: Path | None = flag_field("where to write (default: here; of an experiment its folder)", default=None, **OUT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.what not in PICTURE_KINDS:
            raise UserError(f"WHAT: {self.what!r} is not known: choose from {', '.join(PICTURE_KINDS)}")
        most = {"front": None, "curves": None, "effects": None, "compare": 2}.get(self.what, 1)
        if most and len(self.studies) > most:
            raise UserError(f"study: {len(self.studies)} folders: {self.what} takes {most}: name fewer")
        if self.what == "compare" and len(self.studies) < 2:
            raise UserError("study: compare takes two studies: name both folders")
        if self.family is not None and self.what not in ("front", "curves", "effects"):
            raise invalid("family", f"{self.family!r} applies only to front, curves and effects: leave it out")
        if self.format and self.what != "compare":
            rule = "applies only to compare, which prints a table: leave it out; each picture has its CSV"
            raise invalid(self.format, rule)
        if self.format and self.out is not None:
            raise invalid("out", f"'{self.out}' beside --{self.format}, which prints and draws nothing: leave it out")


def parse_formulas(text: str) -> dict[str, Expression]:
    """Return the formulas of `flops=2*macs;...`, by column. UserError: it is not of that form."""
    named = [each.partition("=") for each in text.split(";")]
    if wrong := next((name + by for name, by, formula in named if not (name.strip() and formula.strip())), None):
        raise UserError(f"{wrong!r} is no formula of a column: write COLUMN=EXPRESSION, such as flops=2*macs")
    return {name.strip(): parse_expression(formula) for name, _, formula in named}


@dataclass(frozen=True, kw_only=True)
class CheckSettings(TableFlags):
    """Settings of analysis/check_table.py: which tables, and what is claimed beside them."""

    command: ClassVar[Command] = Command(
        script="analysis/check_table.py", entry_point="analysis.checking:check",
        description="Say where a table of figures contradicts itself.",
    )  # fmt: skip
    tables: tuple[Path, ...] = flag_field(
        "a CSV file with a line of column names, or a published table's name (default: all of these)",
        default=(), metavar="TABLE.csv", nargs="*", parse=Path,
    )  # fmt: skip
    vocabulary: int | None = flag_field(
        "number of words, or of classes, that a model chooses from", default=None, metavar="N", parse=int
    )
    hours: float | None = flag_field(
        "hours that all rows together are said to have taken", default=None, metavar="N", parse=float
    )
    formulas: Mapping[str, Expression] = flag_field(
        "how columns follow from the others", default_factory=dict, metavar="COLUMN=FORMULA;...", parse=parse_formulas
    )
    order: Expression | None = flag_field(
        "the score that orders the rows, or is ranked in a column `rank`, low first",
        default=None, metavar="FORMULA", parse=parse_expression,
    )  # fmt: skip
    json: bool = flag_field("the findings as json instead of the table", default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocabulary is not None and self.vocabulary < 2:
            raise invalid("vocabulary", f"'{self.vocabulary}' is too few words: write 2 or more, such as 64700")
        if self.hours is not None and not 0 < self.hours < math.inf:
            raise invalid("hours", f"'{self.hours:g}' is out of range: write hours above 0, such as 8")
