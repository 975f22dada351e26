"""How long a lease is: what its stretch should cost, and room for what it may cost more."""

MARGIN, SLACK_SECONDS = 2.0, 3.0
"""Of a lease over its price, where the cap allows: neither a noisy neighbour nor the first, slow steps of a new shape
may cut a stretch short. What it does not use is released."""
START_UP_MARGIN = 4.0
"""The same for the start-up of a slot, which a busy machine can stretch by much."""


def with_margin(price: float) -> float:
    """Seconds to reserve for a stretch of this price."""
    return price * MARGIN + SLACK_SECONDS


def with_start_up(seconds: float, start_up: float, even_share: float) -> float:
    """Seconds to reserve for a slot that must start first.

    The margin of the start-up may not take more than the slot's even share of what is left: the next slot could not
    start.
    """
    return max(seconds + start_up, min(seconds + START_UP_MARGIN * start_up, even_share))
