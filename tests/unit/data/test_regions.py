"""Random rectangles: torchvision's distribution, and numbers that belong to the picture alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torchvision.transforms import RandomResizedCrop

from vitrail.data.random_crop import CROP_DRAWS, first_fitting_size
from vitrail.data.random_crop import RandomResizedCrop as random_crop_RandomResizedCrop
from vitrail.errors import UsageError


def boxes(cut: random_crop_RandomResizedCrop, height: int, width: int, n: int, epoch: int = 0) -> np.ndarray:
    return cut.boxes(np.arange(n), epoch, np.tile([height, width], (n, 1)))


def test_every_box_lies_in_its_picture_and_has_an_allowed_area_and_ratio():
    found = boxes(random_crop_RandomResizedCrop(3, scale=(0.2, 0.9)), 300, 400, 5000)
    assert found.dtype == np.int64
    assert (found[:, :2] >= 0).all() and (found[:, :2] + found[:, 2:] <= (300, 400)).all()
    area, ratio = found[:, 2] * found[:, 3] / 120_000, found[:, 3] / found[:, 2]
    assert area.min() == pytest.approx(0.2, abs=0.01) and area.max() == pytest.approx(0.9, abs=0.01)
    assert ratio.min() == pytest.approx(3 / 4, abs=0.01) and ratio.max() == pytest.approx(4 / 3, abs=0.01)


@pytest.mark.parametrize(("height", "width"), [(100, 130), (60, 200)])
def test_boxes_are_distributed_as_torchvisions(height, width):
    n, image = 3000, torch.zeros(1, height, width)
    theirs = np.array([RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(n)])
    ours = boxes(random_crop_RandomResizedCrop(1), height, width, n)
    for column in range(4):
        assert ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3
    assert ks_2samp(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]).pvalue > 1e-3
    assert ks_2samp(ours[:, 2] / ours[:, 3], theirs[:, 2] / theirs[:, 3]).pvalue > 1e-3


@pytest.mark.parametrize(
    ("size", "box"),
    [((1000, 10), (493, 0, 13, 10)), ((10, 1000), (0, 493, 10, 13)), ((1000, 1001), (0, 0, 1000, 1001))],
)
def test_where_nothing_fits_the_largest_allowed_middle_is_taken(size, box):
    fallen = [tuple(found) for found in boxes(random_crop_RandomResizedCrop(0, scale=(1.0, 1.0)), *size, 200).tolist()]
    assert fallen.count(box) > 190


def test_the_whole_picture_is_cut_when_asked_for():
    assert (
        boxes(random_crop_RandomResizedCrop(0, scale=(1.0, 1.0), ratio=(1.0, 1.0)), 7, 7, 5).tolist()
        == [[0, 0, 7, 7]] * 5
    )


def test_a_box_depends_on_seed_epoch_and_index_and_on_no_other_picture():
    cut, sizes = random_crop_RandomResizedCrop(4), np.array([[50, 70], [80, 30], [64, 64]])
    together = cut.boxes(np.array([9, 2**41 + 9, 5]), 3, sizes)
    assert np.array_equal(cut.boxes(np.array([5]), 3, sizes[2:]), together[2:])
    assert np.array_equal(cut.boxes(np.array([5, 9]), 3, sizes[[2, 0]]), together[[2, 0]])
    alike = np.tile([64, 64], (4, 1))
    different = [
        random_crop_RandomResizedCrop(4).boxes(np.arange(4), 3, alike),
        random_crop_RandomResizedCrop(5).boxes(np.arange(4), 3, alike),
        random_crop_RandomResizedCrop(4).boxes(np.arange(4), 2, alike),
        random_crop_RandomResizedCrop(4).boxes(np.arange(4) + 2**40, 3, alike),
    ]
    assert len({found.tobytes() for found in different}) == 4


def test_the_first_try_that_fits_is_taken():
    keys = np.zeros((1, CROP_DRAWS))
    keys[0, :10] = [0.99, 0.99, 0.25] + [0.5] * 7  # areas
    keys[0, 10:20] = 0.999  # nearly the widest shape, so that large areas do not fit
    size = np.array([[100, 100]])
    sides, found = first_fitting_size(keys, size, size, (0.0, 1.0), (1.0, 4.0))
    assert found.tolist() == [True]
    assert sides.tolist() == [[25, 100]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": (0.0, 1.0)}, r"areas of a cut must rise within 0 < area <= 1. Got \(0.0, 1.0\)"),
        ({"scale": (0.5, 0.4)}, r"areas of a cut.*Got \(0.5, 0.4\)"),
        ({"ratio": (2.0, 1.0)}, r"width-to-height ratios of a cut must be positive and rise. Got \(2.0, 1.0\)"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(change, message):
    with pytest.raises(UsageError, match=message):
        random_crop_RandomResizedCrop(0, **change)
