"""Maps of a few held-out pictures, made once by the training and kept, so that a page needs neither model nor data."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int64

from .. import config
from ..errors import DamagedFileError
from ..evaluate.prediction_tables import TaskPredictions, output_names
from ..evaluate.predictions import (
    LABEL_THRESHOLD,
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
)
from ..explain.attribution import MapScale
from ..explain.overlay import OVERLAY_OPACITY, blend_map, map_colors
from ..files import atomic
from . import thumbnails
from .image_selection import wrong_label_mask
from .task_sections import CaptionLine
from .thumbnails import StoredThumbnail

EXPLANATIONS_FILE = "explanations.npz"
MAX_EXPLANATIONS = 6
"""Worst answers that have a map, and as many others."""


@dataclass(frozen=True, kw_only=True)
class MapInfo:
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
class StoredExplanations:
    """What is kept of all maps."""

    about: MapInfo
    rows: Int64[np.ndarray, " k"]
    """Of each map its row in the held-out split's predictions file."""
    targets: Int64[np.ndarray, " k"]
    """The output that it explains."""
    values: Float32[np.ndarray, "k rows columns"]
    """One number per patch."""
    artifact_mask: Bool[np.ndarray, "k rows columns"]
    """Patches whose tokens hold notes of the model instead of picture; their heat is not drawn."""


def select_rows_to_explain(
    answers: TaskPredictions, shown: Int64[np.ndarray, " n"], most: int = MAX_EXPLANATIONS
) -> list[tuple[int, int]]:
    """Rows worth a map, each with the output to explain: worst answers and others in turn, the worst first.

    Args:
        shown: rows that have a thumbnail, as `choice.choose` orders them.
        most: of either kind.
    """
    bad = wrong_row_mask(answers, shown)
    worst, others = shown[bad][:most].tolist(), shown[~bad]
    even = np.unique(np.linspace(0, len(others) - 1, min(most, len(others))).round().astype(np.int64))
    turns = zip_longest(worst, others[even].tolist())
    return [(row, explained_output(answers, row)) for turn in turns for row in turn if row is not None]


def wrong_row_mask(answers: TaskPredictions, shown: Int64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Which of the shown rows are answered wrongly; of numbers the first half, which are the largest errors."""
    if isinstance(answers, RegressionPredictions):
        return np.arange(len(shown)) < len(shown) - len(shown) // 2
    if isinstance(answers, MultilabelPredictions):
        return np.asarray(wrong_label_mask(answers)[shown].any(1))
    assert answers.targets is not None
    return np.asarray(answers.targets[shown] != answers.labels[shown])


def explained_output(answers: TaskPredictions, row: int) -> int:
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
    bad = wrong_label_mask(answers)[row]
    if bad.any():
        return int(np.where(bad, np.abs(chances - there), -1).argmax())
    return int(np.where(there if there.any() else answers.known[row], chances, -1).argmax())


def save_explanations(folder: Path, found: StoredExplanations) -> Path:
    """Write explanations.npz into a run folder in one step."""
    data = io.BytesIO()
    np.savez_compressed(
        data, about=np.array(json.dumps(config.write(found.about))), rows=found.rows, of=found.targets,
        values=found.values, artefacts=found.artifact_mask,
    )  # fmt: skip
    path = Path(folder) / EXPLANATIONS_FILE
    atomic.write_bytes(path, data.getvalue())
    return path


def load_explanations(folder: Path) -> StoredExplanations | None:
    """What a training has kept; None where there is none.

    Raises:
        DamagedFileError: the file is there and cannot be read, or its arrays do not belong together.
    """
    path = Path(folder) / EXPLANATIONS_FILE
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
    return StoredExplanations(
        about=config.read(MapInfo, about, str(path)), rows=rows.astype(np.int64), targets=of.astype(np.int64),
        values=values.astype(np.float32), artifact_mask=hidden.astype(bool),
    )  # fmt: skip


# Where answers come from, as the page shows it: a picture beside itself under its map, what was asked, in words.

SALIENCY_SIDE = 168
"""Pixels of an enlarged picture's shorter side."""
GRADIENT_STOPS = 9
"""Colours of the scale."""
ROW_WORDS, COLUMN_WORDS = ("upper", "middle", "lower"), ("left", "middle", "right")


class SaliencyPair(NamedTuple):
    """One picture twice: as it is, and under its map."""

    image: str
    overlay: str
    path: str
    small: bool
    """The picture is drawn with sharp pixels."""
    lines: tuple[CaptionLine, ...]
    alt: str
    """Of the map, for a screen reader."""


class SaliencySection(NamedTuple):
    """All of the section."""

    about: MapInfo
    worst: list[SaliencyPair]
    others: list[SaliencyPair]
    scale: str
    """The colours from the smallest share to the largest, as CSS knows a gradient."""
    hidden: int
    """Maps that leave artefact tokens out."""


def build_saliency_section(
    found: StoredExplanations | None,
    answers: TaskPredictions,
    images: Sequence[StoredThumbnail],
    indices: Int64[np.ndarray, " k"],
) -> SaliencySection | None:
    """What `explanations.html.j2` needs; None where a run has no maps.

    Args:
        images, indices: the stored thumbnails, and their rows in the table.
    """
    if found is None:
        return None
    thumbnails.check_thumbnail_rows(indices, len(answers), answers.targets is not None)
    places = {row: place for place, row in enumerate(indices.tolist())}
    bad = dict(zip(places, wrong_row_mask(answers, indices).tolist(), strict=True)) if len(indices) else {}
    worst: list[SaliencyPair] = []
    others: list[SaliencyPair] = []
    hidden = 0
    for at, row in enumerate(found.rows.tolist()):
        if row in places:
            (worst if bad[row] else others).append(_make_pair(found, at, answers, row, images[places[row]]))
            hidden += bool(found.artifact_mask[at].any())
    if not (worst or others or found.about.nothing):
        return None
    return SaliencySection(found.about, worst, others, css_gradient(found.about.scale), hidden)


def describe_peak_location(values: Float32[np.ndarray, "rows columns"]) -> str:
    """Where a map is largest, in words: a ninth of the picture."""
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    down = ROW_WORDS[int(3 * (row + 0.5) / values.shape[0])]
    across = COLUMN_WORDS[int(3 * (column + 0.5) / values.shape[1])]
    return f"at the {down} {across}" if down != across else "in the middle"


def css_gradient(scale: MapScale) -> str:
    """The colours as they are mixed in, each as opaque as its share is there."""
    shares = np.linspace(-1 if scale in ("signed", "cosine") else 0, 1, GRADIENT_STOPS, dtype=np.float32)
    stops = zip(np.round(255 * map_colors(shares, scale)).astype(int).tolist(), np.abs(shares).tolist(), strict=True)
    return ", ".join(
        f"rgb({red} {green} {blue} / {OVERLAY_OPACITY * share:.2f})" for (red, green, blue), share in stops
    )


def _make_pair(
    found: StoredExplanations, at: int, answers: TaskPredictions, row: int, kept: StoredThumbnail
) -> SaliencyPair:
    about, of = found.about, int(found.targets[at])
    values, hidden = found.values[at], found.artifact_mask[at]
    mixed = blend_map(kept.image, values, about.scale, about.patch, hidden, SALIENCY_SIDE)
    name, value = output_names(answers)[of], _format_prediction(answers, row, of)
    place = describe_peak_location(np.where(hidden, 0, values).astype(np.float32))
    return SaliencyPair(
        image=kept.uri,
        overlay=StoredThumbnail(mixed, kept.aspect).uri,
        path=answers.paths[row] or answers.ids[row],
        small=kept.small,
        lines=(
            _format_truth(answers, row, of),
            CaptionLine(f"{about.method} for", name, f", {value}", _is_output_wrong(answers, row, of)),
        ),
        alt=f"map by {about.method} of {name}, {value}, strongest {place}",
    )


def _format_prediction(answers: TaskPredictions, row: int, of: int) -> str:
    """What was answered for the explained output."""
    if isinstance(answers, RegressionPredictions):
        return f"{answers.values[row, of]:.4g}"
    return f"{100 * answers.probabilities[row, of]:.1f}\u202f%"


def _format_truth(answers: TaskPredictions, row: int, of: int) -> CaptionLine:
    """What is the case."""
    assert answers.targets is not None
    if isinstance(answers, RegressionPredictions):
        return CaptionLine("is", f"{answers.targets[row, of]:.4g}")
    if not isinstance(answers, MultilabelPredictions):
        return CaptionLine("is", answers.classes[int(answers.targets[row])])
    if np.isnan(answers.targets[row, of]):
        return CaptionLine("not known:", answers.classes[of])
    return CaptionLine("has" if answers.targets[row, of] >= LABEL_THRESHOLD else "has no", answers.classes[of])


def _is_output_wrong(answers: TaskPredictions, row: int, of: int) -> bool:
    """Whether what was answered for the explained output is not the case; numbers are more or less so."""
    assert answers.targets is not None
    if isinstance(answers, RegressionPredictions):
        return False
    if not isinstance(answers, MultilabelPredictions):
        return int(answers.targets[row]) != of
    return bool(wrong_label_mask(answers)[row, of])
