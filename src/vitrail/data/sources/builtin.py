"""Open well-known datasets by name: CIFAR-10 and CIFAR-100, MNIST and Fashion-MNIST, and scikit-learn's digits."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from ...errors import DataError
from ...files.pickles import PickledValue, load_pickled_arrays
from ...formatting import format_count
from ..source import Source
from .lazy_sequences import ConcatSequence, NumberedNames

MAX_BATCH_BYTES = 256 * 2**20
"""Largest batch file in bytes; CIFAR-100's 50,000 images take 155 million."""
MAX_UNPACKED_BYTES = 2**29
"""Largest unpacked size of an archive in bytes."""
SIDE = 32


@dataclass(frozen=True)
class CifarLayout:
    """Names of the files of CIFAR-10 or CIFAR-100, and of the entries in them."""

    name: str
    folder: str
    archive: str
    md5: str
    """Of the archive, as published."""
    train: tuple[str, ...]
    test: str
    meta: str
    labels: str
    class_names: str


CIFAR10 = CifarLayout(
    name="cifar10",
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    meta="batches.meta",
    labels="labels",
    class_names="label_names",
)
CIFAR100 = CifarLayout(
    name="cifar100",
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
    train=("train",),
    test="test",
    meta="meta",
    labels="fine_labels",
    class_names="fine_label_names",
)


def open_cifar10(data_root: Path | None) -> Source:
    """CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test images of ten classes, 32 x 32 RGB.

    Raises:
        DataError: the files are missing, or have unexpected contents.
        DamagedFileError: a file is incomplete, or its pickle calls something.
    """
    return _open_cifar(CIFAR10, data_root)


def open_cifar100(data_root: Path | None) -> Source:
    """CIFAR-100 (Krizhevsky 2009) with its hundred fine labels; errors as in `open_cifar10`."""
    return _open_cifar(CIFAR100, data_root)


def _open_cifar(layout: CifarLayout, data_root: Path | None) -> Source:
    files, notes = _find_cifar_files(layout, data_root)
    names = files.load(layout.meta).get(layout.class_names)
    if not isinstance(names, list) or len(names) < 2 or not all(isinstance(name, str | bytes) for name in names):
        raise DataError(
            f"{files.where}/{layout.meta}: {layout.class_names} must be a list of at least two texts, the names of the "
            "classes."
        )
    classes = [name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name) for name in names]
    batches = [_read_cifar_batch(files, layout, name) for name in (*layout.train, layout.test)]
    test = len(batches[-1][0])
    train = sum(len(images) for images, _ in batches) - test
    return Source(
        name=layout.name,
        classes=tuple(classes),
        images=np.concatenate([images for images, _ in batches]),
        targets=np.concatenate([targets for _, targets in batches]),
        ids=ConcatSequence([NumberedNames("train", train), NumberedNames("test", test)]),
        splits={"train": np.arange(train), "test": np.arange(train, train + test)},
        notes=notes,
    )


@dataclass(frozen=True)
class _CifarFiles:
    """The contents of a dataset's pickles by name, and their location."""

    where: Path
    contents: dict[str, bytes]

    def load(self, name: str) -> dict[str, PickledValue]:
        if name not in self.contents:
            others = format_count(len(self.contents), "other file of the set is", "other files of the set are")
            raise DataError(f"{self.where} has no {name}; {others} there.")
        return load_pickled_arrays(self.contents[name], f"{self.where}/{name}")


def _find_cifar_files(layout: CifarLayout, data_root: Path | None) -> tuple[_CifarFiles, tuple[str, ...]]:
    """Read the files of a dataset, from its folder or else from its archive."""
    roots = [] if data_root is None else [data_root, data_root / layout.name]
    wanted = (*layout.train, layout.test, layout.meta)
    for folder in [*(root / layout.folder for root in roots), *roots]:
        if (folder / layout.test).is_file() and (folder / layout.meta).is_file():
            there = [name for name in wanted if (folder / name).is_file()]
            return _CifarFiles(folder, {name: _read_batch_file(folder / name) for name in there}), ()
    for root in roots:
        if (root / layout.archive).is_file():
            return _read_archive(root / layout.archive, layout, wanted)
    searched = f" in {data_root}" if data_root else ", as no --data-root was given"
    raise DataError(
        f"{layout.name}: neither the folder {layout.folder} nor {layout.archive} was found{searched}. Download "
        f"https://www.cs.toronto.edu/~kriz/{layout.archive} (MD5 {layout.md5}) and name its folder with --data-root."
    )


def _read_batch_file(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BATCH_BYTES:
            raise DataError(f"{path} has {path.stat().st_size:,} bytes; a batch has at most {MAX_BATCH_BYTES:,}.")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({(error.strerror or str(error)).lower()}).") from error


def _read_archive(path: Path, layout: CifarLayout, wanted: Sequence[str]) -> tuple[_CifarFiles, tuple[str, ...]]:
    """Read the files of an archive without unpacking it to disk."""
    contents: dict[str, bytes] = {}
    try:
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        with gzip.open(path) as packed, tarfile.open(fileobj=_LimitedReader(packed, path), mode="r|") as archive:
            for member in archive:
                folder, _, name = member.name.removeprefix("./").rpartition("/")
                if folder == layout.folder and name in wanted and member.isfile() and name not in contents:
                    opened = archive.extractfile(member)
                    contents[name] = opened.read() if opened else b""
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{path} cannot be read ({error}). It is cut short or changed: fetch it again.") from error
    note = f"{path.name} is not the file as it was published: its MD5 is {md5}, that of the published one {layout.md5}."
    return _CifarFiles(path, contents), () if md5 == layout.md5 else (note,)


class _LimitedReader(io.RawIOBase):
    """A gzip file with a limit on its unpacked size, against decompression bombs."""

    def __init__(self, file: gzip.GzipFile, path: Path):
        self._file = file
        self._path = path
        self._left = MAX_UNPACKED_BYTES

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        data = self._file.read(min(count, 2**20) if count >= 0 else 2**20)
        self._left -= len(data)
        if self._left < 0:
            raise DataError(f"{self._path} unpacks to more than {MAX_UNPACKED_BYTES:,} bytes. Fetch it again.")
        return data


def _read_cifar_batch(files: _CifarFiles, layout: CifarLayout, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 32, 32, 3] and targets [n]; in the file an image is a row of all red, all green, then all blue."""
    content = files.load(name)
    rows = content.get("data")
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 3 * SIDE**2:
        kind = f"{rows.dtype} {list(rows.shape)}" if isinstance(rows, np.ndarray) else type(rows).__name__
        raise DataError(f"{files.where}/{name}: data must be uint8 [n, {3 * SIDE**2}]. Got {kind}.")
    labels = content.get(layout.labels)
    values = labels.tolist() if isinstance(labels, np.ndarray) else labels
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise DataError(f"{files.where}/{name}: {layout.labels} must be a list of whole numbers.")
    if len(values) != len(rows):
        raise DataError(
            f"{files.where}/{name} holds {format_count(len(rows), 'picture')} but {format_count(len(values), 'label')}."
        )
    images = rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.array(values, dtype=np.int64)


# -- MNIST and Fashion-MNIST: IDX files, with or without gzip.

DEBIAN_FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")
MAX_IDX_BYTES = 2**31  # bytes of values in one file
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def open_fashion_mnist(data_root: Path | None) -> Source:
    """Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): 60,000 training and 10,000 test images, 28 x 28 grey.

    Raises:
        DataError: one of the four files is missing or damaged.
    """
    places = [*_candidate_folders(data_root, "fashion-mnist", "FashionMNIST/raw"), DEBIAN_FASHION_FOLDER]
    advice = "Type `sudo apt install dataset-fashion-mnist` (Debian, Ubuntu), or name their folder with --data-root."
    return _open_idx("fashion-mnist", FASHION, places, advice)


def open_mnist(data_root: Path | None) -> Source:
    """MNIST (LeCun et al. 1998): 60,000 training and 10,000 test images of handwritten digits, 28 x 28 grey.

    Errors as in `open_fashion_mnist`.
    """
    places = _candidate_folders(data_root, "mnist", "MNIST/raw")
    return _open_idx("mnist", tuple("0123456789"), places, "Name their folder with --data-root.")


def _candidate_folders(data_root: Path | None, *folders: str) -> list[Path]:
    return [] if data_root is None else [*(data_root / folder for folder in folders), data_root]


def _open_idx(name: str, classes: tuple[str, ...], places: list[Path], advice: str) -> Source:
    folder = next((place for place in places if _find_idx_file(place, "train-images", 3)), None)
    if folder is None:
        searched = f" in {' or '.join(map(str, places))}" if places else ", as no --data-root was given"
        raise DataError(f"{name}: train-images-idx3-ubyte.gz and three more files were not found{searched}. {advice}")
    train, train_targets = _read_idx_split(folder, "train-images", "train-labels")
    test, test_targets = _read_idx_split(folder, "t10k-images", "t10k-labels")
    if train.shape[1:] != test.shape[1:]:
        raise DataError(f"{folder}: pictures to train on are {train.shape[1:]} pixels, to test on {test.shape[1:]}.")
    first = len(train)
    return Source(
        name=name,
        classes=classes,
        images=np.concatenate([train, test]),
        targets=np.concatenate([train_targets, test_targets]).astype(np.int64),
        ids=tuple(f"train/{row:05d}" for row in range(first)) + tuple(f"test/{row:05d}" for row in range(len(test))),
        splits={"train": np.arange(first), "test": np.arange(first, first + len(test))},
    )


def _read_idx_split(folder: Path, images_stem: str, labels_stem: str) -> tuple[np.ndarray, np.ndarray]:
    arrays = []
    for stem, axes in ((images_stem, 3), (labels_stem, 1)):
        path = _find_idx_file(folder, stem, axes)
        if path is None:
            raise DataError(
                f"{folder} has no {stem}-idx{axes}-ubyte.gz, with or without .gz. All four files are needed."
            )
        arrays.append(read_idx(path, axes))
    images, targets = arrays
    if len(images) != len(targets):
        raise DataError(
            f"{folder}: {images_stem} holds {format_count(len(images), 'picture')} but {labels_stem} "
            f"{format_count(len(targets), 'label')}. They must belong together."
        )
    return images, targets


def _find_idx_file(folder: Path, stem: str, axes: int) -> Path | None:
    names = (f"{stem}{dot}idx{axes}-ubyte{ending}" for dot in "-." for ending in ("", ".gz"))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_idx(path: Path, axes: int) -> np.ndarray:
    """Read an IDX file of uint8 with the given number of axes.

    The format: two zero bytes, 8 for uint8, the number of axes; each length as 4 bytes, big-endian; the values.

    Raises:
        DataError: not such a file, or more or fewer values than its header states.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * axes)
            if len(header) < 4 + 4 * axes or header[:4] != bytes((0, 0, 8, axes)):
                raise DataError(
                    f"{path} is not an IDX file of bytes with {axes} axes. Expected it to begin with 0000080{axes}, "
                    f"got {header[:4].hex() or 'nothing'}."
                )
            shape = tuple(int.from_bytes(header[start : start + 4]) for start in range(4, len(header), 4))
            expected = math.prod(shape)
            if expected > MAX_IDX_BYTES:
                raise DataError(f"{path} says it holds {expected:,} bytes, limit {MAX_IDX_BYTES:,}.")
            values = bytearray(file.read(expected))
            beyond = len(file.read(1))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}. Fetch the file again.") from error
    if len(values) != expected or beyond:
        got = f"more than {expected:,}" if beyond else f"{len(values):,}"
        raise DataError(f"{path} must hold {' x '.join(map(str, shape))} = {expected:,} bytes of values. Got {got}.")
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


# -- The digits that come with scikit-learn.

WHITE = 16  # the largest value stored


def open_digits() -> Source:
    """scikit-learn's 1,797 digits of 8 x 8 pixels, without an official split; values 0..16 are scaled to 0..255.

    Source: E. Alpaydin and C. Kaynak 1998, "Optical Recognition of Handwritten Digits", test part.
    """
    stored, targets = load_digits(return_X_y=True)
    return Source(
        name="digits",
        classes=tuple("0123456789"),
        images=np.rint(stored.reshape(-1, 8, 8) * (255 / WHITE)).astype(np.uint8),
        targets=targets.astype(np.int64),
        ids=tuple(f"digits/{row:04d}" for row in range(len(targets))),
    )
