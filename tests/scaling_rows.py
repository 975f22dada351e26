"""Rows as the scaling experiment leaves them, of a machine whose seconds are made up."""

from typing import Any

from tests.training_rows import same, whole

EXPOSED = 0.5
"""The share of its communication that a step waits for."""
BYTES, TOKENS_A_ROW, EPOCH_ROWS = 3_200_000, 64, 15_360


def row(devices: int, asked: dict[str, Any], **found: Any) -> dict[str, Any]:
    """What all rows have."""
    return whole(asked, {}, devices, disturbed=False, others_cores=0.0, **found)


def computing(rows: int) -> float:
    """Seconds of a step with so many rows on each device, without communication."""
    return 4e-3 + 5e-4 * rows


def communicating(devices: int) -> float:
    """Seconds in which the devices, in a ring, add up the gradients: 0.1 ms a message, 1 GB/s."""
    return 2 * (devices - 1) * (1e-4 + BYTES / devices / 1e9)


def step(devices: int, rows: int) -> dict[str, Any]:
    """A batch of so many rows on so many devices."""
    unsynced, whole = computing(rows // devices), communicating(devices)
    exposed = EXPOSED * whole
    seconds = unsynced + exposed
    tokens = rows * TOKENS_A_ROW
    found: dict[str, Any] = {
        "tokens": tokens, "epoch_steps": EPOCH_ROWS // rows, "rounds": {"step": [seconds] * 8},
        "step_seconds": same(seconds), "tokens_per_second": same(tokens / seconds),
    }  # fmt: skip
    if devices > 1:
        passed = 2 * (devices - 1) / devices
        found |= {
            "bytes": BYTES, "unsynced_seconds": same(unsynced), "communication_seconds": same(whole),
            "overlapped_seconds": same(whole - exposed), "exposed_seconds": same(exposed),
            "identity": same((unsynced + exposed) / seconds), "algorithm_bandwidth": same(BYTES / whole),
            "bus_bandwidth": same(passed * BYTES / whole), "alone_bus_bandwidth": same(passed * BYTES / whole),
            "share_of_alone": same(1.0),
        }  # fmt: skip
    return row(devices, {"measure": "steps", "rows": rows}, **found)


def gradients(devices: int) -> dict[str, Any]:
    """All alike; how far accumulated ones are off."""
    accumulated = [[2, 1e-8], [4, 2e-8], [8, 3e-8]]
    return row(devices, {"measure": "gradients"}, bit_equal=True, against_whole_batch=1e-8, accumulated=accumulated)


def accumulation(devices: int) -> dict[str, Any]:
    """Several batches a step; four at a time are 1.4 times as fast."""
    counts = (1, 2, 4, 8)
    series = {
        "row_seconds": [[count, same(1e-3 / (1 + count / 10))] for count in counts],
        "gain": [[count, same((1 + count / 10) / 1.1)] for count in counts],
        "exposed_share": [[count, same(0.2 / count)] for count in counts],
    }
    return row(devices, {"measure": "accumulation"}, rows=12, **series)


def training(devices: int) -> dict[str, Any]:
    """The same loss on any number of devices, but for the order of a sum."""
    found = {"steps": 200, "train_loss": 2.2, "valid_loss": 2.3 + 1e-7 * devices, "accuracy": 0.4}
    return row(devices, {"measure": "training", "steps": 200}, rows=12, training_seconds=3.0, **found)


def all_rows() -> list[dict[str, Any]]:
    """One, two and four devices."""
    found = [*(step(1, batch) for batch in (32, 128, 512)), training(1)]
    for devices in (2, 4):
        batches = sorted({batch * each for batch in (32, 128, 512) for each in (1, devices)})
        found += [gradients(devices), *(step(devices, batch) for batch in batches), accumulation(devices)]
        found.append(training(devices))
    return found
