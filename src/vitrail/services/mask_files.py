"""`vitrail predict --masks`: the class of every pixel as palette PNG files of the pictures' own size."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ..data.decoding.decode import read_image
from ..data.preprocess import unfit_mask
from ..data.source import UNKNOWN_PIXEL
from ..errors import UsageError
from ..evaluate.predictions import RegressionPredictions, TaskPredictions
from ..explain.mask_overlay import mask_palette
from ..files import atomic
from ..spec import ImageSpec
from .explanation import make_unique_stems

MASK_ENDING = ".png"


def require_masks(task: str) -> None:
    """Check that a model answers with masks, before inference.

    Raises:
        UsageError: it does not.
    """
    if task != "segmentation":
        raise UsageError(f"Masks are of segmentation models, and this one answers {task}.")


def write_masks(
    parts: Iterable[TaskPredictions], images: Sequence[Path], spec: ImageSpec, folder: Path | None
) -> Iterator[TaskPredictions]:
    """Write NAME.png of each picture, and pass the predictions on without the masks, which would fill the memory.

    The values are the places of the classes in the columns, with a palette; 255 is what the model does not see of a
    picture that it crops. A picture of another size than the model's has the class of the nearest pixel.

    Args:
        images: all pictures, which name the files.
        folder: None writes nothing.

    Raises:
        DataError: a picture cannot be read any more.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    names = [str(path) for path in images]
    stems = dict(zip(names, make_unique_stems(names), strict=True))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        assert isinstance(part, RegressionPredictions) and part.masks is not None
        for path, classes in zip(part.paths, part.masks, strict=True):
            if folder is not None:
                size = read_image(Path(path), spec).values.shape[:2]
                mask = unfit_mask(classes, (size[0], size[1]), spec, UNKNOWN_PIXEL)
                atomic.write_bytes(folder / f"{stems[path]}{MASK_ENDING}", encode_mask(mask, len(part.columns)))
        yield replace(part, masks=None, confidences=None)


def encode_mask(mask: UInt8[np.ndarray, "H W"], count: int) -> bytes:
    """A mask as a PNG with a palette of `count` classes."""
    image = Image.fromarray(mask, "L")
    image.putpalette(mask_palette(count).ravel().tolist())
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()
