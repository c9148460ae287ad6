"""What the readers of annotation tools share: drawn regions of pictures as a source of class maps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from ...errors import DataError
from ...formatting import format_count
from ..labels.masks import UNKNOWN_NAMES, number_legend
from ..labels.run_lengths import encode_class_map
from ..settings import DataSettings, check_supported_settings
from ..source import MAX_MASK_CLASSES, UNKNOWN_PIXEL, Source, spelling_key
from .manifest import locate_images
from .mask_folders import build_mask_source

BACKGROUND = "background"
"""The class of pixels without a region."""
Region = tuple[str, Bool[np.ndarray, "H W"]]
"""A label and its pixels."""


@dataclass(frozen=True)
class AnnotatedImage:
    """A picture with its regions, later ones on top."""

    name: str
    """Its file, below the folder of the pictures."""
    size: tuple[int, int]
    """Height and width."""
    regions: Iterable[Region]


def build_annotated_source(
    path: Path, kind: str, images: Iterable[AnnotatedImage], labels: Sequence[str], settings: DataSettings
) -> Source:
    """The source of a file of annotations. Its pictures lie below --data-root, by default beside it.

    The classes are `background` and the labels, in their order; pixels of a label called unknown are left out.

    Args:
        kind: the tool, for messages.

    Raises:
        UsageError: settings that name columns.
        DataError: too many labels, no pictures, or pictures that are not there.
    """
    check_supported_settings(settings, "mask annotations", f"{path}, annotations of {kind},")
    known = [name for name in dict.fromkeys(labels) if spelling_key(name) not in UNKNOWN_NAMES]
    classes = tuple(known) if BACKGROUND in known else (BACKGROUND, *known)
    if len(classes) > MAX_MASK_CLASSES:
        raise DataError(
            f"{path} has {format_count(len(classes), 'label')}; masks have at most {MAX_MASK_CLASSES} classes."
        )
    numbers = {name: classes.index(name) for name in known}
    names: list[str] = []
    maps: list[str] = []
    for image in images:
        drawn = np.full(image.size, classes.index(BACKGROUND), np.uint8)
        for label, pixels in image.regions:
            drawn[pixels] = numbers.get(label, UNKNOWN_PIXEL)
        names.append(image.name)
        maps.append(encode_class_map(drawn))
    if not names:
        raise DataError(f"{path} names no annotated picture.")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(
            f"{path} has {format_count(len(twice), 'picture')} twice, such as {twice[0]}. Keep one of each."
        )
    root = Path(settings.data_root).expanduser() if settings.data_root else path.parent
    found, notes = locate_images(root, names, settings, lambda row: f"{path.name}, {names[row]}")
    return build_mask_source(root.absolute(), found, maps, notes=notes, legend=number_legend(classes), name=path.stem)


def read_annotation_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        DataError: it is not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON: {str(error).partition(chr(10))[0]}.") from error
