"""Training losses by task, computed in float32.

Each loss is a pair (total, weight): the sum of weighted losses and the sum of their weights, both float32 scalars. So
the parts of a batch, in micro-batches or on ranks, are added before the division, and the gradient is that of
sum(total) / sum(weight), however the batch is split.

Weights of single images multiply the total alone. Their mean over the training images is 1, so the loss of a batch is,
in expectation over batches, the weighted mean over all images: that of a set in which each image occurs as often as its
weight says.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from ..data.source import UNKNOWN_PIXEL, Task
from ..errors import UsageError
from ..model.class_maps import spread_logits
from ..model.config import ViTConfig
from .class_weights import class_counts, compute_class_weights, compute_positive_weights
from .plan import Recipe

# fmt: off
# Recipe field: the tasks it is for, and its effect, for messages.
LOSS_FIELD_TASKS: dict[str, tuple[tuple[Task, ...], str]] = {
    "label_smoothing": (("classification", "multilabel"), "softens classes and labels"),
    "class_weights":   (("classification",), "weighs pictures by their class, of which each has one"),
    "max_pos_weight":  (("multilabel",), "weighs the positives of labels"),
    "asl_gamma_neg":   (("multilabel",), "is for the asymmetric loss of labels"),
    "asl_gamma_pos":   (("multilabel",), "is for the asymmetric loss of labels"),
    "asl_margin":      (("multilabel",), "is for the asymmetric loss of labels"),
    "huber_delta":     (("regression",), "bounds the errors of numbers"),
    "dice_weight":     (("segmentation",), "is for masks"),
}
# fmt: on
Loss = tuple[Tensor, Tensor]
"""(total, weight), float32 scalars; only the total has a gradient."""


@runtime_checkable
class LossFunction(Protocol):
    """From outputs [B, K], targets and perhaps the weight of each image [B] to (total, weight)."""

    def __call__(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None, /) -> Loss: ...


def build_loss(
    task: Task, recipe: Recipe, balance: Tensor | None = None, model: ViTConfig | None = None
) -> LossFunction:
    """The loss of a task, chosen once before the loop.

    Args:
        model: of segmentation, whose outputs are spread over the pixels of its images.
        balance: the weight of each class, or of each label's positives, float32 [K] on the outputs' device, from
            `compute_loss_weights`; None is 1 for all.
    """
    smoothing = recipe.label_smoothing
    if task == "classification":
        return lambda logits, targets, w=None: cross_entropy_loss(logits, targets, smoothing, balance, w)
    if task == "segmentation":
        assert model is not None
        return lambda outputs, masks, w=None: mask_loss(spread_logits(outputs, model), masks, recipe.dice_weight, w)
    if task == "regression":
        return lambda outputs, targets, w=None: regression_loss(outputs, targets, recipe.huber_delta, w)
    if recipe.is_asymmetric:
        gammas, margin = (recipe.asl_gamma_neg, recipe.asl_gamma_pos), recipe.asl_margin
        return lambda logits, targets, w=None: asymmetric_loss(logits, targets, *gammas, margin, smoothing, balance, w)
    return lambda logits, targets, w=None: binary_cross_entropy_loss(logits, targets, smoothing, balance, w)


def check_loss_settings(task: Task, recipe: Recipe) -> None:
    """Check that the recipe's loss fields have an effect for this task or custom loss.

    Raises:
        UsageError: a field without effect differs from its default.
    """
    defaults = Recipe()
    for name, (tasks, effect) in LOSS_FIELD_TASKS.items():
        value, default = vars(recipe)[name], vars(defaults)[name]
        if value == default or (task in tasks and not recipe.custom_loss):
            continue
        why = f"this task is {task}"
        if recipe.custom_loss:
            why = f"this training has a loss of its own, {recipe.custom_loss}"
        raise UsageError(f"recipe.{name} {effect}, and {why}. Leave it out or set it to {default}. Got {value}.")


def mean_loss(total: Float[Tensor, ""], weight: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """total / weight; 0 without gradient where no target is known and both are 0."""
    return total / torch.where(weight > 0, weight, 1.0)


def cross_entropy_loss(
    logits: Float[Tensor, "B K"],
    targets: Int[Tensor, " B"] | Float[Tensor, "B K"],
    smoothing: float = 0.0,
    balance: Float[Tensor, " K"] | None = None,
    image_weights: Float[Tensor, " B"] | None = None,
) -> Loss:
    """Cross-entropy of one-of-K outputs: sum over images of -sum_k w_k s_k log softmax(logits)_k.

    s is the smoothed target, (1 - smoothing) t + smoothing / K (Szegedy et al. 2016), and an image weighs
    sum_k w_k t_k: the weight of its class, or 1 without weights. For class numbers this is torch's mean.

    Args:
        targets: class numbers, or the probability of each class (soft labels, mixed images).
        balance: w, the weight of each class.
        image_weights: factors of the images' losses.
    """
    aims = targets.float() if targets.ndim == 2 else targets
    reduction = "sum" if image_weights is None else "none"
    total = F.cross_entropy(logits.float(), aims, weight=balance, label_smoothing=smoothing, reduction=reduction)
    if image_weights is not None:
        total = (total * image_weights).sum()
    if targets.ndim == 2:
        return total, (aims if balance is None else aims * balance).sum()
    return total, torch.full_like(total, len(logits)) if balance is None else balance[targets].sum()


def binary_cross_entropy_loss(
    logits: Float[Tensor, "B K"],
    targets: Float[Tensor, "B K"],
    smoothing: float = 0.0,
    balance: Float[Tensor, " K"] | None = None,
    image_weights: Float[Tensor, " B"] | None = None,
) -> Loss:
    """Binary cross-entropy of any-of-K outputs: sum over known cells of -w t log p - (1 - t) log(1 - p), p = sigmoid.

    A known cell weighs 1, or w t + 1 - t.

    Args:
        targets: 0..1, NaN where unknown.
        smoothing: targets become (1 - smoothing) t + smoothing / 2.
        balance: w, the weight of each label's positives; 1 without it.
        image_weights: factors of the images' losses.
    """
    known, aims = _smooth_targets(targets, smoothing)
    x = logits.float()
    losses = F.binary_cross_entropy_with_logits(x, aims, pos_weight=balance, reduction="none")
    return _sum_known(losses, known, _cell_weights(aims, balance), image_weights)


def asymmetric_loss(
    logits: Float[Tensor, "B K"],
    targets: Float[Tensor, "B K"],
    gamma_negative: float,
    gamma_positive: float,
    margin: float,
    smoothing: float = 0.0,
    balance: Float[Tensor, " K"] | None = None,
    image_weights: Float[Tensor, " B"] | None = None,
) -> Loss:
    """Asymmetric binary cross-entropy: easy cells have small weight, the easiest negatives none.

    Sum over known cells of -w t (1 - p)^gamma_positive log p - (1 - t) q^gamma_negative log(1 - q), p = sigmoid and
    q = max(p - margin, 0). Cells weigh as in `binary_cross_entropy_loss`, which is the case of all three 0; the
    gradient flows through the powers too.

    Source: Ridnik et al. 2021, "Asymmetric Loss For Multi-Label Classification", equations 4 to 7.
    """
    known, aims = _smooth_targets(targets, smoothing)
    x = logits.float()
    hit = (gamma_positive * F.logsigmoid(-x)).exp() * F.logsigmoid(x)  # (1 - p)^gamma log p
    q = x.sigmoid() - margin
    beyond = q > 0  # elsewhere a power below 1 would have no finite slope
    q = torch.where(beyond, q, 0.5)
    spared = F.logsigmoid(-x) if margin == 0 else torch.log1p(-q)  # log(1 - q), exact where p is nearly 1
    miss = torch.where(beyond, q.pow(gamma_negative) * spared, 0.0)
    weighted = aims * hit if balance is None else balance * aims * hit
    return _sum_known(-weighted - (1 - aims) * miss, known, _cell_weights(aims, balance), image_weights)


def regression_loss(
    outputs: Float[Tensor, "B K"],
    targets: Float[Tensor, "B K"],
    huber: float = 0.0,
    image_weights: Float[Tensor, " B"] | None = None,
) -> Loss:
    """Squared error: sum over known cells of e^2, e = output - target; each cell weighs 1.

    Its minimum is the conditional mean. The Huber loss moves predictions of a skewed column towards the median, which
    is wanted where some targets are wildly wrong.

    Args:
        targets: standardized, NaN where unknown.
        huber: beyond this |e| the loss is linear, huber (2 |e| - huber), twice Huber's (1964); 0 is squared everywhere.
        image_weights: factors of the images' losses.
    """
    known = ~targets.isnan()
    errors = outputs.float() - torch.where(known, targets.float(), 0.0)
    if not huber:
        return _sum_known(errors.square(), known, None, image_weights)
    bounded = 2 * F.huber_loss(errors, torch.zeros_like(errors), reduction="none", delta=huber)
    return _sum_known(bounded, known, None, image_weights)


def mask_loss(
    logits: Float[Tensor, "B K H W"],
    masks: UInt8[Tensor, "B H W"],
    dice_weight: float = 0.0,
    image_weights: Float[Tensor, " B"] | None = None,
) -> Loss:
    """Sum over images of the mean cross-entropy of their known pixels, and dice_weight times their Dice loss.

    An image with a known pixel weighs 1. Its Dice loss is 1 - mean over the classes k of its mask of
    2 sum(p_k t_k) / (sum(p_k) + sum(t_k)), over known pixels (Milletari et al. 2016, without squares): a small class
    counts as much as a large one. Each image by itself, so that parts of a batch can be added.

    Args:
        masks: class indices, `UNKNOWN_PIXEL` where unknown.
        image_weights: factors of the images' losses.
    """
    known = masks != UNKNOWN_PIXEL
    aims = torch.where(known, masks, 0).long()
    counts = known.sum((1, 2)).float()
    logs = logits.float().log_softmax(1)
    entropy = -torch.where(known, logs.gather(1, aims[:, None])[:, 0], 0.0).sum((1, 2))
    losses = entropy / counts.clamp(min=1)
    if dice_weight:
        chances = torch.where(known[:, None], logs.exp(), 0.0)
        hits = torch.zeros(logits.shape[:2], device=logits.device)
        sizes = torch.zeros_like(hits)
        right = chances.gather(1, aims[:, None])[:, 0].flatten(1)  # the probability of its own class, of every pixel
        hits = hits.scatter_add(1, aims.flatten(1), right)
        sizes = sizes.scatter_add(1, aims.flatten(1), known.flatten(1).float())
        present = (sizes > 0).float()
        dice = (2 * hits / (chances.sum((2, 3)) + sizes).clamp(min=1e-6) * present).sum(1)
        losses = losses + dice_weight * (counts > 0) * (1 - dice / present.sum(1).clamp(min=1))
    losses = losses if image_weights is None else losses * image_weights
    return losses.sum(), (counts > 0).sum().float()


def _smooth_targets(targets: Float[Tensor, "B K"], smoothing: float) -> tuple[Tensor, Tensor]:
    """Mask of known cells, and smoothed targets; unknown cells get one half, so that no loss is NaN."""
    known = ~targets.isnan()
    return known, torch.where(known, targets.float(), 0.5) * (1 - smoothing) + smoothing / 2


def _cell_weights(aims: Float[Tensor, "B K"], balance: Float[Tensor, " K"] | None) -> Float[Tensor, "B K"] | None:
    """Weights of the cells for weights `balance` of the positives."""
    return None if balance is None else aims * balance + 1 - aims


def _sum_known(
    losses: Float[Tensor, "B K"],
    known: Tensor,
    weights: Float[Tensor, "B K"] | None,
    image_weights: Float[Tensor, " B"] | None,
) -> Loss:
    """Sums of known losses and of their weights; unknown cells are masked before, so that they have no gradient."""
    cells = torch.where(known, losses, 0.0)
    total = cells.sum() if image_weights is None else (cells * image_weights[:, None]).sum()
    return total, known.sum().float() if weights is None else torch.where(known, weights, 0.0).sum()


def compute_loss_weights(
    task: Task, recipe: Recipe, targets: Shaped[np.ndarray, " n *K"], outputs: int
) -> Tensor | None:
    """The weights for `build_loss`, float32 [K]; None where the recipe has none.

    Args:
        targets: all training targets, as the loss gets them.
        outputs: K.
    """
    if task == "classification" and recipe.class_weights != "none":
        return torch.from_numpy(compute_class_weights(class_counts(targets, outputs), recipe.class_weights))
    if task == "multilabel" and recipe.max_pos_weight:
        return torch.from_numpy(compute_positive_weights(targets, recipe.max_pos_weight))
    return None
