"""Read a folder with images/ and masks/, with or without train/, val/ and test/ above them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ...errors import DataError
from ...formatting import format_count
from ..compact_strings import CompactStrings, RelativePaths
from ..labels.defects import MASK_COLUMN
from ..settings import DataSettings, check_supported_settings
from ..source import SPLIT_NAMES, SPLITS, MaskLegend, Source
from .class_folders import to_class_name
from .image_files import SkippedFiles, find_images

IMAGES_FOLDER, MASKS_FOLDER = "images", "masks"
VOC_MASKS_FOLDER = "SegmentationClass"
"""Of a folder in the layout of Pascal VOC, which `voc` reads."""
MASK_SUFFIX = "_mask"
"""A mask is called as its picture, or so with this behind."""


def open_mask_folders(root: Path, settings: DataSettings) -> Source:
    """Open every picture in images/ that has a mask of its name in masks/; `labels.masks.read_masks` reads the masks.

    Pictures without a mask and masks without a picture are left out and counted in the notes.

    Raises:
        UsageError: settings that name columns, which folders do not have.
        DataError: no such folders, or no picture with a mask.
    """
    check_supported_settings(settings, "mask folders", f"{root}, a folder of images/ and masks/,")
    parts = _list_parts(root)
    names: list[str] = []
    masks: list[str] = []
    splits: dict[str, np.ndarray] = {}
    notes: list[str] = []
    for split, folder in parts.items():
        skipped = SkippedFiles(folder)
        start, inside = len(names), "" if folder == root else f"{folder.name}/"
        drawn = {str(Path(name).with_suffix("")): name for name in find_images(folder / MASKS_FOLDER, skipped)}
        pictures = find_images(folder / IMAGES_FOLDER, skipped)
        without = 0
        for name in pictures:
            stem = str(Path(name).with_suffix(""))
            mask = drawn.pop(stem, "") or drawn.pop(f"{stem}{MASK_SUFFIX}", "")
            without += not mask
            if mask:
                names.append(f"{inside}{IMAGES_FOLDER}/{name}")
                masks.append(str((folder / MASKS_FOLDER / mask).absolute()))
        if without:
            notes.append(f"Left out {format_count(without, 'picture')} of {folder} without a mask.")
        if drawn:
            example = next(iter(drawn.values()))
            notes.append(
                f"Left out {format_count(len(drawn), 'mask')} of {folder} without a picture, such as {example}."
            )
        if split:
            splits[split] = np.arange(start, len(names))
    if not names:
        raise DataError(
            f"No picture of {root} has a mask: {IMAGES_FOLDER}/a.jpg needs {MASKS_FOLDER}/a.png."
            f"{''.join(f' {note}' for note in notes)}"
        )
    return build_mask_source(root, names, masks, splits, tuple(notes))


def build_mask_source(
    root: Path,
    names: Sequence[str],
    masks: Sequence[str],
    splits: Mapping[str, np.ndarray] | None = None,
    notes: tuple[str, ...] = (),
    legend: MaskLegend | None = None,
    name: str = "",
) -> Source:
    """The source of pictures below a folder with their masks, whose classes `labels.masks.read_masks` counts.

    Args:
        names: of the pictures, below the folder.
        masks: absolute paths, or class maps as text.
        name: of the source; by default that of the folder.
    """
    return Source(
        name=to_class_name(name or root.resolve().name) or "root",
        task="segmentation",
        classes=(MASK_COLUMN,),
        images=RelativePaths(root, CompactStrings(names)),
        targets=np.zeros((len(names), 1), np.float32),
        ids=CompactStrings(map(to_class_name, names)),
        splits=splits or {},
        metadata={MASK_COLUMN: masks},
        notes=notes,
        legend=legend,
    )


def _list_parts(root: Path) -> dict[str, Path]:
    """The folders that hold images/ and masks/, by split; "" for the root itself."""
    if (root / IMAGES_FOLDER).is_dir() and (root / MASKS_FOLDER).is_dir():
        return {"": root}
    found = {
        SPLIT_NAMES[folder.name.lower()]: folder
        for folder in sorted(root.iterdir())
        if folder.name.lower() in SPLIT_NAMES and (folder / IMAGES_FOLDER).is_dir() and (folder / MASKS_FOLDER).is_dir()
    }
    if not found:
        raise DataError(
            f"{root} is no folder of pictures and masks. --task segmentation needs {IMAGES_FOLDER}/ and "
            f"{MASKS_FOLDER}/ in it (or in its train/, val/ and test/) with files of equal names, or a manifest with a "
            f"column {MASK_COLUMN}."
        )
    return {split: found[split] for split in SPLITS if split in found}
