"""How the learning rate follows the batch, and how training gets there; at equal samples, so in fewer steps."""

from dataclasses import dataclass

from model.schedule import warm_up

GRADUAL_SHARE = 5 / 90
"""Of the training, in which Goyal et al. come from the small batch's rate to the large one's: 5 of 90 epochs."""
LONGEST_WARM_UP = 0.2
"""Of the training, where it is short."""


@dataclass(frozen=True, kw_only=True)
class RateRule:
    """power: of the batch's multiple, with which the peak rate grows; gradual: comes there from the small batch's."""

    power: float
    gradual: bool = False
    optimizer: str = "AdamW"

    def rate(self, base: float, times: int) -> float:
        """The peak rate of a batch so many times as large."""
        return base * times ** self.power

    def factor(self, step: int, *, steps: int, times: int, warm_up_steps: int, decay_share: float) -> float:
        """The share of the peak rate at a step of so many: warm-up over the small batch's samples, decay at the end."""
        warm = max(1, round(min(warm_up_steps / times, LONGEST_WARM_UP * steps)))
        share = warm_up(step, warm) * min(1.0, (steps - step) / (decay_share * steps))
        return share * self._grown(step - warm, steps, times) if self.gradual else share

    def _grown(self, after: int, steps: int, times: int) -> float:
        """From the small batch's rate to all of the large one's; after: steps since the warm-up."""
        small = times ** -self.power
        return small + (1 - small) * min(1.0, max(0.0, (after + 1) / (GRADUAL_SHARE * steps)))


RULES = {
    "unchanged": RateRule(power=0.0),
    "linear": RateRule(power=1.0, gradual=True),
    "square root": RateRule(power=0.5),
    "LARS": RateRule(power=0.5, optimizer="LARS"),
}
"""linear: Goyal et al. 2017 (arXiv:1706.02677); square root: for Adam, Malladi et al. 2022 (arXiv:2205.10287)."""
