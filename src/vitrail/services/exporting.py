"""From a MODEL to files that answer as it does: one for ONNX Runtime or PyTorch, or a folder of another library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from ..data.decoding.decode import decode_image
from ..data.source import ImageInput
from ..errors import DataError, UsageError
from ..export import build
from ..export.build import ExportFormat
from ..export.quantize import EXPORT_PRECISIONS, ExportPrecision, check_precision_support, export_reduced_precision
from ..export.verify import PrecisionAgreement
from ..predict.image_paths import expand_image_paths
from ..randomness import derive
from ..spec import ImageSpec
from . import conversion
from .evaluation import LabelledImages, load_held_out
from .open_model import find_model
from .prediction import open_predictor

EXPORT_TARGETS = (*build.EXPORT_FORMATS, *conversion.CONVERSION_TARGETS)
NUM_AGREEMENT_IMAGES = 500
"""On which a file of fewer bits is compared with the model."""


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """What was written, and how it was proved."""

    path: Path
    """The file or folder."""
    to: str
    difference: float
    """Largest difference of two scores, or for a folder of two outputs."""
    num_images: int
    """That were compared."""
    num_changed: int = 0
    """Images on a threshold that the file decides otherwise."""
    agreement: PrecisionAgreement | None = None
    """Of a file of fewer bits, how often it decides as float32 does, and how fast."""
    notes: tuple[str, ...]
    """The proof in words, and what a person should know about the file."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """How a file is to be made.

    Raises:
        UsageError: no such precision, or images to calibrate something that is not int8.
    """

    resize: bool = False
    """Let it take images of any size."""
    precision: ExportPrecision = "float32"
    """In which its matrices are multiplied."""
    calibrate: str | Path | None = None
    """An image, folder, pattern or @list.txt that int8 is fitted to; None takes the run's training images."""
    force: bool = False
    """Keep a file of fewer bits although too many decisions differ from float32."""

    def __post_init__(self) -> None:
        if self.precision not in EXPORT_PRECISIONS:
            raise UsageError(f"A precision is one of {', '.join(EXPORT_PRECISIONS)}. Got {self.precision!r}.")
        if self.calibrate is not None and self.precision != "int8":
            raise UsageError(f"Only int8 is fitted to pictures. Got --calibrate with --precision {self.precision}.")
        if self.force and self.precision == "float32":
            raise UsageError("A float32 file answers as the model does or is not kept; there is nothing to --force.")


DEFAULT_EXPORT_OPTIONS = ExportOptions()


def export_model(
    model_name: str,
    to: str,
    out: Path | None = None,
    options: ExportOptions = DEFAULT_EXPORT_OPTIONS,
    trained_on: object | None = None,
) -> ExportResult:
    """Write a model in another form, compare its answers, and keep it if they are equal.

    Args:
        model_name: a run folder, a bundle, a published classifier.
        to: one of `TARGETS`.
        out: the file or folder to make; None makes one in the run's `exports/`, or beside another model.
        options: of onnx and pt2 files.
        trained_on: the object that a run was trained on, if it was one.

    Raises:
        UsageError: no such target, `out` exists, the target cannot express a part of the model, or int8 has no images
            to be fitted to.
        DamagedFileError: what was written answers otherwise; nothing is kept.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    kind = _parse_export_format(to)
    place = out or default_export_path(model_name, to, options.precision)
    if kind is not None:
        return _export_file(model_name, kind, place, options, trained_on)
    if options != DEFAULT_EXPORT_OPTIONS:
        raise UsageError(f"--resize and --precision are for onnx and pt2, whose files hold a graph. Got --to {to}.")
    converted = conversion.convert_model(find_model(model_name), conversion.parse_conversion_target(to), place)
    compared = (
        f"compared on {converted.num_images} random pictures: outputs differ by at most {converted.difference:.2g}"
    )
    return ExportResult(
        path=converted.path, to=to, difference=converted.difference, num_images=converted.num_images,
        notes=(compared, *converted.notes),
    )  # fmt: skip


def default_export_path(model_name: str, to: str, precision: ExportPrecision = "float32") -> Path:
    """Where an export goes when nobody says: into the run's `exports/`, or beside another model."""
    kind = _parse_export_format(to)
    ending = "" if precision == "float32" else f"-{precision}"
    if (Path(model_name) / "plan.toml").is_file():
        name = f"model{ending}.{kind}" if kind else conversion.add_extension(to, conversion.parse_conversion_target(to))
        return Path(model_name) / "exports" / name
    if kind is None:
        return conversion.default_conversion_path(model_name, conversion.parse_conversion_target(to))
    beside = conversion.default_conversion_path(model_name, "bundle")  # called NAME-bundle
    return beside.with_name(f"{beside.name.removesuffix('-bundle')}{ending}.{kind}")


def _parse_export_format(to: str) -> ExportFormat | None:
    """Which file a target is; None for a folder or file of another library.

    Raises:
        UsageError: there is no such target.
    """
    if to not in EXPORT_TARGETS:
        raise UsageError(
            f"A model can be exported as {', '.join(EXPORT_TARGETS[:-1])} or {EXPORT_TARGETS[-1]}. Got {to!r}."
        )
    return next((known for known in build.EXPORT_FORMATS if known == to), None)


def _export_file(
    model_name: str, kind: ExportFormat, out: Path, options: ExportOptions, trained_on: object | None
) -> ExportResult:
    build.check_export_path(out, kind)
    check_precision_support(kind, options.precision)
    if options.precision != "float32":
        return _export_reduced_file(model_name, kind, out, options, trained_on)
    member = open_predictor(model_name, "cpu").single_member()
    pictures, whose = load_comparison_images(
        Path(model_name), member.spec, options.resize, trained_on, NUM_COMPARISON_IMAGES
    )
    proof, resized = build.export_file(member, kind, out, pictures, options.resize)
    notes = [str(proof), whose]
    if resized is not None:
        notes.append(f"resizing by itself, {resized}")
    if member.settings.precision != "float32":
        notes.append(f"the model was evaluated in {member.settings.precision}; this file computes in float32")
    proofs = [proof] if resized is None else [proof, resized]
    return ExportResult(
        path=out, to=kind, difference=max(one.difference for one in proofs), num_images=proof.num_images,
        num_changed=max(one.num_changed for one in proofs), notes=tuple(notes),
    )  # fmt: skip


def _export_reduced_file(
    model_name: str, kind: ExportFormat, out: Path, options: ExportOptions, trained_on: object | None
) -> ExportResult:
    member = open_predictor(model_name, "cpu").single_member()
    calibration: list[DecodedArray] = []
    fitted = ""
    if options.precision == "int8":
        calibration, fitted = load_calibration_images(Path(model_name), member.spec, options.calibrate, trained_on)
    pictures, whose = load_comparison_images(
        Path(model_name), member.spec, options.resize, trained_on, NUM_AGREEMENT_IMAGES
    )
    agreed = export_reduced_precision(
        member, kind, options.precision, out, pictures, calibration, options.resize, options.force
    )
    notes = tuple(note for note in (str(agreed), whose, fitted) if note)
    return ExportResult(
        path=out, to=kind, difference=agreed.difference, num_images=agreed.num_images, agreement=agreed, notes=notes
    )


# Images that an exported file is compared on, and those that int8 is fitted to: the run's own, if they are here.

NUM_COMPARISON_IMAGES = 100
"""Drawn ones."""
NUM_CALIBRATION_IMAGES = 128
"""On so many the ranges of activations are read."""
DecodedArray = UInt8[np.ndarray, "H W C"]


def load_comparison_images(
    model_path: Path,
    spec: ImageSpec,
    any_size: bool,
    trained_on: object | None,
    max_images: int = NUM_COMPARISON_IMAGES,
) -> tuple[list[DecodedArray], str]:
    """Decoded images to compare on, and whose they are: those that a run held out, or drawn ones.

    Args:
        any_size: let drawn ones have another size than the model's.
        trained_on: the object that the run was trained on, if it was one.
        max_images: images of the run, evenly from its split.
    """
    why = "no run has held out any"
    if (model_path / "plan.toml").is_file():
        try:
            labelled = load_held_out(model_path, None, trained_on)
            found = _sample_images(labelled, spec, max_images)
            if found:
                return found, f"on pictures of the run's own {labelled.split} split"
            why = "none of the run's own can be read"
        except (DataError, UsageError) as error:
            why = f"those of the run are not here ({error})"
    size = (spec.height * 3 // 2, spec.width * 5 // 4) if any_size else spec.size
    return list(draw_synthetic_images(*size, spec.channels)), f"on drawn pictures, because {why}"


def load_calibration_images(
    model_path: Path, spec: ImageSpec, source: str | Path | None, trained_on: object | None
) -> tuple[list[DecodedArray], str]:
    """Decoded images that int8 is fitted to, and whose they are: what was named, or the run's training images.

    Args:
        source: an image, folder, pattern or @list.txt.

    Raises:
        UsageError: nothing was named and no run has training images here; drawn ones would fit nothing.
        DataError: what was named holds no image that can be read.
    """
    if source is not None:
        named = expand_image_paths([str(source)])
        places = np.linspace(0, len(named) - 1, min(NUM_CALIBRATION_IMAGES, len(named))).astype(np.int64)
        found = [decode_image(named[place], spec) for place in places.tolist()]
        return found, f"calibrated on {len(found):,} pictures of {source}"
    missing = "name some with --calibrate FOLDER"
    if not (model_path / "plan.toml").is_file():
        raise UsageError(
            f"int8 is fitted to pictures like those to come, and {model_path} is no run that has some: {missing}."
        )
    try:
        found = _sample_images(load_held_out(model_path, "train", trained_on), spec, NUM_CALIBRATION_IMAGES)
    except (DataError, UsageError) as error:
        raise UsageError(
            f"int8 is fitted to the run's training pictures, which are not here ({error}): {missing}."
        ) from error
    if not found:
        raise UsageError(f"int8 is fitted to the run's training pictures, and none of them can be read: {missing}.")
    return found, f"calibrated on {len(found):,} training pictures of the run"


def draw_synthetic_images(
    height: int, width: int, channels: int, count: int = NUM_COMPARISON_IMAGES
) -> UInt8[np.ndarray, "n H W C"]:
    """Images of soft and sharp edges and noise, the same each time."""
    generator = np.random.default_rng(derive(0, "pictures to compare an export on"))
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = np.zeros((count, height, width, channels))
    for _ in range(4):
        turn, speed, phase = generator.uniform(0, 2 * np.pi, (3, count, 1, 1, channels))
        along = np.cos(turn) * x[None, :, :, None] + np.sin(turn) * y[None, :, :, None]
        waves += np.sin(2 * speed * np.pi * along + phase)
    sharp = generator.uniform(size=(count, 1, 1, 1)) < 0.5
    noise = generator.normal(0, generator.uniform(0, 60, (count, 1, 1, 1)), waves.shape)
    return np.rint(128 + 30 * np.where(sharp, 3 * np.sign(waves), waves) + noise).clip(0, 255).astype(np.uint8)


def _sample_images(labelled: LabelledImages, spec: ImageSpec, max_images: int) -> list[DecodedArray]:
    """Evenly from all, less those that cannot be read."""
    pictures = labelled.images
    places = np.linspace(0, len(pictures) - 1, min(max_images, len(pictures))).astype(np.int64)
    return list(_decode_readable((pictures[place] for place in places.tolist()), spec))


def _decode_readable(images: Iterable[ImageInput], spec: ImageSpec) -> Iterator[DecodedArray]:
    for picture in images:
        try:
            yield decode_image(picture, spec)
        except DataError:  # the run may have left it out, too; the others are enough
            continue
