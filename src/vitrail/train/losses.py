"""What training minimises, per task. Losses are computed in float32, whatever the products were.

Each loss is a pair (total, weight): the sum of weighted losses and the sum of their weights, both float32 scalars. So
the parts of a batch, in micro-batches or on ranks, are added before the division, and the gradient is that of
sum(total) / sum(weight), however the batch was cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int, Shaped
from torch import Tensor

from ..data.source import Task
from ..errors import UsageError
from .plan import ClassWeights, Recipe

# fmt: off
# of each field of a recipe: the tasks it is for, what it does
LOSS_FIELD_TASKS: dict[str, tuple[tuple[Task, ...], str]] = {
    "label_smoothing":       (("classes", "labels"), "softens classes and labels"),
    "class_weights":   (("classes",), "weighs pictures by their class, of which each has one"),
    "max_pos_weight": (("labels",), "weighs the positives of labels"),
    "asl_gamma_neg":  (("labels",), "is for the asymmetric loss of labels"),
    "asl_gamma_pos":  (("labels",), "is for the asymmetric loss of labels"),
    "asl_margin":          (("labels",), "is for the asymmetric loss of labels"),
    "huber_delta":           (("number",), "bounds the errors of numbers"),
}
# fmt: on
Loss = tuple[Tensor, Tensor]
"""(total, weight), float32 scalars; only the total has a gradient."""


def build_loss(task: Task, recipe: Recipe, balance: Tensor | None = None) -> Callable[[Tensor, Tensor], Loss]:
    """The loss of a task, from outputs [B, K] and targets to (total, weight), chosen once before the loop.

    Args:
        balance: the weight of each class, or of each label's positives, float32 [K] on the outputs' device, from
            `imbalance.balance`; None weighs all alike.
    """
    if task == "classes":
        return lambda logits, targets: cross_entropy_loss(logits, targets, recipe.label_smoothing, balance)
    if task == "number":
        return lambda outputs, targets: regression_loss(outputs, targets, recipe.huber_delta)
    if recipe.is_asymmetric:
        gammas, margin = (recipe.asl_gamma_neg, recipe.asl_gamma_pos), recipe.asl_margin
        return lambda logits, targets: asymmetric_loss(
            logits, targets, *gammas, margin, recipe.label_smoothing, balance
        )
    return lambda logits, targets: binary_cross_entropy_loss(logits, targets, recipe.label_smoothing, balance)


def check_loss_settings(task: Task, recipe: Recipe) -> None:
    """Refuse what a recipe says of a loss and its task, or the loss of a program, has no use for.

    Raises:
        UsageError: such a field differs from its default.
    """
    usual = dataclasses.asdict(Recipe())
    for name, value in dataclasses.asdict(recipe).items():
        if (
            name not in LOSS_FIELD_TASKS
            or value == usual[name]
            or (task in LOSS_FIELD_TASKS[name][0] and not recipe.custom_loss)
        ):
            continue
        why = (
            f"this training has a loss of its own, {recipe.custom_loss}"
            if recipe.custom_loss
            else f"this task is {task}"
        )
        raise UsageError(
            f"recipe.{name} {LOSS_FIELD_TASKS[name][1]}, and {why}. Leave it out or set it to {usual[name]}. Got "
            f"{value}."
        )


def mean_loss(total: Float[Tensor, ""], weight: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """total / weight; where nothing was known, and both are 0, it is 0 and has no gradient."""
    return total / torch.where(weight > 0, weight, 1.0)


def cross_entropy_loss(
    logits: Float[Tensor, "B K"],
    targets: Int[Tensor, " B"] | Float[Tensor, "B K"],
    smoothing: float = 0.0,
    balance: Float[Tensor, " K"] | None = None,
) -> Loss:
    """Cross-entropy of one-of-K answers: sum over pictures of -sum_k w_k s_k log softmax(logits)_k.

    s is the smoothed target, (1 - smoothing) t + smoothing / K (Szegedy et al. 2016), and a picture weighs
    sum_k w_k t_k: its class's weight, or 1 without any. So the mean of class numbers is torch's own.

    Args:
        targets: class numbers, or the probability of each class (soft labels, mixed pictures).
        balance: w, the weight of each class.
    """
    if targets.ndim == 2:
        total = F.cross_entropy(
            logits.float(), targets.float(), weight=balance, label_smoothing=smoothing, reduction="sum"
        )
        return total, (targets.float() if balance is None else targets.float() * balance).sum()
    total = F.cross_entropy(logits.float(), targets, weight=balance, label_smoothing=smoothing, reduction="sum")
    return total, torch.full_like(total, len(logits)) if balance is None else balance[targets].sum()


def binary_cross_entropy_loss(
    logits: Float[Tensor, "B K"],
    targets: Float[Tensor, "B K"],
    smoothing: float = 0.0,
    balance: Float[Tensor, " K"] | None = None,
) -> Loss:
    """Binary cross-entropy of any-of-K answers: sum over known cells of -w t log p - (1 - t) log(1 - p), p = sigmoid.

    A known cell weighs 1, or w t + 1 - t: a picture of which much is known teaches more.

    Args:
        targets: 0..1, NaN where unknown.
        smoothing: targets move this much of the way to one half: the two-class form of `classes_loss`'s.
        balance: w, the weight of each label's positives; 1 without it.
    """
    known, aims = _smooth_targets(targets, smoothing)
    x = logits.float()
    losses = F.binary_cross_entropy_with_logits(x, aims, pos_weight=balance, reduction="none")
    return _sum_known(losses, known, _cell_weights(aims, balance))


def asymmetric_loss(
    logits: Float[Tensor, "B K"],
    targets: Float[Tensor, "B K"],
    gamma_negative: float,
    gamma_positive: float,
    margin: float,
    smoothing: float = 0.0,
    balance: Float[Tensor, " K"] | None = None,
) -> Loss:
    """Binary cross-entropy in which easy cells count for little and the easiest negatives for nothing.

    Sum over known cells of -w t (1 - p)^gamma_positive log p - (1 - t) q^gamma_negative log(1 - q), p = sigmoid and
    q = max(p - margin, 0). Cells weigh as in `labels_loss`, which this is where all three are 0; the gradient flows
    through the powers too.

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
    return _sum_known(-weighted - (1 - aims) * miss, known, _cell_weights(aims, balance))


def regression_loss(outputs: Float[Tensor, "B K"], targets: Float[Tensor, "B K"], huber: float = 0.0) -> Loss:
    """Squared error: sum over known cells of e^2, e = output - target; each of them weighs 1.

    Squared unless asked: its minimum is the mean of what is possible, in which the answers are then unbiased, while a
    bend moves those of a skewed column towards its median. Where some targets are wildly wrong, that is what one wants.

    Args:
        targets: on the scale of `evaluate.scaling`, NaN where unknown.
        huber: beyond this |e| the loss goes on as a line, huber (2 |e| - huber): twice Huber's (1964); 0 for never.
    """
    known = ~targets.isnan()
    away = outputs.float() - torch.where(known, targets.float(), 0.0)
    if not huber:
        return _sum_known(away.square(), known)
    return _sum_known(2 * F.huber_loss(away, torch.zeros_like(away), reduction="none", delta=huber), known)


def _smooth_targets(targets: Float[Tensor, "B K"], smoothing: float) -> tuple[Tensor, Tensor]:
    """Which cells are known, and what they aim at; unknown ones at one half, which no loss turns into NaN."""
    known = ~targets.isnan()
    return known, torch.where(known, targets.float(), 0.5) * (1 - smoothing) + smoothing / 2


def _cell_weights(aims: Float[Tensor, "B K"], balance: Float[Tensor, " K"] | None) -> Float[Tensor, "B K"] | None:
    """What each cell weighs."""
    return None if balance is None else aims * balance + 1 - aims


def _sum_known(losses: Float[Tensor, "B K"], known: Tensor, weights: Float[Tensor, "B K"] | None = None) -> Loss:
    """Known cells and their weights summed; unknown ones are taken out first, so that no gradient comes from them."""
    total = torch.where(known, losses, 0.0).sum()
    return total, known.sum().float() if weights is None else torch.where(known, weights, 0.0).sum()


# -- Class weights: larger loss weights for rare classes and labels

IMBALANCE_THRESHOLD = 10.0
"""So many pictures of the commonest class for one of the rarest, and weights are worth their price."""


def imbalance_ratio(task: Task, targets: Shaped[np.ndarray, " n *K"], outputs: int) -> float:
    """Pictures of the commonest class for each of the rarest that occurs; 1 where a picture has no one class."""
    counts = class_counts(targets, outputs) if task == "classes" else np.ones(1)
    there = counts[counts > 0]
    return float(there.max() / there.min()) if len(there) else 1.0


def choose_class_weights(task: Task, ratio: float) -> tuple[ClassWeights, dict[str, str]]:
    """How the plan weighs classes, and the reasons by the names of the plan's fields.

    Measured on Fashion-MNIST made imbalanced (EXPERIMENTS.md): where the commonest class has ten times the pictures of
    the rarest, the root of the balanced weights found seven of a hundred pictures more of the average class, at no cost
    to overall accuracy that could be measured; fully balanced weights found two more and cost four of all (eleven at a
    hundred times). Labels are ranked, which needs no weights.
    """
    if task == "labels":
        return "none", {"recipe.max_pos_weight": "labels are ranked by their own scores, which needs no weights"}
    if task != "classes":
        return "none", {}
    if ratio < IMBALANCE_THRESHOLD:
        reason = (
            f"the commonest class has {ratio:.1f} times the pictures of the rarest; weights pay from "
            f"{IMBALANCE_THRESHOLD:g} on"
        )
        return "none", {"recipe.class_weights": reason}
    reason = f"the commonest class has {ratio:,.0f} times the pictures of the rarest: its root finds more of the rare"
    return "root", {"recipe.class_weights": reason}


def compute_loss_weights(
    task: Task, recipe: Recipe, targets: Shaped[np.ndarray, " n *K"], outputs: int
) -> Tensor | None:
    """What `objective.loss_for` weighs with, float32 [K]; None where the recipe weighs all alike.

    Args:
        targets: all training targets, as the loss is given them.
        outputs: K.
    """
    if task == "classes" and recipe.class_weights != "none":
        return torch.from_numpy(_compute_class_weights(class_counts(targets, outputs), recipe.class_weights))
    if task == "labels" and recipe.max_pos_weight:
        return torch.from_numpy(_compute_positive_weights(targets, recipe.max_pos_weight))
    return None


def class_counts(targets: Shaped[np.ndarray, " n *K"], outputs: int) -> Float64[np.ndarray, " K"]:
    """Pictures of each class; soft labels add their probabilities."""
    if targets.ndim == 2:
        return targets.astype(np.float64).sum(0)
    return np.bincount(targets, minlength=outputs).astype(np.float64)


def _compute_class_weights(counts: Float64[np.ndarray, " K"], kind: str) -> Float[np.ndarray, " K"]:
    """Weights of classes, whose mean over the training pictures is 1; a class without any counts as one of a picture.

    balanced: 1 / pictures of the class, so that all classes weigh the same; root: its square root, half of the way.
    """
    there = np.maximum(counts, 1.0)
    weights = 1 / there if kind == "balanced" else 1 / np.sqrt(there)
    return (weights * counts.sum() / (weights * counts).sum()).astype(np.float32)


def _compute_positive_weights(targets: Float[np.ndarray, "n K"], bound: float) -> Float[np.ndarray, " K"]:
    """Known negatives for each known positive of every label, at most `bound`; none of a kind counts as one."""
    known = ~np.isnan(targets)
    positives = np.where(known, targets, 0.0).astype(np.float64).sum(0)
    negatives = known.sum(0) - positives
    return np.minimum(np.maximum(negatives, 1) / np.maximum(positives, 1), bound).astype(np.float32)
