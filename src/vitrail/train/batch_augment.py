"""Augmentation of a batch as a function of (seed, epoch, sample, copy).

The order is: crop (by the loader, which then flips too), shift and flip, transpose, affine transform, policy
operations, erasing, mixing, reduction to the size of an early step. All of it is uint8, or int32 for levels of 16 bits;
all but the crop happens on the device. Only the mixing partner of an image depends on its batch.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int, Integer, UInt8
from torch import Tensor

from ..data.augment import mixing, policies
from ..data.augment.crops import crop_and_flip, resize_images
from ..data.augment.geometry import AFFINE_DRAWS, random_affine
from ..data.loader import Batch
from ..data.preprocess import widen
from ..data.random_crop import RandomResizedCrop
from ..randomness import uniform
from .plan import Plan, Recipe

MASK_AXES = 3
"""Axes of targets that are masks [B, H, W]."""


def make_crop(recipe: Recipe, seed: int) -> RandomResizedCrop | None:
    """The random resized crop of the loader; None where the recipe has none."""
    return RandomResizedCrop(seed, scale=(recipe.crop_scale, 1.0), mirror=recipe.flip) if recipe.crop_scale else None


def augment_batch(
    batch: Batch, recipe: Recipe, seed: int, epoch: int, device: str = "cpu"
) -> Integer[Tensor, "B C H W"]:
    """The batch's images on the device, augmented but not mixed."""
    images = _move_pixels(widen(batch.images.to(device)), batch, recipe, seed, epoch)
    operations = _draw_policy_operations(batch, recipe, seed, epoch)
    if operations is not None:
        images = policies.apply_operations(images, operations)
    if recipe.random_erasing:
        keys = uniform(seed, "erase", epoch, batch.random_keys, mixing.ERASING_DRAWS)
        images = mixing.random_erasing(images, keys, recipe.random_erasing)
    return images


def move_masks(batch: Batch, recipe: Recipe, seed: int, epoch: int, device: str = "cpu") -> Batch:
    """The batch with its masks moved as `augment_batch` moves its images, every pixel from the nearest one; other
    targets are unchanged."""
    if batch.targets.ndim != MASK_AXES:
        return batch
    masks = _move_pixels(batch.targets.to(device)[:, None], batch, recipe, seed, epoch, "nearest")  # [B, 1, H, W]
    return dataclasses.replace(batch, targets=masks[:, 0])


def _move_pixels(
    images: Integer[Tensor, "B C H W"],
    batch: Batch,
    recipe: Recipe,
    seed: int,
    epoch: int,
    mode: Literal["bilinear", "nearest"] = "bilinear",
) -> Integer[Tensor, "B C H W"]:
    """Shifts, flips, transposition and the affine transform of the recipe."""
    flip = recipe.flip and not recipe.crop_scale  # the loader has flipped cropped images
    if recipe.crop_padding or flip or recipe.flip_vertical:
        keys = uniform(seed, "crop and flip", epoch, batch.random_keys, 4 if recipe.flip_vertical else 3)
        images = crop_and_flip(images, keys, recipe.crop_padding, flip, recipe.flip_vertical)
    if recipe.transpose:
        images = transpose_randomly(images, uniform(seed, "transpose", epoch, batch.random_keys, 1)[:, 0])
    if recipe.rotate or recipe.scale or recipe.translate:
        keys = uniform(seed, "wander", epoch, batch.random_keys, AFFINE_DRAWS)
        images = random_affine(images, keys, recipe.rotate, recipe.scale, recipe.translate, mode)
    return images


def mix_batch(
    images: Integer[Tensor, "B C H W"], batch: Batch, recipe: Recipe, seed: int, epoch: int, outputs: int
) -> tuple[
    Integer[Tensor, "B C H W"],
    Int[Tensor, " B"] | Float[Tensor, "B K"] | UInt8[Tensor, "B h w"],
    Float[Tensor, " B"] | None,
]:
    """Mixup and CutMix of the augmented images, their targets and loss weights; without either all are unchanged.

    A mixed image with the fraction s of an image of weight v and 1 - s of one of weight w has the weight
    W = s v + (1 - s) w, and the targets are mixed by s v / W and (1 - s) w / W. So each target has the weight of its
    image: the weighted loss of the mixture is s v times that of the first target and (1 - s) w times that of the other,
    as far as the loss is linear in the target; of the squared error the gradient is.
    """
    targets = batch.targets.to(images.device)
    weights = None if batch.weights is None else batch.weights.to(images.device)
    if not recipe.mixup and not recipe.cutmix:
        return images, targets, weights
    keys = uniform(seed, "mix", epoch, batch.random_keys, mixing.MIXING_DRAWS)
    if weights is None:
        return *mixing.apply_mixup_cutmix(images, targets, keys, recipe.mixup, recipe.cutmix, outputs), None
    soft = F.one_hot(targets, outputs).float() if targets.ndim == 1 else targets.float()
    columns = torch.cat([soft, torch.ones_like(soft[:, :1])], dim=1) * weights[:, None]  # [B, K + 1]
    mixed, columns = mixing.apply_mixup_cutmix(images, columns, keys, recipe.mixup, recipe.cutmix, outputs)
    return mixed, columns[:, :-1] / columns[:, -1:], columns[:, -1]


def transpose_randomly(
    images: Integer[Tensor, "B C H H"], keys: Float64[np.ndarray, " B"]
) -> Integer[Tensor, "B C H H"]:
    """Exchange rows and columns of the images whose key is below 0.5."""
    chosen = torch.from_numpy(keys < 0.5).to(images.device)
    return torch.where(chosen[:, None, None, None], images.mT, images)


def resize_for_step(images: Integer[Tensor, "B C H W"], plan: Plan, step: int) -> Integer[Tensor, "B C h w"]:
    """The images at the size of a step: the model's own, or in early steps fewer whole patches."""
    grid = plan.recipe.grid_at(step, plan.model.grid)
    if grid == plan.model.grid:
        return images
    size = grid.rows * plan.model.patch[0], grid.columns * plan.model.patch[1]
    return resize_images(images, size, plan.image.interpolation)


def _draw_policy_operations(batch: Batch, recipe: Recipe, seed: int, epoch: int) -> policies.AugmentationOps | None:
    """The operations of the recipe's augmentation policy on each image."""
    size = (batch.images.shape[2], batch.images.shape[3])
    if recipe.auto_augment == "rand":
        keys = uniform(seed, "rand augment", epoch, batch.random_keys, policies.RAND_DRAWS * recipe.randaugment_num_ops)
        return policies.draw_rand_augment(keys, recipe.randaugment_magnitude, size)
    if recipe.auto_augment == "trivial":
        keys = uniform(seed, "trivial augment", epoch, batch.random_keys, policies.TRIVIAL_DRAWS)
        return policies.draw_trivial_augment(keys, size)
    if recipe.auto_augment == "three":
        keys = uniform(seed, "three augment", epoch, batch.random_keys, policies.THREE_DRAWS)
        return policies.draw_three_augment(keys)
    return None
