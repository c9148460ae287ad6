"""Pictures that an exported file is compared on, and those that int8 is fitted to: the run's own, if they are here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from ..data.decoding.decode import decode_image
from ..data.source import ImageInput
from ..errors import DataError, UsageError
from ..predict.image_paths import expand_image_paths
from ..randomness import derive
from ..spec import ImageSpec
from .evaluation import Labelled, held_out

PICTURES = 100
"""Drawn ones."""
CALIBRATING = 128
"""On so many the ranges of activations are read."""
Decoded = UInt8[np.ndarray, "H W C"]


def to_compare_on(
    model: Path, spec: ImageSpec, any_size: bool, trained_on: object | None, most: int = PICTURES
) -> tuple[list[Decoded], str]:
    """Decoded pictures to compare on, and whose they are: those that a run held out, or drawn ones.

    Args:
        any_size: let drawn ones have another size than the model's.
        trained_on: the object that the run was trained on, if it was one.
        most: pictures of the run, evenly from its split.
    """
    why = "no run has held out any"
    if (model / "plan.toml").is_file():
        try:
            labelled = held_out(model, None, trained_on)
            found = _some(labelled, spec, most)
            if found:
                return found, f"on pictures of the run's own {labelled.split} split"
            why = "none of the run's own can be read"
        except (DataError, UsageError) as error:
            why = f"those of the run are not here ({error})"
    size = (spec.height * 3 // 2, spec.width * 5 // 4) if any_size else spec.size
    return list(drawn(*size, spec.channels)), f"on drawn pictures, because {why}"


def to_calibrate_on(
    model: Path, spec: ImageSpec, given: str | Path | None, trained_on: object | None
) -> tuple[list[Decoded], str]:
    """Decoded pictures that int8 is fitted to, and whose they are: what was named, or the run's training pictures.

    Args:
        given: a picture, folder, pattern or @list.txt.

    Raises:
        UsageError: nothing was named and no run has training pictures here; drawn ones would fit nothing.
        DataError: what was named holds no picture that can be read.
    """
    if given is not None:
        named = expand_image_paths([str(given)])
        places = np.linspace(0, len(named) - 1, min(CALIBRATING, len(named))).astype(np.int64)
        found = [decode_image(named[place], spec) for place in places.tolist()]
        return found, f"calibrated on {len(found):,} pictures of {given}"
    missing = "name some with --calibrate FOLDER"
    if not (model / "plan.toml").is_file():
        raise UsageError(
            f"int8 is fitted to pictures like those to come, and {model} is no run that has some: {missing}."
        )
    try:
        found = _some(held_out(model, "train", trained_on), spec, CALIBRATING)
    except (DataError, UsageError) as error:
        raise UsageError(
            f"int8 is fitted to the run's training pictures, which are not here ({error}): {missing}."
        ) from error
    if not found:
        raise UsageError(f"int8 is fitted to the run's training pictures, and none of them can be read: {missing}.")
    return found, f"calibrated on {len(found):,} training pictures of the run"


def drawn(height: int, width: int, channels: int, count: int = PICTURES) -> UInt8[np.ndarray, "n H W C"]:
    """Pictures of soft and sharp edges and noise, the same each time."""
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


def _some(labelled: Labelled, spec: ImageSpec, most: int) -> list[Decoded]:
    """Evenly from all, less those that cannot be read."""
    pictures = labelled.pictures
    places = np.linspace(0, len(pictures) - 1, min(most, len(pictures))).astype(np.int64)
    return list(_readable((pictures[place] for place in places.tolist()), spec))


def _readable(pictures: Iterable[ImageInput], spec: ImageSpec) -> Iterator[Decoded]:
    for picture in pictures:
        try:
            yield decode_image(picture, spec)
        except DataError:  # the run may have left it out, too; the others are enough
            continue
