"""TIFF files of every depth, byte order and page; what Pillow would get wrong comes out right."""

from __future__ import annotations

import builtins
import struct

import numpy as np
import pytest
from PIL import Image

from corpus.writing import encoded, grey, photo, plain_tiff, shorts, tiff
from vitrail.data.decoding.decode import parse_image
from vitrail.data.decoding.decoded_image import DecodedImage
from vitrail.errors import DataError
from vitrail.spec import ImageSpec

RAMP = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)


def opened(data: bytes, **settings: object) -> DecodedImage:
    return parse_image(data, ImageSpec(**settings))


@pytest.mark.parametrize("order", [">", "<"])
@pytest.mark.parametrize("form", [1, 2])
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_whole_numbers_keep_their_sign_and_size(bits, form, order):
    kind = np.dtype(f"{'u' if form == 1 else 'i'}{bits // 8}")
    if (bits, form, order) in ((8, 2, ">"), (32, 1, ">")):
        pytest.importorskip("tifffile")
    info = np.iinfo(kind)
    values = np.linspace(info.min, info.max, 64).astype(np.int64).clip(info.min, info.max).astype(kind).reshape(8, 8)
    found = opened(plain_tiff(values, form, order)).values
    assert np.array_equal(found.astype(np.int64), values.astype(np.int64))


def test_16_bit_films_whose_white_is_zero_are_turned_round():
    assert np.array_equal(opened(plain_tiff(RAMP, order="<", photometric=0)).values, 65535 - RAMP)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int8, np.int16, np.uint32, np.int32])
@pytest.mark.parametrize("order", ["<", ">"])
def test_deeper_pictures_whose_white_is_zero_are_refused_and_never_shown_inside_out(kind, order):
    values = np.array([[0, 1], [2, 3]], kind)
    form = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    with pytest.raises(DataError, match=r"^is a TIFF file with 1 channel of .* in colours that Vitrail does not know"):
        opened(plain_tiff(values, form, order, photometric=0))


def test_pages_are_chosen_and_thumbnails_are_no_pages():
    first, second = Image.fromarray(grey()), Image.fromarray(255 - grey())
    data = encoded(first, "TIFF", save_all=True, append_images=[second])
    assert np.array_equal(opened(data, page=1).values, grey())
    assert np.array_equal(opened(data, page=2).values, 255 - grey())
    with pytest.raises(DataError, match=r"^holds 2 pages, not the 3 that --image\.page asks for"):
        opened(data, page=3)
    with_thumbnail = encoded(first, "TIFF", save_all=True, append_images=[marked(second)])
    assert np.array_equal(opened(with_thumbnail).values, grey())


def marked(image: Image.Image) -> Image.Image:
    """The picture as a thumbnail in a TIFF."""
    image.encoderinfo = {"tiffinfo": {254: 1}}
    return image


def test_pages_that_lead_in_a_circle_end():
    data = bytearray(plain_tiff(grey()))
    (start,) = struct.unpack_from(">I", data, 4)
    (count,) = struct.unpack_from(">H", data, start)
    struct.pack_into(">I", data, start + 2 + 12 * count, start)
    assert np.array_equal(opened(bytes(data)).values, grey())


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"])
def test_compressed_pictures_are_read(compression):
    found = opened(encoded(photo(), "TIFF", compression=compression)).values
    assert np.abs(found.astype(int) - photo()).max() <= (8 if compression == "jpeg" else 0)


def test_big_tiffs_are_read():
    assert np.array_equal(opened(encoded(photo(), "TIFF", big_tiff=True)).values, photo())


def test_floats_in_several_channels_and_planes_of_16_bits_need_tifffile(monkeypatch):
    pytest.importorskip("tifffile")
    floats = np.random.default_rng(0).normal(size=(8, 9, 3)).astype(np.float32)
    assert np.array_equal(opened(plain_tiff(floats, 3)).values, floats)
    doubles = floats[:, :, 0].astype(np.float64)
    assert np.array_equal(opened(plain_tiff(doubles, 3)).values, doubles)
    deep = np.stack([RAMP, RAMP[::-1]], -1)
    found = opened(plain_tiff(deep))
    assert np.array_equal(found.values, RAMP)
    assert np.array_equal(found.alpha, RAMP[::-1])
    real = builtins.__import__

    def refuse(name: str, *rest: object) -> object:
        if name == "tifffile":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    says = r"^is a TIFF file with 3 channels of 32-bit floats; such need tifffile: pip install 'vitrail\[medical\]'\.$"
    with pytest.raises(DataError, match=says):
        opened(plain_tiff(floats, 3))


def test_tags_that_lie_beyond_the_file_are_truncation():
    tags = {256: shorts(4), 257: shorts(4), 258: (3, 3, bytes(6)), 262: shorts(1)}
    data = tiff(tags, bytes(16))
    with pytest.raises(DataError, match=r"^truncated \([\d,]+ of [\d,]+ bytes\)"):
        opened(data[:-3])


def test_tiles_larger_than_any_picture_are_refused():
    sides = {322: shorts(60_000), 323: shorts(60_000), 324: (4, 1, struct.pack(">I", 8)), 325: shorts(16)}
    tags = {256: shorts(4), 257: shorts(4), 258: shorts(8), 262: shorts(1)} | sides
    with pytest.raises(DataError, match=r"^image has tiles of 3,600 Mpx, limit 50 Mpx"):
        opened(tiff(tags, bytes(16)))


def test_strips_that_do_not_cover_the_picture_are_damage():
    data = plain_tiff(grey()).replace(struct.pack(">HHIH", 257, 3, 1, 36), struct.pack(">HHIH", 257, 3, 1, 100))
    with pytest.raises(DataError, match=r"^damaged TIFF file \(it is cut into 3 strips or tiles and holds 1 of them\)"):
        opened(data)


def test_a_width_of_several_numbers_is_damage():
    tags = {256: shorts(4, 4), 257: shorts(4), 258: shorts(8), 262: shorts(1), 278: shorts(4)}
    with pytest.raises(DataError, match=r"^damaged TIFF file \(its tag 256 holds 2 numbers instead of one\)"):
        opened(tiff(tags, bytes(16)))
