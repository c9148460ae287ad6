"""JPEGs decoded small: near the shrunk picture, upright, and only where nothing can go wrong."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vitrail.data.decoding.decode import decode_image
from vitrail.data.decoding.jpeg import choose_reduction, open_reducible_jpeg
from vitrail.spec import ImageSpec

LIMIT = 50_000_000


@pytest.fixture
def smooth() -> np.ndarray:
    """uint8 [203, 317, 3]: waves far longer than eight pixels, of another direction in each channel."""
    rows, columns = np.mgrid[0:203, 0:317]
    waves = [np.sin(rows / 31 + columns / 57), np.cos(columns / 43), np.sin(rows / 61 - columns / 37)]
    return (np.stack(waves, axis=-1) * 100 + 128).astype(np.uint8)


def shrunk(values: np.ndarray, by: int) -> np.ndarray:
    """Means of whole blocks of by x by pixels."""
    height, width = values.shape[0] // by, values.shape[1] // by
    blocks = values[: height * by, : width * by].reshape(height, by, width, by, -1)
    return blocks.mean(axis=(1, 3))


@pytest.mark.parametrize("by", [1, 2, 4, 8])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_reduced_picture_is_near_the_shrunk_one(by, mode, smooth, encode):
    picture = open_reducible_jpeg(encode(Image.fromarray(smooth).convert(mode), "JPEG", quality=90), LIMIT)
    assert (picture.height, picture.width, picture.channels) == (203, 317, len(mode))
    small = picture.decode(by)
    assert small.shape == (-(-203 // by), -(-317 // by), len(mode))
    expected = shrunk(picture.decode(), by)
    gap = np.abs(small[: expected.shape[0], : expected.shape[1]] - expected)
    assert gap.max() <= (0 if by == 1 else 5)
    assert gap.mean() < 1


@pytest.mark.parametrize("way", range(1, 9))
def test_a_reduced_picture_is_upright(way, smooth, encode):
    exif = Image.Exif()
    exif[0x0112] = way
    data = encode(smooth, "JPEG", quality=90, exif=exif)
    upright = decode_image(data, ImageSpec())
    picture = open_reducible_jpeg(data, LIMIT)
    assert (picture.height, picture.width) == upright.shape[:2]
    assert np.array_equal(picture.decode(), upright)
    small, expected = picture.decode(4), shrunk(upright, 4)
    if way in (1, 5):  # the others begin with the block that is not whole
        assert np.abs(small[: expected.shape[0], : expected.shape[1]] - expected).max() <= 5
    assert small.shape == (-(-picture.height // 4), -(-picture.width // 4), 3)


def test_what_is_not_plain_is_left_to_the_exact_decoder(smooth, encode, bomb):
    image = Image.fromarray(smooth)
    for data in (
        encode(smooth, "PNG"),
        encode(image.convert("CMYK"), "JPEG"),
        encode(image, "JPEG", progressive=True),
        encode(smooth, "JPEG")[:150],
        b"\xff\xd8\xff" + bytes(100),
        bomb,
        b"",
    ):
        assert open_reducible_jpeg(data, LIMIT) is None
    assert open_reducible_jpeg(encode(smooth, "JPEG"), 203 * 317 - 1) is None
    assert open_reducible_jpeg(encode(smooth, "JPEG"), 203 * 317) is not None


def test_a_file_that_libjpeg_doubts_is_refused(smooth, encode):
    data = encode(smooth, "JPEG", quality=90)
    with pytest.raises(ValueError, match="JPEG"):
        open_reducible_jpeg(data[: len(data) // 2], LIMIT).decode(2)


@pytest.mark.parametrize(
    ("room", "expected"), [(0.3, 1), (1.99, 1), (2, 2), (3.9, 2), (4, 4), (7.9, 4), (8, 8), (99, 8)]
)
def test_the_largest_reduction_that_leaves_enough_pixels_is_taken(room, expected):
    assert choose_reduction(room) == expected
