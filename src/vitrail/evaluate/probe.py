"""Linear probes on frozen features: for every penalty of a path the exact minimum of the loss, and answers from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Shaped
from torch import Tensor

from ..data.source import Task

STRENGTHS = tuple(float(f"{10.0 ** (half / 2):.2g}") for half in range(-10, 5))
"""What C takes on a path: 1e-5, 3.2e-5, ... 100; as in scikit-learn, the larger C is the less is penalised."""
ITERATIONS = 300
SMALLEST_DEVIATION = 1e-6


@dataclass(frozen=True)
class Linear:
    """Features [n, P] to outputs [n, K]: features @ weight.T + bias, as a model's head computes them."""

    weight: Float32[np.ndarray, "K P"]
    bias: Float32[np.ndarray, " K"]
    c: float
    """The C that it was fitted with."""

    def outputs(self, features: Float32[np.ndarray, "n P"]) -> Float32[np.ndarray, "n K"]:
        """Logits, or numbers as they were learnt."""
        return np.asarray(features @ self.weight.T + self.bias)


def path(
    features: Float32[np.ndarray, "n P"],
    targets: Shaped[np.ndarray, " n *K"],
    task: Task,
    outputs: int,
    strengths: Sequence[float] = STRENGTHS,
) -> Iterator[Linear]:
    """A probe for every C in turn, each begun where the one before it ended; ask for as many as are wanted.

    With features standardised by their own mean and deviation, a probe minimises C * loss + |weight|^2 / 2, where the
    loss is summed over pictures: cross-entropy of one softmax for classes (for two classes scikit-learn's C is twice
    this one, because its single vector stands for two); binary cross-entropy of every known label; half the squared
    error of every known number. Biases are not penalised. The standardisation is then folded into weight and bias.

    Args:
        targets: class numbers [n] or chances [n, K]; labels 0..1 and numbers float32 [n, K], NaN where unknown.
        strengths: the values of C, best from small to large: the smallest ends soonest and is a good start.
    """
    x, mean, deviation = _standardised(features)
    if task == "number":
        fits: Iterator[tuple[Tensor, Tensor, float]] = _ridge(x, torch.from_numpy(targets).double(), strengths)
    else:
        fits = _logistic(x, torch.from_numpy(targets), task, outputs, strengths)
    for weight, bias, c in fits:
        folded = weight / deviation  # [K, P]
        moved = bias - folded @ mean
        yield Linear(folded.float().numpy(), moved.float().numpy(), c)


def _standardised(features: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.from_numpy(features).double()
    mean, deviation = x.mean(0), x.std(0, correction=0).clamp(min=SMALLEST_DEVIATION)
    return (x - mean) / deviation, mean, deviation


def _logistic(
    x: Float[Tensor, "n P"], targets: Tensor, task: Task, outputs: int, strengths: Sequence[float]
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """L-BFGS along the path. The loss is divided by C * n, which leaves the minimum where it is and suits the steps."""
    weight = torch.zeros(outputs, x.shape[1], dtype=x.dtype, requires_grad=True)
    bias = torch.zeros(outputs, dtype=x.dtype, requires_grad=True)
    for c in strengths:
        optimizer = torch.optim.LBFGS(
            [weight, bias], max_iter=ITERATIONS, tolerance_grad=1e-6, tolerance_change=1e-10, history_size=20,
            line_search_fn="strong_wolfe",
        )  # fmt: skip

        def loss(optimizer: torch.optim.LBFGS = optimizer, c: float = c) -> Tensor:
            optimizer.zero_grad()
            error = _summed_loss(F.linear(x, weight, bias), targets, task) / len(x)
            total = error + weight.square().sum() / (2 * c * len(x))
            total.backward()
            return total

        with torch.enable_grad():
            optimizer.step(loss)
        yield weight.detach().clone(), bias.detach().clone(), c


def _summed_loss(logits: Float[Tensor, "n K"], targets: Tensor, task: Task) -> Float[Tensor, ""]:
    if task == "classes":
        soft = targets.to(logits.dtype) if targets.ndim == 2 else targets
        return F.cross_entropy(logits, soft, reduction="sum")
    known: Bool[Tensor, "n K"] = ~targets.isnan()
    aims = torch.where(known, targets.to(logits.dtype), 0.5)
    losses = F.binary_cross_entropy_with_logits(logits, aims, reduction="none")
    return torch.where(known, losses, 0.0).sum()


def _ridge(
    x: Float[Tensor, "n P"], targets: Float[Tensor, "n K"], strengths: Sequence[float]
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Each column by itself on the pictures where it is known: (X'X + 1/C) w = X'y, both around their own means."""
    columns = [_spectrum(x, column) for column in targets.T]
    for c in strengths:
        weights, biases = [], []
        for turn, values, product, centre, mean in columns:
            weight = turn @ (turn.T @ product / (values + 1 / c))
            weights.append(weight)
            biases.append(mean - weight @ centre)
        yield torch.stack(weights), torch.stack(biases), c


def _spectrum(x: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What every penalty shares: X'X = turn @ diag(values) @ turn.T, X'y, and the means that were taken off."""
    known = ~column.isnan()
    if not known.any():
        nothing = torch.zeros(x.shape[1], dtype=x.dtype)
        return torch.eye(x.shape[1], dtype=x.dtype), nothing, nothing, nothing, nothing.sum()
    rows, aims = x[known], column[known]
    centre, mean = rows.mean(0), aims.mean()
    rows, aims = rows - centre, aims - mean
    values, turn = torch.linalg.eigh(rows.T @ rows)
    return turn, values.clamp(min=0), rows.T @ aims, centre, mean
