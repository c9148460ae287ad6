"""Random erasing: how often, where and with what."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, ks_2samp
from torch import Tensor
from torchvision.transforms.v2 import RandomErasing

from vitrail.data.augment.mixing import ERASING_DRAWS
from vitrail.data.augment.mixing import random_erasing as mixing_random_erasing
from vitrail.randomness import uniform


def keys(n: int) -> np.ndarray:
    return uniform(0, "erase", 0, np.arange(n), ERASING_DRAWS)


def sides(changed: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Height and width of what was covered in each picture [n, H, W], 0 where nothing was."""
    return changed.any(2).sum(1).numpy(), changed.any(1).sum(1).numpy()


def test_as_many_pictures_are_covered_as_asked_for_and_each_by_one_rectangle():
    images = torch.full((4000, 3, 20, 30), 9, dtype=torch.uint8)
    changed = (mixing_random_erasing(images, keys(4000), 0.25) != 9).any(1)
    heights, widths = sides(changed)
    assert (heights > 0).mean() == pytest.approx(0.25, abs=0.03)
    assert np.array_equal(heights * widths, changed.sum((1, 2)).numpy())
    assert (mixing_random_erasing(images, keys(4000), 0.0) == images).all()


def test_rectangles_are_distributed_as_torchvisions():
    n, random_erasing = 2000, RandomErasing(p=1.0, value=0)
    images = torch.full((n, 3, 60, 90), 9, dtype=torch.uint8)
    ours = sides((mixing_random_erasing(images, keys(n), 1.0) != 9).any(1))
    drawn = [random_erasing.make_params([images[0]]) for _ in range(n)]
    for mine, name in zip(ours, "hw", strict=True):
        assert ks_2samp(mine, [box[name] for box in drawn]).pvalue > 1e-3


def test_noise_has_every_level_as_often_and_differs_between_pictures_and_channels():
    images = torch.zeros(300, 3, 32, 32, dtype=torch.uint8)
    covered = mixing_random_erasing(images, keys(300), 1.0)
    inside = (covered != 0).any(1, keepdim=True).expand_as(covered)
    counts = np.bincount(covered[inside].numpy(), minlength=256)
    assert chisquare(counts).pvalue > 1e-3
    assert not torch.equal(covered[:, 0], covered[:, 1])
    assert abs(np.corrcoef(covered[:150].flatten().double(), covered[150:].flatten().double())[0, 1]) < 0.1


def test_a_picture_too_small_for_any_rectangle_stays_whole():
    images = torch.randint(0, 256, (50, 1, 1, 1), dtype=torch.uint8)
    assert torch.equal(mixing_random_erasing(images, keys(50), 1.0), images)
