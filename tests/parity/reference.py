"""What an original repository computed once, read from the fixtures (see fixtures/README.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.model.vit import ViT

FIXTURES = Path(__file__).parent / "fixtures"
SIZES = ("native", "square", "rectangle")


@dataclass(frozen=True)
class Reference:
    """One reference model: its weights, and for every picture size what it saw and made of it."""

    about: dict[str, Any]
    weights: dict[str, Tensor]
    runs: dict[str, dict[str, Tensor]]


def reference(name: str) -> Reference:
    """The fixture of that name; whole numbers in it are 64ths."""
    with np.load(FIXTURES / f"{name}.npz", allow_pickle=False) as arrays:
        about = json.loads(str(arrays["about"]))
        parts: dict[str, dict[str, Tensor]] = {}
        for key in arrays.files:
            if key != "about":
                part, _, tensor = key.partition("/")
                parts.setdefault(part, {})[tensor] = _tensor(arrays[key])
    weights = parts.pop("weights")
    return Reference(about, weights, parts)


def _tensor(array: np.ndarray) -> Tensor:
    found = torch.from_numpy(array)
    return found.float() / 64 if array.dtype == np.int8 else found


def largest_difference(model: ViT, run: dict[str, Tensor]) -> float:
    """Over every block and whatever else the reference kept, on the run's pictures."""
    keep = [name for name in run if name.startswith("blocks.") or name in ("tokens", "pooled", "outputs")]
    assert {f"blocks.{i}" for i in range(model.config.depth)} | {"pooled"} <= set(keep)
    with torch.no_grad():
        ours = model.features(run["images"], keep=tuple(keep))
    for name in keep:
        assert ours[name].shape == run[name].shape and run[name].std() > 0.05, name
    return max((ours[name] - run[name]).abs().max().item() for name in keep)


def gradient_difference(model: ViT, run: dict[str, Tensor]) -> float:
    """Of the gradient of sum(pooled^2) on the pictures."""
    images = run["images"].clone().requires_grad_()
    pooled = model.features(images, keep=("pooled",))["pooled"]
    (gradient,) = torch.autograd.grad(pooled.square().sum(), images)
    assert run["gradient"].abs().max() > 0.05
    return (gradient - run["gradient"]).abs().max().item()
