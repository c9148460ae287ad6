"""Opening of a MODEL as a `Predictor`, and parsing of in-memory images."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import cast

from .. import runtime
from ..checkpoints.bundle import find_bundle, find_ensemble
from ..checkpoints.bundle_weights import OWN_LAYOUTS
from ..data.source import ImageInput, parse_task
from ..data.sources.image_input import load_image_input
from ..errors import DamagedFileError, DataError, UsageError
from ..evaluate.device_check import choose_checked_runtime
from ..evaluate.inference import InferenceSettings
from ..files.suggest import suggest_path
from ..predict.image_paths import list_folder_images
from ..predict.predictor import Predictor, PredictorMember
from ..train.run_folder import RunFolder, find_run
from .image_options import override_image_options
from .open_model import ModelInfo, find_model, locate_model


def parse_images(images: object, verb: str = "predict") -> list[ImageInput | bytes]:
    """Paths, bytes, arrays, tensors or Pillow images as a predictor's input; files are read later.

    Args:
        images: a list, a column of a table (a Series, an array of texts), another iterable with an order, or an array
            [n, H, W, C]; or a folder, whose pictures are taken in natural order.

    Raises:
        UsageError: a single image instead of a list, or none at all.
        DataError: an element is no image, or the folder has none.
    """
    if isinstance(images, str | os.PathLike) and Path(images).is_dir():
        return list(list_folder_images(Path(images)))
    axes = getattr(images, "ndim", None)
    if isinstance(images, str | bytes | Mapping | Set) or (axes is None and not isinstance(images, Iterable)):
        raise UsageError(f"{verb} takes a list of pictures. Got {_abbreviate(images)}; write [{_abbreviate(images)}].")
    if axes in (0, 2, 3):
        raise UsageError(
            f"{verb} takes a list of pictures, or an array [n, H, W, C] of them. Got one array with {axes} axes; "
            "write [picture], list(pictures) if they are grey, or frame['path'] if it is a table."
        )
    listed = [_parse_image(image, f"picture {index}") for index, image in enumerate(cast("Iterable[object]", images))]
    if not listed:
        raise UsageError(f"{verb} takes a list of pictures. Got an empty {type(images).__name__}; name at least one.")
    return listed


def parse_one_or_more(images: object, verb: str) -> list[ImageInput | bytes]:
    """As `parse_images`, but a single image need not be in a list.

    Raises:
        UsageError, DataError: as `parse_images`.
    """
    axes = getattr(images, "ndim", None)
    is_image = isinstance(images, str | bytes | os.PathLike) or (axes is None and not isinstance(images, Iterable))
    return parse_images([images] if is_image or axes in (2, 3) else images, verb)


def _parse_image(image: object, name: str) -> ImageInput | bytes:
    if isinstance(image, str) and "://" in image:
        raise DataError(
            f"{name}: {image!r} is an address, and pictures are read from files only. Fetch it first, and give its "
            "file or its bytes."
        )
    return Path(image) if isinstance(image, str | os.PathLike) else load_image_input(image, name)


def apply_image_options(predictor: Predictor, changes: Mapping[str, str]) -> Predictor:
    """Change how a predictor opens files: page of a TIFF or frame of a DICOM file, and size limit.

    Args:
        changes: "image.page" and "image.max_pixels", as text.

    Raises:
        UsageError: any other name: the other fields were fixed by the training.
    """
    predictor.spec = override_image_options(predictor.spec, changes)
    return predictor


def _abbreviate(value: object) -> str:
    """A short description of an object."""
    return repr(value) if isinstance(value, str | os.PathLike) else f"a {type(value).__name__}"


def open_predictor(
    model_name: str | Path, device: str = "auto", precision: str = "float32", num_processes: int = 1
) -> Predictor:
    """Open a run folder, a bundle, or a published classifier with class names.

    Args:
        precision: of the matrix products, as `runtime.parse_precision` takes it.
        num_processes: processes that share the cores of this machine.

    Raises:
        UsageError: nothing at the path, a model without class names, or a device or precision that is not here.
        DamagedFileError: the files are damaged or malicious.
    """
    place = locate_model(str(model_name))
    if place is None:
        raise UsageError(
            f"There is no model at {model_name}.{suggest_path(str(model_name))} Answers need one that is trained "
            "and knows its classes: a run folder, a bundle, or a published classifier."
        )
    settings = choose_inference(device, precision, num_processes)
    folder = find_ensemble(place.path) or find_bundle(place.path)
    if folder is not None:
        try:
            return Predictor.open(folder, settings.device, settings.precision)
        except DamagedFileError as error:
            run = RunFolder(find_run(folder))
            if folder != run.bundle or not any(run.checkpoints.glob("step-*")):
                raise
            again = f"vitrail train --resume {shlex.quote(str(run.path))}"
            raise DamagedFileError(f"{error} Or delete {folder}, and have it written again with: {again}") from error
    model_info = find_model(str(place.path))
    if not model_info.classes:
        raise UsageError(
            f"Answers need the names of the classes, and {model_name} has none beside its {model_info.config.outputs} "
            "outputs. Give a run folder, a bundle, or a folder whose config.json names them (id2label)."
        )
    return predictor_from_model_info(model_info, settings)


def predictor_from_model_info(model_info: ModelInfo, settings: InferenceSettings) -> Predictor:
    """A predictor from a model with class names.

    Raises:
        UsageError: the weights file of a bundle without the bundle, which may change what the outputs mean.
    """
    if model_info.bundle is None and model_info.audit is not None and model_info.audit.layout == OWN_LAYOUTS[0].name:
        raise UsageError(
            "Answers need the whole bundle, which holds thresholds, calibration and units beside the weights. Give its "
            "folder; where it is lost, vitrail convert WEIGHTS --to bundle makes one without these."
        )
    member = PredictorMember(
        model=model_info.model,
        spec=model_info.spec,
        classes=model_info.classes,
        task=parse_task(model_info.task),
        settings=settings,
    )
    return Predictor([member])


def choose_inference(device: str, precision: str = "float32", num_processes: int = 1) -> InferenceSettings:
    """Resolve a device and a precision, and set the threads that torch shall use there.

    Raises:
        UsageError: a device that is not here, an unknown precision, or one that the device does not support.
    """
    settings = runtime.RuntimeSettings(device=device, precision=runtime.parse_precision(precision))
    machine = choose_checked_runtime(settings, num_processes)
    runtime.apply(machine)
    return InferenceSettings(device=machine.device, precision=machine.precision)
