"""Open datasets in memory: (image, label) pairs, arrays, torch datasets and pandas DataFrames."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from ...errors import DataError
from ..settings import DataSettings, check_supported_settings
from ..source import ImageInput, Source
from .arrays import normalize_stack
from .column_roles import read_memory_table
from .huggingface import open_hf_dataset
from .image_input import check_single_image, tensor_to_array
from .label_input import Annotations, build_source, infer_labels, normalize_labels
from .lazy_sequences import DeferredImages, NumberedNames

EXPECTED_OBJECTS = (
    "Expected a list of (picture, label) pairs, a tuple (pictures, labels) of arrays, tensors or lists, a torch "
    "Dataset with a length, a DataFrame, or a Dataset or DatasetDict of the datasets library."
)


def open_object(obj: object, settings: DataSettings) -> Source:
    """Open an object that holds images and labels; images are fetched when they are needed.

    A list holds pairs; a tuple of two holds images and labels, unless both are pairs themselves. An image is a path,
    an array or tensor, or a Pillow image.

    Raises:
        DataError: something else, no rows, no images or labels, or ones that do not belong together.
    """
    if _is_library_class(obj, "pandas", "DataFrame"):
        return open_frame(obj, settings)
    if _is_library_class(obj, "datasets", "Dataset") or _is_library_class(obj, "datasets", "DatasetDict"):
        return open_hf_dataset(obj, settings)
    if isinstance(obj, DataLoader):
        raise DataError("A DataLoader makes batches of its own. Give its data set: loader.dataset.")
    if isinstance(obj, IterableDataset) or _is_library_class(obj, "datasets", "IterableDataset"):
        raise DataError(f"A {type(obj).__name__} has no length and no order. {EXPECTED_OBJECTS}")
    if isinstance(obj, Dataset) or _is_indexed(obj):
        return open_torch_dataset(obj, settings)
    if isinstance(obj, list | tuple) and _is_images_and_labels(obj):
        return open_images_and_labels(obj[0], obj[1], settings)
    if isinstance(obj, Sequence) and not isinstance(obj, str | bytes):
        return open_pairs(obj, settings)
    raise DataError(f"A {type(obj).__name__} is no source of pictures. {EXPECTED_OBJECTS}")


def open_images_and_labels(images: object, labels: object, settings: DataSettings) -> Source:
    """Open separate images and labels: an array or tensor [n, ...] or a list of images, and one label per image."""
    if isinstance(images, Tensor) or (isinstance(images, np.ndarray) and not images.dtype.hasobject):
        check_supported_settings(settings, "arrays", "what was given")
        values = tensor_to_array(images) if isinstance(images, Tensor) else images
        stack, notes = normalize_stack(values, "pictures", isinstance(images, Tensor))
        inferred = infer_labels(labels, len(stack), settings, "labels")
        annotations = Annotations(labels=inferred, notes=notes)
        return build_source("arrays", stack, NumberedNames("", len(stack)), annotations)
    if isinstance(images, str | bytes) or not isinstance(images, Sequence | np.ndarray):
        raise DataError(
            f"Pictures must be an array, a tensor or a list. Got a {type(images).__name__}. {EXPECTED_OBJECTS}"
        )
    return _open_listed(list(images), labels, settings, "pictures")


def open_pairs(pairs: Sequence[object], settings: DataSettings) -> Source:
    """Open (image, label) pairs."""
    check_supported_settings(settings, "pairs", "what was given")
    if not pairs:
        raise DataError("The list of (picture, label) pairs is empty.")
    images, labels = [], []
    for row, pair in enumerate(pairs):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            size = f" of {len(pair)}" if isinstance(pair, list | tuple) else ""
            raise DataError(f"Row {row:,} of the list is a {type(pair).__name__}{size}, expected (picture, label).")
        images.append(pair[0])
        labels.append(pair[1])
    return _open_listed(images, labels, settings, "pairs")


def _open_listed(images: list[object], labels: object, settings: DataSettings, name: str) -> Source:
    check_supported_settings(settings, "pairs", "what was given")
    inferred = infer_labels(labels, len(images), settings, "labels")
    collected, ids = collect_images(images)
    return build_source(name, collected, ids, Annotations(labels=inferred))


def collect_images(inputs: Sequence[object], root: Path | None = None) -> tuple[Sequence[ImageInput], Sequence[str]]:
    """Convert images of any kinds, and their ids: paths if all are distinct paths, else row numbers.

    Args:
        root: folder that relative paths belong to.
    """
    ids = NumberedNames("", len(inputs))
    paths = [os.fsdecode(image) for image in inputs if isinstance(image, str | os.PathLike)]
    if len(paths) == len(inputs):
        for path in paths:
            if "\0" in path or "://" in path:
                raise DataError(f"{path[:200]!r} is no path of a file on this machine.")
        images = tuple((root or Path()) / Path(path).expanduser() for path in paths)
        return images, tuple(paths) if len(set(paths)) == len(paths) else ids
    if all(isinstance(image, np.ndarray | Tensor) for image in inputs):
        arrays = []
        for row, image in enumerate(inputs):
            values = tensor_to_array(image) if isinstance(image, Tensor) else np.asarray(image)
            arrays.append(check_single_image(values, f"picture {row:,}", isinstance(image, Tensor)))
        return tuple(arrays), ids
    for row, image in enumerate(inputs):
        if not isinstance(image, str | os.PathLike | bytes | np.ndarray | Tensor | Image | dict):
            kind = "nothing" if image is None else f"a {type(image).__name__}"
            raise DataError(f"Picture {row:,} is {kind}, expected a path, an array, a tensor or a Pillow picture.")
    return DeferredImages(ids, lambda row: _memory_stamp(inputs[row]), inputs.__getitem__, serialize=True), ids


def _is_library_class(obj: object, package: str, name: str) -> bool:
    """Whether an object is of a class of a library, without importing that library."""
    return any(base.__name__ == name and base.__module__.partition(".")[0] == package for base in type(obj).__mro__)


def _is_indexed(obj: object) -> bool:
    """Whether an object other than a built-in container has rows and a length."""
    own = isinstance(obj, Sequence | np.ndarray | Tensor | dict | set | str | bytes)
    return not own and hasattr(type(obj), "__getitem__") and hasattr(type(obj), "__len__")


def _is_images_and_labels(obj: Sequence[object]) -> bool:
    if len(obj) != 2:
        return False
    if isinstance(obj, list):  # of pairs, unless its first entry is an array of many images
        return isinstance(obj[0], np.ndarray | Tensor) and obj[0].ndim > 2
    return not all(isinstance(each, tuple) for each in obj)


def _memory_stamp(image: object) -> str:
    """A text that identifies an image in memory without decoding it."""
    if isinstance(image, Image):
        return f"{image.mode} {image.size} {getattr(image, 'filename', '')}"
    if isinstance(image, bytes):
        return hashlib.sha256(image).hexdigest()
    return str(image) if isinstance(image, str | os.PathLike) else type(image).__name__


# -- Map-style datasets of torch and torchvision: labels are collected once, when the dataset is opened; images are
# fetched on demand, one at a time, because the dataset's code may not be thread-safe.

MAX_VERIFIED_LABELS = 100
"""Rows read to verify the listed labels."""


def open_torch_dataset(dataset: Any, settings: DataSettings) -> Source:
    """Open a map-style dataset whose rows are (image, label).

    Labels are taken from `.targets` or `.labels` where these exist and some rows agree with them, else every row is
    read for its label. `.classes` names the classes. The dataset's own transform runs whenever an image is fetched.
    """
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return open_images_and_labels(*dataset.tensors, settings)
    check_supported_settings(settings, "torch data set", f"a {_dataset_class_name(dataset)}")
    name, count = _dataset_class_name(dataset), len(dataset)
    if not count:
        raise DataError(f"This {name} has no rows.")
    _read_example(dataset, 0)
    labels, notes = _collect_labels(dataset, count)
    classes = _dataset_attribute(dataset, "classes")
    if not isinstance(classes, list | tuple) or len(classes) < 2 or not all(isinstance(each, str) for each in classes):
        classes = ()
    inferred = infer_labels(labels, count, settings, f"labels of this {name}", classes)
    ids = NumberedNames("", count)
    images = DeferredImages(
        ids, lambda row: f"{name} {count} {row}", lambda row: _read_example(dataset, row)[0], serialize=True
    )
    return build_source(name.lower(), images, ids, Annotations(labels=inferred, notes=notes))


def _innermost_dataset(dataset: Any) -> Any:
    """The dataset inside nested Subsets."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def _dataset_class_name(dataset: Any) -> str:
    return type(_innermost_dataset(dataset)).__name__


def _dataset_attribute(dataset: Any, name: str) -> Any:
    return getattr(_innermost_dataset(dataset), name, None)


def _read_example(dataset: Any, row: int) -> tuple[object, object]:
    """Read one row as (image, label)."""
    where = f"Row {row:,} of this {_dataset_class_name(dataset)}"
    try:
        example = dataset[row]
    except Exception as error:  # the dataset's code can raise anything
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{where} cannot be read ({type(error).__name__}: {reason}).") from error
    if not isinstance(example, list | tuple) or len(example) != 2:
        size = f" of {len(example)}" if isinstance(example, list | tuple | dict) else ""
        raise DataError(
            f"{where} is a {type(example).__name__}{size}, expected (picture, label). Wrap the data set in one whose "
            "__getitem__ returns the two."
        )
    return example[0], example[1]


def _collect_labels(dataset: Any, count: int) -> tuple[object, tuple[str, ...]]:
    """One label per row, and notes."""
    notes = []
    if any(_dataset_attribute(dataset, name) is not None for name in ("transform", "transforms")):
        notes.append(
            f"This {_dataset_class_name(dataset)} has a transform of its own, which runs first: leave random ones and "
            "normalisation to Vitrail."
        )
    known, why = _listed_labels(dataset), "for it has no list of labels"
    if known is not None and len(known) == count:
        firsts = {str(known[row]): row for row in reversed(range(count))}  # a row with each label
        rows = {0, count // 2, count - 1, *sorted(firsts.values())[:MAX_VERIFIED_LABELS]}
        pairs = ((_label_array(known[row]), _label_array(_read_example(dataset, row)[1])) for row in sorted(rows))
        if all(np.array_equal(listed, read) for listed, read in pairs):
            return known, tuple(notes)
        why = "for the labels that it lists are not those that its rows give"
    notes.append(f"Every row of this {_dataset_class_name(dataset)} was read once for its label, {why}.")
    return [_read_example(dataset, row)[1] for row in range(count)], tuple(notes)


def _listed_labels(dataset: Any) -> np.ndarray | list[object] | None:
    """The labels that a dataset lists, without reading images; None if it lists none."""
    if isinstance(dataset, Subset):
        inner = _listed_labels(dataset.dataset)
        return None if inner is None else [inner[int(row)] for row in dataset.indices]
    if isinstance(dataset, ConcatDataset):
        parts = [_listed_labels(part) for part in dataset.datasets]
        there = [part for part in parts if part is not None]
        return [label for part in there for label in part] if len(there) == len(parts) else None
    if _dataset_attribute(dataset, "target_transform") is not None:
        return None
    for name in ("targets", "labels"):
        listed = _dataset_attribute(dataset, name)
        if isinstance(listed, Tensor | np.ndarray) or (isinstance(listed, Sequence) and not isinstance(listed, str)):
            return normalize_labels(listed)
    return None


def _label_array(label: object) -> np.ndarray:
    return np.asarray(label.cpu() if isinstance(label, Tensor) else label)


# -- DataFrames of pandas: a column of paths, arrays or Pillow images, and columns of labels.


def open_frame(frame: Any, settings: DataSettings) -> Source:
    """Open a DataFrame; column roles are inferred by name and content, or taken from `settings`.

    Relative paths belong to `settings.data_root`, or to the working directory.
    """
    check_supported_settings(settings, "frame", "a DataFrame")
    names = [str(name) for name in frame.columns]
    if not len(frame):
        raise DataError("The DataFrame has no rows.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"The DataFrame has several columns called {twice!r}. Rename all but one.")

    def cells(name: str) -> Sequence[object]:
        """The cells of a column as Python values; None for every missing value of pandas."""
        column = frame.iloc[:, names.index(name)]
        return column.astype(object).where(column.notna(), None).tolist()

    firsts = {name: next((cell for cell in cells(name) if cell is not None), None) for name in names}
    images = [settings.path] if settings.path in names else [name for name in names if _is_image_cell(firsts[name])]
    if len(images) > 1:
        raise DataError(
            f"The DataFrame has several columns of pictures: {', '.join(map(repr, images))}. Name one with "
            f"--data.path {images[0]}."
        )
    image = images[0] if images else ""
    named = {image, *settings.targets, settings.split_column, settings.group}
    plain = [name for name in names if name in named or _is_plain_cell(firsts[name])]
    image, annotations = read_memory_table(plain, cells, image, settings, "DataFrame")
    root = Path(settings.data_root).expanduser() if settings.data_root else None
    collected, ids = collect_images(cells(image), root)
    return build_source("frame", collected, ids, annotations)


def _is_image_cell(cell: object) -> bool:
    """Whether a cell is an image itself, not a path to one."""
    if isinstance(cell, np.ndarray | Tensor):
        return cell.ndim >= 2
    return isinstance(cell, Image | bytes) or (isinstance(cell, dict) and bool({"bytes", "path"} & cell.keys()))


def _is_plain_cell(cell: object) -> bool:
    if isinstance(cell, np.ndarray | Tensor):
        return cell.ndim < 2
    return not _is_image_cell(cell) and not isinstance(cell, dict)
