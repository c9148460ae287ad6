"""The orientation in an EXIF block, and blocks that make no sense."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image

from corpus.writing import exif, orientation
from vitrail.data.decoding import decoded_image as reading
from vitrail.data.decoding.decoded_image import DecodedImage


@pytest.mark.parametrize("way", range(1, 9))
def test_pillows_own_blocks_are_read_in_both_byte_orders(way):
    block = Image.Exif()
    block[0x0112] = way
    assert reading.read_orientation(block.tobytes()) == way
    assert reading.read_orientation(orientation(way)) == way
    assert reading.read_orientation(orientation(way).removeprefix(b"Exif\0\0")) == way


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (b"", None),
        (b"Exif\0\0", None),
        (exif(), 1),
        (exif((0x010F, 2, 4, b"make")), 1),
        (exif((0x0112, 3, 1, struct.pack(">H2x", 77))), None),
        (exif((0x0112, 4, 1, struct.pack(">I", 3))), 3),
        (exif((0x0112, 1, 1, b"\x08\0\0\0")), 8),
        (exif((0x0112, 5, 1, b"\0\0\0\x08")), None),
        (b"Exif\0\0MM\0*\xff\xff\xff\xff", None),
    ],
)
def test_blocks_without_an_orientation_are_upright_and_nonsense_is_unreadable(block, found):
    assert reading.read_orientation(block) == found


def test_opacity_is_turned_with_the_picture():
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    turned = reading.apply_exif(DecodedImage(values, values + 100), [orientation(6)])
    assert np.array_equal(turned.alpha, turned.values + 100)
    assert turned.values.shape == (4, 3)
