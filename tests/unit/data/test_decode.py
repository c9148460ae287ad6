"""Range, channels and opacity: what becomes black and white, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

from vitrail.data.decoding import decode as decoding
from vitrail.data.preprocess import preprocess_image
from vitrail.errors import DataError
from vitrail.spec import ImageSpec


def decode(picture: object, channels: int, low: float, high: float) -> np.ndarray:
    return decoding.decode_image(picture, ImageSpec(channels=channels, low=low, high=high))


def test_grey_and_colour_convert_as_pillow_does(photo, encode, tmp_path):
    (tmp_path / "a.png").write_bytes(encode(photo, "PNG"))
    grey = decode(tmp_path / "a.png", 1, 0, 255)
    assert np.array_equal(grey[:, :, 0], np.array(Image.fromarray(photo).convert("L")))
    assert np.array_equal(decode(grey, 3, 0, 255), grey.repeat(3, axis=2))


def test_files_bytes_and_arrays_are_the_same_picture(photo, encode, tmp_path):
    data = encode(photo, "PNG")
    (tmp_path / "a.png").write_bytes(data)
    for picture in (tmp_path / "a.png", data, photo):
        assert np.array_equal(decode(picture, 3, 0, 255), photo)


def test_a_16_bit_ramp_keeps_256_levels():
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    levels = decode(ramp, 1, 0, 65535)[:, :, 0]
    assert np.array_equal(levels, np.rint(ramp / 257).astype(np.uint8))
    assert len(np.unique(levels)) == 256


def test_a_12_bit_film_in_16_bits_uses_the_whole_grey_scale():
    film = np.array([[0, 2048, 4095]], dtype=np.uint16)
    assert decode(film, 1, 0, 4095).ravel().tolist() == [0, 128, 255]


def test_floats_and_8_bit_counts_are_stretched_by_the_same_range():
    assert decode(np.array([[0, 0.5, 1]]), 1, 0, 1).ravel().tolist() == [0, 128, 255]
    assert decode(np.array([[-1000, 0, 1000]], np.int16), 1, -1000, 1000).ravel().tolist() == [0, 128, 255]
    assert decode(np.array([[0, 8, 16]], np.uint8), 1, 0, 16).ravel().tolist() == [0, 128, 255]


def test_8_bit_pictures_are_scaled_already_for_a_model_of_deep_or_fractional_ones(photo):
    for low, high in ((0, 4095), (0.0, 1.0), (-1000, 3000)):
        assert np.array_equal(decode(photo, 3, low, high), photo)


def test_few_values_beyond_the_range_saturate():
    film = np.full((10, 10), 1000, np.uint16)
    film[0, :5] = 5000
    assert decode(film, 1, 0, 2000).ravel().tolist() == [255] * 5 + [128] * 95


def test_a_picture_of_another_range_is_refused_and_named(encode, tmp_path):
    film = np.full((10, 10), 1000, np.uint16)
    film[0, :6] = 5000
    (tmp_path / "film.tif").write_bytes(encode(film, "TIFF"))
    with pytest.raises(
        DataError, match=r"film\.tif: Values 0 to 2000 .*holds 1000 to 5000, with 6% of its values beyond"
    ):
        decode(tmp_path / "film.tif", 1, 0, 2000)


def test_values_that_are_no_numbers_are_counted():
    with pytest.raises(DataError, match=r"2 of 6 values are not finite"):
        decode(np.array([[0, np.nan, 1], [np.inf, 0, 1]]), 1, 0, 1)


def test_alpha_is_laid_on_white(encode):
    clear = np.zeros((1, 3, 4), np.uint8)
    clear[0, :, 3] = (0, 51, 255)
    assert decode(encode(clear, "PNG"), 3, 0, 255)[0].tolist() == [[255] * 3, [204] * 3, [0] * 3]
    assert decode(encode(clear, "PNG"), 1, 0, 255)[0].tolist() == [[255], [204], [0]]


def test_16_bit_alpha_is_laid_on_white(png16):
    clear = np.zeros((1, 3, 4), np.uint16)
    clear[0, :, 3] = (0, 13107, 65535)
    assert decode(png16(clear), 3, 0, 65535)[0, :, 0].tolist() == [255, 204, 0]


def test_channels_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match=r"model reads 3 channels, the picture has 5\.$"):
        decode(np.zeros((4, 4, 5), np.uint8), 3, 0, 255)
    with pytest.raises(DataError, match=r"reads 3 channels, the picture has 7\. Are its channels first"):
        decode(np.zeros((3, 8, 7), np.uint8), 3, 0, 255)
    assert decode(np.zeros((4, 4, 5), np.uint8), 5, 0, 255).shape == (4, 4, 5)


@pytest.mark.parametrize("wrong", [np.zeros((2, 2), bool), np.zeros((2, 2), complex), np.array([["a"]])], ids=str)
def test_arrays_of_other_things_are_refused(wrong):
    with pytest.raises(DataError, match=f"integers or floats. Got an array of {wrong.dtype}"):
        decode(wrong, 1, 0, 255)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_fractions_of_0_to_1_are_refused_where_255_is_white_instead_of_becoming_black(kind):
    fractions = np.linspace(0, 1, 64, dtype=kind).reshape(8, 8)
    with pytest.raises(DataError, match=r"^holds fractions 0 to 1, the model reads 0 to 255; multiply by 255\.$"):
        decode(fractions, 1, 0, 255)
    with pytest.raises(DataError, match=r"the model reads -1000 to 4095; bring them to that range\.$"):
        decode(fractions, 1, -1000, 4095)
    assert decode(fractions, 1, 0, 1).max() == 255
    assert decode(fractions * 0, 1, 0, 255).max() == 0, "black is black in any unit"
    assert decode(np.array([[-800.0, 0.5]]), 1, -1000, 4095).tolist() == [[[10], [50]]], "air in Hounsfield units"
    assert decode(np.array([[0, 1]], np.uint16), 1, 0, 255).tolist() == [[[0], [1]]], "counts are no fractions"


def test_a_12_bit_film_in_a_16_bit_file_keeps_255_levels_after_preprocessing(encode):
    film = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    data = encode(film, "PNG")
    for size in (64, 224):
        spec = ImageSpec(height=size, width=size, channels=1, low=0, high=4095)
        assert len(preprocess_image(data, spec).unique()) >= 255


def test_a_picture_from_elsewhere_is_decoded_and_named(encode, photo):
    spec = ImageSpec()
    assert np.array_equal(decoding.decode_image(Member("shard/7.png", encode(photo, "PNG")), spec), photo)
    assert np.array_equal(decoding.decode_image(Member("row 7", photo), spec), photo)
    with pytest.raises(DataError, match=r"^shard/7\.png: not a picture Vitrail reads"):
        decoding.decode_image(Member("shard/7.png", b"text"), spec)
    with pytest.raises(DataError, match=r"^row 7: The model reads 3 channels, the picture has 2"):
        decoding.decode_image(Member("row 7", photo[:, :, :2]), spec)


@dataclass
class Member:
    """A picture inside something larger."""

    name: str
    content: bytes | np.ndarray
    stamp: str = ""

    def fetch(self) -> bytes | np.ndarray:
        return self.content
