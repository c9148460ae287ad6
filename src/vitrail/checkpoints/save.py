"""A model as a bundle, or in the files of another library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ..errors import UsageError
from ..model.vit import ViT
from ..spec import ImageSpec
from . import bundle

SAVE_TARGETS = ("bundle", "timm", "transformers", "torchvision", "google-npz")


def save_model(
    path: Path,
    model: ViT,
    spec: ImageSpec,
    classes: tuple[str, ...],
    layout: str,
    task: str = "classes",
    info: Mapping[str, object] | None = None,
    feature_stats: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a model whole or not at all: a folder for bundle, timm and transformers, else a file.

    Args:
        layout: one of TARGETS.
        info: what else a bundle keeps, anything that JSON can hold, such as licence and repository of its origin;
            a folder for transformers keeps these two.
        feature_stats: what the training images look like to the model; only a bundle keeps it.

    Raises:
        UsageError: there is no such target, the path exists, or the target cannot hold a part of the model (named).
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    path = Path(path)
    if path.exists():
        raise UsageError(f"{path} exists already and is not overwritten. Choose another name or move it away.")
    if layout == "bundle":
        bundle.save_bundle(path, model, spec, task, classes, info or {}, feature_stats)
    elif layout == "timm":
        from .writers import to_timm

        to_timm.write_timm_folder(path, model, spec, task, classes, info or {})
    elif layout == "transformers":
        from .writers import to_transformers

        to_transformers.write_transformers_folder(path, model, spec, task, classes, info or {})
    elif layout == "torchvision":
        from .families import torchvision

        torchvision.write_torchvision(path, model, spec, task, classes)
    elif layout == "google-npz":
        from .families import flax

        flax.write_google_npz(path, model, spec, task, classes)
    else:
        raise UsageError(f"A model can be written as {', '.join(SAVE_TARGETS)}. Got {layout!r}.")
