"""Pictures that a person holds in Python: pairs, arrays, tables and other libraries' data sets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL.Image import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ...errors import DataError
from ..honoured import refuse_others
from ..settings import DataSettings
from ..source import Picture, Source
from .answers import answers_of
from .assemble import assemble
from .given import array_of, one_picture
from .rows import Items, Numbered
from .stacks import stack_of

EXPECTED = (
    "Expected a list of (picture, label) pairs, a tuple (pictures, labels) of arrays, tensors or lists, a torch "
    "Dataset with a length, a DataFrame, or a Dataset or DatasetDict of the datasets library."
)


def open_object(given: object, settings: DataSettings) -> Source:
    """A source of whatever holds pictures and labels; pictures stay where they are until they are needed.

    A list holds pairs; a tuple of two holds pictures and labels, unless both are pairs themselves. A picture is a path,
    an array or tensor, or a Pillow picture.

    Raises:
        DataError: something else, or pictures and labels that do not belong together.
    """
    if _is(given, "pandas", "DataFrame"):
        from .frames import open_frame

        return open_frame(given, settings)
    if _is(given, "datasets", "Dataset") or _is(given, "datasets", "DatasetDict"):
        from .hf_datasets import open_loaded

        return open_loaded(given, settings)
    if isinstance(given, DataLoader):
        raise DataError("A DataLoader makes batches of its own. Give its data set: loader.dataset.")
    if isinstance(given, IterableDataset) or _is(given, "datasets", "IterableDataset"):
        raise DataError(f"A {type(given).__name__} has no length and no order. {EXPECTED}")
    if isinstance(given, Dataset) or _is_indexed(given):
        from .torch_datasets import open_dataset

        return open_dataset(given, settings)
    if isinstance(given, list | tuple) and _is_two(given):
        return open_two(given[0], given[1], settings)
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return open_pairs(given, settings)
    raise DataError(f"A {type(given).__name__} is no source of pictures. {EXPECTED}")


def open_two(pictures: object, labels: object, settings: DataSettings) -> Source:
    """Pictures and labels apart: an array or tensor [n, ...], or a list of any pictures, and one label a picture."""
    if isinstance(pictures, Tensor) or (isinstance(pictures, np.ndarray) and not pictures.dtype.hasobject):
        refuse_others(settings, "arrays", "what was given")
        is_tensor = isinstance(pictures, Tensor)
        stack, notes = stack_of(array_of(pictures) if isinstance(pictures, Tensor) else pictures, "pictures", is_tensor)
        answers = answers_of(labels, len(stack), settings, "labels")
        return assemble("arrays", stack, Numbered("", len(stack)), answers, notes=notes)
    if isinstance(pictures, str | bytes) or not isinstance(pictures, Sequence | np.ndarray):
        raise DataError(f"Pictures must be an array, a tensor or a list. Got a {type(pictures).__name__}. {EXPECTED}")
    refuse_others(settings, "pairs", "what was given")
    answers = answers_of(labels, len(pictures), settings, "labels")
    found, ids = pictures_of(list(pictures))
    return assemble("pictures", found, ids, answers)


def open_pairs(pairs: Sequence[object], settings: DataSettings) -> Source:
    """(picture, label) pairs."""
    refuse_others(settings, "pairs", "what was given")
    if not pairs:
        raise DataError("The list of (picture, label) pairs is empty.")
    split: list[tuple[object, object]] = []
    for row, pair in enumerate(pairs):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            size = f" of {len(pair)}" if isinstance(pair, list | tuple) else ""
            raise DataError(f"Row {row:,} of the list is a {type(pair).__name__}{size}, expected (picture, label).")
        split.append((pair[0], pair[1]))
    answers = answers_of([label for _, label in split], len(split), settings, "labels")
    pictures, ids = pictures_of([picture for picture, _ in split])
    return assemble("pairs", pictures, ids, answers)


def pictures_of(given: Sequence[object], root: Path | None = None) -> tuple[Sequence[Picture], Sequence[str]]:
    """Pictures of one kind or several, and their ids: paths if all are paths that differ, else row numbers.

    Args:
        root: folder that relative paths belong to.

    Raises:
        DataError: something that is no picture.
    """
    if all(isinstance(picture, str | os.PathLike) for picture in given):
        return _paths(given, root)
    if all(isinstance(picture, np.ndarray | Tensor) for picture in given):
        arrays = []
        for row, picture in enumerate(given):
            values = array_of(picture) if isinstance(picture, Tensor) else np.asarray(picture)
            arrays.append(one_picture(values, f"picture {row:,}", isinstance(picture, Tensor)))
        return tuple(arrays), Numbered("", len(given))
    for row, picture in enumerate(given):
        if not isinstance(picture, str | os.PathLike | bytes | np.ndarray | Tensor | Image | dict):
            kind = "nothing" if picture is None else f"a {type(picture).__name__}"
            raise DataError(f"Picture {row:,} is {kind}, expected a path, an array, a tensor or a Pillow picture.")
    ids = Numbered("", len(given))
    return Items(ids, lambda row: _stamp(given[row]), given.__getitem__, one_at_a_time=True), ids


def _paths(given: Sequence[object], root: Path | None) -> tuple[Sequence[Path], Sequence[str]]:
    names = [os.fspath(picture) for picture in given if isinstance(picture, str | os.PathLike)]
    texts = [os.fsdecode(name) for name in names]
    if other := next((text for text in texts if "\0" in text or "://" in text), None):
        raise DataError(f"{other[:200]!r} is no path of a file on this machine.")
    paths = [(root or Path()) / Path(text).expanduser() for text in texts]
    return tuple(paths), tuple(texts) if len(set(texts)) == len(texts) else Numbered("", len(texts))


def _is(given: object, package: str, name: str) -> bool:
    """Whether an object is of a class of a library, which need not be imported to ask."""
    return any(base.__name__ == name and base.__module__.partition(".")[0] == package for base in type(given).__mro__)


def _is_indexed(given: object) -> bool:
    """Whether an object that is no container of Python's own has rows and a length."""
    own = isinstance(given, Sequence | np.ndarray | Tensor | dict | set | str | bytes)
    return not own and hasattr(type(given), "__getitem__") and hasattr(type(given), "__len__")


def _is_two(given: Sequence[object]) -> bool:
    if len(given) != 2:
        return False
    if isinstance(given, list):  # of pairs, unless it begins with an array of many pictures
        return isinstance(given[0], np.ndarray | Tensor) and given[0].ndim > 2
    return not all(isinstance(each, tuple) for each in given)


def _stamp(picture: object) -> str:
    """What tells a picture in memory from another without decoding it."""
    if isinstance(picture, Image):
        return f"{picture.mode} {picture.size} {getattr(picture, 'filename', '')}"
    if isinstance(picture, bytes):
        return hashlib.sha256(picture).hexdigest()
    return str(picture) if isinstance(picture, str | os.PathLike) else type(picture).__name__
