"""Rare classes and labels: how much more each of their pictures weighs in the loss, and when that pays."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from ...data.source import Task
from ..recipe import ClassWeights, Recipe

UNEVEN = 10.0
"""So many pictures of the commonest class for one of the rarest, and weights are worth their price."""


def ratio(task: Task, targets: Shaped[np.ndarray, " n *K"], outputs: int) -> float:
    """Pictures of the commonest class for each of the rarest that occurs; 1 where a picture has no one class."""
    counts = class_counts(targets, outputs) if task == "classes" else np.ones(1)
    there = counts[counts > 0]
    return float(there.max() / there.min()) if len(there) else 1.0


def weights_for(task: Task, ratio: float) -> tuple[ClassWeights, dict[str, str]]:
    """How the plan weighs classes, and the reasons by the names of the plan's fields.

    Measured on Fashion-MNIST made imbalanced (EXPERIMENTS.md): where the commonest class has ten times the pictures of
    the rarest, the root of the balanced weights found seven of a hundred pictures more of the average class, at no cost
    to the accuracy of all that could be told; fully balanced weights found two more and cost four of all (eleven at a
    hundred times). Labels are ranked, which needs no weights.
    """
    if task == "labels":
        return "none", {"recipe.positive_weight": "labels are ranked by their own scores, which needs no weights"}
    if task != "classes":
        return "none", {}
    if ratio < UNEVEN:
        reason = f"the commonest class has {ratio:.1f} times the pictures of the rarest; weights pay from {UNEVEN:g} on"
        return "none", {"recipe.class_weights": reason}
    reason = f"the commonest class has {ratio:,.0f} times the pictures of the rarest: its root finds more of the rare"
    return "root", {"recipe.class_weights": reason}


def balance(task: Task, recipe: Recipe, targets: Shaped[np.ndarray, " n *K"], outputs: int) -> Tensor | None:
    """What `objective.loss_for` weighs with, float32 [K]; None where the recipe weighs all alike.

    Args:
        targets: all training targets, as the loss is given them.
        outputs: K.
    """
    if task == "classes" and recipe.class_weights != "none":
        return torch.from_numpy(_class_weights(class_counts(targets, outputs), recipe.class_weights))
    if task == "labels" and recipe.positive_weight:
        return torch.from_numpy(_positive_weights(targets, recipe.positive_weight))
    return None


def class_counts(targets: Shaped[np.ndarray, " n *K"], outputs: int) -> Float64[np.ndarray, " K"]:
    """Pictures of each class; soft labels add their probabilities."""
    if targets.ndim == 2:
        return targets.astype(np.float64).sum(0)
    return np.bincount(targets, minlength=outputs).astype(np.float64)


def _class_weights(counts: Float64[np.ndarray, " K"], kind: str) -> Float[np.ndarray, " K"]:
    """Weights of classes, whose mean over the training pictures is 1; a class without any counts as one of a picture.

    balanced: 1 / pictures of the class, so that all classes weigh the same; root: its square root, half of the way.
    """
    there = np.maximum(counts, 1.0)
    weights = 1 / there if kind == "balanced" else 1 / np.sqrt(there)
    return (weights * counts.sum() / (weights * counts).sum()).astype(np.float32)


def _positive_weights(targets: Float[np.ndarray, "n K"], bound: float) -> Float[np.ndarray, " K"]:
    """Known negatives for each known positive of every label, at most `bound`; none of a kind counts as one."""
    known = ~np.isnan(targets)
    positives = np.where(known, targets, 0.0).astype(np.float64).sum(0)
    negatives = known.sum(0) - positives
    return np.minimum(np.maximum(negatives, 1) / np.maximum(positives, 1), bound).astype(np.float32)
