"""Read images and labels from NumPy files: an `.npz` archive, or an `.npy` file with an `.npy` file of labels.

The role of an array follows from its name: x, images or pictures; y, labels or targets; train, val or test before or
after, so that x_train, train_images and testY are all understood. Headers are checked before anything is read;
uncompressed arrays are memory-mapped and read when they are used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import DataError
from ...files.npy import ArrayFile
from ...formatting import format_count
from ..settings import DataSettings, check_supported_settings
from ..source import SPLIT_NAMES, SPLITS, Source
from .image_input import check_numeric, is_channels_first
from .label_input import Annotations, build_source, infer_labels, normalize_labels
from .lazy_sequences import ConcatSequence, NumberedNames

IMAGE_ARRAY_NAMES = ("x", "image", "images", "img", "imgs", "picture", "pictures", "pixels", "photos", "data")
LABELS = ("y", "label", "labels", "target", "targets", "class", "category", "categories")
CLASS_ARRAY_NAMES = ("classes", "class_names", "label_names", "target_names", "categories", "names")
"""Names of arrays of texts that hold the class names."""
MAX_COPIED_BYTES = 2**30
"""Size in bytes up to which the splits are copied into one array; larger ones stay memory-mapped."""


class SplitArrays(NamedTuple):
    """The arrays of one split; "" where there are no splits."""

    split: str
    images: np.ndarray
    labels: np.ndarray
    groups: np.ndarray | None
    notes: tuple[str, ...] = ()


def open_arrays(path: Path, settings: DataSettings) -> Source:
    """Open the images of an `.npz` or `.npy` file.

    `settings.path`, `targets` and `group` name arrays of an archive, without their split; for a `.npy` file, `targets`
    names the file of labels in the same folder.

    Raises:
        DataError: no images, no labels, or arrays that do not belong together.
        DamagedFileError: a file is incomplete, or holds Python objects.
    """
    file = ArrayFile(path)
    single = "" in file.headers
    check_supported_settings(
        settings, "array" if single else "archive", f"{path}, whose arrays' names tell their splits,"
    )
    if single:
        return _build_source(path, [_read_npy_pair(file, settings)], (), settings, ())
    archive = _NpzArchive(file, settings)
    return _build_source(path, archive.read_splits(), archive.read_class_names(), settings, archive.unused_notes())


def _build_source(
    path: Path, parts: Sequence[SplitArrays], names: Sequence[str], settings: DataSettings, notes: tuple[str, ...]
) -> Source:
    ends = np.cumsum([len(part.images) for part in parts])
    groups = [part.groups for part in parts if part.groups is not None]
    rows = {part.split: np.arange(end - len(part.images), end) for part, end in zip(parts, ends, strict=True)}
    images = concat_stacks(str(path), parts)
    annotations = Annotations(
        labels=infer_labels(_concat_labels(path, parts), len(images), settings, str(path), names),
        groups=np.concatenate(groups) if groups else None,
        splits={split: rows[split] for split in SPLITS if split in rows},
        notes=(*notes, *(note for part in parts for note in part.notes)),
    )
    ids = ConcatSequence[str]([NumberedNames(part.split, len(part.images)) for part in parts])
    return build_source(path.stem, images, ids, annotations)


class _NpzArchive:
    """Group the arrays of an `.npz` file by split and by the rest of their names."""

    def __init__(self, file: ArrayFile, settings: DataSettings):
        self._file = file
        self._settings = settings
        self._names_by_split: dict[str, dict[str, str]] = {}  # split -> rest of the name -> name
        for name in file.headers:
            split, rest = parse_array_name(name)
            other = self._names_by_split.setdefault(split, {}).setdefault(rest, name)
            if other != name:
                raise DataError(f"{file.path} holds both {other} and {name}, which say the same. Rename one.")
        self._used_names: set[str] = set()

    def read_splits(self) -> list[SplitArrays]:
        """One part per split; where none is called train, images without a split are the training images."""
        splits = [split for split in (*SPLITS, "") if self._find_images(split)]
        if not splits:
            return [self._guess_by_axes()]
        if "train" in splits:
            splits = [split for split in splits if split]
        parts = [part for split in splits if (part := self._read_split(split)) is not None]
        if not parts:
            raise DataError(
                f"{self._file.path} holds pictures, {self._find_images(splits[0])!r}, but no labels. {_HOW}"
            )
        return parts

    def read_class_names(self) -> list[str]:
        """The class names; empty where there are none."""
        for rest in CLASS_ARRAY_NAMES:
            name = self._names_by_split.get("", {}).get(rest, "")
            if name and name not in self._used_names:
                header = self._file.headers[name]
                if header.dtype.kind in "SU" and len(header.shape) == 1:
                    self._used_names.add(name)
                    return [str(text) for text in normalize_labels(self._file.read(name))]
        return []

    def unused_notes(self) -> tuple[str, ...]:
        """Notes on arrays that were not used."""
        rest = [name for name in self._file.headers if name not in self._used_names]
        return (f"Arrays that were not used: {', '.join(rest)[:200]}.",) if rest else ()

    def _read_split(self, split: str) -> SplitArrays | None:
        """The arrays of one split; None if it has no labels."""
        images = self._find_images(split)
        shape = self._file.headers[images].shape
        labels = self._find_labels(split, shape[0] if shape else 0)
        if not labels:
            return None
        self._used_names |= {images, labels}
        groups = None
        if self._settings.group:
            name = self._names_by_split[split].get(parse_array_name(self._settings.group)[1])
            if name is None:
                raise DataError(
                    f"{self._file.path} has no array {self._settings.group!r} for its {split or 'pictures'}."
                )
            self._used_names.add(name)
            groups = self._file.read(name)
        return _read_arrays(self._file, split, images, self._file, labels, groups)

    def _find_images(self, split: str) -> str:
        """The name of the images; of several candidates, the one with enough axes for images."""
        candidates = self._find_arrays(split, self._settings.path, (*IMAGE_ARRAY_NAMES, ""))
        deep = [name for name in candidates if len(self._file.headers[name].shape) >= 3]
        if len(deep) > 1:
            raise DataError(
                f"{self._file.path} holds several arrays of pictures: {', '.join(deep)}. Name one with "
                f"--data.path {deep[0]}"
            )
        return (deep or candidates or [""])[0]

    def _find_labels(self, split: str, count: int) -> str:
        """The name of the labels; of several candidates, the one with one entry per image."""
        targets = self._settings.targets
        if len(targets) > 1:
            raise DataError(f"{self._file.path}: labels are one array [n] or [n, K]. Got --data.targets {targets}.")
        candidates = self._find_arrays(split, targets[0] if targets else "", LABELS)
        as_long = [name for name in candidates if self._file.headers[name].shape[:1] == (count,)]
        if len(as_long) > 1:
            raise DataError(
                f"{self._file.path} holds several arrays of labels: {', '.join(as_long)}. Name one with "
                f"--data.targets {as_long[0]}"
            )
        return (as_long or candidates or [""])[0]

    def _find_arrays(self, split: str, array_name: str, defaults: Iterable[str]) -> list[str]:
        """Names of a split that the settings name, or else the usual ones."""
        there = self._names_by_split.get(split, {})
        if array_name:
            return [name for rest, name in there.items() if rest == parse_array_name(array_name)[1]]
        return [there[rest] for rest in defaults if rest in there]

    def _guess_by_axes(self) -> SplitArrays:
        """Two arrays with default names of numpy.savez: the one with more axes holds the images."""
        headers = self._file.headers
        by_axes = sorted(headers, key=lambda name: len(headers[name].shape))
        if len(by_axes) != 2 or self._settings.path or self._settings.targets:
            raise DataError(
                f"{self._file.path} holds {_describe_arrays(self._file)}, and none is known for pictures. {_HOW}"
            )
        labels, images = by_axes
        if len(headers[labels].shape) > 2 or len(headers[images].shape) < 3:
            raise DataError(f"{self._file.path} holds {_describe_arrays(self._file)}: no pictures with labels. {_HOW}")
        self._used_names |= {labels, images}
        note = f"{images} was read as the pictures and {labels} as their labels, by their axes."
        part = _read_arrays(self._file, "", images, self._file, labels, None)
        return part._replace(notes=(note, *part.notes))


_HOW = (
    "Call the pictures x, images or pictures and their labels y, labels or targets, with train_, val_ or test_ before "
    "them where there are splits; or name them with --data.path IMAGES --data.targets LABELS."
)


def parse_array_name(name: str) -> tuple[str, str]:
    """The split in an array's name ("" for none), and its other words joined by underscores."""
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    words = re.findall(r"[a-z]+|[0-9]+", apart.lower())
    if len(words) == 1 and (glued := re.fullmatch(r"([xy])([a-z]+)|([a-z]+)([xy])", words[0])):
        one, two = (glued[1], glued[2]) if glued[1] else (glued[4], glued[3])
        words = [one, two] if two in SPLIT_NAMES else words
    splits = [SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES]
    rest = [word for word in words if word not in SPLIT_NAMES]
    if len(rest) > 1 and rest[-1] in LABELS and all(word in IMAGE_ARRAY_NAMES for word in rest[:-1]):
        rest = rest[-1:]  # image_labels
    return (splits[0] if len(splits) == 1 else ""), "_".join(rest if len(splits) <= 1 else words)


def _read_arrays(
    file: ArrayFile, split: str, images: str, label_file: ArrayFile, labels: str, groups: np.ndarray | None
) -> SplitArrays:
    for each, name in ((file, images), (label_file, labels)):
        if each.headers[name].dtype.hasobject:
            raise DataError(
                f"{each.describe_array(name)} holds Python objects, which can run anything when they are read, so it "
                "was not read. Save pictures of one size and their labels as arrays of numbers, pictures of many "
                "sizes as files."
            )
    stack, notes = normalize_stack(file.read(images), file.describe_array(images))
    targets = np.asarray(normalize_labels(label_file.read(labels)))
    if len(targets) != len(stack) or (groups is not None and len(groups) != len(stack)):
        raise DataError(
            f"{file.describe_array(images)} holds {format_count(len(stack), 'picture')}, but "
            f"{label_file.describe_array(labels)} {format_count(len(targets), 'label')}. Each picture needs one, in "
            "order."
        )
    return SplitArrays(split, stack, targets, groups, notes)


def _read_npy_pair(file: ArrayFile, settings: DataSettings) -> SplitArrays:
    """Read an `.npy` file and the `.npy` file of labels in its folder."""
    path = file.path
    if len(settings.targets) > 1:
        raise DataError(f"{path}: labels are one file. Got --data.targets {', '.join(settings.targets)}.")
    split, _ = parse_array_name(path.stem)
    beside = sorted(other for other in path.parent.glob("*.npy") if other != path)
    own = [other for other in beside if other.stem.lower() in (f"{path.stem}_labels".lower(), f"{path.stem}-labels")]
    names_of_labels = {(split, name) for name in LABELS}
    candidates = own or [other for other in beside if parse_array_name(other.stem) in names_of_labels]
    if settings.targets:
        candidates = [path.parent / settings.targets[0]]
    if len(candidates) != 1 or not candidates[0].is_file():
        several = f"several files may be its labels, {', '.join(other.name for other in candidates)}"
        only = f"there is no {candidates[0].name}" if candidates else "no file beside it holds labels"
        raise DataError(
            f"{path} holds pictures, and {several if len(candidates) > 1 else only}. Put their labels, one per picture "
            f"in order, into {path.stem}_labels.npy in the same folder, or name the file with --data.targets FILE."
        )
    labels = ArrayFile(candidates[0])
    if "" not in labels.headers:
        raise DataError(f"{candidates[0]} is no .npy file of labels.")
    return _read_arrays(file, "", "", labels, "", None)


def concat_stacks(where: str, parts: Sequence[SplitArrays]) -> np.ndarray | ConcatSequence[np.ndarray]:
    """Concatenate the images of splits to one array where this costs little memory.

    Raises:
        DataError: arrays of different types; `where` names them in the message.
    """
    stacks = [part.images for part in parts]
    first = parts[0]
    for part in parts:
        if part.images.dtype != first.images.dtype:
            raise DataError(
                f"{where}: pictures of {first.split} are {first.images.dtype}, those of {part.split} "
                f"{part.images.dtype}. One value range must fit all: save them with the same type."
            )
    if len(parts) == 1:
        return stacks[0]
    if len({stack.shape[1:] for stack in stacks}) == 1 and sum(stack.nbytes for stack in stacks) <= MAX_COPIED_BYTES:
        return np.concatenate(stacks)
    return ConcatSequence(stacks)


def _concat_labels(path: Path, parts: Sequence[SplitArrays]) -> np.ndarray:
    labels = [part.labels for part in parts]
    arrays = [each[:, 0] if each.ndim == 2 and each.shape[1] == 1 else each for each in labels]
    if len({(each.shape[1:], each.dtype.kind in "SU") for each in arrays}) > 1:
        pairs = zip(parts, arrays, strict=True)
        listing = ", ".join(f"{part.split} {each.dtype} {list(each.shape)}" for part, each in pairs)
        raise DataError(f"{path}: the labels of its splits are of different kinds: {listing}.")
    return np.concatenate(arrays)


def _describe_arrays(file: ArrayFile) -> str:
    return ", ".join(f"{name} {list(header.shape)}" for name, header in list(file.headers.items())[:8]) or "no arrays"


# -- Layout of arrays of images.


def normalize_stack(values: np.ndarray, where: str, is_tensor: bool = False) -> tuple[np.ndarray, tuple[str, ...]]:
    """Bring an array [n, H, W], [n, H, W, C] or [n, C, H, W] to channels last, with notes.

    Values are kept, fractions too: the value range is decided later, once, on the training images. Nothing is copied,
    except bools, which become 0 and 255.

    Args:
        where: the name of the array in messages.
        is_tensor: whether torch's order, channels first, is more likely.

    Raises:
        DataError: no stack of images; the message says why and how to give one.
    """
    if values.dtype.hasobject:
        raise DataError(
            f"{where} holds Python objects instead of numbers, as pictures of different sizes do. Save pictures of one "
            "size as one array [n, height, width, channels], and those of different sizes as files."
        )
    if values.ndim not in (3, 4):
        raise DataError(f"{where} has the shape {list(values.shape)}. {_axes_hint(values.shape)}")
    if values.size == 0:
        raise DataError(f"{where} has the shape {list(values.shape)}: no pictures, or pictures without pixels.")
    values = check_numeric(values, where)
    if values.ndim == 4 and is_channels_first(values.shape[1:], where, is_tensor):
        turned = values.transpose(0, 2, 3, 1)
        note = f"{where}: the shape {list(values.shape)} was read as [n, channels, height, width]."
        return turned, () if is_tensor else (note,)
    return values, ()


def _axes_hint(shape: tuple[int, ...]) -> str:
    """What to do about a number of axes other than 3 or 4."""
    if len(shape) == 5:
        return (
            "That is a volume or a film a row, and pictures have no depth or time: give its slices or frames as "
            "pictures of their own, [n, height, width, channels]."
        )
    if len(shape) == 2:
        side = math.isqrt(shape[1])
        square = f", perhaps {shape[0]} x {side} x {side}" if side > 1 and side * side == shape[1] else ""
        return f"A row of numbers is no picture: reshape it to [n, height, width]{square}."
    return "Pictures are [n, height, width], [n, height, width, channels] or [n, channels, height, width]."
