"""Moving a whole batch equals padding, cropping and mirroring each picture alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.data.augment import crop_and_flip


def by_hand(image: np.ndarray, key: np.ndarray, padding: int, flip: bool) -> np.ndarray:
    """Mirror, pad by edge pixels, cut out: one picture [C, H, W], as a person would write it."""
    _, height, width = image.shape
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)), mode="edge")
    top, left = (int(number * (2 * padding + 1)) for number in key[1:])
    cut = padded[:, top : top + height, left : left + width]
    return cut[:, :, ::-1] if flip and key[0] < 0.5 else cut


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_moves_as_its_pictures_by_hand(padding, channels, flip):
    rng = np.random.default_rng(1)
    images, keys = rng.integers(0, 256, (20, channels, 6, 9), dtype=np.uint8), rng.random((20, 3))
    moved = crop_and_flip(torch.from_numpy(images), keys, padding, flip)
    expected = np.stack([by_hand(*pair, padding, flip) for pair in zip(images, keys, strict=True)])
    assert np.array_equal(moved.numpy(), expected)


def test_keys_in_the_middle_and_beyond_a_half_change_nothing():
    images = torch.arange(2 * 3 * 4, dtype=torch.uint8).view(2, 1, 3, 4)
    assert torch.equal(crop_and_flip(images, np.full((2, 3), 0.5), 2, True), images)


def test_every_shift_and_both_sides_occur_equally_often():
    keys = np.random.default_rng(0).random((9000, 3))
    images = torch.arange(25, dtype=torch.uint8).view(1, 1, 5, 5).expand(9000, 1, 5, 5)
    moved = crop_and_flip(images, keys, 1, True)
    kinds, counts = np.unique(moved.view(9000, 25).numpy(), axis=0, return_counts=True)
    assert len(kinds) == 18
    assert counts == pytest.approx(500, abs=100)


def test_non_contiguous_pictures_are_welcome():
    images = torch.randint(0, 256, (4, 5, 6, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    keys = np.random.default_rng(0).random((4, 3))
    assert torch.equal(crop_and_flip(images, keys, 1, True), crop_and_flip(images.contiguous(), keys, 1, True))
