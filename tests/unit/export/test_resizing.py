"""The resize inside a graph gives the grey levels of the resize outside."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.data.preprocess import fit_images, to_batch_tensor
from vitrail.export.module import GraphResize
from vitrail.spec import ImageSpec

SIZES = [(12, 20), (40, 33), (100, 21), (7, 5), (13, 64), (300, 260)]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize(("way", "fraction"), [("squash", 1.0), ("squash", 0.8), ("crop", 0.875), ("pad", 1.0)])
def test_grey_levels_are_those_of_the_run(interpolation, antialias, way, fraction):
    spec = ImageSpec(
        height=24, width=20, interpolation=interpolation, antialias=antialias, fit=way, crop_fraction=fraction
    )
    generator = np.random.default_rng(0)
    for height, width in SIZES:
        images = generator.integers(0, 256, (2, height, width, 3), dtype=np.uint8)
        expected = fit_images(to_batch_tensor(images), spec).permute(0, 2, 3, 1).numpy().astype(int)
        found = GraphResize(spec)(torch.from_numpy(images)).numpy().astype(int)
        apart = np.abs(found - expected)
        assert apart.max() <= 1, (height, width)
        assert (apart > 0).mean() < (0.001 if antialias else 0.03), (height, width, (apart > 0).mean())


@pytest.mark.parametrize("start", ["down", "even"])
@pytest.mark.parametrize("fraction", [1.0, 0.875, 0.8])
def test_a_square_is_cut_out_where_the_run_cuts_it_out(fraction, start):
    spec = ImageSpec(height=21, width=21, fit="crop", crop_fraction=fraction, crop_start=start)
    generator = np.random.default_rng(0)
    for height, width in [*SIZES, (40, 30), (31, 47), (64, 25)]:
        images = generator.integers(0, 256, (1, height, width, 3), dtype=np.uint8)
        expected = fit_images(to_batch_tensor(images), spec).permute(0, 2, 3, 1).numpy().astype(int)
        apart = np.abs(GraphResize(spec)(torch.from_numpy(images)).numpy().astype(int) - expected)
        assert apart.max() <= 1, (height, width)


def test_pictures_of_the_right_size_are_left_as_they_are():
    spec = ImageSpec(height=24, width=20)
    images = np.random.default_rng(1).integers(0, 256, (2, 24, 20, 3), dtype=np.uint8)
    np.testing.assert_array_equal(GraphResize(spec)(torch.from_numpy(images)).numpy(), images)
