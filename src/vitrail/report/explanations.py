"""Maps of a few held-out pictures, made once by the training and kept, so that a page needs neither model nor data."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32, Int64

from .. import config
from ..errors import DamagedFileError
from ..evaluate.prediction_tables import TaskPredictions
from ..evaluate.predictions import (
    LABEL_THRESHOLD,
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
)
from ..explain.attribution import MapScale
from ..files import atomic
from .choice import wrong_labels

NAME = "explanations.npz"
MOST = 6
"""Worst answers that have a map, and as many others."""


@dataclass(frozen=True, kw_only=True)
class About:
    """How the maps were made, and what a person must know to read them."""

    method: str
    layer: str
    """Which part of the model was looked at."""
    line: str
    """What a map shows and what it does not."""
    scale: MapScale
    patch: tuple[int, int]
    """Pixels, height and width."""
    remarks: tuple[str, ...] = ()
    """What else a reader should know of the model."""
    nothing: tuple[str, ...] = ()
    """Pictures whose map says nothing, by name, each with the reason."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanations:
    """What is kept of all maps."""

    about: About
    rows: Int64[np.ndarray, " k"]
    """Of each map its row in the held-out split's predictions file."""
    of: Int64[np.ndarray, " k"]
    """The output that it explains."""
    values: Float32[np.ndarray, "k rows columns"]
    """One number per patch."""
    artefacts: Bool[np.ndarray, "k rows columns"]
    """Patches whose tokens hold notes of the model instead of picture; their heat is not drawn."""


def wanted(answers: TaskPredictions, shown: Int64[np.ndarray, " n"], most: int = MOST) -> list[tuple[int, int]]:
    """Rows worth a map, each with the output to explain: worst answers and others in turn, the worst first.

    Args:
        shown: rows that have a thumbnail, as `choice.choose` orders them.
        most: of either kind.
    """
    bad = wrong(answers, shown)
    worst, others = shown[bad][:most].tolist(), shown[~bad]
    even = np.unique(np.linspace(0, len(others) - 1, min(most, len(others))).round().astype(np.int64))
    turns = zip_longest(worst, others[even].tolist())
    return [(row, explained(answers, row)) for turn in turns for row in turn if row is not None]


def wrong(answers: TaskPredictions, shown: Int64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Which of the shown rows are answered wrongly; of numbers the first half, which are the largest errors."""
    if isinstance(answers, RegressionPredictions):
        return np.arange(len(shown)) < len(shown) - len(shown) // 2
    if isinstance(answers, MultilabelPredictions):
        return np.asarray(wrong_labels(answers)[shown].any(1))
    assert answers.targets is not None
    return np.asarray(answers.targets[shown] != answers.labels[shown])


def explained(answers: TaskPredictions, row: int) -> int:
    """The output of a row that a reader asks about.

    The class that was answered; the label that is most confidently wrong, or where none is, the most likely of those
    that are there; the first number that is known.
    """
    if isinstance(answers, ClassificationPredictions):
        return int(answers.labels[row])
    if isinstance(answers, RegressionPredictions):
        return int(answers.known[row].argmax())
    assert answers.targets is not None
    chances, there = answers.probabilities[row], answers.targets[row] >= LABEL_THRESHOLD
    bad = wrong_labels(answers)[row]
    if bad.any():
        return int(np.where(bad, np.abs(chances - there), -1).argmax())
    return int(np.where(there if there.any() else answers.known[row], chances, -1).argmax())


def save(folder: Path, found: Explanations) -> Path:
    """Write explanations.npz into a run folder in one step."""
    data = io.BytesIO()
    np.savez_compressed(
        data, about=np.array(json.dumps(config.write(found.about))), rows=found.rows, of=found.of,
        values=found.values, artefacts=found.artefacts,
    )  # fmt: skip
    path = Path(folder) / NAME
    atomic.write_bytes(path, data.getvalue())
    return path


def load(folder: Path) -> Explanations | None:
    """What a training has kept; None where there is none.

    Raises:
        DamagedFileError: the file is there and cannot be read, or its arrays do not belong together.
    """
    path = Path(folder) / NAME
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            rows, of, values, hidden = (arrays[name] for name in ("rows", "of", "values", "artefacts"))
    except Exception as problem:  # zipfile, zlib, numpy, json and OS each have their own
        raise DamagedFileError(
            f"{path} must hold the arrays about, rows, of, values and artefacts. It cannot be read: {problem}."
        ) from problem
    if values.ndim != 3 or values.shape != hidden.shape or not rows.shape == of.shape == (len(values),):
        raise DamagedFileError(
            f"{path} must hold a row, an output and a map of each picture. Got rows {list(rows.shape)}, outputs "
            f"{list(of.shape)}, maps {list(values.shape)} and artefacts {list(hidden.shape)}."
        )
    return Explanations(
        about=config.read(About, about, str(path)), rows=rows.astype(np.int64), of=of.astype(np.int64),
        values=values.astype(np.float32), artefacts=hidden.astype(bool),
    )  # fmt: skip
