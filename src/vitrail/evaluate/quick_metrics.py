"""One metric and the loss without intervals, for the validation curve during training and for comparing probes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ..data.source import Task
from ..stats.auc import roc_auc_with_influence
from .predictions import LABEL_THRESHOLD
from .probabilities import sigmoid, softmax
from .regression_metrics import r_squared


class QuickMetrics(NamedTuple):
    """A metric and the loss of a sample."""

    name: str
    """accuracy, AUROC, R2 or IoU: `val_accuracy`, `val_auroc`, `val_r2` or `val_iou` in metrics.jsonl."""
    value: float | None
    """None where it is undefined, such as an AUROC without positives or negatives."""
    loss: float
    """The training loss, without label smoothing."""


def compute_quick_metrics(task: Task, outputs: np.ndarray, targets: np.ndarray) -> QuickMetrics | None:
    """Compute the metric and the loss of a sample; None where no target is known.

    Args:
        outputs: of the model, float32 [n, K].
        targets: int64 [n] for classes; float32 [n, K] for labels, and for numbers on the scale of `outputs`.
    """
    losses = output_losses(task, outputs, targets)
    if task == "classification":
        return QuickMetrics("accuracy", float((outputs.argmax(1) == targets).mean()), float(losses.mean()))
    known = ~np.isnan(targets)
    if not known.any():
        return None
    loss = float(losses[known].mean())
    if task == "multilabel":
        probabilities, present = sigmoid(outputs).astype(np.float64), targets >= LABEL_THRESHOLD
        aucs = [
            roc_auc_with_influence(present[:, k], probabilities[:, k], there).value
            for k, there in enumerate(known.T)
            if 0 < present[there, k].sum() < there.sum()  # with positives and negatives, however few
        ]
        return QuickMetrics("AUROC", float(np.mean(aucs)) if aucs else None, loss)
    pairs = [np.stack([targets[there, k], outputs[there, k]], 1) for k, there in enumerate(known.T) if there.any()]
    scores = [score for score in map(r_squared, pairs) if np.isfinite(score)]
    return QuickMetrics("R2", float(np.mean(scores)) if scores else None, loss)


def output_losses(task: Task, outputs: np.ndarray, targets: np.ndarray) -> Float[np.ndarray, " n *K"]:
    """The loss of each image, or of each of its labels or numbers, NaN where the target is unknown.

    Args:
        outputs, targets: as in `compute_quick_metrics`.
    """
    if task == "classification":
        return np.asarray(-np.log(np.maximum(softmax(outputs)[np.arange(len(targets)), targets], 1e-12)))
    if task == "multilabel":
        p, t = np.clip(sigmoid(outputs).astype(np.float64), 1e-12, 1 - 1e-12), targets.astype(np.float64)
        return np.asarray(-(t * np.log(p) + (1 - t) * np.log(1 - p)))
    return np.asarray(np.square(outputs.astype(np.float64) - targets))
