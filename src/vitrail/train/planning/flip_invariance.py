"""Test on the training images whether their orientation can be recognised; decides about further flips.

A photograph upside down is recognised as such; solar cells, tissue or satellite images have no orientation, and every
flip of one is another training image. The test is run for all images and for each class: on each of two halves, the
mean difference between images and their flipped copies is multiplied with each difference of the other half. Without a
preferred orientation, the product is positive for half of the images.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from ...data.loader import ImageStore
from ...data.source import Source
from ...randomness import permutation
from ..dataset import Dataset, class_indices
from ..plan import Plan
from ..request import Reasons, TrainRequest

SAMPLE, SIDE, CHUNK = 2000, 16, 100
MAX_GROUPS = 10
"""Most groups that are tested by themselves, the rarest first."""
MIN_GROUP_SIZE = 200
"""Images of a group that a test needs."""
NOTICED_FROM = 0.57
"""Fraction of images recognised as not flipped from which the orientation counts as visible; chance is 0.5."""


def choose_flips(plan: Plan, image_source: ImageStore, dataset: Dataset, request: TrainRequest) -> tuple[Plan, Reasons]:
    """The plan with vertical flips and transposition if the images' orientation is not visible; and reasons."""
    if not plan.recipe.flip:
        return plan, {}
    groups = _make_test_groups(dataset.source, image_source.indices)
    places = _sample_places(groups, plan.seed)
    rows, groups = image_source.indices[places], groups[places]
    batches = (image_source.take(rows[start : start + CHUNK]).float() for start in range(0, len(rows), CHUNK))
    grey = (batch.mean(1, keepdim=True) * (255 / plan.image.white) for batch in batches)  # [B, 1, H, W]
    small = torch.cat([F.interpolate(batch, (SIDE, SIDE), mode="area")[:, 0] for batch in grey])  # [n, 16, 16]
    recipe, square, reasons = plan.recipe, plan.image.height == plan.image.width, Reasons()
    if "recipe.flip_vertical" not in request.overrides:
        detected = measure_flip_detectability(small, lambda images: images.flip(-2), groups)
        allowed, reasons["recipe.flip_vertical"] = _allow_flip("upside down", detected)
        recipe = dataclasses.replace(recipe, flip_vertical=allowed or recipe.flip_vertical)
    if square and "recipe.transpose" not in request.overrides:
        detected = measure_flip_detectability(small, lambda images: images.mT, groups)
        allowed, reasons["recipe.transpose"] = _allow_flip("turned by a quarter", detected)
        recipe = dataclasses.replace(recipe, transpose=allowed or recipe.transpose)
    return dataclasses.replace(plan, recipe=recipe), reasons


def _allow_flip(how: str, detected: float | None) -> tuple[bool, str]:
    """Whether a flip is allowed when a test recognised this fraction of the flipped images, and the reason."""
    if detected is None:
        return False, f"too few pictures of a class to tell whether they look the same {how}"
    result = f"a test tells {detected:.0%} from pictures {how}, where a coin gets 50%"
    if detected < NOTICED_FROM:
        return True, f"{result}: they look the same"
    return False, f"{result}: they have a way up"


def measure_flip_detectability(
    images: Float[Tensor, "n h w"], turn: Callable[[Tensor], Tensor], groups: Int64[np.ndarray, " n"]
) -> float | None:
    """The largest fraction of images recognised as not flipped, over all images and over each group.

    None if the images, or those of a group, are too few.
    """
    differences = (images - turn(images)).flatten(1).numpy()
    fractions = []
    for member in [np.ones(len(groups), bool), *(groups == group for group in np.unique(groups))]:
        if member.sum() < MIN_GROUP_SIZE:
            return None
        halves = differences[member][::2], differences[member][1::2]
        right = [one @ other.mean(0) for one, other in (halves, halves[::-1])]
        fractions.append(float((np.concatenate(right) > 0).mean()))
    return max(fractions)


def _sample_places(groups: Int64[np.ndarray, " n"], seed: int) -> Int64[np.ndarray, " m"]:
    """Positions of a random sample: `SAMPLE` in all, and `MIN_GROUP_SIZE` of each group that has as many."""
    names, counts = np.unique(groups, return_counts=True)
    rarest = names[np.argsort(counts, kind="stable")[:MAX_GROUPS]]
    order = permutation(seed, "orientation", 0, len(groups))
    order = order[np.isin(groups[order], rarest)]
    taken = np.arange(len(order)) < SAMPLE
    for name in rarest:
        taken[np.flatnonzero(groups[order] == name)[:MIN_GROUP_SIZE]] = True
    return np.sort(order[taken])


def _make_test_groups(source: Source, rows: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Classes; for labels whether an image has any, for numbers the side of the median of the first column."""
    if source.task == "classification":
        return class_indices(source, rows)
    known = np.nan_to_num(source.targets[rows])
    if source.task == "multilabel":
        return (known.max(1) > 0.5).astype(np.int64)
    return (known[:, 0] > np.median(known[:, 0])).astype(np.int64)
