"""A `.npz` file under the names of Google's published ViTs, as vit_jax, big_vision and timm load them.

The file holds weights alone, and above all not the activation: the authors' code runs GELU by tanh, timm and
transformers the exact GELU. A model with either is written, and whoever reads it must know which (`match` here).
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...files import atomic
from ...model.vit import ViT
from ...spec import ImageSpec
from ..families.google_npz import LAYOUTS
from ..rules import write as write_tensors

PUBLISHED = LAYOUTS[0]
READERS = {"GELUTanh": "original", "GELU": "timm"}
"""Activations that somebody runs these files with, and the `match` that means it."""


def write(path: Path, model: ViT, spec: ImageSpec, task: str, classes: tuple[str, ...]) -> None:
    """Write one file of float32 numbers, whole or not at all.

    Args:
        spec, task, classes: these files have no place for them.

    Raises:
        UsageError: these files have no place for a part of the model (named), or the ending is not .npz.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    if path.suffix != ".npz":
        raise UsageError(f"A file of Google's layout ends in .npz. Got {path}.")
    beside: dict[str, Any] = {"patch": model.config.patch}
    if model.config.activation in READERS:
        beside["activation"] = model.config.activation
    weights = write_tensors(model.state_dict(), model.config, PUBLISHED, beside)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, tensor in weights.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                array = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
                np.lib.format.write_array(member, array, allow_pickle=False)
    atomic.write_bytes(path, buffer.getvalue())
