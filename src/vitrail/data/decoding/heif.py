"""Decode AVIF with Pillow, and HEIC, the photographs of phones, with pi-heif or pillow-heif where one is installed.

Both formats turn their pictures upright by a property of the file, not by EXIF. pi-heif applies it; Pillow tells it as
an EXIF orientation.
"""

from __future__ import annotations

import importlib
import io

import numpy as np

from ...errors import DataError
from ...spec import ImageSpec
from .decoded_image import (
    HEIC_READERS,
    SEVERAL_FRAMES,
    DecodedImage,
    apply_exif,
    check_first_page,
    check_image_size,
    find_reader,
    remark_colour_profile,
)
from .raster import decode_pillow

HIGH_BIT_DEPTH = 0x40
"""Of the third byte of an `av1C` property: more than 8 bits for each channel."""


def parse_avif(data: bytes, spec: ImageSpec) -> DecodedImage:
    """The first frame, upright, with its opacity; 8 bits for each channel.

    Raises:
        DataError: more than 8 bits, of which Pillow would keep 8.
    """
    from PIL.AvifImagePlugin import AvifImageFile

    check_first_page("AVIF", spec.page)
    place = data.find(b"av1C")
    if 0 <= place < len(data) - 6 and data[place + 6] & HIGH_BIT_DEPTH:
        raise DataError("holds more than 8 bits for each channel, of which 8 would be read; convert it to PNG.")
    image = AvifImageFile(io.BytesIO(data))  # reads the header only
    check_image_size(image.height, image.width, spec.max_pixels)
    frames = (SEVERAL_FRAMES,) if getattr(image, "n_frames", 1) > 1 else ()
    remarks = (*frames, *remark_colour_profile(image.info.get("icc_profile") or b""))
    stored = decode_pillow(image)
    return apply_exif(stored._replace(remarks=remarks), [image.info["exif"]] if image.info.get("exif") else [])


def parse_heic(data: bytes, spec: ImageSpec) -> DecodedImage:
    """The primary picture, upright, with its opacity; more than 8 bits are kept, scaled to 16."""
    check_first_page("HEIC", spec.page)
    reader = find_reader(HEIC_READERS)
    assert reader is not None  # else the file has no signature
    file = importlib.import_module(reader).open_heif(data, convert_hdr_to_8bit=False)
    width, height = file.size
    check_image_size(height, width, spec.max_pixels)
    remarks = remark_colour_profile(file.info.get("icc_profile") or b"")
    values, alpha = np.array(file), None
    if file.has_alpha:
        values, alpha = values[:, :, :-1], values[:, :, -1]
    return DecodedImage(values[:, :, 0] if values.shape[-1:] == (1,) else values, alpha, remarks=remarks)
