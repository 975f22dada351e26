"""Learning curves as a search needs them: sixteen configurations at a constant learning rate, and the losses of decays
that begin on the way; they become a table in the study's folder, which tune/replay.py searches."""

import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from model.config import Config
from tune.devices import Devices
from tune.experiments.base import Experiment, ExperimentSettings, Point, Row, Table
from tune.experiments.life_training import ENDS, RATIO, REPORT_SECONDS, SLOW_STEPS, TIMED_STEPS, ends_of, work
from tune.experiments.prices import EVALUATION_TOKENS, FORWARD, step_price
from tune.experiments.tables import figure
from tune.reports import EPOCHS_AS_NEW
from tune.rows import asked_seconds, longest_lives, step_seconds
from tune.search_space import FASTEST_FIRST, label

SHAPES = (
    (32, 4, 4, 0.1), (96, 8, 8, 0.0), (96, 4, 2, 0.0), (192, 8, 8, 0.0), (32, 4, 8, 0.1), (192, 8, 4, 0.3),
    (128, 8, 3, 0.0), (384, 4, 6, 0.1), (32, 8, 6, 0.2), (256, 8, 2, 0.2), (128, 4, 2, 0.1), (256, 4, 8, 0.3),
    (64, 8, 4, 0.3), (256, 8, 4, 0.0), (128, 4, 4, 0.2), (384, 4, 8, 0.1),
)  # fmt: skip
"""d_model, heads, layers, dropout: sizes at equal ratios over a factor of 290, with width, heads, depth and dropout
uncorrelated (|r| < 0.05), in an order in which already the first few span the space."""
NAMES = ("d_model", "heads", "layers", "dropout")

LIFE, LONG_LIFE = 180.0, 1800.0
"""Seconds of a life at the constant rate: of every configuration, and of those few that could win under a larger
cap."""
LONG = 5
FIRST_ROUNDS, LAST_ROUNDS = 2, 1
"""Rounds of step times over all configurations, before the lives and after; the fastest counts, as a busy machine only
makes a step slower."""
TIMED_SECONDS = 1.0
SEGMENT_SECONDS = 0.5
"""Seconds to begin and end a segment, beside the evaluation: a guess."""
TIMES, LATE_SECONDS = 8.0, 30.0
"""A point is worth TIMES the seconds that it is expected to take, and LATE_SECONDS more: what is not used is
released."""


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Return points for step times, for a life of each configuration, and for step times once more."""
    precision = next(each for each in FASTEST_FIRST if each in devices.precisions)
    common: dict[str, Any] = {"precision": precision, **settings.fix}
    rounds: list[list[Point]] = [[] for _ in range(FIRST_ROUNDS + LAST_ROUNDS)]
    lives = []
    for shape in SHAPES:
        config = dict(zip(NAMES, shape, strict=True)) | common
        whole = Config(family=settings.family, **{**settings.set, **config})
        step = step_price(whole, devices)
        for number, points in enumerate(rounds, 1):
            points.append(timing_point(settings.scale * TIMED_SECONDS, number, config, step))
        seconds, report_every = settings.scale * LIFE, settings.scale * REPORT_SECONDS
        lives.append(life_point(seconds, report_every, config, FORWARD * EVALUATION_TOKENS / whole.batch_tokens * step))
    return [*itertools.chain(*rounds[:FIRST_ROUNDS]), *lives, *itertools.chain(*rounds[FIRST_ROUNDS:])]


def timing_point(seconds: float, number: int, config: dict[str, Any], step_seconds: float) -> Point:
    """Return the point of a round of one configuration's step times."""
    least = SEGMENT_SECONDS + seconds + (SLOW_STEPS + TIMED_STEPS) * step_seconds
    asked = {"measure": "step seconds", "round": number, "seconds": seconds}
    return Point(devices=1, asked=asked, config=config, seconds=TIMES * least + LATE_SECONDS, least_seconds=least)


def life_point(
    seconds: float, report_every: float, config: dict[str, Any], evaluation_seconds: float, done: float = 0.0
) -> Point:
    """Return the point of the life of a configuration, of which `done` seconds are trained already."""
    ends = [end for end in ends_of(seconds, report_every) if end > done]
    segments = math.log(seconds / max(done, report_every)) / math.log(RATIO) + 3 * len(ends)
    least = seconds - done + Config.decay_share * sum(ends) + segments * (evaluation_seconds + SEGMENT_SECONDS)
    asked = {"measure": "curve", "seconds": seconds, "report_every": report_every}
    return Point(devices=1, asked=asked, config=config, seconds=TIMES * least + LATE_SECONDS, least_seconds=least)


def step_time_for(point: Point, rows: Sequence[Row]) -> dict[str, Any]:
    """Return what a point is told of the rows so far: a life its step time, others nothing."""
    known = step_seconds(rows).get(label(point.config)) if point.asked["measure"] == "curve" else None
    return {} if known is None else {"step_seconds": known}


def further(rows: Sequence[Row]) -> list[Point]:
    """Return lives ten times as long of the configurations that could win there, for which the cap may not suffice."""
    times, step, found = LONG_LIFE / LIFE, step_seconds(rows), []
    for row in could_win(longest_lives(rows), times):
        done, batch_tokens = asked_seconds(row), row["tokens_per_report"] / row["steps_per_report"]
        evaluation = FORWARD * EVALUATION_TOKENS / batch_tokens * step[label(row["config"])]
        found.append(life_point(times * done, row["asked"]["report_every"], row["config"], evaluation, done))
    return found


def could_win(rows: Sequence[Row], times: float) -> list[Row]:
    """Return the LONG best rows, taken in turns from two rankings: by the loss of their longest decay, and by the
    forecast for one so many times as long.

    Of equals the larger model comes first.
    """
    ended = {number: decays(row) for number, row in enumerate(rows) if decays(row)}

    def order(by: Callable[[int], float]) -> list[int]:
        return sorted(ended, key=lambda number: (round(by(number), 2), -rows[number]["parameters"]))

    by_forecast = order(lambda number: predicted_loss(ended[number], times))
    turns = zip(order(lambda number: ended[number][-1][1]), by_forecast, strict=True)
    return [rows[number] for number in dict.fromkeys(itertools.chain(*turns))][:LONG]


def predicted_loss(decayed: Sequence[tuple[int, float]], times: float) -> float:
    """Return the forecast loss of a decay at so many times the length of the last. What it falls for each unit of log
    length shrinks twice on the way, each time by the ratio of the last two falls."""
    falls = [(before - after) / math.log(later / at) for (at, before), (later, after) in itertools.pairwise(decayed)]
    if not falls:
        return decayed[-1][1]
    kept = min(1.0, max(0.0, falls[-1] / falls[-2])) if len(falls) > 1 and falls[-2] > 0 else 1.0
    return decayed[-1][1] - falls[-1] * math.log(times) / 2 * (kept + kept**2)


def decays(row: Row) -> list[tuple[int, float]]:
    """Return the reports at which lives with a decay ended, with their losses."""
    return [(at, loss) for at, loss in enumerate(row["decayed_loss"], 1) if loss is not None]


def end_of(row: Row, at: int) -> float:
    """Return the one of ENDS that is nearest to the time of a report, converted to a scale of 1."""
    seconds = asked_seconds(row) * at / len(row["valid_loss"]) * REPORT_SECONDS / row["asked"]["report_every"]
    return min(ENDS, key=lambda end: abs(math.log(seconds / end)))


TABLE = "curves.jsonl"
COPIED = (
    *("family", "parameters", "steps_per_report", "tokens_per_report", "text_tokens", "valid_loss", "averaged_loss"),
    *("decayed_loss", "decay_share", "warm_up_steps", "dropout_after", "memory_mb"),
)


def files(rows: Sequence[Row]) -> dict[str, str]:
    """Return the table of all lives so far, a JSON line each, by its file name."""
    known = step_seconds(rows)
    lines = [
        {"config": row["config"], "seconds_per_report": row["steps_per_report"] * known[label(row["config"])]}
        | {name: row[name] for name in COPIED if name in row}
        for row in longest_lives(rows)
    ]  # fmt: skip
    return {TABLE: "".join(json.dumps(_rounded(line)) + "\n" for line in lines)} if lines else {}


def _rounded(value: Any) -> Any:
    """Return a JSON-able value with all its floats rounded to six digits: nobody measures more."""
    return json.loads(json.dumps(value), parse_float=lambda text: float(f"{float(text):.6g}"))


def tables(rows: Sequence[Row]) -> list[Table]:
    """Return the table of losses after the longest life at the constant rate, and after each decay."""
    known, found = step_seconds(rows), sorted(longest_lives(rows), key=lambda row: row["parameters"])
    decayed = [{end_of(row, at): loss for at, loss in decays(row)} for row in found]
    ends = sorted(set[float]().union(*decayed))
    cells = [
        [
            label(row["config"]), f"{row['parameters']:,}", f"{1e3 * known[label(row['config'])]:.1f}",
            figure(last(row["valid_loss"]), "{:.4f}"), figure(last(row.get("averaged_loss", ())), "{:.4f}"),
            *(figure(losses.get(end), "{:.4f}") for end in ends),
        ]
        for row, losses in zip(found, decayed, strict=True)
    ]  # fmt: skip
    scale = found[0]["asked"]["report_every"] / REPORT_SECONDS if found else 1.0
    columns = (
        "", "parameters", "ms a step", "at the constant rate", "average",
        *(f"decayed at {scale * end:g} s" for end in ends),
    )  # fmt: skip
    note = f"Validation loss, nats a token, on a fixed {EVALUATION_TOKENS:,}. {TABLE} has all of it, for tune/replay.py"
    return [Table(title="Lives", columns=columns, rows=cells, note=note)]


def last(losses: Sequence[float | None]) -> float | None:
    """Return the last loss; None: the life diverged before, or has none."""
    return losses[-1] if losses else None


def line(row: Row) -> str:
    """Return the result of a row in short."""
    if "step_seconds" in row:
        return f"{1e3 * row['step_seconds']:.2f} ms a step"
    ended = decays(row)
    decayed = figure(ended[-1][1] if ended else None, "{:.4f}")
    return f"validation loss {figure(last(row['valid_loss']), '{:.4f}')} at the constant rate, {decayed} after a decay"


CURVES = Experiment(
    name="curves", about="learning curves at a constant rate, and what decays give them: a table for tune/replay.py",
    points=points, work=work, line=line, tables=tables, settings_for=step_time_for, further=further, files=files,
    sets=NAMES, recipe={"dropout_after": EPOCHS_AS_NEW}, reads=("scale",),
)  # fmt: skip
