"""What frozen features say of every picture when neither it nor its group has been shown: answers out of fold."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float32, Int64, Shaped

from ..data.source import Task
from ..data.splits import assign_folds, assign_groups, assign_iterative_stratified, number_groups
from ..errors import DataError
from ..randomness import permutation, uniform
from . import probe
from .glance import glance
from .label_predictions import THRESHOLD
from .scaling import scaling_of

FOLDS = 5
STRENGTHS = (0.001, 0.01, 0.1)
"""C of the probes of classes and labels that are tried; weak ones do not bend to wrong labels."""
MOST_NUMBERS = 2**25
"""Of the features that one probe is fitted to; of more pictures than hold so many, a sample is taken."""


def out_of_fold(
    features: Float32[np.ndarray, "n P"],
    targets: Shaped[np.ndarray, " n *K"],
    task: Task,
    outputs: int,
    folds: int = FOLDS,
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
    fold = dealt(targets, task, folds, groups, seed)
    scaling = scaling_of(targets) if task == "number" else None
    aims = targets if scaling is None else scaling.standardised(targets)
    strengths = STRENGTHS if scaling is None else probe.STRENGTHS  # those of numbers cost nothing
    answers = np.empty((len(strengths), len(features), outputs), np.float32)
    judged = np.zeros((len(features), outputs), bool)
    for number in range(folds):
        asked, shown = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        judged[asked] = teachable(aims[shown], aims[asked], task, outputs)
        some = _sampled(shown, features.shape[1], seed)
        for place, linear in enumerate(probe.path(features[some], aims[some], task, outputs, strengths)):
            answers[place, asked] = linear.outputs(features[asked])
    best = answers[_likeliest(answers, aims, task)]
    return np.where(judged, best if scaling is None else scaling.values(best), np.float32(np.nan))


def dealt(
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
    shown = _shown(targets, task)
    fractions = np.full(folds, 1 / folds)
    if have < len(targets):
        places, kinds = np.nonzero(shown) if shown.ndim == 2 else (np.arange(len(shown)), shown)
        return assign_groups(places, kinds, keys, fractions, names)
    return assign_iterative_stratified(shown, keys, fractions) if shown.ndim == 2 else assign_folds(shown, keys, folds)


def _shown(targets: np.ndarray, task: Task) -> Int64[np.ndarray, " n"] | Bool[np.ndarray, "n K"]:
    if task == "labels":
        return targets >= THRESHOLD
    return targets.astype(np.int64) if task == "classes" else np.zeros(len(targets), np.int64)


def teachable(
    shown: Shaped[np.ndarray, " n *K"], asked: Shaped[np.ndarray, " m *K"], task: Task, outputs: int
) -> Bool[np.ndarray, "m K"]:
    """Which cells of the asked pictures the shown ones have something to teach about."""
    if task == "classes":
        return np.repeat(np.isin(asked, shown)[:, None], outputs, axis=1)
    known = ~np.isnan(shown)
    if task == "labels":
        present = shown >= THRESHOLD
        able = present.any(0) & (known & ~present).any(0)
    else:
        able = known.sum(0) >= 2
    return np.repeat(able[None], len(asked), axis=0)


def _sampled(rows: np.ndarray, width: int, seed: int) -> np.ndarray:
    most = max(1, MOST_NUMBERS // width)
    return rows if len(rows) <= most else rows[np.sort(permutation(seed, "probes", 0, len(rows))[:most])]


def _likeliest(answers: np.ndarray, aims: np.ndarray, task: Task) -> int:
    """The strength whose answers have the lowest loss."""
    found = [glance(task, one, aims) for one in answers]
    return int(np.argmin([np.inf if one is None else one.loss for one in found]))
