"""CIFAR-10 and CIFAR-100 as they were published for Python: pickled batches in a folder, or still in their archive."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import DataError
from ...files.pickles import PickledValue, load_pickled_arrays
from ..source import Source
from .rows import Joined, Numbered

LIMIT = 256 * 2**20
"""Bytes of the largest batch; CIFAR-100's 50,000 pictures take 155 million."""
UNPACKED = 2**29
"""Bytes that an archive may unpack to."""
SIDE = 32


@dataclass(frozen=True)
class Set:
    """What one of the two sets is called inside its files."""

    name: str
    folder: str
    archive: str
    md5: str
    """Of the archive, as its publisher gives it."""
    train: tuple[str, ...]
    test: str
    meta: str
    labels: str
    class_names: str


CIFAR10 = Set(
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
CIFAR100 = Set(
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
    """50,000 training and 10,000 test pictures of ten kinds of things, 32 x 32 RGB (Krizhevsky 2009).

    Raises:
        DataError: the files are not there, or do not hold what they should.
        DamagedFileError: a file is not whole, or asks to run something.
    """
    return _open(CIFAR10, data_root)


def open_cifar100(data_root: Path | None) -> Source:
    """As `open_cifar10`, of a hundred kinds of things, by their fine labels (Krizhevsky 2009).

    Raises:
        DataError: the files are not there, or do not hold what they should.
        DamagedFileError: a file is not whole, or asks to run something.
    """
    return _open(CIFAR100, data_root)


def _open(known: Set, data_root: Path | None) -> Source:
    files, notes = _files(known, data_root)
    names = [_text(name) for name in _list(files, known.meta, known.class_names)]
    batches = [_batch(files, known, name) for name in (*known.train, known.test)]
    test = len(batches[-1][0])
    train = sum(len(pictures) for pictures, _ in batches) - test
    return Source(
        name=known.name,
        classes=tuple(names),
        pictures=np.concatenate([pictures for pictures, _ in batches]),
        targets=np.concatenate([targets for _, targets in batches]),
        ids=Joined([Numbered("train", train), Numbered("test", test)]),
        splits={"train": np.arange(train), "test": np.arange(train, train + test)},
        notes=notes,
    )


@dataclass(frozen=True)
class _Files:
    """The pickles of a set by name, read, and where they lie."""

    where: Path
    contents: dict[str, bytes]

    def load(self, name: str) -> dict[str, PickledValue]:
        if name not in self.contents:
            raise DataError(f"{self.where} has no {name}; {len(self.contents)} other files of the set are there.")
        return load_pickled_arrays(self.contents[name], f"{self.where}/{name}")


def _files(known: Set, data_root: Path | None) -> tuple[_Files, tuple[str, ...]]:
    """Every file of the set, from its folder or, without one, from its archive."""
    roots = [] if data_root is None else [data_root, data_root / known.name]
    wanted = (*known.train, known.test, known.meta)
    for folder in [*(root / known.folder for root in roots), *roots]:
        if (folder / known.test).is_file() and (folder / known.meta).is_file():
            there = [name for name in wanted if (folder / name).is_file()]
            return _Files(folder, {name: _read(folder / name) for name in there}), ()
    for root in roots:
        if (root / known.archive).is_file():
            return _unpacked(root / known.archive, known, wanted)
    looked = f" in {data_root}" if data_root else ", as no --data-root was given"
    raise DataError(
        f"{known.name}: neither the folder {known.folder} nor {known.archive} was found{looked}. Download "
        f"https://www.cs.toronto.edu/~kriz/{known.archive} (MD5 {known.md5}) and name its folder with --data-root."
    )


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > LIMIT:
            raise DataError(f"{path} has {path.stat().st_size:,} bytes; a batch has at most {LIMIT:,}.")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({(error.strerror or str(error)).lower()}).") from error


def _unpacked(path: Path, known: Set, wanted: Sequence[str]) -> tuple[_Files, tuple[str, ...]]:
    """The files of an archive, read without anything being written."""
    contents: dict[str, bytes] = {}
    try:
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        with gzip.open(path) as packed, tarfile.open(fileobj=_Limited(packed, path), mode="r|") as archive:
            for member in archive:
                folder, _, name = member.name.removeprefix("./").rpartition("/")
                if folder == known.folder and name in wanted and member.isfile() and name not in contents:
                    opened = archive.extractfile(member)
                    contents[name] = opened.read() if opened else b""
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{path} cannot be read ({error}). It is cut short or changed: fetch it again.") from error
    note = f"{path.name} is not the file as it was published: its MD5 is {md5}, that of the published one {known.md5}."
    return _Files(path, contents), () if md5 == known.md5 else (note,)


class _Limited(io.RawIOBase):
    """A packed file that stops unpacking where no honest one would go on."""

    def __init__(self, file: gzip.GzipFile, path: Path):
        self._file = file
        self._path = path
        self._left = UNPACKED

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        data = self._file.read(min(count, 2**20) if count >= 0 else 2**20)
        self._left -= len(data)
        if self._left < 0:
            raise DataError(f"{self._path} unpacks to more than {UNPACKED:,} bytes. Fetch it again.")
        return data


def _batch(files: _Files, known: Set, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Pictures [n, 32, 32, 3] and targets [n]; in the file each is a row: all of red, all of green, all of blue."""
    content = files.load(name)
    rows = content.get("data")
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 3 * SIDE**2:
        kind = f"{rows.dtype} {list(rows.shape)}" if isinstance(rows, np.ndarray) else type(rows).__name__
        raise DataError(f"{files.where}/{name}: data must be uint8 [n, {3 * SIDE**2}]. Got {kind}.")
    labels = content.get(known.labels)
    values = labels.tolist() if isinstance(labels, np.ndarray) else labels
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise DataError(f"{files.where}/{name}: {known.labels} must be a list of whole numbers.")
    if len(values) != len(rows):
        raise DataError(f"{files.where}/{name} holds {len(rows):,} pictures but {len(values):,} labels.")
    pictures = rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pictures), np.array(values, dtype=np.int64)


def _list(files: _Files, name: str, key: str) -> list[object]:
    found = files.load(name).get(key)
    if not isinstance(found, list) or len(found) < 2 or not all(isinstance(each, str | bytes) for each in found):
        raise DataError(f"{files.where}/{name}: {key} must be a list of at least two texts, the names of the classes.")
    return list(found)


def _text(name: object) -> str:
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)
