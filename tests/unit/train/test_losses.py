"""Every loss by its formula: class numbers, soft and smoothed targets, labels and numbers of which some are unknown."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.data.augment.mixing import MIXING_DRAWS, apply_mixup_cutmix
from vitrail.randomness import uniform
from vitrail.train.losses import binary_cross_entropy_loss, build_loss, cross_entropy_loss, mean_loss, regression_loss
from vitrail.train.plan import Recipe

LOGITS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)) * 3
NUMBERS = torch.tensor([0, 3, 1, 1, 2])
PLAIN, SMOOTH = Recipe(), Recipe(label_smoothing=0.1)
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
    for targets, expected in ((NUMBERS, hot), (SOFT, SOFT.double().numpy())):
        loss = mean_loss(*cross_entropy_loss(LOGITS, targets, smoothing))
        assert float(loss) == pytest.approx(by_hand(logits, expected, smoothing), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_one_hot_targets_cost_what_their_numbers_do(smoothing):
    hot = torch.nn.functional.one_hot(NUMBERS, 4).float()
    assert float(mean_loss(*cross_entropy_loss(LOGITS, hot, smoothing))) == pytest.approx(
        float(mean_loss(*cross_entropy_loss(LOGITS, NUMBERS, smoothing))), rel=1e-6
    )


def test_the_loss_is_float32_whatever_the_logits_are():
    for targets in (NUMBERS, SOFT, SOFT.double()):
        assert [part.dtype for part in cross_entropy_loss(LOGITS.bfloat16(), targets, 0.1)] == [torch.float32] * 2


def test_the_gradient_is_the_difference_between_answer_and_target():
    logits = LOGITS.clone().requires_grad_()
    mean_loss(*cross_entropy_loss(logits, SOFT, 0.0)).backward()
    assert logits.grad is not None
    assert torch.allclose(logits.grad, (torch.softmax(LOGITS, 1) - SOFT) / 5, atol=1e-6)


KNOWN = torch.tensor([[1.0, 0.0, torch.nan], [torch.nan, 1.0, 0.3], [0.0, torch.nan, torch.nan]])
OUTPUTS = torch.randn(3, 3, generator=torch.Generator().manual_seed(2)) * 3
NOTHING = torch.full((3, 3), torch.nan)


def binary_by_hand(logits: np.ndarray, targets: np.ndarray, smoothing: float) -> float:
    """Over known cells the mean of -t log p - (1 - t) log(1 - p), where t moved to 1/2 by the smoothing, in float64."""
    losses = []
    for logit, target in zip(logits.ravel(), targets.ravel(), strict=True):
        if not np.isnan(target):
            p, t = 1 / (1 + np.exp(-logit)), target * (1 - smoothing) + smoothing / 2
            losses.append(-t * np.log(p) - (1 - t) * np.log(1 - p))
    return float(np.mean(losses))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_labels_cost_their_binary_cross_entropy_over_known_cells(smoothing):
    expected = binary_by_hand(OUTPUTS.double().numpy(), KNOWN.double().numpy(), smoothing)
    assert float(mean_loss(*binary_cross_entropy_loss(OUTPUTS, KNOWN, smoothing))) == pytest.approx(expected, rel=1e-5)


def test_numbers_cost_their_squared_error_over_known_cells():
    outputs, targets = OUTPUTS.double().numpy(), KNOWN.double().numpy()
    squares = [(o - t) ** 2 for o, t in zip(outputs.ravel(), targets.ravel(), strict=True) if not np.isnan(t)]
    assert float(mean_loss(*regression_loss(OUTPUTS, KNOWN))) == pytest.approx(np.mean(squares), rel=1e-5)


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_unknown_cells_have_no_gradient_and_known_ones_that_of_a_mean(task):
    outputs = OUTPUTS.clone().requires_grad_()
    mean_loss(*build_loss(task, PLAIN)(outputs, KNOWN)).backward()
    assert outputs.grad is not None
    answers = torch.sigmoid(OUTPUTS) if task == "multilabel" else 2 * OUTPUTS
    targets = KNOWN if task == "multilabel" else 2 * KNOWN
    expected = torch.where(KNOWN.isnan(), 0.0, (answers - targets) / 5)
    assert torch.allclose(outputs.grad, expected, atol=1e-6)


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_a_batch_of_which_nothing_is_known_costs_nothing_and_moves_nothing(task):
    outputs = OUTPUTS.clone().requires_grad_()
    total, weight = build_loss(task, SMOOTH)(outputs, NOTHING)
    mean_loss(total, weight).backward()
    assert total.item() == weight.item() == 0 and outputs.grad is not None and not outputs.grad.any()


def test_extreme_outputs_have_finite_losses():
    far = torch.tensor([[1e4, -1e4, 3.0]])
    assert float(mean_loss(*binary_cross_entropy_loss(far, torch.tensor([[0.0, 1.0, torch.nan]])))) == pytest.approx(
        1e4
    )


def test_every_loss_is_float32_and_chosen_by_its_task():
    for task in ("multilabel", "regression"):
        parts = build_loss(task, PLAIN)(OUTPUTS.bfloat16(), KNOWN.double())
        assert [part.dtype for part in parts] == [torch.float32] * 2
    assert build_loss("classification", SMOOTH)(LOGITS, NUMBERS) == cross_entropy_loss(LOGITS, NUMBERS, 0.1)
    assert build_loss("multilabel", SMOOTH)(OUTPUTS, KNOWN) == binary_cross_entropy_loss(OUTPUTS, KNOWN, 0.1)
    assert build_loss("regression", PLAIN)(OUTPUTS, KNOWN) == regression_loss(OUTPUTS, KNOWN)


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_the_parts_of_a_batch_add_up_to_the_whole_whatever_is_known_of_each(task):
    outputs, targets = (LOGITS[:3], NUMBERS[:3]) if task == "classification" else (OUTPUTS, KNOWN)
    loss_of = build_loss(task, PLAIN)
    whole, parts = outputs.clone().requires_grad_(), outputs.clone().requires_grad_()
    mean_loss(*loss_of(whole, targets)).backward()
    pairs = [loss_of(parts[rows], targets[rows]) for rows in (slice(0, 1), slice(1, 3))]
    mean_loss(sum(total for total, _ in pairs), sum(weight for _, weight in pairs)).backward()
    assert whole.grad is not None and parts.grad is not None
    assert torch.allclose(parts.grad, whole.grad, atol=1e-7)


def test_weights_below_one_are_divided_by_as_they_are():
    assert float(mean_loss(torch.tensor(0.2), torch.tensor(0.5))) == pytest.approx(0.4)


def test_mixed_targets_are_unknown_where_either_is():
    keys = uniform(0, "mix", 0, np.arange(3), MIXING_DRAWS)
    images = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    targets = torch.tensor([[1.0, torch.nan], [0.0, 1.0], [1.0, 0.0]])
    _, mixed = apply_mixup_cutmix(images, targets, keys, 1.0, 0.0, 2)
    assert not mixed[:, 0].isnan().any() and 1 <= int(mixed[:, 1].isnan().sum()) <= 2
    assert float(mean_loss(*binary_cross_entropy_loss(torch.zeros(3, 2), mixed))) == pytest.approx(np.log(2), rel=1e-5)
