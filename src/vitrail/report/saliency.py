"""Attribution maps in the report: stored by the training, so that a page needs neither model nor data, and drawn."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int64

from .. import config
from ..errors import DamagedFileError
from ..evaluate.predictions import (
    LABEL_THRESHOLD,
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
    TaskPredictions,
    output_names,
)
from ..explain.map_scale import NOT_CHECKED, MapScale
from ..explain.overlay import OVERLAY_OPACITY, blend_map, map_colors
from ..files import atomic
from .image_selection import wrong_label_mask
from .task_sections import CaptionLine
from .thumbnails import StoredThumbnail, Thumbnails

EXPLANATIONS_FILE = "explanations.npz"
MAX_EXPLANATIONS = 6
"""Worst predictions with a map, and as many others."""


@dataclass(frozen=True, kw_only=True)
class MapInfo:
    """How the maps were computed and how to read them."""

    method: str
    layer: str
    """The explained part of the model."""
    line: str
    """Description of what a map shows and what it does not."""
    scale: MapScale
    patch: tuple[int, int]
    """Pixels, height and width."""
    remarks: tuple[str, ...] = ()
    """Further remarks on the model."""
    checked: str = ""
    """What the check of the method on validation images found."""
    nothing: tuple[str, ...] = ()
    """Images with an empty map, by name, each with the reason."""

    @property
    def was_checked(self) -> bool:
        """Whether the method was checked on validation images."""
        return bool(self.checked) and not self.checked.startswith(NOT_CHECKED)


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredExplanations:
    """The stored maps of a run."""

    about: MapInfo
    rows: Int64[np.ndarray, " k"]
    """Row of each map in the held-out split's predictions file."""
    targets: Int64[np.ndarray, " k"]
    """The explained output of each map."""
    values: Float32[np.ndarray, "k rows columns"]
    """One number per patch."""
    artifact_mask: Bool[np.ndarray, "k rows columns"]
    """Artefact patches, whose values are not drawn."""


def select_rows_to_explain(
    predictions: TaskPredictions, rows: Int64[np.ndarray, " n"], max_maps: int = MAX_EXPLANATIONS
) -> list[tuple[int, int]]:
    """Rows to explain, each with its output: worst predictions and others alternating, the worst first.

    Args:
        rows: rows that have a thumbnail, in the order of `image_selection.select_images`.
        max_maps: of the worst, and of the others.
    """
    bad = wrong_row_mask(predictions, rows)
    worst, others = rows[bad][:max_maps].tolist(), rows[~bad]
    even = np.unique(np.linspace(0, len(others) - 1, min(max_maps, len(others))).round().astype(np.int64))
    turns = zip_longest(worst, others[even].tolist())
    return [(row, explained_output(predictions, row)) for turn in turns for row in turn if row is not None]


def wrong_row_mask(predictions: TaskPredictions, rows: Int64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Mask of the wrongly predicted rows; for regression the first half, which has the largest errors."""
    if isinstance(predictions, RegressionPredictions):
        return np.arange(len(rows)) < len(rows) - len(rows) // 2
    if isinstance(predictions, MultilabelPredictions):
        return np.asarray(wrong_label_mask(predictions)[rows].any(1))
    assert predictions.targets is not None
    return np.asarray(predictions.targets[rows] != predictions.indices[rows])


def explained_output(predictions: TaskPredictions, row: int) -> int:
    """The output of a row to explain.

    The predicted class; the most confidently wrong label, or without one the most probable of the true ones; the first
    known number.
    """
    if isinstance(predictions, ClassificationPredictions):
        return int(predictions.indices[row])
    if isinstance(predictions, RegressionPredictions):
        return int(predictions.known_mask[row].argmax())
    assert predictions.targets is not None
    probabilities, present = predictions.probabilities[row], predictions.targets[row] >= LABEL_THRESHOLD
    wrong = wrong_label_mask(predictions)[row]
    if wrong.any():
        return int(np.where(wrong, np.abs(probabilities - present), -1).argmax())
    return int(np.where(present if present.any() else predictions.known_mask[row], probabilities, -1).argmax())


def save_explanations(folder: Path, explanations: StoredExplanations) -> Path:
    """Write explanations.npz of a run folder atomically."""
    data = io.BytesIO()
    np.savez_compressed(
        data,
        about=np.array(json.dumps(config.write(explanations.about))),
        rows=explanations.rows,
        of=explanations.targets,
        values=explanations.values,
        artefacts=explanations.artifact_mask,
    )
    path = Path(folder) / EXPLANATIONS_FILE
    atomic.write_bytes(path, data.getvalue())
    return path


def load_explanations(folder: Path) -> StoredExplanations | None:
    """Read explanations.npz of a run folder; None if there is none.

    Raises:
        DamagedFileError: the file cannot be read, or its arrays do not fit together.
    """
    path = Path(folder) / EXPLANATIONS_FILE
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            rows, of, values, hidden = (arrays[name] for name in ("rows", "of", "values", "artefacts"))
    except Exception as problem:  # zipfile, zlib, numpy, json and OS raise errors of their own
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


# -- The section of the page: images beside their overlays

SALIENCY_SIDE = 168
"""Shorter side of an enlarged image in pixels."""
GRADIENT_STOPS = 9
"""Colours of the CSS gradient."""
ROW_WORDS, COLUMN_WORDS = ("upper", "middle", "lower"), ("left", "middle", "right")


class SaliencyPair(NamedTuple):
    """One image and its overlay."""

    image: str
    overlay: str
    name: str
    """Id of the image."""
    small: bool
    """The image is drawn with sharp pixels."""
    lines: tuple[CaptionLine, ...]
    alt: str
    """Alternative text of the map for screen readers."""


class SaliencySection(NamedTuple):
    """The content of the section."""

    about: MapInfo
    worst: list[SaliencyPair]
    others: list[SaliencyPair]
    scale: str
    """Colours of the scale as a CSS gradient."""
    hidden: int
    """Number of maps with hidden artefact patches."""


def build_saliency_section(
    explanations: StoredExplanations | None, predictions: TaskPredictions, thumbnails: Thumbnails
) -> SaliencySection | None:
    """Context of `explanations.html.j2`; None without maps."""
    if explanations is None:
        return None
    rows = np.array(list(thumbnails), np.int64)
    wrong = rows[wrong_row_mask(predictions, rows)].tolist() if thumbnails else []
    worst: list[SaliencyPair] = []
    others: list[SaliencyPair] = []
    hidden = 0
    for index, row in enumerate(explanations.rows.tolist()):
        if row in thumbnails:
            pair = _make_pair(explanations, index, predictions, row, thumbnails[row])
            (worst if row in wrong else others).append(pair)
            hidden += bool(explanations.artifact_mask[index].any())
    if not (worst or others or explanations.about.nothing):
        return None
    return SaliencySection(explanations.about, worst, others, css_gradient(explanations.about.scale), hidden)


def describe_peak_location(values: Float32[np.ndarray, "rows columns"]) -> str:
    """Position of the maximum of a map as text: a ninth of the image."""
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    down = ROW_WORDS[int(3 * (row + 0.5) / values.shape[0])]
    across = COLUMN_WORDS[int(3 * (column + 0.5) / values.shape[1])]
    return f"at the {down} {across}" if down != across else "in the middle"


def css_gradient(scale: MapScale) -> str:
    """The colours of the overlay with their opacities, as a CSS gradient."""
    shares = np.linspace(-1 if scale in ("signed", "cosine") else 0, 1, GRADIENT_STOPS, dtype=np.float32)
    stops = zip(np.round(255 * map_colors(shares, scale)).astype(int).tolist(), np.abs(shares).tolist(), strict=True)
    return ", ".join(
        f"rgb({red} {green} {blue} / {OVERLAY_OPACITY * share:.2f})" for (red, green, blue), share in stops
    )


def _make_pair(
    explanations: StoredExplanations, index: int, predictions: TaskPredictions, row: int, thumbnail: StoredThumbnail
) -> SaliencyPair:
    about, output = explanations.about, int(explanations.targets[index])
    values, hidden = explanations.values[index], explanations.artifact_mask[index]
    mixed = blend_map(thumbnail.image, values, about.scale, about.patch, hidden, SALIENCY_SIDE)
    name = output_names(predictions)[output]
    if isinstance(predictions, RegressionPredictions):
        value = f"{predictions.values[row, output]:.4g}"
    elif isinstance(predictions, ClassificationPredictions) and predictions.p_values is not None:
        value = f"p {predictions.p_values[row]:.3g}"
    else:
        value = f"{100 * predictions.probabilities[row, output]:.1f}\u202f%"
    truth, is_wrong = _describe_truth(predictions, row, output)
    peak = describe_peak_location(np.where(hidden, 0, values).astype(np.float32))
    return SaliencyPair(
        image=thumbnail.uri,
        overlay=StoredThumbnail(mixed, thumbnail.aspect).uri,
        name=predictions.ids[row],
        small=thumbnail.small,
        lines=(truth, CaptionLine(f"{about.method} for", name, f", {value}", is_wrong)),
        alt=f"map by {about.method} of {name}, {value}, strongest {peak}",
    )


def _describe_truth(predictions: TaskPredictions, row: int, output: int) -> tuple[CaptionLine, bool]:
    """The ground truth of the explained output, and whether the prediction is wrong; False for regression."""
    assert predictions.targets is not None
    if isinstance(predictions, RegressionPredictions):
        return CaptionLine("is", f"{predictions.targets[row, output]:.4g}"), False
    if isinstance(predictions, ClassificationPredictions):
        target = int(predictions.targets[row])
        return CaptionLine("is", predictions.classes[target]), target != output
    if np.isnan(predictions.targets[row, output]):
        return CaptionLine("not known:", predictions.classes[output]), False
    word = "has" if predictions.targets[row, output] >= LABEL_THRESHOLD else "has no"
    return CaptionLine(word, predictions.classes[output]), bool(wrong_label_mask(predictions)[row, output])
