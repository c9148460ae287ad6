"""Read a folder in the layout of Pascal VOC: JPEGImages/, SegmentationClass/, and lists in ImageSets/Segmentation/."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...errors import DataError
from ...formatting import format_count
from ..labels.masks import COLOR_BASE, UNKNOWN_NAMES, number_legend
from ..settings import DataSettings, check_supported_settings
from ..source import SPLIT_NAMES, SPLITS, UNKNOWN_PIXEL, MaskLegend, Source, spelling_key
from .image_files import SkippedFiles, find_images
from .mask_folders import VOC_MASKS_FOLDER, build_mask_source

IMAGES_FOLDER, LISTS_FOLDER = "JPEGImages", "ImageSets/Segmentation"
LABEL_MAP = "labelmap.txt"
"""Names and colours, as CVAT writes them beside the folders: name:red,green,blue::"""
VOC_CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
"""The classes of the masks without a labelmap.txt, by their number."""


def open_voc(root: Path, settings: DataSettings) -> Source:
    """Every picture that has a mask; the lists train.txt, val.txt and test.txt are its splits.

    Raises:
        UsageError: settings that name columns.
        DataError: no picture has a mask, or a list names one that is not there.
    """
    check_supported_settings(settings, "mask folders", f"{root}, a folder in the layout of Pascal VOC,")
    skipped = SkippedFiles(root)
    masks = {str(Path(name).with_suffix("")): name for name in find_images(root / VOC_MASKS_FOLDER, skipped)}
    pictures = {str(Path(name).with_suffix("")): name for name in find_images(root / IMAGES_FOLDER, skipped)}
    stems = [stem for stem in pictures if stem in masks]
    if not stems:
        raise DataError(f"No picture in {root / IMAGES_FOLDER} has a mask of its name in {root / VOC_MASKS_FOLDER}.")
    left = len(pictures) - len(stems)
    return build_mask_source(
        root,
        [f"{IMAGES_FOLDER}/{pictures[stem]}" for stem in stems],
        [str((root / VOC_MASKS_FOLDER / masks[stem]).absolute()) for stem in stems],
        _read_lists(root / LISTS_FOLDER, stems),
        (f"Left out {format_count(left, 'picture')} of {root} without a mask.",) if left else (),
        _read_label_map(root / LABEL_MAP),
    )


def _read_lists(folder: Path, stems: list[str]) -> dict[str, np.ndarray]:
    """Rows by split, of the lists that are called as splits."""
    places = {stem: place for place, stem in enumerate(stems)}
    splits: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.txt")):
        split = SPLIT_NAMES.get(path.stem.lower())
        if split is None:
            continue
        listed = [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if lacking := [name for name in listed if name not in places]:
            raise DataError(f"{path} lists {lacking[0]}, which has no picture with a mask.")
        splits[split] = np.array([places[name] for name in listed], np.int64)
    return {split: splits[split] for split in SPLITS if split in splits}


def _read_label_map(path: Path) -> MaskLegend:
    """The legend of colours; without the file that of the twenty classes of VOC, by number."""
    if not path.is_file():
        return number_legend(VOC_CLASSES)
    names: list[str] = []
    table: list[tuple[int, int]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        try:
            red, green, blue = (int(part) for part in rest.split(":")[0].split(","))
        except ValueError as error:
            raise DataError(f"{path} must have lines of name:red,green,blue. Got {line!r}.") from error
        is_known = spelling_key(name) not in UNKNOWN_NAMES
        table.append(((red * COLOR_BASE + green) * COLOR_BASE + blue, len(names) if is_known else UNKNOWN_PIXEL))
        names += [name] if is_known else []
    return MaskLegend(tuple(names), tuple(table), is_color=True)
