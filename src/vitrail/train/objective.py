"""What training minimises, per task. Losses are computed in float32, whatever the products were."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


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
