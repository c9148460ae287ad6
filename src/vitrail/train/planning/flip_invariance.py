"""Test on the training images whether their orientation can be recognised; decides about further flips.

Mirroring a photograph left to right leaves it a photograph; turning it upside down does not. Of solar cells, tissue or
satellite images the orientation cannot be seen, and every rotation of one is another training image. The
test asks for each class whether its images and their rotated copies can be separated by their mean: in two halves of
the pictures, the mean difference between picture and turned copy in one half is compared with each difference in the
other. Where no way round is preferred, the sign of that product is a coin's toss.
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
"""That are asked, the rarest first."""
MIN_GROUP_SIZE = 200
"""Pictures of a group below which a coin's toss would prove little."""
NOTICED_FROM = 0.57
"""Share of pictures recognised as not turned, from which a direction counts as noticed; a coin gives 0.5."""


def choose_flips(plan: Plan, image_source: ImageStore, dataset: Dataset, request: TrainRequest) -> tuple[Plan, Reasons]:
    """The plan with vertical flips and transposition, where the images do not show either; and why."""
    if not plan.recipe.flip:
        return plan, {}
    held = image_source.indices
    groups = _make_test_groups(dataset.source, held)
    places = _sample_places(groups, plan.seed)
    small, groups = _downscale_images(image_source, held[places]), groups[places]
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
    """The largest share, over all pictures and over each group, of those recognised as not turned.

    None where the pictures, or those of a group, are too few to say.
    """
    differences = (images - turn(images)).flatten(1).numpy()
    shares = []
    for member in [np.ones(len(groups), bool), *(groups == group for group in np.unique(groups))]:
        if member.sum() < MIN_GROUP_SIZE:
            return None
        halves = differences[member][::2], differences[member][1::2]
        right = [one @ other.mean(0) for one, other in (halves, halves[::-1])]
        shares.append(float((np.concatenate(right) > 0).mean()))
    return max(shares)


def _sample_places(groups: Int64[np.ndarray, " n"], seed: int) -> Int64[np.ndarray, " m"]:
    """The places of those that are looked at: `SAMPLE` in all, and `FEWEST` of each group that has as many."""
    names, counts = np.unique(groups, return_counts=True)
    asked = names[np.argsort(counts, kind="stable")[:MAX_GROUPS]]
    order = permutation(seed, "orientation", 0, len(groups))
    order = order[np.isin(groups[order], asked)]
    taken = np.arange(len(order)) < SAMPLE
    for name in asked:
        taken[np.flatnonzero(groups[order] == name)[:MIN_GROUP_SIZE]] = True
    return np.sort(order[taken])


def _downscale_images(images: ImageStore, rows: Int64[np.ndarray, " n"]) -> Float[Tensor, "n 16 16"]:
    """The pictures in grey at 16 x 16."""
    parts = (images.take(rows[start : start + CHUNK]).float() for start in range(0, len(rows), CHUNK))
    return torch.cat([F.interpolate(part.mean(1, keepdim=True), (SIDE, SIDE), mode="area")[:, 0] for part in parts])


def _make_test_groups(source: Source, rows: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Classes; for labels whether there is any, for numbers which side of its median the first column lies on."""
    if source.task == "classes":
        return class_indices(source, rows)
    known = np.nan_to_num(source.targets[rows])
    if source.task == "labels":
        return (known.max(1) > 0.5).astype(np.int64)
    return (known[:, 0] > np.median(known[:, 0])).astype(np.int64)
