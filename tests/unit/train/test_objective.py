"""Cross-entropy by its formula, for class numbers, soft targets and smoothed ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.train.objective import classes_loss

LOGITS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)) * 3
NUMBERS = torch.tensor([0, 3, 1, 1, 2])
SOFT = torch.softmax(torch.randn(5, 4, generator=torch.Generator().manual_seed(1)), 1)


def by_hand(logits: np.ndarray, targets: np.ndarray, smoothing: float) -> float:
    """-mean over pictures of sum_k ((1 - s) t_k + s / K) log softmax_k, in float64."""
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    smoothed = (1 - smoothing) * targets + smoothing / logits.shape[1]
    return float(-(smoothed * logs).sum(1).mean())


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_class_numbers_and_soft_targets_follow_the_formula(smoothing):
    logits = LOGITS.double().numpy()
    hot = np.eye(4)[NUMBERS.numpy()]
    assert float(classes_loss(LOGITS, NUMBERS, smoothing)) == pytest.approx(by_hand(logits, hot, smoothing), rel=1e-5)
    soft = by_hand(logits, SOFT.double().numpy(), smoothing)
    assert float(classes_loss(LOGITS, SOFT, smoothing)) == pytest.approx(soft, rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_one_hot_targets_cost_what_their_numbers_do(smoothing):
    hot = torch.nn.functional.one_hot(NUMBERS, 4).float()
    assert float(classes_loss(LOGITS, hot, smoothing)) == pytest.approx(
        float(classes_loss(LOGITS, NUMBERS, smoothing)), rel=1e-6
    )


def test_the_loss_is_float32_whatever_the_logits_are():
    for targets in (NUMBERS, SOFT, SOFT.double()):
        assert classes_loss(LOGITS.bfloat16(), targets, 0.1).dtype == torch.float32


def test_the_gradient_is_the_difference_between_answer_and_target():
    logits = LOGITS.clone().requires_grad_()
    classes_loss(logits, SOFT, 0.0).backward()
    assert logits.grad is not None
    assert torch.allclose(logits.grad, (torch.softmax(LOGITS, 1) - SOFT) / 5, atol=1e-6)
