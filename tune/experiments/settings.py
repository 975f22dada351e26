"""What a user can set of an experiment: of the search's settings those that mean something here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tune.duration import duration_text
from tune.flag import invalid, typed
from tune.settings import Settings, families_text, parse_families

NAMES = (
    *("budget", "families", "fix", "devices", "oversubscribe", "seed", "out"),
    *("translation_corpus", "text_corpus", "skip_bad_lines", "plan", "resume"),
)


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings(Settings):
    """The search's settings, with one family."""

    families: Mapping[str, float] = field(
        default_factory=lambda: {"nanogpt": 1.0},
        metadata=typed(
            "the model (default: nanogpt)", form="translation|nanogpt", parse=parse_families, show=families_text
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.families) > 1:
            names = ",".join(self.families)
            raise invalid("families", f"{names!r} are two, and an experiment is on one: write one of them")

    @property
    def family(self) -> str:
        """The one there is."""
        return next(iter(self.families))

    def too_small_for(self, experiment: str, smallest: float) -> ValueError:
        """The error for a cap that does not pay for an experiment; `smallest` in device-seconds does."""
        asked, least = duration_text(self.budget), duration_text(math.ceil(smallest))
        return invalid("budget", f"{asked!r} does not pay for {experiment}: write at least {least}")
