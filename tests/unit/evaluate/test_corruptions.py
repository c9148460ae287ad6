"""Every kind: the stronger the more it changes, the same in any batch, for any size and number of channels."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from unit.evaluate.sample_pictures import photographs
from vitrail.errors import UsageError
from vitrail.evaluate.robustness import CORRUPTION_SUITES, SEVERITIES, corrupt_images

KINDS = [kind for suite in CORRUPTION_SUITES.values() for kind in suite]
WITHOUT_CHANCE = {
    *("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"),
    *("underexposure", "overexposure", "lens_blur", "stored_as_jpeg", "bit_depth"),
}


NEARLY = {"fog": 0.92, "elastic_transform": 0.92}
"""The last severities of fog differ in how rough it is, and the first of elastic pictures in their ripples alone."""


def drawn(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(7).integers(0, 256, shape, dtype=np.uint8))


def changed(images: Tensor, kind: str, severity: int, seed: int = 0) -> Tensor:
    return corrupt_images(images, kind, severity, seed, np.arange(len(images)))


def test_the_suites_hold_fifteen_and_eleven_kinds_of_different_names():
    assert [len(suite) for suite in CORRUPTION_SUITES.values()] == [15, 11] and len(set(KINDS)) == 26


@pytest.mark.parametrize("kind", KINDS)
def test_V8_the_more_severe_the_larger_the_mean_change(kind):
    images = photographs(64)
    changes = [(changed(images, kind, severity).float() - images.float()).abs().mean() for severity in SEVERITIES]
    least = NEARLY.get(kind, 1.0)
    assert changes[0] > 0.1
    assert all(later > least * earlier for earlier, later in pairwise(changes)), changes
    assert changes[4] > 1.1 * changes[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_gives_what_single_pictures_give_and_a_picture_keeps_its_own(kind):
    images, indices = photographs(30, 4), np.array([3, 1, 8, 5])
    together = corrupt_images(images, kind, 4, 0, indices)
    single = [corrupt_images(images[i : i + 1], kind, 4, 0, indices[i : i + 1]) for i in range(4)]
    assert torch.equal(together, torch.cat(single))
    assert torch.equal(corrupt_images(images.flip(0), kind, 4, 0, indices[::-1].copy()), together.flip(0))


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_chance_in_it_depends_on_seed_picture_and_severity(kind):
    image = photographs(48, 2)[1:].expand(6, -1, -1, -1)
    other = [changed(image, kind, 4, seed) for seed in (0, 0, 1)]
    assert torch.equal(other[0], other[1])
    assert torch.equal(other[0], other[2]) == (kind in WITHOUT_CHANCE)
    assert (len({one.numpy().tobytes() for one in other[0]}) > 1) == (kind not in WITHOUT_CHANCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (4, 12, 17), (1, 33, 20), (2, 1, 1), (3, 1, 9)])
def test_any_size_and_any_number_of_channels_will_do(kind, shape):
    images = drawn(2, *shape)
    before = images.clone()
    for severity in (1, 5):
        found = changed(images, kind, severity)
        assert found.shape == images.shape and found.dtype == torch.uint8
    assert torch.equal(images, before), "the pictures themselves are left as they are"


def test_no_pictures_are_no_pictures():
    assert changed(drawn(0, 3, 8, 8), "fog", 1).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("kind", ["defocus_blur", "motion_blur", "lens_blur", "rotation", "shift", "zoom_blur"])
def test_lengths_grow_with_the_picture(kind):
    small = photographs(64, 4)
    large = torch.nn.functional.interpolate(small, scale_factor=3, mode="nearest")
    found, expected = changed(large, kind, 4), changed(small, kind, 4)
    shrunk = torch.nn.functional.avg_pool2d(found.float(), 3)
    missed = (shrunk - expected.float()).abs().mean()
    assert missed < 0.25 * (expected.float() - small.float()).abs().mean()


FROZEN = {
    "impulse_noise": "1fd5908e8d96e2e9",
    "shot_noise": "6d83987f50ba10d8",
    "fog": "62538f8dc2941be0",
    "brightness": "543e248d3959beda",
    "underexposure": "44309656612beb97",
    "overexposure": "c601ecf7c4ea3451",
    "bit_depth": "f386945c15775dd6",
    "marker": "cc38bea09ff45003",
    "dead_pixels": "3f6072b323906510",
}
"""Of what all five severities make of two ramps. Of other kinds scipy or BLAS compute a part, each build in its way."""


@pytest.mark.parametrize("kind", FROZEN)
def test_V8_what_is_made_of_tables_and_plain_arithmetic_keeps_its_bits(kind):
    ramp = torch.arange(2 * 3 * 24 * 20).mul(37).remainder(256).to(torch.uint8).view(2, 3, 24, 20)
    found = torch.cat([changed(ramp, kind, severity, seed=5) for severity in SEVERITIES])
    assert hashlib.sha256(found.numpy().tobytes()).hexdigest()[:16] == FROZEN[kind]


def test_unknown_kinds_and_severities_are_refused():
    images = drawn(1, 1, 8, 8)
    with pytest.raises(UsageError, match=r"no corruption 'frog'\. Did you mean fog\? The kinds are gaussian_noise"):
        changed(images, "frog", 1)
    for severity in (0, 6):
        with pytest.raises(UsageError, match=rf"whole number from 1 to 5\. Got {severity}\."):
            changed(images, "fog", severity)
    with pytest.raises(UsageError, match=r"Got 1 picture and 2 indices\."):
        corrupt_images(images, "fog", 1, 0, np.arange(2))
