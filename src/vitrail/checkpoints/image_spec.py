"""Convert preprocessing descriptions between `ImageSpec` and the files of transformers, timm and OpenCLIP.

The image spec of a foreign model comes from the folder beside its weights, else from its numerics card.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..config import read
from ..errors import DamagedFileError, UsageError
from ..formatting import format_count
from ..model.config import ViTConfig
from ..spec import ImageSpec
from .foreign_folder import ForeignFolder, is_written_by_vitrail
from .numerics import NumericsCard

if TYPE_CHECKING:
    from .layouts import LayoutHints

PILLOW_RESAMPLE = {"bicubic": 3, "bilinear": 2}
"""Pillow's numbers of the interpolations."""
UNKNOWN_PREPARATION = "how its pictures are prepared is not known: mean and deviation 0.5 are assumed"
"""Note on a file that does not say it, of a family without a card."""
PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regression": "regression",
}
"""Our words for tasks, and transformers'."""
CROP_MODES = {"crop": "center", "squash": "squash", "pad": "border"}
"""Our words for fitting an image into the model's size, and timm's."""
_OPEN_CLIP_FITS = {"shortest": "crop", "squash": "squash", "longest": "pad"}
_INTERPOLATIONS = {number: word for word, number in PILLOW_RESAMPLE.items()}
_SHORT_SIDE_PROCESSORS = ("CLIP", "ChineseCLIP", "Bit")
"""Prefixes of the names of transformers' processors for which a single size means the short side."""
_SpecFields = tuple[dict[str, Any], tuple[str, ...]]
"""Fields of ImageSpec, None for those that are not given; and notes."""


# -- Writing: preprocessor_config.json


def make_preprocessor_config(spec: ImageSpec) -> dict[str, Any]:
    """The content of `preprocessor_config.json`, in the fields of transformers' image processors.

    It rescales decoded values, 0..255, or 0..65535 at a bit depth of 16. Another stored range (12-bit films) is
    converted to these first; `config.json` of the bundle has it.
    """
    whole = {"height": spec.resize_size[0], "width": spec.resize_size[1]}
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": min(spec.resize_size)} if spec.fit == "crop" else whole,
        "resample": PILLOW_RESAMPLE[spec.interpolation],
        "do_center_crop": spec.fit == "crop" or spec.crop_fraction < 1,
        "crop_size": {"height": spec.height, "width": spec.width},
        "do_pad": spec.fit == "pad",
        "do_rescale": True,
        "rescale_factor": 1 / spec.white,
        "do_normalize": True,
        "image_mean": repeat_per_channel(spec.mean, spec.channels),
        "image_std": repeat_per_channel(spec.std, spec.channels),
    }


def repeat_per_channel(values: tuple[float, ...], channels: int) -> list[float]:
    """Mean or deviation with a value for each channel; a single value holds for all."""
    return list(values * channels if len(values) == 1 else values)


def check_model_fits(config: ViTConfig, spec: ImageSpec, classes: tuple[str, ...] | None) -> None:
    """Refuse an image spec or class names that do not fit the model; None for a model without class names."""
    if (spec.size, spec.channels) != (config.input_size, config.channels):
        raise UsageError(
            f"The pictures must be what the model reads: {config.input_size} pixels and "
            f"{format_count(config.channels, 'channel')}. Got {spec.size} and {spec.channels}."
        )
    expected = 2 if config.head == "bank" else config.outputs  # good and defect, by one score
    if classes is not None and len(classes) != expected:
        raise UsageError(f"Every one of the model's {expected} outputs needs a name. Got {len(classes)} names.")


# -- Reading


def make_image_spec(
    config: ViTConfig, card: NumericsCard | None, hints: LayoutHints, folder: ForeignFolder
) -> tuple[ImageSpec, tuple[str, ...]]:
    """The image spec of a model, and notes.

    The folder's description takes precedence over the card, unless `hints.match` names another library than the one
    that wrote it.

    Raises:
        DamagedFileError: the folder's description is invalid.
    """
    if is_written_by_vitrail(folder.config) and isinstance(own := folder.config.get("image"), Mapping):
        return read(ImageSpec, own, f"{folder.path}: image"), ()
    try:
        from_folder, notes = _fields_from_folder(folder, hints)
        fields = {name: value for name, value in from_folder.items() if value is not None}
        if not fields and card is not None:
            fields = card.preprocessing(hints.match)
            if fields.get("fit") != "pad":
                fields["crop_fraction"] = card.crop(hints.match, config.image_size)
            if not (folder.preprocessor or {"pretrained_cfg", "preprocess_cfg"} & folder.config.keys()):
                notes = (*notes, _note_card_fields(fields, hints))
            fields["crop_start"] = "down" if hints.match == "transformers" else "even"
        elif not fields:
            notes = (*notes, UNKNOWN_PREPARATION)
        elif hints.image_size is None:
            notes = (*notes, *_note_other_size(folder, hints, config))
        height, width = config.image_size
        base = ImageSpec(height=height, width=width, channels=config.channels)
        return replace(base, **_fit_channels(fields, config.channels)), notes
    except (ValueError, TypeError, ZeroDivisionError) as error:  # UsageError among them
        raise DamagedFileError(f"{folder.path}: the description of its pictures makes no sense: {error}") from error


def _note_card_fields(fields: Mapping[str, Any], hints: LayoutHints) -> str:
    whose = f"{hints.match}'s" if hints.match in ("timm", "transformers") else "its authors'"
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in fields.items()}
    words = ", ".join(f"{name} {' '.join(map(str, several))}" for name, several in values.items())
    return f"the file does not say how its pictures are prepared: {whose} way is taken, {words}"


def resize_spec(old: ImageSpec, config: ViTConfig) -> ImageSpec:
    """The same preprocessing for the image size and the channels of a model."""
    height, width = config.input_size
    fields = _fit_channels({"mean": old.mean, "std": old.std}, config.channels)
    return replace(old, height=height, width=width, channels=config.channels, **fields)


def read_task_and_classes(config: ViTConfig, foreign: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The task and the class names; no names if the folder has another number of them, or only LABEL_0, LABEL_1 ..."""
    tasks = {theirs: ours for ours, theirs in PROBLEM_TYPES.items()}
    task = tasks.get(str(foreign.get("problem_type")), "classification")
    by_index = foreign.get("id2label")
    names = _as_mapping(foreign.get("pretrained_cfg")).get("label_names", foreign.get("label_names"))
    if isinstance(by_index, Mapping):
        names = [by_index.get(str(index), by_index.get(index)) for index in range(len(by_index))]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return task, ()
    placeholders = names == [f"LABEL_{index}" for index in range(len(names))]
    return task, () if placeholders or len(names) != config.outputs else tuple(names)


def _fields_from_folder(folder: ForeignFolder, hints: LayoutHints) -> _SpecFields:
    """The fields that the folder gives."""
    if folder.preprocessor and hints.match in (None, "transformers"):
        return _fields_from_transformers(folder.preprocessor)
    described = _as_mapping(folder.config.get("pretrained_cfg"))
    if described and hints.match in (None, "timm"):
        return _fields_from_timm(described)
    described = _as_mapping(folder.config.get("preprocess_cfg"))
    if described and hints.match in (None, "original"):
        return _read_fields(described, _OPEN_CLIP_FITS.get(str(described.get("resize_mode", "shortest"))))
    return {}, ()


def _fields_from_transformers(config: Mapping[str, Any]) -> _SpecFields:
    size = _as_mapping(config.get("size"))
    short, inner = _short_side(config), _processor_output_size(config)
    notes: tuple[str, ...] = ()
    if short and "longest_edge" in size:  # YOLOS, which keeps the aspect ratio and cuts nothing
        sides = f"a short side of {short} and at most {size['longest_edge']} pixels"
        notes, short = (f"its processor keeps the aspect ratio, with {sides}; here it is that of the model",), None
    outer = (short, short) if short else _parse_sides(config.get("size"))
    cut = bool(config.get("do_center_crop", short is not None)) and "max_height" not in size
    resample = config.get("resample")
    word = _INTERPOLATIONS.get(2 if resample is None else resample)
    interpolation, other = _check_interpolation(word, f"resample={resample!r}")
    notes = (*notes, *other)
    fields = {
        "mean": config.get("image_mean") if config.get("do_normalize", True) else [0.0],
        "std": config.get("image_std") if config.get("do_normalize", True) else [1.0],
        "interpolation": interpolation,
        "fit": "pad" if "max_height" in size else "crop" if short else "squash",
    }
    if cut and inner and outer:
        fields["crop_fraction"] = min(inner[0] / outer[0], 1.0)
        if abs(inner[0] * outer[1] - inner[1] * outer[0]) > max(outer) and not short:
            notes = (*notes, f"its processor cuts {inner} out of {outer}; here the fraction of the height serves both")
    return fields, notes


def _fields_from_timm(config: Mapping[str, Any]) -> _SpecFields:
    fit = {theirs: ours for ours, theirs in CROP_MODES.items()}.get(str(config.get("crop_mode")), "crop")
    crop = config.get("crop_pct") or 0.875  # timm's default
    fields, notes = _read_fields(config, fit)
    if fit == "pad":
        cut = f" and cuts {crop} out of it" if crop != 1 else ""
        return fields, (*notes, f"timm fills the border with the mean colour{cut}; here it is black and nothing is cut")
    return {**fields, "crop_fraction": float(crop)}, notes


def _read_fields(config: Mapping[str, Any], fit: str | None) -> _SpecFields:
    """The fields that timm and OpenCLIP call by the same names."""
    word = config.get("interpolation", "bicubic")
    interpolation, notes = _check_interpolation(word, f"interpolation={word!r}")
    fields = {"mean": config.get("mean"), "std": config.get("std"), "interpolation": interpolation, "fit": fit}
    return {**fields, "crop_start": "even"}, notes


def _check_interpolation(interpolation: object, label: str) -> tuple[object, tuple[str, ...]]:
    """An interpolation that Vitrail has; for any other one bicubic and a note."""
    if interpolation in PILLOW_RESAMPLE:
        return interpolation, ()
    return "bicubic", (f"its pictures are resized with {label}, which is not here: bicubic was taken",)


def _short_side(config: Mapping[str, Any]) -> int | None:
    """The length of the short side after a resize that keeps the aspect ratio; None for other resizes."""
    size = config.get("size")
    processor = str(config.get("image_processor_type", config.get("feature_extractor_type")))
    if processor.startswith(_SHORT_SIDE_PROCESSORS) and _positive_int(size):
        return _positive_int(size)
    return _positive_int(_as_mapping(size).get("shortest_edge"))


def _processor_output_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """(height, width) of the output of a processor of transformers; None if it does not give it."""
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
    """Note that a processor prepares another size than that of the position table, as DINOv2's do."""
    if not folder.preprocessor or hints.match not in (None, "transformers"):
        return ()
    inner = _processor_output_size(folder.preprocessor)
    if inner is None or inner == config.image_size:
        return ()
    (height, width), (rows, columns) = inner, config.image_size
    size = f"{height}" if height == width else f"({height}, {width})"
    prepares = f"its processor prepares pictures of {height}x{width} pixels, the model was loaded for {rows}x{columns}"
    return (f"{prepares}; image_size={size} does as the processor",)


def _positive_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _fit_channels(fields: Mapping[str, Any], channels: int) -> dict[str, Any]:
    """Mean and standard deviation for this number of channels; averaged if they are for another number."""
    fitted = dict(fields)
    for name in ("mean", "std"):
        if name in fitted:
            values = tuple(float(value) for value in fitted[name])
            fitted[name] = values if len(values) in (1, channels) else (sum(values) / len(values),)
    return fitted


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
