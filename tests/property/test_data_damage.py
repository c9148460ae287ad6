"""Whatever is done to a picture file, reading it gives a picture or one DataError, soon."""

from __future__ import annotations

import importlib.util

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corpus import frames, modes, turned
from corpus.films import film
from corpus.writing import encoded, photo, plain_tiff, png16
from vitrail.data.decoding.decode import decode_image
from vitrail.errors import DataError
from vitrail.spec import ImageSpec

SMALL = photo()[:24, :31]
WHOLE = {
    "JPEG": encoded(SMALL, "JPEG"),
    "JPEG, progressive": encoded(SMALL, "JPEG", progressive=True),
    "JPEG, CMYK": modes.cmyk_jpeg(True),
    "JPEG, lying": turned.held_jpeg(6),
    "PNG": encoded(SMALL, "PNG"),
    "PNG, 16 bits": png16(SMALL.astype(np.uint16) * 257),
    "PNG, moving": frames.animated("PNG"),
    "PNG, palette": encoded(modes.palette(), "PNG"),
    "WebP": encoded(SMALL, "WEBP"),
    "BMP": encoded(SMALL, "BMP"),
    "GIF": frames.animated_gif(),
    "TIFF": encoded(SMALL, "TIFF", compression="tiff_lzw"),
    "TIFF, 16 bits": plain_tiff(SMALL.astype(np.uint16) * 257),
    "TIFF, pages": frames.pages(),
}
if importlib.util.find_spec("pydicom"):
    WHOLE["DICOM"] = film(SMALL[:, :, 0])
STARTS = ("truncated", "damaged", "not a picture", "image ", "holds ", "is a ", "is compressed", "Values ", "The model")


@given(
    st.sampled_from(sorted(WHOLE)),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4),
    st.floats(0, 2),
)
def test_damaged_files_give_a_picture_or_a_data_error(kind, changes, length):
    data = bytearray(WHOLE[kind])
    for place, value in changes:
        data[int(place * (len(data) - 1))] = value
    try:
        picture = decode_image(bytes(data[: int(length * len(data))]), ImageSpec(high=65535, page=1))
    except DataError as error:
        assert str(error).startswith(STARTS)
    else:
        assert picture.dtype == np.uint8
        assert picture.shape[2] == 3
