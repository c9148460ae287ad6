"""How a foreign model wants its images and what its answers are called: from the folder beside it, or its card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import DamagedFileError
from ..model.config import ViTConfig
from ..spec import ImageSpec
from .layouts import LayoutHints
from .numerics import NumericsCard
from .weight_files import ForeignFolder

# An `ImageSpec` in the field names of transformers' image processors, for readers other than us.

PILLOW_RESAMPLE = {"bicubic": 3, "bilinear": 2}
"""Pillow's numbers of the interpolations."""


def make_preprocessor_config(spec: ImageSpec) -> dict[str, Any]:
    """The content of `preprocessor_config.json`.

    The 0..255 that it rescales are what decoding gives: a stored range other than 0..255 (16-bit films) is brought
    there first, as `config.json` says.
    """
    size = {"height": spec.height, "width": spec.width}
    whole = {"height": spec.resize_size[0], "width": spec.resize_size[1]}
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": min(spec.resize_size)} if spec.fit == "crop" else whole,
        "resample": PILLOW_RESAMPLE[spec.interpolation],
        "do_center_crop": spec.fit == "crop" or spec.crop_fraction < 1,
        "crop_size": size,
        "do_pad": spec.fit == "pad",
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": repeat_per_channel(spec.mean, spec.channels),
        "image_std": repeat_per_channel(spec.std, spec.channels),
    }


def repeat_per_channel(values: tuple[float, ...], channels: int) -> list[float]:
    """Mean or deviation with a value for each channel; a single value holds for all."""
    return list(values * channels if len(values) == 1 else values)


_TASKS = {"multi_label_classification": "labels", "regression": "number"}
"""transformers' words for tasks other than classes."""
_TIMM_FITS = {"center": "crop", "squash": "squash", "border": "pad"}
_OPEN_CLIP_FITS = {"shortest": "crop", "squash": "squash", "longest": "pad"}
_INTERPOLATIONS = {number: word for word, number in PILLOW_RESAMPLE.items()}
_SHORT_SIDE_PROCESSORS = ("CLIP", "Bit")
"""How the names begin of transformers' processors to which one number means the short side, not both."""
TIMM_CROP = 0.875
"""What timm takes where no crop_pct is said."""
_SpecFields = tuple[dict[str, Any], tuple[str, ...]]
"""Fields of ImageSpec, None for those that are not said, and notes."""


def make_image_spec(
    config: ViTConfig, card: NumericsCard | None, hints: LayoutHints, folder: ForeignFolder
) -> tuple[ImageSpec, tuple[str, ...]]:
    """The images of a model, and what a person should know about it.

    What stands in the folder rules, unless `match` asks for another library than the one that wrote it.

    Raises:
        DamagedFileError: the folder's description makes no sense.
    """
    try:
        return _combine_spec(config, card, hints, folder)
    except (ValueError, TypeError, ZeroDivisionError) as error:  # UsageError among them
        raise DamagedFileError(f"{folder.path}: the description of its pictures makes no sense: {error}") from error


def _combine_spec(
    config: ViTConfig, card: NumericsCard | None, hints: LayoutHints, folder: ForeignFolder
) -> tuple[ImageSpec, tuple[str, ...]]:
    fields, notes = _fields_from_folder(folder, hints)
    said = _drop_none(fields)
    if not said and card is not None:
        said = card.preprocessing(hints.match)
        if said.get("fit") != "pad":
            said["crop_fraction"] = card.crop(hints.match, config.image_size)
    elif not said:
        notes = (*notes, "nobody says how its pictures are prepared: mean and deviation 0.5 are assumed")
    elif hints.image_size is None:
        notes = (*notes, *_note_other_size(folder, hints, config))
    height, width = config.image_size
    base = ImageSpec(height=height, width=width, channels=config.channels)
    return replace(base, **_fit_channels(said, config.channels)), notes


def resize_spec(old: ImageSpec, config: ViTConfig) -> ImageSpec:
    """The same preparation for the size and the channels of a model."""
    height, width = config.image_size
    said = _fit_channels({"mean": old.mean, "std": old.std}, config.channels)
    return replace(old, height=height, width=width, channels=config.channels, **said)


def read_task_and_classes(config: ViTConfig, foreign: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The task and the names of the outputs; no names where the folder has another number of them, or only numbers."""
    task = _TASKS.get(str(foreign.get("problem_type")), "classes")
    by_number = foreign.get("id2label")
    named = _as_mapping(foreign.get("pretrained_cfg")).get("label_names", foreign.get("label_names"))
    if isinstance(by_number, Mapping):
        named = [by_number.get(str(number), by_number.get(number)) for number in range(len(by_number))]
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        return task, ()
    bare = named == [f"LABEL_{number}" for number in range(len(named))]
    return task, () if bare or len(named) != config.outputs else tuple(named)


def _fields_from_folder(folder: ForeignFolder, hints: LayoutHints) -> _SpecFields:
    """What the folder says."""
    if folder.preprocessor and hints.match in (None, "transformers"):
        return _fields_from_transformers(folder.preprocessor)
    beside = _as_mapping(folder.config.get("pretrained_cfg"))
    if beside and hints.match in (None, "timm"):
        return _fields_from_timm(beside)
    beside = _as_mapping(folder.config.get("preprocess_cfg"))
    return _fields_from_open_clip(beside) if beside and hints.match in (None, "original") else ({}, ())


def _fields_from_transformers(config: Mapping[str, Any]) -> _SpecFields:
    size = _as_mapping(config.get("size"))
    short, inner = _short_side(config), _processor_output_size(config)
    outer = (short, short) if short else _parse_sides(config.get("size"))
    cut = bool(config.get("do_center_crop", short is not None)) and "max_height" not in size
    resample = config.get("resample")
    interpolation, notes = _check_interpolation(
        _INTERPOLATIONS.get(2 if resample is None else resample), f"resample={resample!r}"
    )
    found = {
        "mean": config.get("image_mean") if config.get("do_normalize", True) else [0.0],
        "std": config.get("image_std") if config.get("do_normalize", True) else [1.0],
        "interpolation": interpolation,
        "fit": "pad" if "max_height" in size else "crop" if short else "squash",
    }
    if cut and inner and outer:
        found["crop_fraction"] = min(inner[0] / outer[0], 1.0)
        if abs(inner[0] * outer[1] - inner[1] * outer[0]) > max(outer) and not short:
            notes = (*notes, f"its processor cuts {inner} out of {outer}; here the fraction of the height serves both")
    return found, notes


def _fields_from_timm(config: Mapping[str, Any]) -> _SpecFields:
    interpolation, notes = _check_interpolation(
        config.get("interpolation", "bicubic"), f"interpolation={config.get('interpolation')!r}"
    )
    fit = _TIMM_FITS.get(str(config.get("crop_mode")), "crop")
    crop = config.get("crop_pct") or TIMM_CROP
    found = {"mean": config.get("mean"), "std": config.get("std"), "interpolation": interpolation, "fit": fit}
    if fit == "pad":
        cut = f" and cuts {crop} out of it" if crop != 1 else ""
        return found, (*notes, f"timm fills the border with the mean colour{cut}; here it is black and nothing is cut")
    return {**found, "crop_fraction": float(crop)}, notes


def _fields_from_open_clip(config: Mapping[str, Any]) -> _SpecFields:
    interpolation, notes = _check_interpolation(
        config.get("interpolation", "bicubic"), f"interpolation={config.get('interpolation')!r}"
    )
    fit = _OPEN_CLIP_FITS.get(str(config.get("resize_mode", "shortest")))
    return {"mean": config.get("mean"), "std": config.get("std"), "interpolation": interpolation, "fit": fit}, notes


def _check_interpolation(interpolation: object, label: str) -> tuple[object, tuple[str, ...]]:
    """A way of resizing that we have, or the usual one and a note."""
    if interpolation in PILLOW_RESAMPLE:
        return interpolation, ()
    return "bicubic", (f"its pictures are resized with {label}, which is not here: bicubic was taken",)


def _short_side(config: Mapping[str, Any]) -> int | None:
    """The length of the short side after a resize that keeps the shape of an image."""
    size = config.get("size")
    of_clip = str(config.get("image_processor_type", config.get("feature_extractor_type"))).startswith(
        _SHORT_SIDE_PROCESSORS
    )
    return (
        _positive_int(size)
        if of_clip and _positive_int(size)
        else _positive_int(_as_mapping(size).get("shortest_edge"))
    )


def _processor_output_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """(height, width) that comes out of a processor of transformers; None where it does not say."""
    size = config.get("size")
    if config.get("do_center_crop", _short_side(config) is not None):
        return _parse_sides(config.get("crop_size"))
    return None if _short_side(config) else _parse_sides(size)


def _parse_sides(size: object) -> tuple[int, int] | None:
    """Height and width in any of transformers' forms: a number, height and width, or max_height and max_width."""
    sides = _as_mapping(size)
    height = _positive_int(sides.get("height", sides.get("max_height", size)))
    width = _positive_int(sides.get("width", sides.get("max_width", size)))
    return (height, width or height) if height else None


def _note_other_size(folder: ForeignFolder, hints: LayoutHints, config: ViTConfig) -> tuple[str, ...]:
    """Processors may prepare another size than the one that the position table was trained for, as DINOv2's do."""
    if not folder.preprocessor or hints.match not in (None, "transformers"):
        return ()
    inner = _processor_output_size(folder.preprocessor)
    if inner in (None, config.image_size):
        return ()
    (height, width), (rows, columns) = inner, config.image_size
    wanted = f"{height}" if height == width else f"({height}, {width})"
    prepares = f"its processor prepares pictures of {height}x{width} pixels, the model was loaded for {rows}x{columns}"
    return (f"{prepares}; image_size={wanted} does as the processor",)


def _positive_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _drop_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What was said; the rest stays as ImageSpec has it."""
    return {name: value for name, value in fields.items() if value is not None}


def _fit_channels(fields: Mapping[str, Any], channels: int) -> dict[str, Any]:
    """Mean and deviation for so many channels; their averages where the file's were for another count."""
    found = dict(fields)
    for name in ("mean", "std"):
        if name in found:
            values = tuple(float(value) for value in found[name])
            found[name] = values if len(values) in (1, channels) else (sum(values) / len(values),)
    return found


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
