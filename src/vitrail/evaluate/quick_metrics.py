"""One figure and the loss on a sample, for the curve of a training; the full figures come at its end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..data.source import Task
from ..stats.auc import roc_auc_with_influence
from .inference import sigmoid, softmax
from .predictions import LABEL_THRESHOLD
from .regression_metrics import r_squared


class QuickMetrics(NamedTuple):
    """What the model is worth at the moment."""

    name: str
    """accuracy, AUROC or R2: `val_accuracy`, `val_auroc` or `val_r2` in metrics.jsonl."""
    value: float | None
    """None where the sample cannot show it, as an AUROC without both kinds of pictures."""
    loss: float
    """What training minimises, without smoothing."""


def compute_quick_metrics(task: Task, outputs: np.ndarray, targets: np.ndarray) -> QuickMetrics | None:
    """The figure of a sample of pictures; None where nothing of them is known.

    Args:
        outputs: of the model, float32 [n, K].
        targets: int64 [n] for classes; float32 [n, K] for labels, and for numbers on the scale of `outputs`.
    """
    if task == "classes":
        chances = softmax(outputs)[np.arange(len(targets)), targets]
        accuracy = float((outputs.argmax(1) == targets).mean())
        return QuickMetrics("accuracy", accuracy, float(-np.log(np.maximum(chances, 1e-12)).mean()))
    known = ~np.isnan(targets)
    if not known.any():
        return None
    if task == "labels":
        return _multilabel_quick_metrics(sigmoid(outputs).astype(np.float64), targets, known)
    pairs = [np.stack([targets[there, k], outputs[there, k]], 1) for k, there in enumerate(known.T) if there.any()]
    shares = [share for share in map(r_squared, pairs) if np.isfinite(share)]
    loss = float(np.square(outputs.astype(np.float64) - targets)[known].mean())
    return QuickMetrics("R2", float(np.mean(shares)) if shares else None, loss)


def _multilabel_quick_metrics(probabilities: np.ndarray, targets: np.ndarray, known: np.ndarray) -> QuickMetrics:
    """The AUROC is the mean over labels that have both kinds of pictures, however few."""
    present = targets >= LABEL_THRESHOLD
    found = [
        roc_auc_with_influence(present[:, k], probabilities[:, k], there).value
        for k, there in enumerate(known.T)
        if 0 < present[there, k].sum() < there.sum()
    ]
    p, t = np.clip(probabilities[known], 1e-12, 1 - 1e-12), targets[known].astype(np.float64)
    loss = float(-(t * np.log(p) + (1 - t) * np.log(1 - p)).mean())
    return QuickMetrics("AUROC", float(np.mean(found)) if found else None, loss)
