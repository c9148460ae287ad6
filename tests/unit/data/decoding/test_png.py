"""PNG files: transparency of every depth, chunks in odd places, and numbers that promise too much."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from corpus.writing import PNG, chunk, encoded, grey, inserted, photo, png, png16
from vitrail.data.decoding.decode import parse_image
from vitrail.data.decoding.decoded_image import DecodedImage
from vitrail.errors import DataError
from vitrail.spec import ImageSpec


def opened(data: bytes) -> DecodedImage:
    return parse_image(data, ImageSpec())


def test_one_colour_of_16_bits_is_clear():
    values = np.arange(24, dtype=np.uint16).reshape(2, 4, 3) * 1000
    found = opened(png16(values, chunk(b"tRNS", values[0, 1].astype(">u2").tobytes())))
    assert np.array_equal(found.values, values)
    assert found.alpha.tolist() == [[65535, 0, 65535, 65535], [65535] * 4]
    found = opened(png16(values[:, :, :1], chunk(b"tRNS", values[1, 2, :1].astype(">u2").tobytes())))
    assert found.alpha.tolist() == [[65535] * 4, [65535, 65535, 0, 65535]]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_one_grey_level_of_few_bits_is_clear(depth):
    rows = b"\0" + bytes([0b00011011])
    found = opened(png(8 // depth, 1, depth, 0, rows, chunk(b"tRNS", struct.pack(">H", 1))))
    numbers = [0b00011011 >> shift & 2**depth - 1 for shift in range(8 - depth, -1, -depth)]
    assert found.alpha[0].tolist() == [0 if number == 1 else 255 for number in numbers]
    assert found.values[0].tolist() == [number * 255 // (2**depth - 1) for number in numbers]


def test_pixels_in_many_chunks_are_joined():
    whole = encoded(photo(), "PNG")
    start = whole.index(b"IDAT") - 4
    (length,) = struct.unpack_from(">I", whole, start)
    pixels = whole[start + 8 : start + 8 + length]
    parts = b"".join(chunk(b"IDAT", pixels[place : place + 10]) for place in range(0, length, 10))
    assert np.array_equal(opened(whole[:start] + parts + chunk(b"IEND", b"")).values, photo())


def test_interlaced_grey_with_opacity_of_16_bits_is_read():
    values = np.array([[[258, 65535]]], np.uint16)
    header = struct.pack(">IIBBBBB", 1, 1, 16, 4, 0, 0, 1)
    rows = zlib.compress(b"\0" + values.astype(">u2").tobytes())
    found = opened(PNG + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    assert (found.values.tolist(), found.alpha.tolist()) == ([[258]], [[65535]])


def test_texts_are_never_handed_on():
    data = inserted(encoded(grey(), "PNG"), chunk(b"tEXt", b"\xff" * 100), chunk(b"zTXt", b"no method"))
    assert np.array_equal(opened(data).values, grey())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (PNG + chunk(b"IDAT", bytes(30)), "it does not begin with its header"),
        (encoded(photo(), "PNG")[:33] + chunk(b"1234", b""), "no chunk is called b'1234'"),
        (png(2, 2, 8, 3, bytes(6)), "its palette is missing"),
    ],
)
def test_files_that_contradict_themselves_are_damaged(data, says):
    with pytest.raises(DataError, match=rf"^damaged PNG file \({says}\)"):
        opened(data)


def test_a_cut_chunk_of_pixels_says_how_much_was_promised():
    data = encoded(photo(), "PNG")
    with pytest.raises(DataError, match=rf"^truncated \({len(data) - 20:,} of at least {len(data) - 12:,} bytes\)"):
        opened(data[:-20])


@pytest.mark.parametrize(("depth", "colour", "width"), [(8, 0, 52), (16, 0, 26), (16, 4, 13), (1, 0, 416)])
def test_rows_that_were_never_written_are_truncation(depth, colour, width):
    rows = b"".join(b"\0" + row.tobytes() for row in grey())
    assert opened(png(width, 36, depth, colour, rows)).values.shape == (36, width)
    with pytest.raises(DataError, match=r"^truncated \(PNG file"):
        opened(png(width, 37, depth, colour, rows))


def test_interlaced_pictures_and_those_of_one_colour_are_whole():
    plain = np.full((19, 23), 7, np.uint8)
    assert np.array_equal(opened(encoded(plain, "PNG")).values, plain)
    for height, width in ((1, 1), (2, 3), (9, 5), (16, 17)):
        passes = [plain[top:height:down, left:width:across] for left, top, across, down in INTERLACED]
        rows = b"".join(b"\0" + row.tobytes() for part in passes if part.size for row in part)
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 1))
        whole, cut = (
            PNG + header + chunk(b"IDAT", zlib.compress(part)) + chunk(b"IEND", b"") for part in (rows, rows[:-1])
        )
        assert np.array_equal(opened(whole).values, plain[:height, :width])
        with pytest.raises(DataError, match=r"^truncated"):
            opened(cut)


INTERLACED = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def test_a_png_of_an_ios_app_is_named_and_not_called_damaged():
    data = png(4, 4, 8, 0, b"\0\1\2\3\4" * 4)
    with pytest.raises(DataError, match=r"as Xcode writes it into iOS apps \(CgBI\)"):
        opened(data[:8] + chunk(b"CgBI", bytes(4)) + data[8:])
