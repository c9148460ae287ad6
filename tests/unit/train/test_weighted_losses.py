"""Weighted, asymmetric and bounded losses by their formulas in float64, masks and weights included."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.errors import UsageError
from vitrail.train.class_weights import choose_class_weights, imbalance_ratio
from vitrail.train.losses import (
    asymmetric_loss,
    binary_cross_entropy_loss,
    build_loss,
    check_loss_settings,
    compute_loss_weights,
    cross_entropy_loss,
    mean_loss,
    regression_loss,
)
from vitrail.train.plan import Recipe

LOGITS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) * 3
NUMBERS = torch.tensor([0, 3, 1, 1, 2, 0])
SOFT = torch.softmax(torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), 1)
CLASS_WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 0.25])
UNKNOWN = torch.nan
LABELS = torch.tensor([[1, 0, UNKNOWN], [UNKNOWN, 1, 0.3], [0, UNKNOWN, UNKNOWN], [0, 1, 1]])
OUTPUTS = torch.randn(4, 3, generator=torch.Generator().manual_seed(2)) * 3
POSITIVE_WEIGHTS = torch.tensor([3.0, 0.5, 10.0])


def softmax(logits: torch.Tensor) -> np.ndarray:
    powers = np.exp(logits.double().numpy())
    return powers / powers.sum(1, keepdims=True)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("soft", [False, True])
def test_weighted_cross_entropy_follows_the_formula(smoothing, soft):
    """Total: -sum_i sum_k w_k ((1 - s) t_ik + s / K) log p_ik; weight: sum_i sum_k w_k t_ik."""
    targets = SOFT.double().numpy() if soft else np.eye(4)[NUMBERS.numpy()]
    w, chances = CLASS_WEIGHTS.double().numpy(), softmax(LOGITS)
    total = weight = 0.0
    for i in range(6):
        for k in range(4):
            total -= w[k] * ((1 - smoothing) * targets[i, k] + smoothing / 4) * np.log(chances[i, k])
            weight += w[k] * targets[i, k]
    found = cross_entropy_loss(LOGITS, SOFT if soft else NUMBERS, smoothing, CLASS_WEIGHTS)
    assert [float(part) for part in found] == pytest.approx([total, weight], rel=1e-5)


def test_the_mean_of_weighted_class_numbers_is_that_of_torch():
    theirs = torch.nn.functional.cross_entropy(LOGITS, NUMBERS, weight=CLASS_WEIGHTS, label_smoothing=0.1)
    assert float(mean_loss(*cross_entropy_loss(LOGITS, NUMBERS, 0.1, CLASS_WEIGHTS))) == pytest.approx(
        float(theirs), rel=1e-6
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_weighted_binary_cross_entropy_follows_the_formula_over_known_cells(smoothing):
    """Total: sum of -w_k t log p - (1 - t) log(1 - p); weight: sum of w_k t + 1 - t; t moved by the smoothing."""
    total = weight = 0.0
    for (_, k), target, logit in zip(np.ndindex(4, 3), LABELS.flatten(), OUTPUTS.double().flatten(), strict=True):
        if not target.isnan():
            w, t, p = float(POSITIVE_WEIGHTS[k]), float(target) * (1 - smoothing) + smoothing / 2, torch.sigmoid(logit)
            total -= w * t * float(torch.log(p)) + (1 - t) * float(torch.log(1 - p))
            weight += w * t + 1 - t
    found = binary_cross_entropy_loss(OUTPUTS, LABELS, smoothing, POSITIVE_WEIGHTS)
    assert [float(part) for part in found] == pytest.approx([total, weight], rel=1e-5)


@pytest.mark.parametrize("gammas", [(4.0, 0.0), (4.0, 1.0), (0.5, 0.5), (0.0, 0.0)])
@pytest.mark.parametrize("margin", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("weights", [None, POSITIVE_WEIGHTS])
def test_the_asymmetric_loss_follows_the_formula_of_ridnik_over_known_cells(gammas, margin, weights):
    """L+ = (1 - p)^g+ log p, L- = q^g- log(1 - q), q = max(p - m, 0); total: sum of -w t L+ - (1 - t) L-."""
    negative, positive = gammas
    total = weight = 0.0
    for (_, k), target, logit in zip(np.ndindex(4, 3), LABELS.flatten(), OUTPUTS.double().flatten(), strict=True):
        if not target.isnan():
            w, t, p = 1.0 if weights is None else float(weights[k]), float(target), float(torch.sigmoid(logit))
            q = max(p - margin, 0.0)
            total -= w * t * (1 - p) ** positive * np.log(p) + (1 - t) * q**negative * np.log(1 - q)
            weight += w * t + 1 - t
    found = asymmetric_loss(OUTPUTS, LABELS, negative, positive, margin, 0.0, weights)
    assert [float(part) for part in found] == pytest.approx([total, weight], rel=1e-5)


def test_without_powers_and_margin_the_asymmetric_loss_is_binary_cross_entropy():
    plain = binary_cross_entropy_loss(OUTPUTS, LABELS, 0.1, POSITIVE_WEIGHTS)
    found = asymmetric_loss(OUTPUTS, LABELS, 0.0, 0.0, 0.0, 0.1, POSITIVE_WEIGHTS)
    assert torch.allclose(torch.stack(found), torch.stack(plain), rtol=1e-6)


@pytest.mark.parametrize("gammas", [(4.0, 1.0), (0.5, 0.5), (1.0, 0.0)])
@pytest.mark.parametrize("margin", [0.0, 0.05])
def test_extreme_outputs_have_finite_asymmetric_losses_and_slopes(gammas, margin):
    far = torch.tensor([[1e4, -1e4, 200.0, -200.0, 30.0, -30.0]]).repeat(2, 1).requires_grad_()
    total, weight = asymmetric_loss(far, torch.tensor([[1.0] * 6, [0.0] * 6]), *gammas, margin)
    mean_loss(total, weight).backward()
    assert far.grad is not None and torch.isfinite(total) and torch.isfinite(far.grad).all()


@pytest.mark.parametrize("bend", [0.5, 1.0, 20.0])
def test_hubers_loss_follows_the_formula_and_is_the_square_within_its_bend(bend):
    """e^2 where |e| <= d, else d (2 |e| - d), over known cells."""
    away = [abs(float(o - t)) for o, t in zip(OUTPUTS.flatten(), LABELS.flatten(), strict=True) if not t.isnan()]
    total = sum(e**2 if e <= bend else bend * (2 * e - bend) for e in away)
    found = regression_loss(OUTPUTS, LABELS, bend)
    assert [float(part) for part in found] == pytest.approx([total, len(away)], rel=1e-5)
    if bend == 20.0:
        assert torch.allclose(torch.stack(found), torch.stack(regression_loss(OUTPUTS, LABELS)))


def test_every_loss_of_a_recipe_has_finite_gradients_and_none_for_unknown_cells():
    balanced = POSITIVE_WEIGHTS
    for task, recipe, weights in (
        ("multilabel", Recipe(label_smoothing=0.1), balanced),
        ("multilabel", Recipe(asl_gamma_neg=4, asl_gamma_pos=1, asl_margin=0.05), balanced),
        ("regression", Recipe(huber_delta=1.0), None),
    ):
        outputs = OUTPUTS.bfloat16().requires_grad_()
        parts = build_loss(task, recipe, weights)(outputs, LABELS)
        assert [part.dtype for part in parts] == [torch.float32] * 2
        mean_loss(*parts).backward()
        assert outputs.grad is not None and torch.isfinite(outputs.grad).all()
        assert not outputs.grad[LABELS.isnan()].any()


def test_class_weights_come_from_the_counts_and_have_mean_one_over_the_pictures():
    targets = np.repeat([0, 1, 2], [70, 20, 10])
    balanced = compute_loss_weights("classification", Recipe(class_weights="balanced"), targets, 3)
    root = compute_loss_weights("classification", Recipe(class_weights="root"), targets, 3)
    assert balanced is not None and root is not None
    assert torch.allclose(balanced, torch.tensor([100 / 210, 100 / 60, 100 / 30]))
    assert torch.allclose(root / root[0], torch.tensor([1.0, 3.5**0.5, 7**0.5]))
    assert float(root[targets].mean()) == pytest.approx(1.0)
    soft = np.eye(3, dtype=np.float32)[targets]
    assert torch.equal(compute_loss_weights("classification", Recipe(class_weights="balanced"), soft, 3), balanced)
    assert compute_loss_weights("classification", Recipe(), targets, 3) is None


def test_a_class_without_training_pictures_has_a_finite_weight():
    weights = compute_loss_weights("classification", Recipe(class_weights="balanced"), np.array([0, 0, 2]), 3)
    assert weights is not None and torch.isfinite(weights).all() and float(weights[1]) == float(weights[2])


def test_positive_weights_are_known_negatives_over_positives_up_to_the_bound():
    column = np.array([1, 0, 0, 0, np.nan], np.float32)
    rare, never, always = np.eye(1, 5, dtype=np.float32)[0], np.zeros(5, np.float32), np.ones(5, np.float32)
    targets = np.stack([column, rare, never, always], 1)
    weights = compute_loss_weights("multilabel", Recipe(max_pos_weight=3.5), targets, 4)
    assert weights is not None and weights.tolist() == pytest.approx([3.0, 3.5, 3.5, 0.2])
    assert compute_loss_weights("multilabel", Recipe(), targets, 4) is None


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        (
            "regression",
            {"label_smoothing": 0.1},
            r"recipe.label_smoothing softens classes and labels, and this task is regression.*0.1",
        ),
        ("multilabel", {"class_weights": "root"}, r"recipe.class_weights weighs pictures by their class.*Got root"),
        ("classification", {"max_pos_weight": 5.0}, r"recipe.max_pos_weight weighs the positives of labels.*Got 5.0"),
        (
            "regression",
            {"asl_gamma_neg": 4.0},
            r"recipe.asl_gamma_neg is for the asymmetric loss.*this task is regression",
        ),
        ("classification", {"asl_margin": 0.05}, r"recipe.asl_margin is for the asymmetric loss.*set it to 0.0"),
        (
            "multilabel",
            {"huber_delta": 1.0},
            r"recipe.huber_delta bounds the errors of numbers, and this task is multilabel",
        ),
    ],
)
def test_a_loss_that_a_task_has_no_use_for_is_refused(task, change, message):
    with pytest.raises(UsageError, match=message):
        check_loss_settings(task, Recipe(**change))


def test_what_a_task_has_a_use_for_passes():
    check_loss_settings("classification", Recipe(class_weights="balanced", label_smoothing=0.1))
    check_loss_settings(
        "multilabel", Recipe(max_pos_weight=10, asl_gamma_neg=4, asl_gamma_pos=1, asl_margin=0.05, label_smoothing=0.1)
    )
    check_loss_settings("regression", Recipe(huber_delta=1.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_pos_weight": -1.0}, r"recipe.max_pos_weight must be 0 or more. Got -1.0"),
        ({"huber_delta": float("inf")}, r"recipe.huber_delta must be 0 or more. Got inf"),
        ({"asl_gamma_neg": -2.0}, r"recipe.asl_gamma_neg must be 0 or more. Got -2.0"),
        ({"asl_margin": 1.0}, r"recipe.asl_margin must lie in 0 <= probability < 1. Got 1.0"),
    ],
)
def test_impossible_losses_are_refused_with_their_numbers(change, message):
    with pytest.raises(UsageError, match=message):
        Recipe(**change)


def test_the_rule_weighs_classes_from_ten_to_one_on_and_says_why():
    kind, why = choose_class_weights("classification", 9.9)
    assert kind == "none" and "9.9 times" in why["recipe.class_weights"]
    kind, why = choose_class_weights("classification", 1234.0)
    assert kind == "root" and "1,234 times" in why["recipe.class_weights"]
    assert choose_class_weights("multilabel", 50.0)[0] == "none" and choose_class_weights("regression", 1.0) == (
        "none",
        {},
    )


def test_the_ratio_is_that_of_the_classes_that_occur():
    targets = np.repeat([0, 2], [30, 3])
    assert imbalance_ratio("classification", targets, 3) == 10.0
    assert imbalance_ratio("classification", np.eye(3, dtype=np.float32)[targets], 3) == 10.0
    assert (
        imbalance_ratio("multilabel", np.ones((3, 2), np.float32), 2)
        == imbalance_ratio("classification", targets[:0], 3)
        == 1.0
    )
