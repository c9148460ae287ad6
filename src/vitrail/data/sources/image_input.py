"""Convert any Python object for one image (path, bytes, array, tensor, Pillow image) to channels last or bytes.

The encoded bytes of a file stay bytes, so that the common decoder reads them; Pillow images with palettes or opacity
are re-encoded as PNG, which keeps every value.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
from PIL import ImageOps
from PIL.Image import Image, fromarray

from ...errors import DataError
from ..decoding.decode import read_file_bytes
from ..decoding.raster import ALPHA_MODES, decode_pillow, is_deep

if TYPE_CHECKING:
    from torch import Tensor

MAX_USUAL_CHANNELS = 4
"""Usual numbers of channels: grey, grey with opacity, RGB, RGB with opacity."""
MAX_16BIT = 65535


def load_image_input(image: object, name: str) -> bytes | np.ndarray:
    """Encoded bytes, or an array [H, W] or [H, W, C].

    Args:
        image: a path, encoded bytes, an array, a tensor, a Pillow image, or a row {"bytes", "path"} of `datasets`.
        name: the name in messages.

    Raises:
        DataError: none of these, or of a shape that no image has; the message names it.
    """
    if isinstance(image, Mapping) and {"bytes", "path"} & image.keys():
        image = image.get("path") if image.get("bytes") is None else image["bytes"]
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | os.PathLike):
        try:
            return read_file_bytes(Path(image))
        except DataError as error:
            raise DataError(f"{name}: {error}") from error.__cause__
    if isinstance(image, Image):
        return _convert_pillow(image, name)
    if holds_tensor(image):
        return check_single_image(tensor_to_array(image), name, is_tensor=True)
    if isinstance(image, np.ndarray):
        return check_single_image(image, name)
    kind = "nothing" if image is None else f"a {type(image).__name__}"
    raise DataError(f"{name}: a picture must be a path, bytes, an array, a tensor or a Pillow picture. Got {kind}.")


def holds_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a tensor; torch is not imported for it: a program with a tensor has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def tensor_to_array(tensor: Tensor) -> np.ndarray:
    """Convert a tensor of any device and dtype to an array; bfloat16 becomes float32."""
    plain = tensor.detach().cpu()
    return plain.float().numpy() if str(plain.dtype) == "torch.bfloat16" else plain.numpy()


def check_single_image(values: np.ndarray, name: str, is_tensor: bool = False) -> np.ndarray:
    """Bring one image to channels last; bools become black and white.

    Raises:
        DataError: no image has such a shape or such values, or the axis of the channels is ambiguous.
    """
    if values.ndim not in (2, 3):
        raise DataError(
            f"{name}: a picture must have the shape [height, width], [height, width, channels] or [channels, height, "
            f"width]. Got {list(values.shape)}."
        )
    if values.ndim == 3 and is_channels_first(values.shape, name, is_tensor):
        values = values.transpose(1, 2, 0)
    return check_numeric(values, name)


def is_channels_first(shape: tuple[int, ...], name: str, is_tensor: bool = False) -> bool:
    """Whether an image of three axes is [C, H, W] rather than [H, W, C].

    The channels are the axis, first or last, that has at most 4 of them; with more channels (satellites) the one that
    is at most half of both others. A tensor with at most 4 on both ends is [C, H, W], as torch has it.

    Raises:
        DataError: the shape is ambiguous.
    """
    first, middle, last = shape
    if is_tensor and first <= MAX_USUAL_CHANNELS:
        return True
    if (first <= MAX_USUAL_CHANNELS) != (last <= MAX_USUAL_CHANNELS):
        return first <= MAX_USUAL_CHANNELS
    if min(first, last) > MAX_USUAL_CHANNELS:
        if 2 * first <= min(middle, last):
            return True
        if 2 * last <= min(first, middle):
            return False
    raise DataError(
        f"{name}: in a picture of shape {list(shape)}, the channels may be first or last. "
        "Give [height, width, channels], and grey pictures as [height, width]."
    )


def check_numeric(values: np.ndarray, name: str) -> np.ndarray:
    """Return an array of integers or floats unchanged; bools become 0 and 255.

    Raises:
        DataError: it holds something else.
    """
    if values.dtype.kind == "b":
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype.kind in "uif":
        return values
    what = "Python objects" if values.dtype.hasobject else f"values of the kind {values.dtype}"
    hint = " Are they pictures of different sizes? Give a list of (picture, label) pairs." if what[0] == "P" else ""
    raise DataError(f"{name}: pictures must hold integers or fractions. This array holds {what}.{hint}")


def _convert_pillow(image: Image, name: str) -> bytes | np.ndarray:
    """Convert an opened Pillow image upright, with every value kept."""
    try:
        upright = ImageOps.exif_transpose(image)
        if is_deep(upright):
            return _convert_deep_pillow(upright, name)
        if "transparency" not in upright.info and upright.mode not in ALPHA_MODES:
            return decode_pillow(upright).values
        plain = upright.convert("LA") if upright.mode == "La" else upright  # which Pillow cannot convert to RGBA
        return _encode_png(plain.convert("RGBA"))
    except DataError:
        raise
    except (OSError, ValueError, SyntaxError) as error:  # its file is damaged, or its mode cannot be converted
        raise DataError(f"{name}: the Pillow picture of mode {image.mode} cannot be read ({error}).") from error


def _convert_deep_pillow(image: Image, name: str) -> bytes | np.ndarray:
    """Convert a grey image of 16 or 32 bits; with a transparent value, as PNG."""
    values = decode_pillow(image).values
    key = image.info.get("transparency")
    if key is None:
        return values
    if not isinstance(key, int) or values.dtype.kind == "f" or values.min() < 0 or values.max() > MAX_16BIT:
        raise DataError(
            f"{name}: the Pillow picture of mode {image.mode} calls the value {key} transparent, which is understood "
            f"of whole numbers 0 to {MAX_16BIT} only; take the key out of its info, or lay the picture on a background."
        )
    return _encode_png(fromarray(values.astype(np.uint16)), key)


def _encode_png(image: Image, key: int | None = None) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1, transparency=key)
    return file.getvalue()
