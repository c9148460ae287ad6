"""Linear probes on frozen features: for every penalty of a path the exact minimum of the loss, and answers from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Int64, Shaped
from torch import Tensor

from ..data.source import Task
from ..data.splits import assign_folds as splits_assign_folds
from ..data.splits import assign_groups, assign_iterative_stratified, number_groups
from ..errors import DataError
from ..randomness import permutation, uniform
from .calibration import fit_scaling
from .predictions import LABEL_THRESHOLD
from .quick_metrics import compute_quick_metrics

PROBE_STRENGTHS = tuple(float(f"{10.0 ** (half / 2):.2g}") for half in range(-10, 5))
"""What C takes on a path: 1e-5, 3.2e-5, ... 100; as in scikit-learn, the larger C is the less is penalised."""
MAX_ITERATIONS = 300
MIN_STD = 1e-6


@dataclass(frozen=True)
class LinearProbe:
    """Features [n, P] to outputs [n, K]: features @ weight.T + bias, as a model's head computes them."""

    weight: Float32[np.ndarray, "K P"]
    bias: Float32[np.ndarray, " K"]
    c: float
    """The C that it was fitted with."""

    def predict_outputs(self, features: Float32[np.ndarray, "n P"]) -> Float32[np.ndarray, "n K"]:
        """Logits, or numbers as they were learnt."""
        return np.asarray(features @ self.weight.T + self.bias)


def fit_probe_path(
    features: Float32[np.ndarray, "n P"],
    targets: Shaped[np.ndarray, " n *K"],
    task: Task,
    outputs: int,
    strengths: Sequence[float] = PROBE_STRENGTHS,
) -> Iterator[LinearProbe]:
    """A probe for every C in turn, each begun where the one before it ended; ask for as many as are wanted.

    With features standardised by their own mean and deviation, a probe minimises C * loss + |weight|^2 / 2, where the
    loss is summed over pictures: cross-entropy of one softmax for classes (for two classes scikit-learn's C is twice
    this one, because its single vector stands for two); binary cross-entropy of every known label; half the squared
    error of every known number. Biases are not penalised. The standardisation is then folded into weight and bias.

    Args:
        targets: class numbers [n] or chances [n, K]; labels 0..1 and numbers float32 [n, K], NaN where unknown.
        strengths: the values of C, best from small to large: the smallest ends soonest and is a good start.
    """
    x, mean, deviation = _standardize(features)
    if task == "number":
        fits: Iterator[tuple[Tensor, Tensor, float]] = _fit_ridge_path(x, torch.from_numpy(targets).double(), strengths)
    else:
        fits = _fit_logistic_path(x, torch.from_numpy(targets), task, outputs, strengths)
    for weight, bias, c in fits:
        folded = weight / deviation  # [K, P]
        moved = bias - folded @ mean
        yield LinearProbe(folded.float().numpy(), moved.float().numpy(), c)


def _standardize(features: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.from_numpy(features).double()
    mean, deviation = x.mean(0), x.std(0, correction=0).clamp(min=MIN_STD)
    return (x - mean) / deviation, mean, deviation


def _fit_logistic_path(
    x: Float[Tensor, "n P"], targets: Tensor, task: Task, outputs: int, strengths: Sequence[float]
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """L-BFGS along the path. The loss is divided by C * n, which leaves the minimum where it is and suits the steps."""
    weight = torch.zeros(outputs, x.shape[1], dtype=x.dtype, requires_grad=True)
    bias = torch.zeros(outputs, dtype=x.dtype, requires_grad=True)
    for c in strengths:
        optimizer = torch.optim.LBFGS(
            [weight, bias], max_iter=MAX_ITERATIONS, tolerance_grad=1e-6, tolerance_change=1e-10, history_size=20,
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


def _fit_ridge_path(
    x: Float[Tensor, "n P"], targets: Float[Tensor, "n K"], strengths: Sequence[float]
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Each column by itself on the pictures where it is known: (X'X + 1/C) w = X'y, both around their own means."""
    columns = [_ridge_eigenbasis(x, column) for column in targets.T]
    for c in strengths:
        weights, biases = [], []
        for turn, values, product, centre, mean in columns:
            weight = turn @ (turn.T @ product / (values + 1 / c))
            weights.append(weight)
            biases.append(mean - weight @ centre)
        yield torch.stack(weights), torch.stack(biases), c


def _ridge_eigenbasis(x: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
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


# What frozen features say of every picture when neither it nor its group has been shown: answers out of fold.

NUM_FOLDS = 5
OOF_STRENGTHS = (0.001, 0.01, 0.1)
"""C of the probes of classes and labels that are tried; weak ones do not bend to wrong labels."""
MAX_PROBE_VALUES = 2**25
"""Of the features that one probe is fitted to; of more pictures than hold so many, a sample is taken."""


def predict_out_of_fold(
    features: Float32[np.ndarray, "n P"],
    targets: Shaped[np.ndarray, " n *K"],
    task: Task,
    outputs: int,
    folds: int = NUM_FOLDS,
    groups: Shaped[np.ndarray, " n"] | None = None,
    seed: int = 0,
) -> Float32[np.ndarray, "n K"]:
    """Outputs of linear probes, each picture answered by the one that was fitted to the other folds.

    The strength of the probes, one for all folds, is the one whose answers out of fold have the lowest loss. Outputs
    are logits, or numbers in the unit of the targets. They are NaN where nothing could be learnt: in the row of a
    picture whose class no other fold shows, in the cell of a label that the other folds show only with or only
    without, and of a number of which they know fewer than two.

    Args:
        targets: class numbers [n]; labels 0..1 and numbers float32 [n, K], NaN where unknown.
        groups: of each picture, such as its patient; a group is never parted.

    Raises:
        DataError: fewer pictures, or groups, than folds, or one class only.
    """
    if task == "classes" and len(np.unique(targets)) < 2:
        raise DataError(f"Probes need pictures of at least two classes to tell apart. Got {len(np.unique(targets))}.")
    fold = assign_folds(targets, task, folds, groups, seed)
    scaling = fit_scaling(targets) if task == "number" else None
    aims = targets if scaling is None else scaling.standardize(targets)
    strengths = OOF_STRENGTHS if scaling is None else PROBE_STRENGTHS  # those of numbers cost nothing
    answers = np.empty((len(strengths), len(features), outputs), np.float32)
    judged = np.zeros((len(features), outputs), bool)
    for number in range(folds):
        asked, shown = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        judged[asked] = learnable_mask(aims[shown], aims[asked], task, outputs)
        some = _subsample_rows(shown, features.shape[1], seed)
        for place, linear in enumerate(fit_probe_path(features[some], aims[some], task, outputs, strengths)):
            answers[place, asked] = linear.predict_outputs(features[asked])
    best = answers[_select_strength(answers, aims, task)]
    return np.where(judged, best if scaling is None else scaling.unstandardize(best), np.float32(np.nan))


def assign_folds(
    targets: Shaped[np.ndarray, " n *K"],
    task: Task,
    folds: int,
    groups: Shaped[np.ndarray, " n"] | None,
    seed: int,
) -> Int64[np.ndarray, " n"]:
    """The fold of each picture: classes and labels in proportion, numbers as they come, whole groups only.

    Raises:
        DataError: fewer pictures, or groups, than folds.
    """
    keys = uniform(seed, "out of fold", 0, np.arange(len(targets)), 1)[:, 0]
    names = number_groups(np.arange(len(targets)) if groups is None else groups)
    have = int(names.max(initial=-1)) + 1
    if have < folds:
        things = "pictures" if groups is None else "groups"
        raise DataError(f"{folds} folds need at least {folds} {things}. Got {have}; give more pictures.")
    shown = _stratification_targets(targets, task)
    fractions = np.full(folds, 1 / folds)
    if have < len(targets):
        places, kinds = np.nonzero(shown) if shown.ndim == 2 else (np.arange(len(shown)), shown)
        return assign_groups(places, kinds, keys, fractions, names)
    return (
        assign_iterative_stratified(shown, keys, fractions)
        if shown.ndim == 2
        else splits_assign_folds(shown, keys, folds)
    )


def _stratification_targets(targets: np.ndarray, task: Task) -> Int64[np.ndarray, " n"] | Bool[np.ndarray, "n K"]:
    if task == "labels":
        return targets >= LABEL_THRESHOLD
    return targets.astype(np.int64) if task == "classes" else np.zeros(len(targets), np.int64)


def learnable_mask(
    train_targets: Shaped[np.ndarray, " n *K"], test_targets: Shaped[np.ndarray, " m *K"], task: Task, outputs: int
) -> Bool[np.ndarray, "m K"]:
    """Which cells of the asked pictures the shown ones have something to teach about."""
    if task == "classes":
        return np.repeat(np.isin(test_targets, train_targets)[:, None], outputs, axis=1)
    known = ~np.isnan(train_targets)
    if task == "labels":
        present = train_targets >= LABEL_THRESHOLD
        able = present.any(0) & (known & ~present).any(0)
    else:
        able = known.sum(0) >= 2
    return np.repeat(able[None], len(test_targets), axis=0)


def _subsample_rows(rows: np.ndarray, width: int, seed: int) -> np.ndarray:
    most = max(1, MAX_PROBE_VALUES // width)
    return rows if len(rows) <= most else rows[np.sort(permutation(seed, "probes", 0, len(rows))[:most])]


def _select_strength(predictions: np.ndarray, targets: np.ndarray, task: Task) -> int:
    """The strength whose answers have the lowest loss."""
    found = [compute_quick_metrics(task, one, targets) for one in predictions]
    return int(np.argmin([np.inf if one is None else one.loss for one in found]))


# Answers by the most similar training pictures: what frozen features know before anything is fitted to them.

NEIGHBOR_COUNTS = (10, 20, 100)
"""How many neighbours are asked."""
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
    """The mean of the nearest training targets, each weighed by exp(cosine similarity / 0.07), as a model's outputs.

    They are logarithms of chances for classes, logits for labels, and the mean itself for numbers; a cell of which
    no neighbour knows anything is 0.

    Args:
        targets: class numbers [n] or chances [n, K]; labels 0..1 and numbers float32 [n, K], NaN where unknown.

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
    if task == "classes":
        return mean.clamp(min=MIN_KNN_WEIGHT).log().numpy()
    return (torch.logit(mean, eps=MIN_KNN_WEIGHT) if task == "labels" else mean).numpy()
