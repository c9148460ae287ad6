"""Images that a run has learnt from, as hashes of their contents: copies of them are recognised wherever they lie."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, UInt64

from ..data.content_hashes import UNREADABLE, hash_contents
from ..data.source import ImageInput
from ..data.sources.lazy_sequences import SubsetSequence
from ..errors import DamagedFileError
from ..files import atomic
from ..formatting import format_count, format_some
from ..randomness import permutation
from .dataset import Dataset
from .run_folder import RunFolder

SEEN_FILE = "seen.npz"
"""In a run folder: sorted hashes of the training and validation images, eight bytes each."""
HASHED_SPLITS = ("train", "val")
MIN_HASH_SECONDS, HASH_TIME_FRACTION = 10.0, 0.03
"""Most time for hashing the images of a run: these seconds, or this fraction of the training's."""


@dataclass(frozen=True)
class SeenImages:
    """Sorted hashes of the training and the validation images of one or several runs."""

    train: UInt64[np.ndarray, " n"]
    val: UInt64[np.ndarray, " m"]
    num_missing: int = 0
    """Images that there was no time to hash, so that a copy of them is not noticed."""

    @classmethod
    def join(cls, several: Sequence[SeenImages]) -> SeenImages:
        """What any of several runs has seen."""
        return cls(
            np.unique(np.concatenate([one.train for one in several])),
            np.unique(np.concatenate([one.val for one in several])),
            sum(one.num_missing for one in several),
        )


@dataclass(frozen=True, kw_only=True)
class SeenCopies:
    """Which of some images a run has seen before."""

    train: Bool[np.ndarray, " n"]
    """Training images: it has learnt their answers."""
    val: Bool[np.ndarray, " n"]
    """Validation images: calibration and thresholds were fitted on them."""
    examples: tuple[str, ...] = ()
    """Names of some of them, training images first."""
    num_missing: int = 0
    """As in `SeenImages`."""

    def to_json(self) -> dict[str, object]:
        """The numbers and the examples as plain values."""
        counts = {"train": int(self.train.sum()), "val": int((self.val & ~self.train).sum())}
        return {**counts, "examples": list(self.examples), "not_compared": self.num_missing}

    def describe(self, run: str) -> str:
        """A sentence with their numbers; empty if there are none."""
        train, val, n = int(self.train.sum()), int((self.val & ~self.train).sum()), len(self.train)
        if not train and not val:
            return ""
        answers = "its answer" if n == 1 else "their answers"
        learnt = f"{run} has learnt from {format_some(train, n, 'picture')} with {answers}"
        fitted = f"{run} was calibrated on {format_some(val, n, 'picture')}"
        counted = " and ".join([learnt] * bool(train) + [fitted] * bool(val))
        such_as = f" (the same contents, such as {', '.join(self.examples)})" if self.examples else ""
        missed = (
            f" Of {format_count(self.num_missing, 'picture')} of the run it is not known." if self.num_missing else ""
        )
        return f"{counted}, so the figures are too good{such_as}.{missed}"


def find_copies(seen: SeenImages, images: Iterable[ImageInput], names: Sequence[str]) -> SeenCopies:
    """Compare images with those that a run has seen, by their contents.

    Args:
        names: of the images, for the examples.
    """
    hashes = hash_contents(images)
    train, val = np.isin(hashes, seen.train), np.isin(hashes, seen.val)
    places = [*np.flatnonzero(train)[:3].tolist(), *np.flatnonzero(val & ~train)[:3].tolist()][:3]
    return SeenCopies(
        train=train, val=val, examples=tuple(names[place] for place in places), num_missing=seen.num_missing
    )


def write_seen_images(run: RunFolder, dataset: Dataset, seconds: float) -> SeenImages:
    """Hash the images of a run in a random order, as many as the time allows, and write their hashes.

    Args:
        seconds: of the training.
    """
    rows = np.concatenate([dataset.splits[split] for split in HASHED_SPLITS])
    order = rows[permutation(0, "seen", 0, len(rows))]
    until = time.monotonic() + max(MIN_HASH_SECONDS, HASH_TIME_FRACTION * seconds)
    hashes = hash_contents(SubsetSequence[ImageInput](dataset.source.images, order), until)
    done = order[: len(hashes)]
    readable = hashes != UNREADABLE
    train, val = (np.unique(hashes[readable & np.isin(done, dataset.splits[split])]) for split in HASHED_SPLITS)
    _write_hashes(run, train, val, len(rows) - len(hashes))
    return SeenImages(train, val, len(rows) - len(hashes))


def add_seen_images(run: RunFolder, hashes: UInt64[np.ndarray, " n"]) -> None:
    """Add hashes of further images that a run has learnt from; nothing where it has none."""
    if (seen := read_seen_images(run.path)) is not None:
        _write_hashes(run, np.union1d(seen.train, hashes[hashes != UNREADABLE]), seen.val, seen.num_missing)


def _write_hashes(
    run: RunFolder, train: UInt64[np.ndarray, " n"], val: UInt64[np.ndarray, " m"], num_missing: int
) -> None:
    data = io.BytesIO()
    np.savez(data, train=train, val=val, missing=np.array(num_missing, np.int64))
    atomic.write_bytes(run.path / SEEN_FILE, data.getvalue())


def read_seen_images(run: Path) -> SeenImages | None:
    """The hashes of a run folder; None where it has none.

    Raises:
        DamagedFileError: the file cannot be read.
    """
    path = Path(run) / SEEN_FILE
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            columns = [arrays[name] for name in HASHED_SPLITS]
            missing = int(arrays["missing"])
    except Exception as problem:  # zipfile, zlib, numpy and OS raise errors of their own
        raise DamagedFileError(
            f"{path} must hold hashes of the pictures that the run has seen. It cannot be read: {problem}. Delete it "
            "to go on without, and copies of those pictures are then not noticed."
        ) from problem
    if any(column.dtype != np.uint64 or column.ndim != 1 for column in columns):
        raise DamagedFileError(f"{path} must hold 64-bit hashes of pictures. Delete it to go on without.")
    return SeenImages(columns[0], columns[1], missing)


def describe_held_out_copies(seen: SeenImages, dataset: Dataset, split: str, seconds: float) -> tuple[int, str]:
    """How many images of a held-out split are copies of training images, and a sentence about them, empty for none.

    Args:
        seconds: of the training, as in `write_seen_images`.
    """
    rows = dataset.splits[split]
    until = time.monotonic() + max(MIN_HASH_SECONDS, HASH_TIME_FRACTION * seconds)
    hashes = hash_contents(SubsetSequence[ImageInput](dataset.source.images, rows), until)
    copies = rows[: len(hashes)][np.isin(hashes, seen.train)]
    if not len(copies):
        return 0, ""
    least = "at least " if len(hashes) < len(rows) or seen.num_missing else ""
    names = ", ".join(dataset.source.ids[row] for row in copies[:3].tolist())
    what = {"val": "validation"}.get(split, split)
    return len(copies), (
        f"Of {format_count(len(rows), f'{what} picture')} {least}{len(copies):,} "
        f"{'is a copy' if len(copies) == 1 else 'are copies'} of training pictures, byte for byte (such as {names}), "
        f"so the figures are too good: vitrail check lists such copies, and --exclude leaves them out."
    )
