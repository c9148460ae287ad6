"""What frozen features are worth: neighbours and a grid of linear probes, tried on the validation pictures at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float32, Shaped

from ...data.source import Task
from ...evaluate import neighbours, probe
from ...evaluate.probe import Linear
from ...randomness import permutation
from .tried import Tried, judged

MOST_NUMBERS = 2**25
"""Of the features that probes are fitted to; of more pictures than hold so many, a sample is taken."""
WORSE_IN_A_ROW = 2
USUAL = 0.032
"""C where there is nothing to choose it by."""


@dataclass(frozen=True)
class Seen:
    """Pictures as frozen features, and what they show as the loss wants it."""

    features: Float32[np.ndarray, "n P"]
    targets: Shaped[np.ndarray, " n *K"]


@dataclass(frozen=True)
class Probed:
    """The probe that becomes the head, and everything that was tried."""

    best: Linear
    columns: slice
    """Which features it reads."""
    tried: tuple[Tried, ...]


def probed(train: Seen, valid: Seen, task: Task, outputs: int, parts: Mapping[str, slice], seed: int) -> Probed:
    """Fit on the training pictures, choose by the loss on the validation pictures.

    For every kind of pooling C rises until two steps in a row were worse. Neighbours are shown for comparison: no head
    can answer as they do.

    Args:
        valid: its targets are class numbers [m] for classes, and those of the loss for the others.
        parts: the columns of the features by the kind of pooling.
    """
    train = _sampled(train, seed)
    rows: list[Tried] = []
    found: list[tuple[Tried, Linear, slice]] = []
    for count in neighbours.COUNTS if len(valid.features) else ():
        answers = neighbours.answers(train.features, train.targets, valid.features, task, outputs, count)
        if (judgement := judged(f"{count} nearest", task, answers, valid.targets)) is not None:
            rows.append(judgement)
    for name, columns in parts.items():
        for judgement, linear in _along(name, train, valid, task, outputs, columns):
            found.append((judgement, linear, columns))
    if not found:  # nothing to choose by
        name, columns = list(parts.items())[-1]
        (linear,) = probe.path(_columns(train, columns), train.targets, task, outputs, (USUAL,))
        return Probed(linear, columns, tuple(rows))
    best = min(range(len(found)), key=lambda place: found[place][0].loss)
    rows += [replace(one, chosen=place == best) for place, (one, _, _) in enumerate(found)]
    return Probed(found[best][1], found[best][2], tuple(rows))


def _along(name: str, train: Seen, valid: Seen, task: Task, outputs: int, columns: slice) -> list[tuple[Tried, Linear]]:
    """Every C of the path until two in a row are worse than the best so far."""
    tried: list[tuple[Tried, Linear]] = []
    asked, worse = _columns(valid, columns), 0
    for linear in probe.path(_columns(train, columns), train.targets, task, outputs):
        judgement = judged(f"linear {name}, C {linear.c:g}", task, linear.outputs(asked), valid.targets)
        if judgement is None:
            break
        worse = worse + 1 if tried and judgement.loss >= min(one.loss for one, _ in tried) else 0
        tried.append((judgement, linear))
        if worse == WORSE_IN_A_ROW:
            break
    return tried


def _columns(seen: Seen, columns: slice) -> Float32[np.ndarray, "n p"]:
    return np.ascontiguousarray(seen.features[:, columns])


def _sampled(train: Seen, seed: int) -> Seen:
    most = max(1, MOST_NUMBERS // train.features.shape[1])
    if len(train.features) <= most:
        return train
    rows = np.sort(permutation(seed, "probed", 0, len(train.features))[:most])
    return Seen(train.features[rows], train.targets[rows])
