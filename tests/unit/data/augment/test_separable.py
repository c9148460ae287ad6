"""Matrix products against the faster ways of a CPU: the same bits for blurs, the same pictures for resized crops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.data.augment.color import crop_and_resize, gaussian_blur, gaussian_blur_weights, separable_filter
from vitrail.data.augment.crops import resized_crop
from vitrail.data.random_crop import RandomResizedCrop

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [(31, 44), (5, 60), (1, 3)])
def test_blurs_by_products_and_by_convolutions_are_the_same_bits(size):
    images = torch.randint(0, 256, (20, 3, *size), dtype=torch.uint8)
    sigmas = np.linspace(0.1, 2.0, 20)
    down, across = (gaussian_blur_weights(sigmas, side, CPU) for side in size)
    assert torch.equal(separable_filter(images, down, across), gaussian_blur(images, sigmas))


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(32, 32), (20, 45), (100, 90)])
def test_resized_crops_by_products_are_those_of_the_one_resize(size, interpolation):
    rows, columns = torch.meshgrid(torch.linspace(0, 9, 70), torch.linspace(0, 9, 90), indexing="ij")
    values = torch.sin(rows + torch.arange(75).view(25, 3, 1, 1) * 0.7) * 60 + torch.cos(columns * 0.6) * 60 + 127
    values[..., 35:, 30:] += 15
    images, boxes = (
        values.clamp(0, 255).to(torch.uint8),
        RandomResizedCrop(0).boxes(np.arange(25), 0, np.tile([70, 90], (25, 1))),
    )
    ours = crop_and_resize(images, torch.from_numpy(boxes), size, interpolation)
    difference = (ours.int() - resized_crop(images, boxes, size, interpolation).int()).abs()
    assert difference.max() <= (2 if interpolation == "bicubic" else 1)
    assert (difference > 1).float().mean() < 1e-3


def test_a_box_of_the_size_itself_is_only_cut_out():
    images = torch.randint(0, 256, (3, 4, 20, 30), dtype=torch.uint8)
    boxes = torch.tensor([[0, 0, 8, 9], [12, 21, 8, 9], [5, 6, 8, 9]])
    cut = crop_and_resize(images, boxes, (8, 9), "bicubic")
    assert torch.equal(cut[1], images[1, :, 12:20, 21:30]) and torch.equal(cut[2], images[2, :, 5:13, 6:15])


def test_flat_pictures_stay_flat_at_any_size():
    images = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1).expand(256, 1, 50, 40)
    boxes = torch.from_numpy(RandomResizedCrop(0).boxes(np.arange(256), 0, np.tile([50, 40], (256, 1))))
    for size in ((7, 9), (64, 64)):
        cut = crop_and_resize(images, boxes, size, "bicubic")
        assert torch.equal(cut, images[:, :, :1, :1].expand(256, 1, *size))


@pytest.mark.parametrize("shape", [(1, 30, 41), (3, 9, 9), (5, 64, 17)])
def test_products_see_one_picture_at_a_time(shape):
    images = torch.randint(0, 256, (16, *shape), dtype=torch.uint8)
    boxes = torch.from_numpy(RandomResizedCrop(0).boxes(np.arange(16), 0, np.tile(shape[1:], (16, 1))))
    sigmas = np.linspace(0.1, 2.0, 16)

    def products(part: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        down, across = (gaussian_blur_weights(sigmas[part], side, CPU) for side in shape[1:])
        return crop_and_resize(images[part], boxes[part], (24, 33), "bicubic"), separable_filter(
            images[part], down, across
        )

    together = products(list(range(16)))
    for part in ([5], [15, 0, 3], list(range(0, 16, 2))):
        for found, whole in zip(products(part), together, strict=True):
            assert torch.equal(found, whole[part])
