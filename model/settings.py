"""What the commands that use a winner can be asked for; standard library only."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tune.flags import Command, Flags, invalid, typed

BEAM_WIDTH = 4
TEMPERATURE = 0.8
TOP_K = 40
TOKENS = 500


@dataclass(frozen=True, kw_only=True)
class UseSettings(Flags):
    """What both take. UserError: a number below its least."""

    least: ClassVar[dict[str, int]] = {}
    folder: Path = field(
        metadata=typed("the model, as a search left it", form="runs/STUDY/best-FAMILY", places="1", parse=Path)
    )
    load: Path | None = field(
        default=None,
        metadata=typed("the Python file that registers its family, if need be", form="FILE", parse=Path),
    )

    def __post_init__(self) -> None:
        for name, least in self.least.items():
            if not (value := getattr(self, name)) >= least:
                raise invalid(name, f"{value}: at least {least}; leave it out for the default")


@dataclass(frozen=True, kw_only=True)
class TranslateSettings(UseSettings):
    """Which sentences, and how hard to try."""

    command: ClassVar[Command] = Command(
        script="model/translate.py", does="model.inference:translate",
        about="Translate sentences with a study's best translation model.",
    )  # fmt: skip
    least: ClassVar[dict[str, int]] = {"beam": 1}
    sentences: tuple[str, ...] = field(
        default=(), metadata=typed("(default: one a line of standard input)", form="SENTENCE", places="*")
    )
    beam: int = field(
        default=BEAM_WIDTH, metadata=typed("texts kept at a time; 1: greedy decoding", form="N", parse=int)
    )


@dataclass(frozen=True, kw_only=True)
class GenerateSettings(UseSettings):
    """What to go on from, and how to draw."""

    command: ClassVar[Command] = Command(
        script="model/generate.py", does="model.inference:generate",
        about="Go on with a text by a study's best nanoGPT.",
    )  # fmt: skip
    least: ClassVar[dict[str, int]] = {"tokens": 1, "temperature": 0, "top_k": 1}
    prompt: str = field(default="\n", metadata=typed("what to go on from", form="TEXT", show=lambda _: "a new line"))
    tokens: int = field(default=TOKENS, metadata=typed("how many", form="N", parse=int))
    temperature: float = field(default=TEMPERATURE, metadata=typed("0 takes the likeliest", form="NUMBER", parse=float))
    top_k: int = field(default=TOP_K, metadata=typed("draw among these", form="N", parse=int))
    seed: int = field(default=0, metadata=typed("of the draws", form="N", parse=int))
