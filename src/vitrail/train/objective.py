"""What training minimises, per task. Losses are computed in float32, whatever the products were."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..data.source import Task

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs [B, K] and targets to a scalar."""


def loss_for(task: Task, smoothing: float = 0.0) -> Loss:
    """The loss of a task, chosen once before the loop; numbers have no smoothing, which the plan refuses for them."""
    if task == "classes":
        return lambda logits, targets: classes_loss(logits, targets, smoothing)
    if task == "labels":
        return lambda logits, targets: labels_loss(logits, targets, smoothing)
    return numbers_loss


def classes_loss(
    logits: Float[Tensor, "B K"], targets: Int[Tensor, " B"] | Float[Tensor, "B K"], smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Cross-entropy of one-of-K answers: mean over pictures of -sum_k t_k log softmax(logits)_k.

    Args:
        targets: class numbers, or the probability of each class (soft labels, mixed pictures).
        smoothing: this much of each target is spread evenly over all K classes (Szegedy et al. 2016).
    """
    soft = targets.float() if targets.ndim == 2 else targets
    return F.cross_entropy(logits.float(), soft, label_smoothing=smoothing)


def labels_loss(
    logits: Float[Tensor, "B K"], targets: Float[Tensor, "B K"], smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Binary cross-entropy of any-of-K answers: mean over known cells of -t log p - (1 - t) log(1 - p), p = sigmoid.

    Every known cell weighs the same, so a picture of which much is known teaches more. Without any the loss is 0.

    Args:
        targets: 0..1, NaN where unknown.
        smoothing: targets move this much of the way to one half: the two-class form of `classes_loss`'s.
    """
    known = ~targets.isnan()
    aims = torch.where(known, targets.float(), 0.5) * (1 - smoothing) + smoothing / 2
    return _mean(F.binary_cross_entropy_with_logits(logits.float(), aims, reduction="none"), known)


def numbers_loss(outputs: Float[Tensor, "B K"], targets: Float[Tensor, "B K"]) -> Float[Tensor, ""]:
    """Squared error: mean over known cells of (output - target)^2; without any it is 0.

    Squared and not Huber's: its minimum is the mean of what is possible, in which the answers are then unbiased, while
    a bend at one deviation would move those of a skewed column towards its median.

    Args:
        targets: on the scale of `evaluate.scaling`, NaN where unknown.
    """
    known = ~targets.isnan()
    return _mean((outputs.float() - torch.where(known, targets.float(), 0.0)).square(), known)


def _mean(losses: Float[Tensor, "B K"], known: Tensor) -> Float[Tensor, ""]:
    """Mean over known cells; unknown ones are taken out before the sum, so that no gradient comes from them."""
    return torch.where(known, losses, 0.0).sum() / known.sum().clamp(min=1)
