"""What some studies found, read once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from analysis import sizes
from analysis.studies import Study
from analysis.trials import LEVEL, POOL, dimensions, measurements, trials
from tune.errors import UserError

EFFICIENCY = ["efficiency", "efficiency_low", "efficiency_high"]


@dataclass(frozen=True, kw_only=True)
class Results:
    """The trials of some studies, and how far each got."""

    studies: Sequence[Study]

    @cached_property
    def dimensions(self) -> list[str]:
        return dimensions(self.studies)

    @cached_property
    def trials(self) -> pd.DataFrame:
        return trials(self.studies)

    @cached_property
    def reached(self) -> pd.DataFrame:
        """What sound trials reached, the furthest last; front and efficiency are those among the trials of a level."""
        table = measurements(self.studies, self.trials).assign(front=False, **dict.fromkeys(EFFICIENCY, float("nan")))
        for _, group in table.groupby([*POOL, *LEVEL], dropna=False):
            size, perplexity = (group[column].to_numpy(float) for column in ("parameters", "perplexity"))
            table.loc[group.index, "front"] = sizes.front(size, perplexity)
            table.loc[group.index, EFFICIENCY] = sizes.efficiency(size, perplexity)
        return table.sort_values("place", ascending=False, kind="stable")

    def of(self, family: str) -> pd.DataFrame:
        """`reached` of one family, the furthest last. UserError when there is none, or of several texts."""
        table = self.reached[self.reached["family"] == family]
        if table.empty:
            raise UserError(f"family: {family!r} has no trial that completed a rung; wait for one, or name another")
        if len(table.drop_duplicates(POOL)) > 1:
            raise UserError("study: perplexities of several texts or vocabularies do not compare; name one study")
        return table
