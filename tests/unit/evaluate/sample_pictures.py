"""Small photographs: pieces of scikit-learn's two samples."""

from __future__ import annotations

import functools

import numpy as np
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor

from vitrail.data.preprocess import resize_batch


@functools.cache
def photographs(side: int, count: int = 12) -> Tensor:
    """uint8 [count, 3, side, side], each of another square of 200 pixels."""
    found = []
    for number in range(count):
        photograph = load_sample_image(("china.jpg", "flower.jpg")[number % 2])
        top, left = 20 + 40 * (number % 5), 30 + 35 * number
        piece = photograph[top : top + 200, left : left + 200].transpose(2, 0, 1)
        found.append(torch.from_numpy(np.ascontiguousarray(piece)))
    return resize_batch(torch.stack(found), (side, side), "bicubic")
