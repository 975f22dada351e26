"""The model of a step: it finds the numbers that made its measurements, and so a size that it has not seen."""

import pytest

from tune.experiments.scaling_tables import StepModel, ring

TRUE = StepModel(fixed=2e-3, row=1e-4, latency=2e-4, bandwidth=2e9, exposed=0.5)
SIZE = 3_000_000


def fitted(rows: list[int], ranks: int) -> StepModel:
    return StepModel.fitted(
        compute={each: TRUE.step(each, 0, 1) for each in rows},
        exposed={each: TRUE.exposed * TRUE.communication(SIZE, ranks) for each in rows},
        alone={size: TRUE.communication(size, ranks) for size in (SIZE // 64, SIZE // 4, SIZE, 4 * SIZE)},
        size=SIZE,
        ranks=ranks,
    )


@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_a_size_left_out_is_predicted(ranks):
    found = fitted([32, 128], ranks)
    assert found.step(512, SIZE, ranks) == pytest.approx(TRUE.step(512, SIZE, ranks))
    assert found.step(64, 2 * SIZE, 3 * ranks) == pytest.approx(TRUE.step(64, 2 * SIZE, 3 * ranks))


def test_one_device_has_nothing_to_communicate():
    assert TRUE.step(10, SIZE, 1) == TRUE.fixed + 10 * TRUE.row


def test_a_ring_of_four_passes_six_messages_of_a_quarter_each():
    assert ring(4) == (6, 1.5) and ring(2) == (2, 1.0)


def test_no_part_of_a_step_is_below_zero():
    found = StepModel.fitted(
        compute={10: 1.0, 20: 2.2}, exposed={10: 0.1, 20: 0.1}, alone={10: 0.1, 1000: 0.2}, size=100, ranks=2
    )
    assert found.fixed == 0.0 and found.row > 0
