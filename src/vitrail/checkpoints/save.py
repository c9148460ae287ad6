"""Save a model as a bundle, or in the format of another library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ..config import write
from ..errors import UsageError
from ..model.vit import ViT
from ..spec import ImageSpec
from . import bundle_weights
from .families import flax, torchvision
from .foreign_folder import make_origin_fields
from .image_spec import PROBLEM_TYPES, check_model_fits
from .writers import to_timm, to_transformers

SAVE_TARGETS = ("bundle", "timm", "transformers", "torchvision", "google-npz")


def save_model(
    path: Path,
    model: ViT,
    spec: ImageSpec,
    classes: tuple[str, ...],
    layout: str,
    task: str = "classification",
    info: Mapping[str, object] | None = None,
    feature_stats: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a model whole or not at all: a folder for bundle, timm and transformers, else a file.

    Args:
        layout: one of SAVE_TARGETS.
        info: metadata that JSON can hold, such as licence and repository. A bundle keeps all of it, folders for timm
            and transformers these two.
        feature_stats: statistics of the training images' features; only a bundle keeps them.

    Raises:
        UsageError: there is no such target, the path exists or has the wrong ending, the image spec or the class names
            do not fit the model, or the target cannot hold a part of them (named).
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    path = Path(path)
    if path.exists():
        raise UsageError(f"{path} exists already and is not overwritten. Choose another name or move it away.")
    if layout == "bundle":
        bundle_weights.save_bundle(path, model, spec, task, classes, info or {}, feature_stats)
    elif layout == "timm":
        to_timm.write_timm_folder(path, model, spec, classes, info or {})
    elif layout == "transformers":
        to_transformers.write_transformers_folder(path, model, spec, task, classes, info or {})
    elif layout == "torchvision":
        torchvision.write_torchvision(path, model)
    elif layout == "google-npz":
        check_model_fits(model.config, spec, classes or None)
        described = {"image": write(spec), "label_names": list(classes), "problem_type": PROBLEM_TYPES[task]}
        flax.write_google_npz(path, model, {**make_origin_fields(info or {}), **described})
    else:
        raise UsageError(f"A model can be written as {', '.join(SAVE_TARGETS)}. Got {layout!r}.")
