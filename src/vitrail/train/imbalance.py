"""Rare classes and labels: how much more each of their pictures weighs in the loss, and when that pays."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from ..data.source import Task
from .recipe import Recipe


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
