"""What each known label of each picture costs: binary cross-entropy, for metrics and for comparisons alike."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from .label_predictions import LabelPredictions

LEAST = np.finfo(np.float32).tiny
"""Probabilities count as at least this much, so that a loss is finite."""


def label_losses(answers: LabelPredictions) -> Float64[np.ndarray, "n K"]:
    """Binary cross-entropy in nats, 0 where a label is not known."""
    known = answers.known
    targets = np.where(known, 0 if answers.targets is None else answers.targets, 0).astype(np.float64)
    chances = np.where(known, answers.probabilities, 0.5).astype(np.float64)
    right = targets * np.log(np.maximum(chances, LEAST)) + (1 - targets) * np.log(np.maximum(1 - chances, LEAST))
    return np.where(known, -right, 0.0)
