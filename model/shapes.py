"""A few static shapes (source length, target length) for pairs of all lengths, with little padding."""

import numpy as np

SHAPES = 12             # twice as many halve the padding, but their kernels cost as much time and 10 MB a shape
TRAINED_SHARE = 0.999    # of the pairs' lengths; the longest few have no shape and are not trained on

Shape = tuple[int, int]


def choose_shapes(lengths: np.ndarray, most: int = SHAPES) -> list[Shape]:
    """At most `most` shapes that cover all but the longest pairs; lengths (pairs, 2): source, target.

    The group of pairs and the cut through its source or target lengths that save the most padding come first.
    """
    longest = np.quantile(lengths, TRAINED_SHARE, axis=0, method="higher")
    groups = [lengths[(lengths <= longest).all(axis=1)]]
    cuts = [_best_cut(groups[0])]
    while len(groups) < most and max(saved for saved, _, _ in cuts) > 0:
        place = max(range(len(cuts)), key=lambda i: cuts[i][0])
        _, side, limit = cuts[place]
        group = groups[place]
        low = group[:, side] <= limit
        groups[place:place + 1] = [group[low], group[~low]]
        cuts[place:place + 1] = [_best_cut(group[low]), _best_cut(group[~low])]
    return [(int(source), int(target)) for source, target in (group.max(axis=0) for group in groups)]


def assign_shapes(lengths: np.ndarray, shapes: list[Shape]) -> np.ndarray:
    """The number of the smallest shape that covers each pair, -1 where none does."""
    home = np.full(len(lengths), -1)
    for number in sorted(range(len(shapes)), key=lambda i: -sum(shapes[i])):
        home[(lengths <= shapes[number]).all(axis=1)] = number
    return home


def _best_cut(group: np.ndarray) -> tuple[int, int, int]:
    """(saved, side, limit): padding tokens saved by keeping pairs up to `limit` on `side` apart, 0 if no cut helps."""
    best = (0, 0, 0)
    size = group.max(axis=0).sum()
    for side in (0, 1):
        ordered = group[group[:, side].argsort(kind="stable")]
        ends = np.flatnonzero(np.diff(ordered[:, side]))              # the last pair of each length but the longest
        below = np.maximum.accumulate(ordered, axis=0)[ends].sum(axis=1)
        above = np.maximum.accumulate(ordered[::-1], axis=0)[::-1][ends + 1].sum(axis=1)
        saved = (size - below) * (ends + 1) + (size - above) * (len(ordered) - ends - 1)
        if len(ends) and saved.max() > best[0]:
            best = int(saved.max()), side, int(ordered[ends[saved.argmax()], side])
    return best
