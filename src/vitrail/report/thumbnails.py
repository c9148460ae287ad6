"""Thumbnails of a report: selection for classification, storage in the run folder, and data URIs for the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from ..errors import DamagedFileError, UsageError
from ..evaluate.predictions import UNKNOWN_CLASS, ClassificationPredictions, TaskPredictions
from ..files import atomic
from ..formatting import format_count

if TYPE_CHECKING:
    from PIL.Image import Image

THUMBNAILS_FILE = "thumbnails.npz"
MAX_THUMBNAILS = 12
"""Wrong predictions in a gallery, and as many correct ones."""
MAX_SHARP_SIDE = 64
"""Smaller images are drawn with sharp pixels."""
MAX_SIDE = 224
"""Longer side of a thumbnail in pixels: twice the drawn size, for high-resolution screens."""
ASPECT_TOLERANCE = 0.01
"""Relative difference of aspect ratios below which an image is not resized."""


class StoredThumbnail(NamedTuple):
    """A stored thumbnail."""

    image: UInt8[np.ndarray, "H W C"]
    """The model's input."""
    aspect: float
    """Width over height of the same region in the original image."""

    @property
    def uri(self) -> str:
        """Data URI in the original aspect ratio."""
        return to_data_uri(self.image, self.aspect)

    @property
    def small(self) -> bool:
        """Whether it is drawn with sharp pixels."""
        return max(self.image.shape[:2]) < MAX_SHARP_SIDE


Thumbnails = Mapping[int, StoredThumbnail]
"""The stored thumbnails by their row of the predictions, in their stored order."""


def select_class_images(predictions: ClassificationPredictions, k: int) -> np.ndarray:
    """Rows of the k most confident wrong predictions, then of up to k correct ones, alternating by class.

    Correct ones are the first of each class in the table's order, then the second, so the choice does not depend on the
    images. Rows without a target are left out.
    """
    if predictions.targets is None or not len(predictions):
        return np.zeros(0, np.int64)
    targets, predicted = predictions.targets, predictions.indices
    wrong = np.flatnonzero((targets != UNKNOWN_CLASS) & (targets != predicted))
    wrong = wrong[np.argsort(-predictions.confidences[wrong], kind="stable")]
    right = np.flatnonzero(targets == predicted)
    return np.concatenate([wrong[:k], alternate_by_kind(right, targets[right])[:k]]).astype(np.int64)


def alternate_by_kind(rows: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """The first row of each kind in their order, then the second, and so on."""
    turns = np.zeros(len(rows), np.int64)  # number of earlier rows of its kind
    for kind in np.unique(kinds):
        turns[kinds == kind] = np.arange((kinds == kind).sum())
    return rows[np.lexsort((kinds, turns))]


def save_thumbnails(folder: Path, images: np.ndarray, indices: np.ndarray, aspects: Float[np.ndarray, " n"]) -> Path:
    """Write thumbnails.npz of a run folder atomically.

    Args:
        images: uint8 [n, H, W, C], the model's inputs.
        indices: row of each in the held-out split's predictions file, [n].
        aspects: width over height of the same regions in the original images.

    Raises:
        UsageError: other shapes or another type.
    """
    images, indices = np.asarray(images), np.asarray(indices)
    if images.ndim != 4 or images.dtype != np.uint8 or not len(images) == len(indices) == len(aspects):
        raise UsageError(
            "Thumbnails must be uint8 [n, H, W, C] with one index and one aspect each. "
            f"Got {images.dtype} {list(images.shape)}, {len(indices)} indices and {len(aspects)} aspects."
        )
    data = io.BytesIO()
    np.savez_compressed(data, images=images, indices=indices.astype(np.int64), aspects=aspects.astype(np.float32))
    path = Path(folder) / THUMBNAILS_FILE
    atomic.write_bytes(path, data.getvalue())
    return path


def load_thumbnails(folder: Path) -> Thumbnails:
    """Read the thumbnails of a run folder; empty if none were stored.

    Older files without aspects have the model's aspect ratio.

    Raises:
        DamagedFileError: the file cannot be read.
    """
    path = Path(folder) / THUMBNAILS_FILE
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            images, indices = arrays["images"], arrays["indices"]
            plain = np.full(len(images), images.shape[2] / images.shape[1])
            aspects = arrays.get("aspects", plain)
            thumbnails = [StoredThumbnail(*one) for one in zip(images, aspects.tolist(), strict=True)]
            return dict(zip(indices.tolist(), thumbnails, strict=True))
    except Exception as problem:  # zipfile, zlib, numpy and OS raise errors of their own
        raise DamagedFileError(
            f"{path} must hold the arrays images and indices. It cannot be read: {problem}."
        ) from problem


def check_thumbnail_rows(thumbnails: Thumbnails, predictions: TaskPredictions) -> None:
    """Refuse thumbnails that cannot belong to these predictions.

    Raises:
        UsageError: an index beyond the table, as when thumbnails and predictions come from different runs.
    """
    if thumbnails and (max(thumbnails) >= len(predictions) or predictions.targets is None):
        raise UsageError(
            f"Thumbnail indices must lie below the {format_count(len(predictions), 'row')} of predictions with "
            f"targets. Got {max(thumbnails)}; are thumbnails and predictions of one run?"
        )


def to_data_uri(image: UInt8[np.ndarray, "H W C"], aspect: float | None = None, longest: int = MAX_SIDE) -> str:
    """Data URI of an image: three channels in colour, any other count by its first channel.

    Small images are lossless PNG; large ones are JPEG of at most 224 pixels, so that a page of fifty stays far below
    5 MB.

    Args:
        aspect: width over height as drawn; None is that of the pixels.
        longest: longer side in pixels of a large image.
    """
    from PIL import Image

    data = io.BytesIO()
    resized = Image.fromarray(image if image.shape[-1] == 3 else np.ascontiguousarray(image[..., 0]))
    kind = "png" if max(resized.size) < 2 * MAX_SHARP_SIDE else "jpeg"
    resized = _resize_to_aspect(resized, aspect)
    if kind == "png":
        resized.save(data, "PNG", optimize=True)
    else:
        resized.thumbnail((longest, longest))
        resized.save(data, "JPEG", quality=85)
    return f"data:image/{kind};base64," + base64.b64encode(data.getvalue()).decode("ascii")


def _resize_to_aspect(image: Image, aspect: float | None) -> Image:
    """Enlarge one side to the aspect ratio; pixels of small images stay sharp rectangles."""
    from PIL.Image import Resampling

    width, height = image.size
    if aspect is None or abs(aspect * height / width - 1) < ASPECT_TOLERANCE:
        return image
    wide, tall = (height * aspect, height) if aspect * height > width else (width, width / aspect)
    if max(image.size) < MAX_SHARP_SIDE:
        step = -(-2 * MAX_SHARP_SIDE // max(image.size))
        return image.resize((round(step * wide), round(step * tall)), Resampling.NEAREST)
    return image.resize((round(wide), round(tall)), Resampling.BICUBIC)
