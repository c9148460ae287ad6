"""What training minimises, per task. Losses are computed in float32, whatever the products were.

Each loss is a pair (total, weight): the sum of weighted losses and the sum of their weights, both float32 scalars. So
the parts of a batch, in micro-batches or on ranks, are added before anybody divides, and the gradient is that of
sum(total) / sum(weight), however the batch was cut.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..data.source import Task
from .recipe import Recipe

Loss = tuple[Tensor, Tensor]
"""(total, weight), float32 scalars; only the total has a gradient."""


def loss_for(task: Task, recipe: Recipe) -> Callable[[Tensor, Tensor], Loss]:
    """The loss of a task, from outputs [B, K] and targets to (total, weight), chosen once before the loop."""
    if task == "classes":
        return lambda logits, targets: classes_loss(logits, targets, recipe.smoothing)
    if task == "labels":
        return lambda logits, targets: labels_loss(logits, targets, recipe.smoothing)
    return numbers_loss


def mean(total: Float[Tensor, ""], weight: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """total / weight; where nothing was known, and both are 0, it is 0 and has no gradient."""
    return total / torch.where(weight > 0, weight, 1.0)


def classes_loss(
    logits: Float[Tensor, "B K"], targets: Int[Tensor, " B"] | Float[Tensor, "B K"], smoothing: float = 0.0
) -> Loss:
    """Cross-entropy of one-of-K answers: sum over pictures of -sum_k t_k log softmax(logits)_k; each picture weighs 1.

    Args:
        targets: class numbers, or the probability of each class (soft labels, mixed pictures).
        smoothing: this much of each target is spread evenly over all K classes (Szegedy et al. 2016).
    """
    soft = targets.float() if targets.ndim == 2 else targets
    total = F.cross_entropy(logits.float(), soft, label_smoothing=smoothing, reduction="sum")
    return total, torch.full_like(total, len(logits))


def labels_loss(logits: Float[Tensor, "B K"], targets: Float[Tensor, "B K"], smoothing: float = 0.0) -> Loss:
    """Binary cross-entropy of any-of-K answers: sum over known cells of -t log p - (1 - t) log(1 - p), p = sigmoid.

    Every known cell weighs 1, so a picture of which much is known teaches more.

    Args:
        targets: 0..1, NaN where unknown.
        smoothing: targets move this much of the way to one half: the two-class form of `classes_loss`'s.
    """
    known = ~targets.isnan()
    aims = torch.where(known, targets.float(), 0.5) * (1 - smoothing) + smoothing / 2
    return _summed(F.binary_cross_entropy_with_logits(logits.float(), aims, reduction="none"), known)


def numbers_loss(outputs: Float[Tensor, "B K"], targets: Float[Tensor, "B K"]) -> Loss:
    """Squared error: sum over known cells of (output - target)^2; each of them weighs 1.

    Squared and not Huber's: its minimum is the mean of what is possible, in which the answers are then unbiased, while
    a bend at one deviation would move those of a skewed column towards its median.

    Args:
        targets: on the scale of `evaluate.scaling`, NaN where unknown.
    """
    known = ~targets.isnan()
    return _summed((outputs.float() - torch.where(known, targets.float(), 0.0)).square(), known)


def _summed(losses: Float[Tensor, "B K"], known: Tensor) -> Loss:
    """Known cells summed and counted; unknown ones are taken out first, so that no gradient comes from them."""
    return torch.where(known, losses, 0.0).sum(), known.sum().float()
