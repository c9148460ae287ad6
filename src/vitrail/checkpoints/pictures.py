"""How a foreign model wants its pictures and what its answers are called: from the folder beside it, or its card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import DamagedFileError
from ..model.config import ViTConfig
from ..spec import ImageSpec
from .cards import Card
from .folders import Folder
from .preprocessor import RESAMPLE
from .told import Told

_PROBLEMS = {"multi_label_classification": "labels", "regression": "number"}
"""transformers' words for tasks other than classes."""
_TIMM_FITS = {"center": "crop", "squash": "squash", "border": "pad"}
_OPEN_CLIP_FITS = {"shortest": "crop", "squash": "squash", "longest": "pad"}
_INTERPOLATIONS = {number: word for word, number in RESAMPLE.items()}


def spec(config: ViTConfig, known: Card | None, told: Told, folder: Folder) -> tuple[ImageSpec, tuple[str, ...]]:
    """The pictures of a model, and what a person should know about it.

    What stands in the folder rules, unless `match` asks for another library than the one that wrote it.

    Raises:
        DamagedFileError: the folder's description makes no sense.
    """
    try:
        return _spec(config, known, told, folder)
    except (ValueError, TypeError, ZeroDivisionError) as error:  # UsageError among them
        raise DamagedFileError(f"{folder.path}: the description of its pictures makes no sense: {error}") from error


def _spec(config: ViTConfig, known: Card | None, told: Told, folder: Folder) -> tuple[ImageSpec, tuple[str, ...]]:
    said, crop = _in_folder(folder, told)
    notes: tuple[str, ...] = ()
    if not said and known is not None:
        said, crop = known.preprocessing(told.match), known.crop(told.match)
    elif not said:
        notes = ("nobody says how its pictures are prepared: mean and deviation 0.5 are assumed",)
    if said.get("fit") == "crop":
        said = {**said, "crop_fraction": crop}
    height, width = config.image_size
    base = ImageSpec(height=height, width=width, channels=config.channels)
    return replace(base, **_for_channels(said, config.channels)), notes


def resized(old: ImageSpec, config: ViTConfig) -> ImageSpec:
    """The same preparation for the size and the channels of a model."""
    height, width = config.image_size
    said = _for_channels({"mean": old.mean, "std": old.std}, config.channels)
    return replace(old, height=height, width=width, channels=config.channels, **said)


def answers(config: ViTConfig, foreign: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The task and the names of the outputs; no names where the folder has another number of them, or only numbers."""
    task = _PROBLEMS.get(str(foreign.get("problem_type")), "classes")
    by_number = foreign.get("id2label")
    named = _mapping(foreign.get("pretrained_cfg")).get("label_names", foreign.get("label_names"))
    if isinstance(by_number, Mapping):
        named = [by_number.get(str(number), by_number.get(number)) for number in range(len(by_number))]
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        return task, ()
    bare = named == [f"LABEL_{number}" for number in range(len(named))]
    return task, () if bare or len(named) != config.outputs else tuple(named)


def _in_folder(folder: Folder, told: Told) -> tuple[dict[str, Any], float]:
    """Fields of ImageSpec and the fraction of a crop, as the folder says them."""
    if folder.preprocessor and told.match in (None, "transformers"):
        return _of_transformers(folder.preprocessor)
    beside = _mapping(folder.config.get("pretrained_cfg"))
    if beside and told.match in (None, "timm"):
        return _of_timm(beside)
    beside = _mapping(folder.config.get("preprocess_cfg"))
    return _of_open_clip(beside) if beside and told.match in (None, "original") else ({}, 1.0)


def _of_transformers(said: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    size, cut = said.get("size"), said.get("crop_size")
    short = size.get("shortest_edge") if isinstance(size, Mapping) else None
    within = isinstance(size, Mapping) and "max_height" in size
    cropped = not within and (bool(said.get("do_center_crop")) or short is not None)
    found = {
        "mean": said.get("image_mean") if said.get("do_normalize", True) else [0.0],
        "std": said.get("image_std") if said.get("do_normalize", True) else [1.0],
        "interpolation": _INTERPOLATIONS.get(said.get("resample", 2)),
        "fit": "pad" if within else "crop" if cropped else "squash",
    }
    inner = cut.get("height") if isinstance(cut, Mapping) else cut
    crop = inner / short if cropped and isinstance(inner, int) and isinstance(short, int) and short else 1.0
    return _clean(found), min(crop, 1.0)


def _of_timm(said: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    found = {
        "mean": said.get("mean"),
        "std": said.get("std"),
        "interpolation": said.get("interpolation"),
        "fit": _TIMM_FITS.get(str(said.get("crop_mode", "center"))),
    }
    crop = said.get("crop_pct", 1.0)
    return _clean(found), float(crop) if isinstance(crop, int | float) else 1.0


def _of_open_clip(said: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    found = {
        "mean": said.get("mean"),
        "std": said.get("std"),
        "interpolation": said.get("interpolation"),
        "fit": _OPEN_CLIP_FITS.get(str(said.get("resize_mode", "shortest"))),
    }
    return _clean(found), 1.0


def _clean(found: Mapping[str, Any]) -> dict[str, Any]:
    """What was said and is known here; the rest stays as ImageSpec has it."""
    kept = {name: value for name, value in found.items() if value is not None}
    if kept.get("interpolation") not in (None, *RESAMPLE):
        del kept["interpolation"]
    return kept


def _for_channels(said: Mapping[str, Any], channels: int) -> dict[str, Any]:
    """Mean and deviation for so many channels; their averages where the file's were for another count."""
    found = dict(said)
    for name in ("mean", "std"):
        if name in found:
            values = tuple(float(value) for value in found[name])
            found[name] = values if len(values) in (1, channels) else (sum(values) / len(values),)
    return found


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
