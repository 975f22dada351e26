"""What a larger cap would buy: the study's own best losses over training time, carried on. A prediction."""

import numpy as np
import pandas as pd

from analysis import formats
from analysis.figures.picture import BLUE, GREY, ORANGE, VERMILION, Picture, axes, log_axis
from analysis.results import Results
from analysis.studies import Study
from analysis.trials import TRIAL
from tune.errors import UserError

FEWEST = 6  # points for a fit
EXPONENTS = np.linspace(0.05, 1.0, 39)
TIMES = (1, 2, 4, 8)  # the cap, this many times
START = 0.1  # the fit begins at this share of the longest time: what came before has other laws


def best_so_far(results: Results, family: str) -> pd.DataFrame:
    """seconds, loss: whenever a trial of the family, before its decay, went below all that had trained less."""
    points = pd.concat([_points(study) for study in results.studies])
    sound = results.trials[(results.trials["family"] == family) & ~results.trials["failed"]]
    points = points.merge(sound[TRIAL], on=TRIAL).sort_values("seconds", kind="stable")
    lowest = points["loss"].cummin()
    return points[lowest.diff().fillna(-1) < 0]


def _points(study: Study) -> pd.DataFrame:
    table = study.read(
        """SELECT reports.trial, training_seconds AS seconds, valid_loss AS loss
           FROM reports LEFT JOIN leases USING (lease)
           WHERE valid_loss < 9e999 AND training_seconds > 0 AND COALESCE(purpose, 'rung') = 'rung'"""
    )
    return table.astype({"seconds": float, "loss": float}).assign(study=study.name)


def fits(seconds: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Curves loss = floor + scale seconds^-exponent that fit nearly as well as the best: (n, 3) as they stand here.

    Nearly: a sum of squares within a factor 1 + 2 / points of the least.
    """
    found, errors = [], []
    for exponent in EXPONENTS:
        falling = seconds**-exponent
        scale = np.cov(falling, loss, bias=True)[0, 1] / falling.var()
        floor = loss.mean() - scale * falling.mean()
        if floor < 0:
            floor, scale = 0.0, float(loss @ falling / (falling @ falling))
        if scale > 0:
            found.append((floor, scale, exponent))
            errors.append(float(np.square(loss - floor - scale * falling).sum()))
    near = np.array(errors) <= min(errors, default=0.0) * (1 + 2 / len(loss)) + 1e-12
    return np.array(found).reshape(-1, 3)[near]


def outlook(results: Results, family: str) -> Picture:
    """Loss before the decay, were the best trials trained on. UserError for too few points to fit."""
    points = best_so_far(results, family)
    longest = points["seconds"].max()
    used = points[points["seconds"] >= START * longest]
    if len(used) < FEWEST:
        raise UserError(f"outlook: {family!r} has {len(used)} points to fit; it takes {FEWEST}")
    curves = fits(used["seconds"].to_numpy(), used["loss"].to_numpy())
    at = np.geomspace(used["seconds"].min(), longest * TIMES[-1], 100)
    drawn = curves[:, :1] + curves[:, 1:2] * at ** -curves[:, 2:]
    figure, (plot,) = axes()
    ahead = at >= longest
    plot.fill_between(
        at[ahead], drawn[:, ahead].min(0), drawn[:, ahead].max(0), color=ORANGE, alpha=0.4, lw=0, label="prediction"
    )
    plot.plot(at, np.median(drawn, axis=0), c=VERMILION, lw=1.2, ls="--", label="fitted curve")
    plot.scatter(points["seconds"], points["loss"], s=16, c=BLUE, label="best loss so far")
    plot.axvline(longest, c=GREY, lw=1)
    plot.set(xlabel="training time of the best trial", ylabel="validation loss (nats a token)")
    log_axis(plot.xaxis, [points["seconds"].min(), at[-1]], formats.short_duration)
    plot.legend(loc="best")
    times = np.array(TIMES, float)
    ends = curves[:, :1] + curves[:, 1:2] * (longest * times) ** -curves[:, 2:]
    table = pd.DataFrame(
        {"cap_times": TIMES, "low": ends.min(0), "middle": np.median(ends, axis=0), "high": ends.max(0)}
    )
    said = ", ".join(f"{row.cap_times} times {row.low:.3f} to {row.high:.3f}" for row in table.iloc[1:].itertuples())
    return Picture(
        name=f"outlook-{family}",
        title=f"{family}: what a larger cap would buy",
        text="Prediction, not measured. With the cap this many times as large, and the best trials trained as much "
        f"longer, a loss before the decay of: {said}; now {points['loss'].min():.3f}.",
        figure=figure,
        data=table,
    )
