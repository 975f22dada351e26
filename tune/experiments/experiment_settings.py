"""Settings of an experiment: the search's, with one family; standard library only."""

import pkgutil
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from tune.errors import UserError, script_command
from tune.flags import (
    BUILTIN,
    Command,
    families_text,
    flag_field,
    flag_name,
    flag_words,
    invalid,
    parse_families,
    parse_path,
    under_flag,
)
from tune.recipe import parse_set, set_text
from tune.search_flags import CORPUS, HUB_PAIRS, HUB_TEXT, SET_NAMES
from tune.settings import Settings
from tune.table_text import TABLE_FORMATS, TableFlags
from tune.units import MEMORY_FORMS, bytes_text, parse_bytes

EXPERIMENTS = {
    **dict.fromkeys(("ablation", "overfitting"), "translation"),
    **dict.fromkeys(("methods", "batch_size", "estimates", "loader", "stages", "precision", "transfer"), "nanogpt"),
    **dict.fromkeys(("scaling", "large_batch", "data_parallel", "curves"), "nanogpt"),
}
"""Names of the experiments, and the family that each is of unless another is asked for."""
OWN_MODEL = ("estimates",)
"""Experiments on a model of their own, which no family trains and which reads no text."""
NOT_OF_OWN_MODEL = ("families", "set", "translation_corpus", "text_corpus", "own_corpus")


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings(TableFlags, Settings):
    """The search's settings, with one family, and which experiment it is."""

    command: ClassVar[Command] = Command(
        script="tune/experiment.py", entry_point="tune.experiments.catalogue:run", on_interrupt="nothing was written",
        description="Repeat an experiment of the published reports, under a cap of device-hours.",
        flags=(
            *("name", "list", "budget", "families", "fix", "set", "scale", "seeds", "devices", "cores_per_trial"),
            *("oversubscribe", "memory_limit", "seed", "out", "translation_corpus", "text_corpus", "own_corpus"),
            *("skip_bad_lines", "plan", "resume", "of", "load", "tables", *TABLE_FORMATS),
        ),
    )  # fmt: skip
    name: str = flag_field(
        f"of {', '.join(EXPERIMENTS)}", default="", metavar="NAME", nargs="?", stored=False, on_resume=True
    )
    list: bool = flag_field(
        "list the experiments, each with its smallest and largest useful budget here", default=False, stored=False
    )
    families: Mapping[str, float] = flag_field(
        "the model, or one of yours that --load registers (default: the experiment's own)",
        metavar="translation|nanogpt|NAME", parse=parse_families, format=families_text,
    )  # fmt: skip
    set: Mapping[str, float | str] = flag_field(
        f"parts of the family's recipe to change, such as context=256; there are {SET_NAMES}",
        default_factory=dict, metavar="NAME=VALUE,...", parse=parse_set, format=set_text,
    )  # fmt: skip
    translation_corpus: Path | str | None = flag_field(
        f"as of a search (default: {HUB_PAIRS}, or builtin where the hub cannot be reached)", default=None, **CORPUS
    )
    text_corpus: Path | str | None = flag_field(
        f"as of a search (default: {HUB_TEXT}, or builtin where the hub cannot be reached)", default=None, **CORPUS
    )
    memory_limit: int | None = flag_field(  # bytes
        f"memory that a training may take, of lists, batch_size (default on a CPU: 2GB) and estimates: {MEMORY_FORMS}",
        default=None, metavar="SIZE", parse=parse_bytes, format=bytes_text,
    )  # fmt: skip
    plan: bool = flag_field(
        "print what the experiment would do and cost, and end: nothing is spent, no study written", default=False,
        stored=False, on_resume=True,
    )  # fmt: skip
    scale: float = flag_field(
        "train for this share of the full length, such as 0.01", default=1.0, metavar="SHARE", parse=float
    )
    seeds: int = flag_field("trainings of each configuration, with a seed each", default=1, metavar="N", parse=int)
    of: Path | None = flag_field(
        "of scaling: a search's study, for its winner's family, configuration, text and seed; of several families "
        "the one with the largest share, or the one that --families names",
        default=None, metavar="FOLDER", parse=parse_path,
    )  # fmt: skip
    tables: Path | None = flag_field(
        "print the tables of a study of an experiment again, and measure nothing",
        default=None, metavar="FOLDER", parse=parse_path, stored=False,
    )  # fmt: skip
    recipe: Mapping[str, float | str] = flag_field(  # --of's winner's, where it differs from the family's; has no flag
        "", default_factory=dict, parse=parse_set, format=set_text
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.families) > 1:
            names = ",".join(self.families)
            raise invalid("families", f"{names!r} are two, and an experiment is on one: write one of them")
        if not 0 < self.scale <= 1:
            raise invalid("scale", f"'{self.scale}' is out of range: write a share above 0 and at most 1")
        if self.seeds < 1:
            raise invalid("seeds", f"'{self.seeds}' is too few: write 1 or more")
        if self.format and not self.tables:
            raise invalid(self.format, "works only with --tables FOLDER")

    @classmethod
    def from_flags(cls, typed: Mapping[str, Any], experiment: str | None = None) -> Self:
        """As in Settings; with --of, the winner that is meant is read first."""
        formats: dict[str, Any] = {name: True for name in TABLE_FORMATS if name in typed}
        alone = next((each for each in ("list", "tables") if each in typed), None)
        for each in (each for each in typed if alone and each not in (alone, *TABLE_FORMATS)):
            flag = f"{each.upper()}:" if each == "name" else f"{flag_name(each)}:"
            given = "" if typed[each] is True else f"{typed[each]!r} "
            raise UserError(f"{flag} {given}is not for --{alone}, which measures nothing: leave it out")
        if alone == "list":
            return cls(budget=1.0, families={"nanogpt": 1.0}, list=True, **formats)
        if alone == "tables":
            with under_flag("tables"):
                tables = parse_path(typed["tables"])
            return cls(budget=1.0, families={"nanogpt": 1.0}, tables=tables, **formats)
        name = typed.get("name", "")
        if {"plan", "resume"} <= typed.keys():
            raise invalid("plan", "an experiment that has begun has no plan: leave --plan or --resume out")
        if name not in EXPERIMENTS:
            what = f"{name!r} is no experiment" if name else "missing"
            raise UserError(f"NAME: {what}: write one of {', '.join(EXPERIMENTS)}")
        asked = {} if "resume" in typed else {"families": EXPERIMENTS[name]}
        if name in OWN_MODEL and "resume" not in typed:
            for each in (each for each in NOT_OF_OWN_MODEL if each in typed):
                raise invalid(each, f"{typed[each]!r} is not for {name}, which has a model of its own: leave it out")
            asked["text_corpus"] = BUILTIN  # read by nothing
        if "of" in typed and "resume" not in typed:
            typed = pkgutil.resolve_name("tune.experiments.catalogue:of_winner")(name, dict(typed))
        return super().from_flags({**asked, **typed}, experiment=name)

    def first_line(self) -> str | None:
        """Return what was asked for, as flags; None: no study is asked for."""
        if self.list or self.tables:
            return None
        default = {each.name: each.default for each in fields(self)}
        asked = {name: value for name, value in self.stored().items() if getattr(self, name) != default[name]}
        if self.resume is None:
            return shlex.join([self.name, *typed_again(asked, self.name)])
        return shlex.join([self.name, *flag_words(asked, self.command.flags), "--resume", str(self.resume)])

    @property
    def family(self) -> str:
        """The one family of the experiment."""
        return next(iter(self.families))

    @property
    def entry(self) -> str:
        """The command whose settings these are, with the experiment's name."""
        return f"{script_command('tune/experiment.py')} {self.name}"


def typed_again(stored: Mapping[str, str | bool], experiment: str) -> list[str]:
    """Return the flags of a new study of an experiment with these settings, as study.json has them; those of what --of
    gave replace --of."""
    given: dict[str, str] = {}
    left_out = NOT_OF_OWN_MODEL if experiment in OWN_MODEL else ()
    for text in (str(stored[name]) for name in ("recipe", "set") if name in stored and name not in left_out):
        given |= {part.partition("=")[0]: part for part in text.split(",")}
    asked = {name: value for name, value in stored.items() if name not in ("of", "set", *left_out)}
    return flag_words(asked | ({"set": ",".join(given.values())} if given else {}), ExperimentSettings.command.flags)
