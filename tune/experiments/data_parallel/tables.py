"""What the rows of the experiment data_parallel come to."""

from collections.abc import Sequence

from tune.experiments.experiment import Row, Table
from tune.experiments.tables import NOTHING, with_interval


def tables(rows: Sequence[Row]) -> list[Table]:
    """One, of all ways; and why those that were not gone were not."""
    found = [
        [
            name(row), with_interval(row["default_seconds"], "{:.2f}", 1e3),
            with_interval(row["seconds"], "{:.2f}", 1e3), with_interval(row["times"], "{:.3f}"),
            f"{row['distance']:.1e}",
        ]
        for row in measured(rows)
    ]  # fmt: skip
    missing = [[name(row), *[NOTHING] * 4] for row in rows if "skipped" in row]
    columns = "way", "default, ms a step", "this, ms a step", "times as fast", "gradient's distance"
    notes = [about(measured(rows)), *(f"{name(row)} was skipped: {row['skipped']}" for row in rows if "skipped" in row)]
    table = Table(
        title="Ways to train on several devices, each in turns with DistributedDataParallel's default", columns=columns,
        rows=[*found, *missing], note="\n".join(filter(None, notes)),
    )  # fmt: skip
    return [table] if table.rows else []


def measured(rows: Sequence[Row]) -> list[Row]:
    """Those of ways that could be gone."""
    return [row for row in rows if "times" in row]


def name(row: Row) -> str:
    """The way: `bucket_megabytes 25`."""
    value = row["asked"].get("value")
    return str(row["asked"]["way"]) if value is None or value is True else f"{row['asked']['way']} {value}"


def about(rows: Sequence[Row]) -> str:
    """What all were measured on."""
    if not rows:
        return ""
    some = rows[0]
    return (f"{some['devices']} ranks on {some['backend']}, {some['rows']} rows a rank, gradients of "
            f"{some['bytes'] / 2**20:.1f} MiB; distance: of the gradient of a batch from the default's, relative; "
            "default: the default against itself, so what its figures differ by means nothing.")  # fmt: skip


def conclusions(rows: Sequence[Row]) -> list[str]:
    """Which ways differ from the default by more than chance, and at what price in exactness."""
    found = measured(rows)
    if not found:
        return []
    told = [row for row in found if row["asked"]["way"] != "default"]
    differ = [row for row in told if not row["times"][1] <= 1 <= row["times"][2]]
    said = [
        f"{name(row)} is {with_interval(row['times'], '{:.2f}')} times as fast as the default."
        for row in sorted(differ, key=lambda row: -row["times"][0])
    ]
    if alike := [name(row) for row in told if row not in differ]:
        said.append(f"No difference was seen for {', '.join(alike)}.")
    worst = max(found, key=lambda row: row["distance"])
    said.append(f"The gradient is furthest from the default's with {name(worst)}, by {worst['distance']:.1e} of it.")
    return said + [f"{name(row)} could not be measured here." for row in rows if "skipped" in row]
