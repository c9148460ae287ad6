"""Moving a whole batch equals padding, cropping and mirroring each picture alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from vitrail.data.augment.crops import crop_and_flip, resized_crop
from vitrail.data.random_crop import RandomResizedCrop
from vitrail.errors import UsageError


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


def test_half_of_the_pictures_stand_on_their_heads_where_that_is_asked_for():
    images = torch.arange(6, dtype=torch.uint8).view(1, 1, 3, 2).expand(4, 1, 3, 2)
    keys = np.array([[0.9, 0.5, 0.5, 0.1], [0.9, 0.5, 0.5, 0.6], [0.1, 0.5, 0.5, 0.1], [0.1, 0.5, 0.5, 0.6]])
    moved = crop_and_flip(images, keys, 0, True, flip_vertical=True)
    assert torch.equal(moved[0], images[0].flip(1)) and torch.equal(moved[1], images[0])
    assert torch.equal(moved[2], images[0].flip(1, 2)) and torch.equal(moved[3], images[0].flip(2))


def photographs(n: int, channels: int, height: int, width: int) -> torch.Tensor:
    """Smooth, with one hard edge."""
    rows, columns = torch.meshgrid(torch.linspace(0, 9, height), torch.linspace(0, 9, width), indexing="ij")
    waves = torch.arange(n * channels).view(n, channels, 1, 1) * 0.7
    values = torch.sin(rows + waves) * 60 + torch.cos(columns * 0.6 - waves) * 60 + 127
    values[..., height // 2 :, width // 3 :] += 15
    return values.clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(32, 32), (20, 45), (100, 90)])
def test_resized_crops_are_torchvisions(size, interpolation):
    images = photographs(25, 3, 70, 90)
    boxes = RandomResizedCrop(0, scale=(0.05, 1.0)).boxes(np.arange(25), 0, np.tile([70, 90], (25, 1)))
    boxes[0] = 0, 0, 70, 90
    ours = resized_crop(images, boxes, size, interpolation)
    theirs = [
        functional.resized_crop(image, *box, list(size), interpolation=MODES[interpolation], antialias=True)
        for image, box in zip(images, boxes.tolist(), strict=True)
    ]
    assert torch.equal(ours, torch.stack(theirs))


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_resized_crops_are_not_antialiased_where_a_model_is_not(interpolation):
    images = torch.randint(0, 256, (9, 3, 70, 90), dtype=torch.uint8)
    boxes = RandomResizedCrop(0, scale=(0.3, 1.0)).boxes(np.arange(9), 0, np.tile([70, 90], (9, 1)))
    ours = resized_crop(images, boxes, (16, 16), interpolation, antialias=False)
    for image, (top, left, height, width), found in zip(images, boxes.tolist(), ours, strict=True):
        cut = image[None, :, top : top + height, left : left + width].float()
        theirs = torch.nn.functional.interpolate(cut, (16, 16), mode=interpolation, antialias=False)
        assert (found - theirs[0].clamp(0, 255)).abs().max() <= 0.5


MODES = {"bicubic": InterpolationMode.BICUBIC, "bilinear": InterpolationMode.BILINEAR}


def test_a_box_of_the_size_itself_is_only_cut_out():
    images = torch.randint(0, 256, (3, 4, 20, 30), dtype=torch.uint8)
    boxes = np.array([[0, 0, 8, 9], [12, 21, 8, 9], [5, 6, 8, 9]])
    cut = resized_crop(images, boxes, (8, 9))
    assert torch.equal(cut[1], images[1, :, 12:20, 21:30]) and torch.equal(cut[2], images[2, :, 5:13, 6:15])


def test_flat_pictures_stay_flat_at_any_size():
    images = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1).expand(256, 1, 50, 40)
    boxes = RandomResizedCrop(0).boxes(np.arange(256), 0, np.tile([50, 40], (256, 1)))
    for size in ((7, 9), (64, 64)):
        assert torch.equal(resized_crop(images, boxes, size), images[:, :, :1, :1].expand(256, 1, *size))


@pytest.mark.parametrize("box", [(0, 0, 5, 0), (-1, 0, 3, 3), (0, 3, 4, 4)])
def test_a_box_beyond_its_picture_is_refused(box):
    with pytest.raises(UsageError, match=rf"pictures of 6 x 6 pixels. Got \[{box[0]}, {box[1]}, {box[2]}, {box[3]}\]"):
        resized_crop(torch.zeros(2, 1, 6, 6, dtype=torch.uint8), np.array([[0, 0, 6, 6], box]), (4, 4))
