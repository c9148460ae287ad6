"""One look tells the same of a picture however it is stored."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from unit.data.doctored import SPEC, of_arrays, textures
from vitrail.data.checks.image_stats import ImageStats, measure_image, measure_images
from vitrail.spec import ImageSpec

COLOUR = ImageSpec(height=8, width=8, channels=3)


def colours(n: int, side: int = 70) -> np.ndarray:
    """uint8 [n, side, side, 3]; the second one is grey."""
    found = np.stack([np.stack(textures(3, seed, side), -1) for seed in range(n)])
    found[1] = found[1, ..., :1]
    return found


@pytest.mark.parametrize("spec", [SPEC, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize("pictures", [np.stack(textures(5, side=70)), colours(5)], ids=["grey", "colour"])
def test_a_stack_looks_like_its_pictures_one_by_one(pictures, spec):
    ids = tuple("abcde")
    stack = measure_images(of_arrays(images=pictures, targets=np.arange(5) % 2, ids=ids), np.arange(5), spec, 5)
    single = measure_images(of_arrays(*pictures), np.arange(5), spec, 5)
    for column in (
        "rows",
        "heights",
        "widths",
        "channels",
        "depths",
        "kinds",
        "is_grey",
        "digests",
        "sketch_rows",
        "sketches",
    ):
        assert np.array_equal(getattr(stack, column), getattr(single, column)), column
    for column in ("means", "stds", "dark", "bright"):
        np.testing.assert_allclose(getattr(stack, column), getattr(single, column), atol=1e-3)


def test_pixels_have_one_hash_in_every_lossless_format(tmp_path):
    picture = np.stack(textures(3), -1)
    for name in ("a.png", "a.bmp", "a.tif"):
        Image.fromarray(picture).save(tmp_path / name)
    found = {measure_image(tmp_path / name, COLOUR).digest for name in ("a.png", "a.bmp", "a.tif")}
    assert found == {measure_image(picture, COLOUR).digest}


def test_grey_has_one_hash_with_one_channel_or_three():
    grey = textures(1)[0]
    assert measure_image(grey, COLOUR).digest == measure_image(np.repeat(grey[..., None], 3, -1), COLOUR).digest
    assert measure_image(grey, COLOUR).digest == measure_image(grey[..., None], COLOUR).digest


def test_another_pixel_shape_or_depth_is_another_hash():
    grey = textures(1)[0]
    other = grey.copy()
    other[50, 50] ^= 1
    deep = ImageSpec(channels=1, high=65535)
    found = [measure_image(values, SPEC).digest for values in (grey, other, grey[:, :-1], grey.reshape(48, 192))]
    found.append(measure_image(grey.astype(np.uint16) * 257, deep).digest)
    assert len(set(found)) == 5


def test_measures_are_those_of_the_grey_levels():
    half = np.zeros((10, 10), np.uint8)
    half[:5] = 255
    found = measure_image(half, SPEC)
    assert isinstance(found, ImageStats)
    assert (found.mean, found.std, found.dark, found.bright) == (127.5, 127.5, 0.5, 0.5)


def test_small_pictures_have_no_sketch_and_few_sketches_can_be_asked_for():
    assert measure_image(textures(1, side=63)[0], SPEC).sketch is None
    assert measure_image(textures(1, side=64)[0], SPEC).sketch.shape == (40, 40)
    many = of_arrays(*textures(40, side=64))
    assert 4 <= len(measure_images(many, np.arange(40), SPEC, 10).sketch_rows) <= 18
    assert len(measure_images(many, np.arange(40), SPEC, 40).sketch_rows) == 40


def test_rows_come_back_in_order_whatever_the_order_of_looking():
    source = of_arrays(*textures(6, side=20), np.zeros(3, np.uint8))
    found = measure_images(source, np.array([6, 3, 0, 5]), SPEC, 9)
    assert found.rows.tolist() == [0, 3, 5]
    assert [row for row, _ in found.bad_images] == [6]
