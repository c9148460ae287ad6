"""Estimators whose trainings take a moment: a model of one small block, a few steps, one thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

SETTINGS: dict[str, Any] = {
    "model.width": 16, "model.depth": 1, "model.heads": 2, "model.mlp_width": 32, "compute.threads": 1,
    "compute.num_workers": 0,
}  # fmt: skip
QUICK: dict[str, Any] = {"steps": 3, "device": "cpu", "settings": {**SETTINGS, "recipe.batch_size": 16}}
LEARNING: dict[str, Any] = {
    "steps": 100,
    "device": "cpu",
    "settings": {
        **SETTINGS, "model.width": 32, "recipe.batch_size": 64, "recipe.patch_keep_rate": 1.0, "recipe.flip": False,
        "recipe.tta_flip": False,
    },
}  # fmt: skip


@pytest.fixture
def threads_kept() -> Iterator[None]:
    """Trainings set the number of threads; the next test has its own back."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def digits(count: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Handwritten digits uint8 [n, 8, 8], and which they are."""
    stored, targets = load_digits(n_class=classes, return_X_y=True)
    return np.rint(stored[:count].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), targets[:count]
