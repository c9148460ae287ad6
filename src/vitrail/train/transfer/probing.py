"""What frozen features are worth: neighbours and a grid of linear probes, tried on the validation pictures at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float32, Int64, Shaped

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


Columns = Int64[np.ndarray, " _"]
"""Some of the features."""


@dataclass(frozen=True)
class Probed:
    """The probe that becomes the head, and everything that was tried."""

    best: Linear
    columns: Columns
    """Which features it reads."""
    tried: tuple[Tried, ...]


def probed(train: Seen, valid: Seen, task: Task, outputs: int, parts: Mapping[str, Columns], seed: int) -> Probed:
    """Fit on the training pictures, choose by the loss on the validation pictures.

    For every kind of pooling C rises until two steps in a row were worse. Neighbours, by the last block's features, are
    shown for comparison: no head can answer as they do.

    Args:
        valid: its targets are class numbers [m] for classes, and those of the loss for the others.
        parts: the columns of the features by the kind of pooling, those of several blocks last.
    """
    rows: list[Tried] = []
    found: list[tuple[Tried, Linear, Columns]] = []
    known, asked = _sampled(_read(train, of_last_block(parts)), seed), _read(valid, of_last_block(parts))
    for count in neighbours.COUNTS if len(valid.features) else ():
        answers = neighbours.answers(known.features, known.targets, asked.features, task, outputs, count)
        if (judgement := judged(f"{count} nearest", task, answers, valid.targets)) is not None:
            rows.append(judgement)
    for name, columns in parts.items():
        known, asked = _sampled(_read(train, columns), seed), _read(valid, columns)
        for judgement, linear in _along(name, known, asked, task, outputs):
            found.append((judgement, linear, columns))
    if not found:  # nothing to choose by
        columns = of_last_block(parts)
        known = _sampled(_read(train, columns), seed)
        (linear,) = probe.path(known.features, known.targets, task, outputs, (USUAL,))
        return Probed(linear, columns, tuple(rows))
    best = min(range(len(found)), key=lambda place: found[place][0].loss)
    rows += [replace(one, chosen=place == best) for place, (one, _, _) in enumerate(found)]
    return Probed(found[best][1], found[best][2], tuple(rows))


def of_last_block(parts: Mapping[str, Columns]) -> Columns:
    """The last block's features, of all kinds."""
    return [columns for name, columns in parts.items() if not name.endswith("blocks")][-1]


def _along(name: str, train: Seen, valid: Seen, task: Task, outputs: int) -> list[tuple[Tried, Linear]]:
    """Every C of the path until two in a row are worse than the best so far."""
    tried: list[tuple[Tried, Linear]] = []
    worse = 0
    for linear in probe.path(train.features, train.targets, task, outputs):
        judgement = judged(f"linear {name}, C {linear.c:g}", task, linear.outputs(valid.features), valid.targets)
        if judgement is None:
            break
        worse = worse + 1 if tried and judgement.loss >= min(one.loss for one, _ in tried) else 0
        tried.append((judgement, linear))
        if worse == WORSE_IN_A_ROW:
            break
    return tried


def _read(seen: Seen, columns: Columns) -> Seen:
    return Seen(np.ascontiguousarray(seen.features[:, columns]), seen.targets)


def _sampled(train: Seen, seed: int) -> Seen:
    most = max(1, MOST_NUMBERS // train.features.shape[1])
    if len(train.features) <= most:
        return train
    rows = np.sort(permutation(seed, "probed", 0, len(train.features))[:most])
    return Seen(train.features[rows], train.targets[rows])
