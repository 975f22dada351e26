"""Settings of the commands that use a winner; imports the standard library only."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tune.flags import Command, Flags, flag_field, invalid

BEAM_WIDTH = 4
TEMPERATURE = 0.8
TOP_K = 40
TOKENS = 500
LARGEST_SEED = 2**64 - 1  # the largest that torch takes


@dataclass(frozen=True, kw_only=True)
class UseSettings(Flags):
    """What both commands take. UserError: a number is below its least, or infinite."""

    least: ClassVar[dict[str, int]] = {}
    folder: Path = flag_field("the model, as a search left it", metavar="runs/STUDY/best-FAMILY", nargs="1", parse=Path)
    load: Path | None = flag_field(
        "the Python file that registers its family, if need be", default=None, metavar="FILE", parse=Path
    )

    def __post_init__(self) -> None:
        for name, least in self.least.items():
            if not least <= (value := getattr(self, name)) < math.inf:
                raise invalid(name, f"{value}: a number of at least {least}; leave it out for the default")


@dataclass(frozen=True, kw_only=True)
class TranslateSettings(UseSettings):
    """Settings of model/translate.py: which sentences, and how many texts a beam keeps."""

    command: ClassVar[Command] = Command(
        script="model/translate.py", entry_point="model.inference:translate",
        description="Translate sentences with a study's best translation model.",
    )  # fmt: skip
    least: ClassVar[dict[str, int]] = {"beam": 1}
    sentences: tuple[str, ...] = flag_field(
        "what to translate (default: the lines of standard input)", default=(), metavar="SENTENCE", nargs="*"
    )
    beam: int = flag_field("texts kept at a time; 1: greedy decoding", default=BEAM_WIDTH, metavar="N", parse=int)


@dataclass(frozen=True, kw_only=True)
class GenerateSettings(UseSettings):
    """Settings of model/generate.py: the prompt, and how tokens are drawn. UserError: torch takes no such seed."""

    command: ClassVar[Command] = Command(
        script="model/generate.py", entry_point="model.inference:generate",
        description="Go on with a text by a study's best nanoGPT.",
    )  # fmt: skip
    least: ClassVar[dict[str, int]] = {"tokens": 1, "temperature": 0, "top_k": 1}
    prompt: str = flag_field("the text to go on from", default="\n", metavar="TEXT", format=lambda _: "a new line")
    tokens: int = flag_field("tokens to write", default=TOKENS, metavar="N", parse=int)
    temperature: float = flag_field(
        "of the draws; 0 takes the likeliest token", default=TEMPERATURE, metavar="NUMBER", parse=float
    )
    top_k: int = flag_field("draw among so many of the likeliest tokens", default=TOP_K, metavar="N", parse=int)
    seed: int = flag_field("of the draws", default=0, metavar="N", parse=int)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.seed <= LARGEST_SEED:
            raise invalid("seed", f"'{self.seed}' is out of range: a seed is from 0 to {LARGEST_SEED}")
