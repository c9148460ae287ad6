"""Good pictures and defects: the classes of a source as the task anomaly reads them, with defect types and masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, UsageError
from ..settings import DataSettings
from ..source import ImageInput, Source, spelling_key

GOOD, DEFECT = "good", "defect"
ANOMALY_CLASSES = (GOOD, DEFECT)
GOOD_WORDS = frozenset(("good", "ok", "okay", "normal", "pass", "passed", "healthy", "intact", "no defect", "negative"))
"""Names of the class of the good pictures."""
GOOD_FLAGS = frozenset(("0", "false", "no"))
"""The same in a column that says defect or not."""
TYPE_COLUMN = "defect_type"
"""Further column of the source: the class of each image as it was written."""
MASK_COLUMN = "mask"
"""Further column: the file of a mask in which the defect is not black; empty where there is none."""
MASK_FOLDER, MASK_ENDING = "ground_truth", "_mask.png"
"""Masks of a folder in the layout of MVTec AD: ground_truth/TYPE/000_mask.png for test/TYPE/000.png."""


def split_good_from_defects(source: Source, settings: DataSettings) -> Source:
    """The source with the classes good and defect; what each image was called is its `TYPE_COLUMN`.

    Raises:
        UsageError: no such class as `settings.good`, or a task other than one of K.
        DataError: the names do not say which class holds the good pictures, or it is empty.
    """
    if TYPE_COLUMN in source.metadata and source.classes == ANOMALY_CLASSES:
        return source  # opened before
    if source.targets.ndim != 1:
        raise UsageError(
            f"--task anomaly needs pictures of one class each, and {source.name} is a {source.task} source. Name the "
            "column that says good or not with --data.targets."
        )
    good = source.classes.index(_find_good_class(source, settings.good))
    types = [GOOD if k == good else source.classes[k] for k in source.targets.tolist()]
    if GOOD not in types:
        raise DataError(f"{source.name} has no good pictures. Those of defects are for evaluation only.")
    masks = _find_masks(source, types, settings)
    metadata = {**source.metadata, TYPE_COLUMN: types, **({MASK_COLUMN: masks} if any(masks) else {})}
    targets = (source.targets != good).astype(np.int64)
    return replace(source, task="anomaly", classes=ANOMALY_CLASSES, targets=targets, metadata=metadata)


def get_defect_types(source: Source, rows: NDArray[np.int64]) -> np.ndarray | None:
    """What the source calls these images, good or the type of their defect, n names; None for another task."""
    types = source.metadata.get(TYPE_COLUMN) if source.task == "anomaly" else None
    return None if types is None else np.array([str(types[row]) for row in rows.tolist()], object)


def _find_good_class(source: Source, named: str) -> str:
    names = {spelling_key(name): name for name in source.classes}
    known = ", ".join(map(repr, source.classes[:10]))
    if named:
        if spelling_key(named) not in names:
            raise UsageError(f"data.good {named!r} is no class of {source.name}. It has {known}.")
        return names[spelling_key(named)]
    for words in (GOOD_WORDS, GOOD_FLAGS):
        found = [name for key, name in names.items() if key in words]
        if len(found) == 1 and (words is GOOD_WORDS or len(names) <= 2):
            return found[0]
    if len(names) == 1:
        return source.classes[0]
    raise DataError(
        f"Which class of {source.name} holds the good pictures? It has {known}; say it with --data.good NAME."
    )


def _find_masks(source: Source, types: Sequence[str], settings: DataSettings) -> list[str]:
    """The file of each image's mask, "" for none: of a column of masks, or of the layout of MVTec AD."""
    if MASK_COLUMN in source.metadata:
        below = Path(settings.data_root or Path(settings.source).parent).expanduser()
        return [str(below / cell) if str(cell).strip() else "" for cell in source.metadata[MASK_COLUMN]]
    if isinstance(source.images, np.ndarray):
        return []
    return ["" if kind == GOOD else _find_mask_beside(image) for image, kind in zip(source.images, types, strict=True)]


def _find_mask_beside(image: ImageInput) -> str:
    if not isinstance(image, Path) or len(image.parts) < 4:
        return ""
    mask = image.parents[2] / MASK_FOLDER / image.parent.name / f"{image.stem}{MASK_ENDING}"
    return str(mask) if mask.is_file() else ""
