"""From a plan's data settings to pictures in memory: open, split, check, load, and measure mean and deviation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..data import splits as parts
from ..data.loader import Pictures, load
from ..data.open import BUILT_IN, open_source
from ..data.source import Source
from ..randomness import permutation
from ..spec import ImageSpec
from .plan import DataSettings

RESIDENT_BYTES = 2 * 2**30
MOMENT_SAMPLE = 5000
Splits = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Dataset:
    """A source with its splits."""

    source: Source
    splits: Splits

    def targets(self, split: str) -> NDArray[np.int64]:
        """Class numbers of a split, in the split's order."""
        return self.source.targets[self.splits[split]]

    def pictures(self, split: str, spec: ImageSpec) -> Pictures:
        """The pictures of a split, decoded to the model's size; in memory where they take at most 2 GiB."""
        return load(self.source, self.splits[split], spec, RESIDENT_BYTES)

    def sample(self, split: str, most: int, seed: int) -> NDArray[np.int64]:
        """At most this many rows of a split, the same for the same seed."""
        rows = self.splits[split]
        return rows if len(rows) <= most else np.sort(rows[permutation(seed, "sample", 0, len(rows))[:most]])


def open_dataset(settings: DataSettings, seed: int, stored: Path | None = None) -> Dataset:
    """Open the source and part it; with `stored`, by the splits that an earlier start of the run has written.

    Raises:
        DataError: the source cannot be read, or a picture of the stored splits is gone.
    """
    source = open_source(settings.source, Path(settings.data_root) if settings.data_root else None)
    if stored is not None:
        return Dataset(source, parts.read(stored, source))
    return Dataset(source, parts.complete(source, seed, settings.val_fraction, settings.test_fraction))


def located(settings: DataSettings) -> DataSettings:
    """The settings with folders by their full names, so that a run can be continued from anywhere."""
    source = str(Path(settings.source).expanduser().resolve()) if Path(settings.source).is_dir() else settings.source
    root = str(Path(settings.data_root).expanduser().resolve()) if settings.data_root else ""
    return dataclasses.replace(
        settings, source=settings.source if settings.source in BUILT_IN else source, data_root=root
    )


def with_moments(spec: ImageSpec, pictures: Pictures, seed: int) -> ImageSpec:
    """The spec with mean and deviation per channel of (a sample of) the training pictures, rounded to 4 digits."""
    chosen = pictures.indices[permutation(seed, "moments", 0, len(pictures.indices))[:MOMENT_SAMPLE]]
    values = pictures.take(chosen).numpy() / 255.0  # [n, C, H, W]
    mean = tuple(round(float(m), 4) for m in values.mean(axis=(0, 2, 3)))
    std = tuple(max(round(float(s), 4), 0.01) for s in values.std(axis=(0, 2, 3)))
    return dataclasses.replace(spec, mean=mean, std=std)
