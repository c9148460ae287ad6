"""MNIST's file format, IDX, packed with gzip or not: Fashion-MNIST and MNIST as they were published."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...errors import DataError
from ..source import Source

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
LIMIT = 2**31  # bytes of values in one file

# fmt: off
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
FILES = {  # split   pictures         labels
    "train": ("train-images", "train-labels"),
    "test":  ("t10k-images",  "t10k-labels"),
}
# fmt: on


def open_fashion_mnist(data_root: Path | None) -> Source:
    """60,000 training and 10,000 test pictures of clothes, 28 x 28 grey (Xiao, Rasul and Vollgraf 2017).

    Raises:
        DataError: the four files are not there, or one of them is damaged.
    """
    places = [*_under(data_root, "fashion-mnist", "FashionMNIST/raw"), DEBIAN]
    advice = "Type `sudo apt install dataset-fashion-mnist` (Debian, Ubuntu), or name their folder with --data-root."
    return _open("fashion-mnist", FASHION, places, advice)


def open_mnist(data_root: Path | None) -> Source:
    """60,000 training and 10,000 test pictures of handwritten digits, 28 x 28 grey (LeCun et al. 1998).

    Raises:
        DataError: the four files are not there, or one of them is damaged.
    """
    places = _under(data_root, "mnist", "MNIST/raw")
    return _open("mnist", tuple("0123456789"), places, "Name their folder with --data-root.")


def _under(data_root: Path | None, *folders: str) -> list[Path]:
    return [] if data_root is None else [*(data_root / folder for folder in folders), data_root]


def _open(name: str, classes: tuple[str, ...], places: list[Path], advice: str) -> Source:
    folder = next((place for place in places if _find(place, FILES["train"][0], 3)), None)
    if folder is None:
        looked = f" in {' or '.join(map(str, places))}" if places else ", as no --data-root was given"
        raise DataError(f"{name}: train-images-idx3-ubyte.gz and three more files were not found{looked}. {advice}")
    train, train_targets = _read_split(folder, *FILES["train"])
    test, test_targets = _read_split(folder, *FILES["test"])
    if train.shape[1:] != test.shape[1:]:
        raise DataError(f"{folder}: pictures to train on are {train.shape[1:]} pixels, to test on {test.shape[1:]}.")
    first = len(train)
    return Source(
        name=name,
        classes=classes,
        pictures=np.concatenate([train, test]),
        targets=np.concatenate([train_targets, test_targets]).astype(np.int64),
        ids=tuple(f"train/{row:05d}" for row in range(first)) + tuple(f"test/{row:05d}" for row in range(len(test))),
        splits={"train": np.arange(first), "test": np.arange(first, first + len(test))},
    )


def _read_split(folder: Path, images: str, labels: str) -> tuple[np.ndarray, np.ndarray]:
    pictures, targets = _read_file(folder, images, 3), _read_file(folder, labels, 1)
    if len(pictures) != len(targets):
        raise DataError(
            f"{folder}: {images} holds {len(pictures):,} pictures but {labels} {len(targets):,} labels. "
            "They must belong together."
        )
    return pictures, targets


def _find(folder: Path, stem: str, axes: int) -> Path | None:
    names = (f"{stem}{dot}idx{axes}-ubyte{ending}" for dot in "-." for ending in ("", ".gz"))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read_file(folder: Path, stem: str, axes: int) -> np.ndarray:
    path = _find(folder, stem, axes)
    if path is None:
        raise DataError(f"{folder} has no {stem}-idx{axes}-ubyte.gz, with or without .gz. All four files are needed.")
    return read_idx(path, axes)


def read_idx(path: Path, axes: int) -> np.ndarray:
    """The bytes of an IDX file, uint8 with the given number of axes.

    The format: two zero bytes, 8 for bytes, the number of axes; each length as 4 bytes, highest first; the values.

    Raises:
        DataError: not such a file, or more or fewer values than its header says.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                return _read(path, packed, axes)
        with path.open("rb") as plain:
            return _read(path, plain, axes)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}. Fetch the file again.") from error


def _read(path: Path, file: gzip.GzipFile | BinaryIO, axes: int) -> np.ndarray:
    header = file.read(4 + 4 * axes)
    if len(header) < 4 + 4 * axes or header[:4] != bytes((0, 0, 8, axes)):
        raise DataError(
            f"{path} is not an IDX file of bytes with {axes} axes. Expected it to begin with 0000080{axes}, "
            f"got {header[:4].hex() or 'nothing'}."
        )
    shape = tuple(int.from_bytes(header[start : start + 4]) for start in range(4, len(header), 4))
    wanted = math.prod(shape)
    if wanted > LIMIT:
        raise DataError(f"{path} says it holds {wanted:,} bytes, limit {LIMIT:,}.")
    values = bytearray(file.read(wanted))
    beyond = len(file.read(1))
    if len(values) != wanted or beyond:
        got = f"more than {wanted:,}" if beyond else f"{len(values):,}"
        raise DataError(f"{path} must hold {' x '.join(map(str, shape))} = {wanted:,} bytes of values. Got {got}.")
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)
