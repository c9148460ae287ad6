"""`Source`: the index of a dataset that every reader returns: images, targets, ids, groups and published splits.

It decodes nothing. A row keeps its index for the whole run, so that random numbers keyed by that index do not change
when other images are left out.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol, cast, get_args, runtime_checkable

import numpy as np

from ..errors import DataError, UsageError
from ..formatting import format_count


@runtime_checkable
class LazyImage(Protocol):
    """An image inside a container: a member of a tar shard, a row of a table, an item of a user's dataset."""

    @property
    def name(self) -> str:
        """The name in messages and predictions."""
        ...

    @property
    def stamp(self) -> str:
        """A text that changes when the image does, known without reading it; part of the source's fingerprint."""
        ...

    def fetch(self) -> bytes | np.ndarray:
        """The encoded file's bytes, or the values. Called from several threads at once.

        Raises:
            DataError: it is gone or cannot be read.
        """
        ...


ImageInput = Path | np.ndarray | LazyImage
"""A file, an array [H, W] or [H, W, C] of any integer or float type, or a `LazyImage` that fetches either."""

Task = Literal["classification", "multilabel", "regression", "anomaly", "segmentation"]
SPLITS = ("train", "val", "test")
CHUNK = 4096  # images of an array hashed at a time


def parse_task(word: str) -> Task:
    """Check the name of a task.

    Raises:
        UsageError: there is no such task.
    """
    if word not in get_args(Task):
        *others, last = get_args(Task)
        raise UsageError(f"The task must be {', '.join(others)} or {last}. Got {word!r}.")
    return cast(Task, word)


UNKNOWN_PIXEL = 255
"""The class index of unknown pixels in class maps, which are uint8."""
MAX_MASK_CLASSES = UNKNOWN_PIXEL


@dataclass(frozen=True)
class MaskLegend:
    """Which stored values of masks are which classes."""

    classes: tuple[str, ...]
    codes: tuple[tuple[int, int], ...]
    """Pairs of a value (a class number, or a colour as 0xRRGGBB) and its class index, or `UNKNOWN_PIXEL`."""
    is_color: bool = False

    @property
    def table(self) -> dict[int, int]:
        """Class index by value."""
        return dict(self.codes)


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Images, their targets and their published splits, in a fixed order.

    Raises:
        DataError: the columns have different lengths, a target lies outside the classes, or two splits share a row.
    """

    name: str
    """The dataset's name in run folders and reports."""
    task: Task = "classification"
    """classes: one of K; labels: any of K (multilabel); number: regression."""
    classes: tuple[str, ...]
    """Names of the K outputs (of labels and number columns too), in order; always text."""
    images: Sequence[ImageInput] | np.ndarray
    """One image per row; images of one shape may be a single array [n, H, W] or [n, H, W, C]."""
    targets: np.ndarray
    """int64 [n] for classes (of anomaly: 0 good, 1 a defect), or float32 [n, K] whose rows sum to 1 (soft labels);
    float32 [n, K] for labels, 0..1;
    float64 [n, K] for numbers; in both NaN is unknown and masked; float32 [n, K] for segmentation: the fraction of the
    pixels of each image that are of each class, the rest being unknown."""
    ids: Sequence[str]
    """A name per row that is stable between runs."""
    groups: np.ndarray | None = None
    """Rows with an equal value (one patient, one module) never cross from one split to another."""
    splits: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Official splits: row numbers (int64) under train, val, test; those that were not published are absent."""
    reason: str = ""
    """Why this task was inferred, in a sentence; empty where there is nothing to infer."""
    metadata: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Further columns of the source, as text, one value per row: for subgroups and for the dataset check."""
    blocks: np.ndarray | None = None
    """int64 [n], ascending: the shard of each row, where reading shard by shard is much faster than random access."""
    notes: tuple[str, ...] = ()
    """Notes for the user on how the data was read, one sentence each."""
    weights: np.ndarray | None = None
    """float64 [n], above 0: the weight of each row in the training loss, of which only the ratios count; None is 1 for
    all. They are no part of the fingerprint, because images and targets are the same data with any weights."""

    legend: MaskLegend | None = None
    """Of segmentation: what the values of masks mean."""

    def __post_init__(self) -> None:
        n = len(self.images)
        columns = {"target": len(self.targets), "id": len(self.ids)}
        if self.groups is not None:
            columns["group"] = len(self.groups)
        if self.blocks is not None:
            columns["block"] = len(self.blocks)
        if self.weights is not None:
            columns["weight"] = len(self.weights)
        columns |= {f"value of {name!r}": len(values) for name, values in self.metadata.items()}
        for column, length in columns.items():
            if length != n:
                noun, of, name = column.partition(" of ")
                raise DataError(
                    f"{self.name} has {format_count(n, 'picture')} but {format_count(length, noun)}{of}{name}. "
                    "Each picture needs one."
                )
        self._check_targets()
        self._check_splits()
        if self.weights is not None and not ((self.weights > 0) & np.isfinite(self.weights)).all():
            raise DataError(f"Weights of {self.name} must be finite and above 0; leave out pictures of weight 0.")

    @property
    def has_soft_labels(self) -> bool:
        """Whether targets are probabilities over the classes rather than one class each."""
        return self.task == "classification" and self.targets.ndim == 2

    def __len__(self) -> int:
        return len(self.images)

    def fingerprint(self) -> str:
        """SHA-256 over ids, targets, groups and splits, and over the pixels of arrays or the sizes of files.

        The bytes of image files are not read, so that a million files take seconds. The source's own name is no part of
        it: a folder that was moved or renamed holds the same data.
        """
        return _hash_parts(self._fingerprint_parts())

    def has_fingerprint(self, recorded: object) -> bool:
        """Whether a recorded fingerprint is of this data; that of an older version may have the source's name in it."""
        if recorded == self.fingerprint():
            return True
        return recorded == _hash_parts(chain([_encode_name(self.name)], self._fingerprint_parts()))

    def _fingerprint_parts(self) -> Iterator[bytes]:
        yield from map(_encode_name, (self.task, *self.classes, *self.ids))
        yield np.ascontiguousarray(self.targets).tobytes()
        if self.groups is not None:
            yield _encode_name("\0".join(map(str, self.groups)))
        for split in sorted(self.splits):
            yield split.encode()
            yield np.asarray(self.splits[split], dtype="<i8").tobytes()
        if isinstance(self.images, np.ndarray):
            yield f"{self.images.dtype} {self.images.shape}".encode()
            for start in range(0, len(self), CHUNK):  # a mapped file is never whole in memory
                yield self.images[start : start + CHUNK].tobytes()
        else:
            yield from map(_fingerprint_image, self.images)

    def _check_targets(self) -> None:
        if self.task == "anomaly" or (self.task == "classification" and not self.has_soft_labels):
            wrong = (self.targets < 0) | (self.targets >= len(self.classes))
            rule = f"must lie in 0..{len(self.classes) - 1}, one number per class"
        else:
            if self.targets.ndim != 2 or self.targets.shape[1] != len(self.classes):
                raise DataError(
                    f"Targets of {self.name} must have one column per output, {len(self.classes)}. "
                    f"Got shape {self.targets.shape}."
                )
            wrong, rule = _find_invalid_targets(self.targets, self.task)
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise DataError(
                f"Targets of {self.name} {rule}. Got {self.targets[first]} at row {first} ({self.ids[first]}); "
                f"{format_count(int(np.count_nonzero(wrong)), 'such row')} in all."
            )

    def _check_splits(self) -> None:
        owner = np.full(len(self), -1)
        for number, (split, rows) in enumerate(self.splits.items()):
            if split not in SPLITS:
                raise DataError(f"Splits are called {', '.join(SPLITS)}. {self.name} has one called {split!r}.")
            if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
                raise DataError(
                    f"Split {split} of {self.name} names rows beyond its {format_count(len(self), 'picture')}."
                )
            taken = rows[owner[rows] >= 0]
            if len(taken):
                other = list(self.splits)[owner[taken[0]]]
                raise DataError(
                    f"{self.ids[taken[0]]} is in both {other} and {split} of {self.name} "
                    f"({format_count(len(taken), 'such picture')}). A picture belongs to one split."
                )
            owner[rows] = number


def _find_invalid_targets(targets: np.ndarray, task: Task) -> tuple[np.ndarray, str]:
    """Which rows of targets [n, K] break the task's rule, and the rule."""
    if task == "regression":
        return np.isinf(targets).any(1), "must be finite numbers, or NaN where unknown"
    beyond = np.any((targets < 0) | (targets > 1), axis=1)
    if task in ("multilabel", "segmentation"):
        return beyond, "must lie in 0..1, or be NaN where unknown"
    return beyond | ~np.isclose(targets.sum(1), 1, atol=1e-3), "must be probabilities that sum to 1"


def _hash_parts(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))  # so that "ab" + "c" differs from "a" + "bc"
        digest.update(part)
    return digest.hexdigest()


def _encode_name(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _fingerprint_image(image: ImageInput) -> bytes:
    if isinstance(image, np.ndarray):
        return f"{image.dtype} {image.shape} ".encode() + image.tobytes()
    if not isinstance(image, Path):
        return _encode_name(image.stamp)
    try:
        return str(image.stat().st_size).encode()
    except OSError:
        return b"missing"


# -- Names of splits and manifests, and the order of file names.

MANIFEST_EXTENSIONS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
# fmt: off
SPLIT_NAMES = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}
# fmt: on


def spelling_key(name: str) -> str:
    """Equal for names that differ only in case, spacing, invisible characters, or the width of their letters."""
    letters = unicodedata.normalize("NFKC", name).casefold()
    return " ".join("".join(letter for letter in letters if unicodedata.category(letter) != "Cf").split())


def natural_sort_key(name: str) -> tuple[tuple[str | tuple[int, str], ...], str]:
    """Sort key that orders 1, 2, 10 by value, for numbers of any length, and words without regard to case."""
    parts = re.split(r"([0-9]+)", name.casefold())
    return tuple(_digits_key(part) if place % 2 else part for place, part in enumerate(parts)), name


def _digits_key(digits: str) -> tuple[int, str]:
    """Sort key that orders integers of any length by value."""
    plain = digits.lstrip("0")
    return len(plain), plain
