"""The training loss equals torch's, in value and slope."""

import pytest
import torch
from torch.nn import functional as F

from model.data.batches import IGNORED
from model.nn.loss import plain_loss, training_loss


@pytest.mark.parametrize("smoothing", [None, 0.0, 0.1])
def test_it_is_cross_entropy_with_label_smoothing(smoothing: float | None) -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(40, 11, dtype=torch.float64)).requires_grad_()
    targets = torch.randint(11, (40,))
    targets[::3] = IGNORED
    expected = F.cross_entropy(logits, targets, ignore_index=IGNORED, label_smoothing=smoothing or 0.0)
    (slope,) = torch.autograd.grad(2 * expected, logits)
    loss, plain = plain_loss(logits, targets) if smoothing is None else training_loss(logits, targets, smoothing)
    (found,) = torch.autograd.grad(2 * loss, logits)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(plain, F.cross_entropy(logits, targets, ignore_index=IGNORED).detach())
    torch.testing.assert_close(found, slope)
    assert not plain.requires_grad


def test_a_part_of_a_batch_without_targets_teaches_nothing() -> None:
    logits = torch.randn(4, 11, requires_grad=True)
    loss, _ = training_loss(logits, torch.full((4,), IGNORED), 0.0)
    (slope,) = torch.autograd.grad(loss, logits)
    assert not slope.any()
