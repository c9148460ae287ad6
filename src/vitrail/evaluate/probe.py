"""Probes of frozen features: linear probes along a regularisation path, out-of-fold predictions, and k-NN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Float64, Int64, Shaped
from torch import Tensor

from ..data import splits
from ..data.source import Task
from ..data.splits import assign_groups, assign_iterative_stratified, number_groups
from ..errors import DataError
from ..randomness import permutation, uniform
from .calibration import fit_scaling
from .predictions import LABEL_THRESHOLD
from .quick_metrics import compute_quick_metrics

PROBE_STRENGTHS = tuple(float(f"{10.0 ** (half / 2):.2g}") for half in range(-10, 5))
"""Values of C on the path: 1e-5, 3.2e-5, ... 100; inverse regularisation strength as in scikit-learn."""
MAX_ITERATIONS = 300
EXACT, ROUGH = {"ftol": 1e-11, "gtol": 1e-6}, {"ftol": 1e-8, "gtol": 3e-6}
"""Changes of the loss, as a fraction, and slopes at which a search ends; of patches, which are many and alike, earlier:
losses on validation patches differed by 0.005 at most, and half as many evaluations did (EXPERIMENTS.md)."""
MIN_STD = 1e-6


@dataclass(frozen=True)
class LinearProbe:
    """A linear head: features [n, P] to outputs [n, K] by features @ weight.T + bias."""

    weight: Float32[np.ndarray, "K P"]
    bias: Float32[np.ndarray, " K"]
    c: float
    """The inverse regularisation strength it was fitted with."""

    def predict_outputs(self, features: Float32[np.ndarray, "n P"]) -> Float32[np.ndarray, "n K"]:
        """Logits, or standardized numbers."""
        return np.asarray(features @ self.weight.T + self.bias)


def fit_probe_path(
    features: Float32[np.ndarray, "n P"],
    targets: Shaped[np.ndarray, " n *K"],
    task: Task,
    outputs: int,
    strengths: Sequence[float] = PROBE_STRENGTHS,
    weights: Float32[np.ndarray, " n"] | None = None,
    standardize: bool = True,
) -> Iterator[LinearProbe]:
    """Fit a probe for every C in turn, each started from the previous solution; a generator, so later ones are
    optional.

    On standardised features a probe minimises C * loss + |weight|^2 / 2, where the loss is summed over images:
    softmax cross-entropy for classes (for two classes scikit-learn's C is twice this one, because its single vector
    stands for two); binary cross-entropy of every known label; half the squared error of every known number. Biases are
    not penalised. The standardisation is then folded into weight and bias.

    Args:
        targets: class indices [n] or probabilities [n, K]; labels 0..1 and numbers float32 [n, K], NaN where unknown.
        strengths: values of C, best in increasing order: the smallest converges fastest and is a good start.
        weights: factors of the images' losses, with mean 1; the standardisation is weighted too.
        standardize: divide features by their deviations first, so that the penalty is the same for each. Without it
            the search is scaled by the deviations instead, which takes fewer iterations to the same minimum.
    """
    x, w = torch.from_numpy(features).double(), None if weights is None else torch.from_numpy(weights).double()
    mean = _weighted_mean(x, w)
    deviation = x.std(0, correction=0) if w is None else _weighted_mean((x - mean).square(), w).sqrt()
    deviation = deviation.clamp(min=MIN_STD) if standardize else torch.ones_like(deviation)
    x = (x - mean) / deviation
    if task == "regression":
        aims = torch.from_numpy(targets).double()
        fits: Iterator[tuple[Tensor, Tensor, float]] = _fit_ridge_path(x, aims, strengths, w)
    else:
        fits = _fit_logistic_path(x, torch.from_numpy(targets), task, outputs, strengths, w, not standardize)
    for weight, bias, c in fits:
        folded = weight / deviation  # [K, P]
        moved = bias - folded @ mean
        yield LinearProbe(folded.float().numpy(), moved.float().numpy(), c)


def _weighted_mean(x: Float[Tensor, " n *P"], weights: Float[Tensor, " n"] | None) -> Float[Tensor, " *P"]:
    return x.mean(0) if weights is None else weights @ x / weights.sum()


def _fit_logistic_path(
    x: Float[Tensor, "n P"],
    targets: Tensor,
    task: Task,
    outputs: int,
    strengths: Sequence[float],
    weights: Float[Tensor, " n"] | None,
    is_scaled: bool,
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """L-BFGS along the path. The objective is divided by C * n, which keeps the minimum and helps the line search.

    Args:
        is_scaled: search in units of the largest curvature along each feature, a quarter of its variance and the
            penalty's, which is close to the whole curvature where features are principal components.
    """
    from scipy.optimize import minimize  # torch's imports its compiler, which takes two seconds

    weight, bias = torch.zeros(outputs, x.shape[1], dtype=x.dtype), torch.zeros(outputs, dtype=x.dtype)
    variance = x.var(0, correction=0) if is_scaled else None
    for c in strengths:
        penalty = 1 / (c * len(x))
        unit = torch.ones(x.shape[1], dtype=x.dtype) if variance is None else (variance / 4 + penalty).rsqrt()

        def loss_and_slope(
            flat: Float64[np.ndarray, " M"], penalty: float = penalty, unit: Tensor = unit
        ) -> tuple[float, Float64[np.ndarray, " M"]]:
            point = torch.from_numpy(flat).requires_grad_()
            matrix = point[outputs:].view(outputs, -1) * unit
            error = _summed_loss(F.linear(x, matrix, point[:outputs]), targets, task, weights) / len(x)
            total = error + penalty * matrix.square().sum() / 2
            (slope,) = torch.autograd.grad(total, point)
            return float(total.detach()), slope.numpy()

        start = torch.cat([bias, (weight / unit).flatten()]).numpy()
        options = {"maxiter": MAX_ITERATIONS, "maxcor": 20, **(ROUGH if is_scaled else EXACT)}
        with torch.enable_grad():
            found = minimize(loss_and_slope, start, jac=True, method="L-BFGS-B", options=options)
        bias, weight = torch.from_numpy(found.x[:outputs]), torch.from_numpy(found.x[outputs:]).view(outputs, -1) * unit
        yield weight, bias, c


def _summed_loss(
    logits: Float[Tensor, "n K"], targets: Tensor, task: Task, weights: Float[Tensor, " n"] | None
) -> Float[Tensor, ""]:
    if task == "classification":
        soft = targets.to(logits.dtype) if targets.ndim == 2 else targets
        if weights is None:
            return F.cross_entropy(logits, soft, reduction="sum")
        return F.cross_entropy(logits, soft, reduction="none") @ weights
    known: Bool[Tensor, "n K"] = ~targets.isnan()
    aims = torch.where(known, targets.to(logits.dtype), 0.5)
    losses = F.binary_cross_entropy_with_logits(logits, aims, reduction="none")
    cells = torch.where(known, losses, 0.0)
    return cells.sum() if weights is None else (weights @ cells).sum()


def _fit_ridge_path(
    x: Float[Tensor, "n P"],
    targets: Float[Tensor, "n K"],
    strengths: Sequence[float],
    weights: Float[Tensor, " n"] | None,
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Ridge regression of each column on its known images: (X'X + 1/C) w = X'y, with X and y centred."""
    columns = [_ridge_eigenbasis(x, column, weights) for column in targets.T]
    for c in strengths:
        matrix, biases = [], []
        for turn, values, product, centre, mean in columns:
            weight = turn @ (turn.T @ product / (values + 1 / c))
            matrix.append(weight)
            biases.append(mean - weight @ centre)
        yield torch.stack(matrix), torch.stack(biases), c


def _ridge_eigenbasis(
    x: Tensor, column: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What all C share: the eigendecomposition X'X = turn @ diag(values) @ turn.T, X'y, and the means."""
    known = ~column.isnan()
    if not known.any():
        nothing = torch.zeros(x.shape[1], dtype=x.dtype)
        return torch.eye(x.shape[1], dtype=x.dtype), nothing, nothing, nothing, nothing.sum()
    rows, aims, w = x[known], column[known], None if weights is None else weights[known]
    centre, mean = _weighted_mean(rows, w), _weighted_mean(aims, w)
    rows, aims = rows - centre, aims - mean
    if w is not None:
        rows, aims = rows * w.sqrt()[:, None], aims * w.sqrt()
    values, turn = torch.linalg.eigh(rows.T @ rows)
    return turn, values.clamp(min=0), rows.T @ aims, centre, mean


# -- Out-of-fold predictions

NUM_FOLDS = 5
OOF_STRENGTHS = (0.001, 0.01, 0.1)
"""Values of C that are tried for classes and labels; strongly regularised probes do not fit wrong labels."""
MAX_PROBE_VALUES = 2**25
"""Largest feature matrix, in numbers, that a probe is fitted to; larger ones are subsampled by rows."""


def predict_out_of_fold(
    features: Float32[np.ndarray, "n P"],
    targets: Shaped[np.ndarray, " n *K"],
    task: Task,
    outputs: int,
    folds: int = NUM_FOLDS,
    groups: Shaped[np.ndarray, " n"] | None = None,
    seed: int = 0,
) -> Float32[np.ndarray, "n K"]:
    """Cross-validated predictions of linear probes: each image is predicted by the probe fitted to the other folds.

    One C for all folds is chosen by the lowest out-of-fold loss. Outputs are logits, or numbers in the unit of the
    targets. They are NaN where nothing can be learnt: the class of an image is absent from the other folds, a label is
    only positive or only negative there, or fewer than two numbers are known there.

    Args:
        targets: class indices [n]; labels 0..1 and numbers float32 [n, K], NaN where unknown.
        groups: group of each image, such as its patient; groups are not split.

    Raises:
        DataError: fewer images, or groups, than folds, or one class only.
    """
    if task == "classification" and len(np.unique(targets)) < 2:
        raise DataError(f"Probes need pictures of at least two classes to tell apart. Got {len(np.unique(targets))}.")
    fold = assign_folds(targets, task, folds, groups, seed)
    scaling = fit_scaling(targets) if task == "regression" else None
    aims = targets if scaling is None else scaling.standardize(targets)
    strengths = OOF_STRENGTHS if scaling is None else PROBE_STRENGTHS  # a ridge path costs nothing
    predictions = np.empty((len(strengths), len(features), outputs), np.float32)
    learnable = np.zeros((len(features), outputs), bool)
    for number in range(folds):
        test, train = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        learnable[test] = learnable_mask(aims[train], aims[test], task, outputs)
        most = max(1, MAX_PROBE_VALUES // features.shape[1])
        some = train if len(train) <= most else train[np.sort(permutation(seed, "probes", 0, len(train))[:most])]
        for index, linear in enumerate(fit_probe_path(features[some], aims[some], task, outputs, strengths)):
            predictions[index, test] = linear.predict_outputs(features[test])
    metrics = [compute_quick_metrics(task, one, aims) for one in predictions]
    best = predictions[int(np.argmin([np.inf if one is None else one.loss for one in metrics]))]
    return np.where(learnable, best if scaling is None else scaling.unstandardize(best), np.float32(np.nan))


def assign_folds(
    targets: Shaped[np.ndarray, " n *K"],
    task: Task,
    folds: int,
    groups: Shaped[np.ndarray, " n"] | None,
    seed: int,
) -> Int64[np.ndarray, " n"]:
    """Fold of each image: stratified for classes and labels, random for numbers; groups stay together.

    Raises:
        DataError: fewer images, or groups, than folds.
    """
    keys = uniform(seed, "out of fold", 0, np.arange(len(targets)), 1)[:, 0]
    names = number_groups(np.arange(len(targets)) if groups is None else groups)
    have = int(names.max(initial=-1)) + 1
    if have < folds:
        things = "pictures" if groups is None else "groups"
        raise DataError(f"{folds} folds need at least {folds} {things}. Got {have}; give more pictures.")
    strata: np.ndarray = np.zeros(len(targets), np.int64)
    if task != "regression":
        strata = targets >= LABEL_THRESHOLD if task == "multilabel" else targets.astype(np.int64)
    fractions = np.full(folds, 1 / folds)
    if have < len(targets):
        rows, kinds = np.nonzero(strata) if strata.ndim == 2 else (np.arange(len(strata)), strata)
        return assign_groups(rows, kinds, keys, fractions, names)
    if strata.ndim == 2:
        return assign_iterative_stratified(strata, keys, fractions)
    return splits.assign_folds(strata, keys, folds)


def learnable_mask(
    train_targets: Shaped[np.ndarray, " n *K"], test_targets: Shaped[np.ndarray, " m *K"], task: Task, outputs: int
) -> Bool[np.ndarray, "m K"]:
    """bool [m, K]: test cells whose targets can be learnt from the training targets, see `predict_out_of_fold`."""
    if task == "classification":
        return np.repeat(np.isin(test_targets, train_targets)[:, None], outputs, axis=1)
    known = ~np.isnan(train_targets)
    if task == "multilabel":
        present = train_targets >= LABEL_THRESHOLD
        able = present.any(0) & (known & ~present).any(0)
    else:
        able = known.sum(0) >= 2
    return np.repeat(able[None], len(test_targets), axis=0)


# -- k-nearest neighbours

NEIGHBOR_COUNTS = (10, 20, 100)
"""Values of k."""
KNN_TEMPERATURE = 0.07
KNN_CHUNK = 512
MIN_KNN_WEIGHT = 1e-6


def knn_outputs(
    train_features: Float32[np.ndarray, "n P"],
    targets: Shaped[np.ndarray, " n *K"],
    query_features: Float32[np.ndarray, "m P"],
    task: Task,
    outputs: int,
    num_neighbors: int,
) -> Float32[np.ndarray, "m K"]:
    """Weighted k-NN: mean of the nearest training targets with weights exp(cosine similarity / 0.07).

    Outputs are log-probabilities for classes, logits for labels, and the mean itself for numbers; 0 where the target of
    every neighbour is unknown.

    Args:
        targets: class indices [n] or probabilities [n, K]; labels 0..1 and numbers float32 [n, K], NaN where unknown.

    Source: Wu et al. 2018, section 3.4; Caron et al. 2021.
    """
    first, queries = (F.normalize(torch.from_numpy(each), dim=1) for each in (train_features, query_features))
    values = torch.from_numpy(targets)
    values = F.one_hot(values, outputs).float() if values.ndim == 1 else values.float()
    known_cells = ~values.isnan()
    filled, parts = torch.where(known_cells, values, 0.0), []
    for start in range(0, len(queries), KNN_CHUNK):
        similar, rows = (queries[start : start + KNN_CHUNK] @ first.T).topk(min(num_neighbors, len(first)), dim=1)
        weights = (similar / KNN_TEMPERATURE).softmax(1)[..., None] * known_cells[rows]  # [c, k, K]
        parts.append((weights * filled[rows]).sum(1) / weights.sum(1).clamp(min=1e-12))
    mean = torch.cat(parts) if parts else torch.zeros(0, outputs)
    if task == "classification":
        return mean.clamp(min=MIN_KNN_WEIGHT).log().numpy()
    return (torch.logit(mean, eps=MIN_KNN_WEIGHT) if task == "multilabel" else mean).numpy()
