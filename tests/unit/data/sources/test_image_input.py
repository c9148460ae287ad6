"""One picture handed over in Python: deep ones with a transparent value, rare modes, and files that never end."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.decoding.decode import decode_image, parse_image
from vitrail.data.open import open_source
from vitrail.data.sources.image_input import load_image_input
from vitrail.errors import DataError
from vitrail.spec import ImageSpec

DEEP = np.array([[0, 300, 40_000, 65_535]], np.uint16)


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I"])
def test_a_deep_pillow_picture_with_a_transparent_value_keeps_its_values_and_its_opacity(mode):
    image = Image.fromarray(DEEP)
    image = image.convert("I") if mode == "I" else Image.frombytes(mode, (4, 1), DEEP.astype(f"{'<>'['B' in mode]}u2"))
    image.info["transparency"] = 300
    found = parse_image(load_image_input(image, "x"), ImageSpec())
    assert np.array_equal(found.values, DEEP)
    assert found.alpha.tolist() == [[65_535, 0, 65_535, 65_535]]
    image.info.pop("transparency")
    assert np.array_equal(load_image_input(image, "x"), DEEP)


def test_a_16_bit_file_opened_with_pillow_is_what_its_path_is(tmp_path):
    image = Image.fromarray(DEEP)
    image.save(tmp_path / "key.png", transparency=300)
    spec = ImageSpec(channels=1, high=65_535.0)
    opened = decode_image(load_image_input(Image.open(tmp_path / "key.png"), "x"), spec)
    assert np.array_equal(opened, decode_image(tmp_path / "key.png", spec))
    assert opened.ravel().tolist() == [0, 255, 156, 255]


@pytest.mark.parametrize("values", [np.array([[0.5, 7.0]], np.float32), np.array([[-4, 7]], np.int32)])
def test_a_transparent_value_among_fractions_or_beyond_16_bits_is_refused_in_a_sentence(values):
    image = Image.fromarray(values)
    image.info["transparency"] = 7
    with pytest.raises(DataError, match=r"^x: the Pillow picture of mode [IF] calls the value 7 transparent"):
        load_image_input(image, "x")


def test_grey_with_premultiplied_opacity_is_read():
    plain = Image.fromarray(np.array([[[100, 255], [100, 0]]], np.uint8), "LA")
    for mode in ("LA", "La"):
        assert decode_image(load_image_input(plain.convert(mode), "x"), ImageSpec(channels=1)).ravel().tolist() == [
            100,
            255,
        ]


@pytest.mark.parametrize("mode", ["HSV", "LAB", "RGBX", "CMYK", "PA", "RGBa"])
def test_rare_modes_are_read_as_one_decoder_reads_them(mode):
    assert decode_image(load_image_input(Image.new(mode, (3, 2)), "x"), ImageSpec()).shape == (2, 3, 3)


def test_a_pillow_picture_whose_file_is_cut_is_refused_by_name():
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(file, "PNG")
    with pytest.raises(DataError, match=r"^x: the Pillow picture of mode RGB cannot be read"):
        load_image_input(Image.open(io.BytesIO(file.getvalue()[:4000])), "x")


@pytest.mark.timeout(20)
def test_a_pipe_in_a_list_is_refused_and_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"^x: .*a\.png: is a pipe, socket or device, expected a picture file\.$"):
        load_image_input(tmp_path / "a.png", "x")
    source = open_source([(tmp_path / "a.png", 0), (tmp_path / "a.png", 1)])
    with pytest.raises(DataError, match="is a pipe, socket or device"):
        decode_image(source.images[0], ImageSpec())
