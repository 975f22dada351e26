"""What a user can set of an experiment: of the search's settings those that mean something here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tune.duration import duration_text
from tune.errors import UserError
from tune.flag import invalid, typed
from tune.forms import families_text, parse_families
from tune.settings import Settings

NAMES = (
    *("budget", "families", "fix", "scale", "seeds", "devices", "oversubscribe", "memory_limit", "seed", "out"),
    *("translation_corpus", "text_corpus", "skip_bad_lines", "plan", "resume"),
)


def parse_share(text: str) -> float:
    """`0.01` -> .01"""
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{text!r} is no share: write a number above 0 and at most 1, such as 0.01") from None


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings(Settings):
    """The search's settings, with one family."""

    families: Mapping[str, float] = field(
        metadata=typed(
            "the model (default: the experiment's own)", form="translation|nanogpt", parse=parse_families,
            show=families_text,
        ),
    )  # fmt: skip
    scale: float = field(
        default=1.0,
        metadata=typed(
            "the share of its training that an experiment does, such as 0.01", form="SHARE", parse=parse_share
        ),
    )
    seeds: int = field(
        default=1, metadata=typed("how often each training is repeated, with another seed", form="N", parse=int)
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

    @property
    def family(self) -> str:
        """The one there is."""
        return next(iter(self.families))

    def too_small_for(self, experiment: str, smallest: float, others: Sequence[str]) -> UserError:
        """The error for a cap that does not pay for an experiment; `smallest` in device-seconds or `others` would."""
        asked, least = duration_text(self.budget), duration_text(math.ceil(smallest))
        remedy = ", or ".join([f"at least {least}", *others])
        return invalid("budget", f"{asked!r} does not pay for {experiment}: write {remedy}")
