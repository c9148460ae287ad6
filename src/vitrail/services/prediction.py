"""The one predictor of a MODEL, on the device that was asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from .. import runtime
from ..checkpoints.bundle import find_bundle, find_ensemble
from ..data.source import ImageInput, parse_task
from ..data.sources.image_input import load_image_input
from ..errors import UsageError
from ..evaluate.inference import InferenceSettings
from ..files.suggest import suggest_path
from ..predict.predictor import Predictor, PredictorMember
from .image_options import override_image_options
from .open_model import find_model, locate_model


def parse_images(images: object, verb: str = "predict") -> list[ImageInput | bytes]:
    """What a person hands over as images, as the predictor takes them; files are read when their turn comes.

    Raises:
        UsageError: a single image, which would be taken for a list of its rows or letters.
        DataError: something in the list is no image.
    """
    axes = getattr(images, "ndim", None)
    if (axes is None and not isinstance(images, Sequence)) or isinstance(images, str | bytes):
        raise UsageError(f"{verb} takes a list of pictures. Got {_abbreviate(images)}; write [{_abbreviate(images)}].")
    if axes is not None and axes < 4:
        raise UsageError(
            f"{verb} takes a list of pictures, or an array [n, H, W, C] of them. Got one array with {axes} axes; "
            "write [picture], or list(pictures) if they are grey."
        )
    return [
        Path(picture) if isinstance(picture, str | os.PathLike) else load_image_input(picture, f"picture {place}")
        for place, picture in enumerate(cast("Sequence[object]", images))
    ]


def apply_image_options(predictor: Predictor, changes: Mapping[str, str]) -> Predictor:
    """The same predictor, opening files in another way: another page of a TIFF or frame of a film, larger images.

    Args:
        changes: "image.page" and "image.max_pixels", as text.

    Raises:
        UsageError: any other name, for what an image means to the model was settled by its training.
    """
    predictor.spec = override_image_options(predictor.spec, changes)
    return predictor


def _abbreviate(value: object) -> str:
    """An object in few letters."""
    return repr(value) if isinstance(value, str | os.PathLike) else f"a {type(value).__name__}"


def open_predictor(model_name: str | Path, device: str = "auto", num_processes: int = 1) -> Predictor:
    """A predictor with class names: from a run folder, a bundle, or a published classifier that names its classes.

    Args:
        num_processes: how many processes share the cores of this machine.

    Raises:
        UsageError: nothing at the path, nobody has named its outputs, or a device that is not here.
        DamagedFileError: the files cannot be trusted.
    """
    place = locate_model(str(model_name))
    if place is None:
        raise UsageError(
            f"There is no model at {model_name}.{suggest_path(str(model_name))} Answers need one that is trained "
            f"and knows "
            f"its classes: "
            "a run folder, a bundle, or a published classifier."
        )
    machine = runtime.choose(runtime.RuntimeSettings(device=device), num_processes)
    runtime.apply(machine)
    folder = find_ensemble(place.path) or find_bundle(place.path)
    if folder is not None:
        return Predictor.open(folder, machine.device)
    found = find_model(str(place.path))
    if not found.classes:
        raise UsageError(
            f"Answers need the names of the classes, and {model_name} has none beside its {found.config.outputs} "
            f"outputs. "
            "Give a run folder, a bundle, or a folder whose config.json names them (id2label)."
        )
    member = PredictorMember(
        model=found.model, spec=found.spec, classes=found.classes, task=parse_task(found.task),
        settings=InferenceSettings(device=machine.device),
    )  # fmt: skip
    return Predictor([member])
