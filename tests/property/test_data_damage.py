"""Whatever is done to a picture file, reading it gives a picture or one DataError, soon."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.decode import decode
from vitrail.errors import DataError

KINDS = {"JPEG": {}, "PNG": {}, "WEBP": {}, "BMP": {}, "GIF": {}, "TIFF": {"compression": "tiff_lzw"}}


def drawn(kind: str) -> bytes:
    rows, columns = np.mgrid[0:24, 0:31]
    out = io.BytesIO()
    Image.fromarray(np.stack([rows * 9, columns * 8, rows + columns], axis=-1).astype(np.uint8)).save(
        out, kind, **KINDS[kind]
    )
    return out.getvalue()


WHOLE = {kind: drawn(kind) for kind in KINDS}


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(
    st.sampled_from(sorted(KINDS)),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4),
    st.floats(0, 2),
)
def test_damaged_files_give_a_picture_or_a_data_error(kind, changes, length):
    data = bytearray(WHOLE[kind])
    for place, value in changes:
        data[int(place * (len(data) - 1))] = value
    try:
        picture = decode(bytes(data[: int(length * len(data))]), 3, 0, 255)
    except DataError as error:
        assert str(error).startswith(("truncated", "damaged", "not a picture", "image ", "holds "))
    else:
        assert picture.dtype == np.uint8
        assert picture.shape[2] == 3
