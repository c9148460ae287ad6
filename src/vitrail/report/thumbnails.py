"""The few pictures a report shows: which, how they are stored, and how they get onto the page."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np

from ..errors import DamagedFileError, UsageError
from ..evaluate.predictions import UNKNOWN, Predictions
from ..files import atomic

NAME = "thumbnails.npz"
MOST = 12
"""Mistakes in a gallery, and as many right answers."""
SHARP = 64
"""Smaller pictures are drawn with sharp pixels."""
LONGEST = 224
"""Longer side of a thumbnail on the page, in pixels: twice what is seen, for fine screens."""


def choose(predictions: Predictions, k: int) -> np.ndarray:
    """Rows worth showing: the k most confident mistakes, then up to k right answers, one class after another.

    Right answers are the first of each class in the table's order, then the second of each, so nothing is picked by
    how good it looks. Rows without a target are never shown.
    """
    if predictions.targets is None or not len(predictions):
        return np.zeros(0, np.int64)
    targets, labels = predictions.targets, predictions.labels
    wrong = np.flatnonzero((targets != UNKNOWN) & (targets != labels))
    wrong = wrong[np.argsort(-predictions.confidences[wrong], kind="stable")]
    right = np.flatnonzero(targets == labels)
    turns = np.zeros(len(right), np.int64)  # how many of its class came before
    for name in np.unique(targets[right]):
        mine = targets[right] == name
        turns[mine] = np.arange(mine.sum())
    right = right[np.lexsort((targets[right], turns))]
    return np.concatenate([wrong[:k], right[:k]]).astype(np.int64)


def save(folder: Path, images: np.ndarray, indices: np.ndarray) -> Path:
    """Write thumbnails.npz into a run folder in one step.

    Args:
        images: uint8 [n, H, W, C], as the model saw them.
        indices: row of each in the held-out split's predictions file, [n].

    Raises:
        UsageError: other shapes or another type.
    """
    images, indices = np.asarray(images), np.asarray(indices)
    if images.ndim != 4 or images.dtype != np.uint8 or len(images) != len(indices):
        raise UsageError(
            "Thumbnails must be uint8 [n, H, W, C] with one index each. "
            f"Got {images.dtype} {list(images.shape)} and {len(indices)} indices."
        )
    data = io.BytesIO()
    np.savez_compressed(data, images=images, indices=indices.astype(np.int64))
    path = Path(folder) / NAME
    atomic.write_bytes(path, data.getvalue())
    return path


def load(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """(images, indices) of a run folder; both empty where no thumbnails were stored.

    Raises:
        DamagedFileError: the file is there and cannot be read.
    """
    path = Path(folder) / NAME
    if not path.exists():
        return np.zeros((0, 1, 1, 1), np.uint8), np.zeros(0, np.int64)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["images"], arrays["indices"]
    except Exception as problem:  # zipfile, zlib, numpy and OS each have their own
        raise DamagedFileError(
            f"{path} must hold the arrays images and indices. It cannot be read: {problem}."
        ) from problem


def check_rows(indices: np.ndarray, rows: int, targets: bool) -> None:
    """Refuse thumbnails that cannot be of this table.

    Raises:
        UsageError: an index beyond the table, as when thumbnails and predictions come from different runs.
    """
    if len(indices) and (indices.max() >= rows or not targets):
        raise UsageError(
            f"Thumbnail indices must lie below the {rows} rows of predictions with targets. "
            f"Got {indices.max()}; are thumbnails and predictions of one run?"
        )


def data_uri(image: np.ndarray) -> str:
    """A picture inside a text, from uint8 [H, W, C]: three channels in colour, any other count by its first channel.

    PNG where it is small, so that every pixel is as it was; JPEG of at most 224 pixels where it is large, so that a
    page of fifty stays far below 5 MB.
    """
    from PIL import Image

    data = io.BytesIO()
    picture = Image.fromarray(image if image.shape[-1] == 3 else np.ascontiguousarray(image[..., 0]))
    kind = "png" if max(picture.size) < 2 * SHARP else "jpeg"
    if kind == "png":
        picture.save(data, "PNG", optimize=True)
    else:
        picture.thumbnail((LONGEST, LONGEST))
        picture.save(data, "JPEG", quality=85)
    return f"data:image/{kind};base64," + base64.b64encode(data.getvalue()).decode("ascii")
