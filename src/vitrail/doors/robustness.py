"""A trained model's answers to labelled pictures that are disturbed on purpose, after they were made ready for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor

from ..data.preprocess import preprocess_image
from ..data.source import Source
from ..errors import DataError, UsageError
from ..evaluate.prediction_tables import TaskPredictions, predictions_from_outputs
from ..evaluate.robustness import ProgressWrapper, RobustnessReport, corruption_kinds, measure_robustness
from ..evaluate.tables import image_path
from ..predict.predictor import Predictor
from ..randomness import permutation
from ..spec import ImageSpec
from .evaluation import Labelled, fitting, targets_of, unreadable

MOST = 500
"""Pictures that are disturbed if nobody says how many: each of them 75 times."""


@dataclass(frozen=True)
class Stood:
    """How a model stands disturbance, and what could not be asked about."""

    robustness: RobustnessReport
    source: str
    skipped: tuple[tuple[str, str], ...]
    """(path or place, reason) of pictures that cannot be read."""


def disturbed(
    predictor: Predictor,
    labelled: Labelled,
    suite: str,
    most: int = MOST,
    skip_bad: bool = False,
    seed: int = 0,
    counted: ProgressWrapper | None = None,
) -> Stood:
    """Answer pictures as they are and in every disturbance of a suite.

    Args:
        suite: imagenet-c or films.
        most: of more pictures, so many are drawn, the same for the same seed.

    Raises:
        UsageError: no such suite, or `most` below 1.
        DataError: a picture cannot be read (unless `skip_bad`) or all of them, the source does not fit the model, or
            nothing can be measured.
    """
    corruption_kinds(suite)
    predictor.alone()
    if most < 1:
        raise UsageError(f"At least 1 picture must be disturbed. Got {most}.")
    numbers, source = fitting(predictor, labelled), labelled.source
    images, rows, skipped = _ready(source, _drawn(labelled.rows, most, seed), predictor.spec, skip_bad)
    targets = targets_of(source, rows, numbers, len(predictor.classes))
    names = [("", source.ids[row]) for row in rows.tolist()]

    def answers(outputs: np.ndarray) -> TaskPredictions:
        return predictions_from_outputs(
            predictor.task, outputs, predictor.classes, predictor.scaling, names, labelled.split, targets,
            decisions=predictor.decided,
        )  # fmt: skip

    groups = None if source.groups is None else source.groups[rows]
    found = measure_robustness(predictor.logits, answers, images, rows, suite, labelled.split, seed, groups, counted)
    return Stood(found, source.name, skipped)


def _drawn(rows: NDArray[np.int64], most: int, seed: int) -> NDArray[np.int64]:
    """At most so many of the rows, in their order."""
    return np.sort(rows[permutation(seed, "disturbed", 0, len(rows))[:most]])


def _ready(
    source: Source, rows: NDArray[np.int64], spec: ImageSpec, skip_bad: bool
) -> tuple[UInt8[Tensor, "n C H W"], NDArray[np.int64], tuple[tuple[str, str], ...]]:
    """The pictures as the model reads them, the rows that could be read, and why others could not."""
    images, kept, skipped = [], [], []
    for row in rows.tolist():
        picture = source.pictures[row]
        try:
            images.append(preprocess_image(picture, spec))
        except DataError as why:
            if not skip_bad:
                raise unreadable(why) from why
            skipped.append((image_path(picture) or source.ids[row], str(why)))
        else:
            kept.append(row)
    if not images:
        raise DataError(f"None of {len(rows):,} pictures of {source.name} can be read, so none can be disturbed.")
    return torch.stack(images), np.array(kept, np.int64), tuple(skipped)
