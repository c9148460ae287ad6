"""The resize without torch gives the bytes of the resize with it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data import preprocess, preprocess_numpy
from vitrail.spec import ImageSpec

SIDES = st.integers(1, 90)


def both(image: np.ndarray, spec: ImageSpec) -> tuple[np.ndarray, np.ndarray]:
    by_torch = preprocess.fit_images(preprocess.to_batch_tensor(image[None]), spec)[0].permute(1, 2, 0).numpy()
    return preprocess_numpy.fit_array(image, spec), by_torch


@given(
    size=st.tuples(SIDES, SIDES),
    target=st.tuples(SIDES, SIDES),
    channels=st.sampled_from([1, 3, 4]),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
    way=st.sampled_from([("squash", 1.0), ("squash", 0.875), ("crop", 1.0), ("crop", 0.8), ("pad", 1.0)]),
    square=st.booleans(),
    start=st.sampled_from(["down", "even"]),
    seed=st.integers(0, 1000),
)
def test_antialiased_bytes_are_the_same(size, target, channels, interpolation, way, square, start, seed):
    spec = ImageSpec(
        height=target[0], width=target[0 if square else 1], channels=channels, interpolation=interpolation, fit=way[0],
        crop_fraction=way[1], crop_start=start,
    )  # fmt: skip
    image = np.random.default_rng(seed).integers(0, 256, (*size, channels), dtype=np.uint8)
    found, expected = both(image, spec)
    np.testing.assert_array_equal(found, expected)


@given(
    size=st.tuples(SIDES, SIDES),
    target=st.tuples(SIDES, SIDES),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
    seed=st.integers(0, 1000),
)
def test_without_antialiasing_a_value_between_two_levels_may_fall_to_either(size, target, interpolation, seed):
    spec = ImageSpec(height=target[0], width=target[1], interpolation=interpolation, antialias=False)
    image = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    found, expected = both(image, spec)
    apart = np.abs(found.astype(int) - expected.astype(int))
    assert apart.max() <= 1


@pytest.mark.parametrize("size", [(427, 640), (2000, 1500), (224, 224)])
def test_photographs_too(size):
    image = np.random.default_rng(2).integers(0, 256, (*size, 3), dtype=np.uint8)
    found, expected = both(image, ImageSpec())
    np.testing.assert_array_equal(found, expected)


def test_torch_is_not_imported():
    script = (
        "import sys, vitrail.data.preprocess_numpy, vitrail.data.decoding.decode; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
