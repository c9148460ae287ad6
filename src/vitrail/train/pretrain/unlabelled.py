"""The pictures of pre-training: those of the training split, and further ones that nobody has labelled."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from ...data.decoding.stored import file_bytes, read
from ...data.loader import Pictures, Resident, load
from ...data.open import BUILT_IN, open_source
from ...data.parallel import in_order
from ...data.regions import Cut
from ...data.settings import DataSettings
from ...data.source import Picture, Source
from ...data.sources.class_folders import ENDINGS
from ...errors import DataError
from ...spec import ImageSpec
from ..dataset import RESIDENT_BYTES, Dataset
from ..plan import Plan


@dataclass(frozen=True)
class Shown:
    """What pre-training looks at."""

    pictures: Pictures
    blocks: Int64[np.ndarray, " n"] | None
    notes: tuple[str, ...]


def shown(plan: Plan, dataset: Dataset, trained_on: Pictures, cut: Cut | None) -> Shown:
    """The pictures of the train split and those of `pretrain.pictures` that are in no split of the data.

    Raises:
        UsageError, DataError: `pretrain.pictures` cannot be opened, or holds none.
    """
    if plan.pretrain.pictures:
        return _with_more(plan, dataset, cut)
    blocks = dataset.blocks("train")
    if isinstance(trained_on, Resident):  # the same pixels, cut in another way
        spec = plan.image
        again = Resident(trained_on.images, trained_on.indices, cut, spec.interpolation, spec.antialias)
        return Shown(again, blocks, ())
    return Shown(dataset.training_pictures(plan.image, cut, plan.compute.workers), blocks, ())


def _with_more(plan: Plan, dataset: Dataset, cut: Cut | None) -> Shown:
    more = further(plan.pretrain.pictures, plan.data)
    arrays = any(isinstance(each.pictures[0], np.ndarray) for each in (dataset.source, more))
    known = {mark for rows in dataset.splits.values() for mark in _marks(dataset.source, rows, arrays)}
    marks = _marks(more, np.arange(len(more)), arrays)
    new = np.array([row for row, mark in enumerate(marks) if mark not in known], dtype=np.int64)
    train = dataset.splits["train"]
    pictures = [*_chosen(dataset.source, train), *_chosen(more, new)]
    source = Source(
        name=more.name,
        classes=("",),
        pictures=pictures,
        targets=np.zeros(len(pictures), np.int64),
        ids=[*(dataset.source.ids[row] for row in train.tolist()), *(more.ids[row] for row in new.tolist())],
    )
    note = f"Pre-training adds {len(new):,} pictures of {plan.pretrain.pictures} to {len(train):,} for training"
    left = f", and leaves out {len(more) - len(new):,} that are in the data already" if len(new) < len(more) else ""
    rows = np.arange(len(pictures))
    loaded = load(source, rows, plan.image, RESIDENT_BYTES, plan.compute.workers, cut, training=True)
    return Shown(loaded, None, (f"{note}{left}.",))


def further(name: str, settings: DataSettings) -> Source:
    """Pictures from a folder, however they lie in it, or from a source; of labels nothing is asked.

    Raises:
        UsageError: there is nothing of that name.
        DataError: it holds no pictures, or cannot be read.
    """
    path = Path(name).expanduser()
    if not path.is_dir():
        return open_source(name, DataSettings(source=name, data_root=settings.data_root if name in BUILT_IN else ""))
    files = sorted(_files(path))
    if not files:
        raise DataError(
            f"There are no pictures in {path} or its folders. Leave --pretrain.pictures out, or name others."
        )
    return Source(
        name=path.resolve().name,
        classes=("",),
        pictures=files,
        targets=np.zeros(len(files), np.int64),
        ids=[str(file.relative_to(path)) for file in files],
    )


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names if Path(name).suffix.lower() in ENDINGS and name[0] != ".")


def _chosen(source: Source, rows: Int64[np.ndarray, " n"]) -> Sequence[Picture]:
    return [source.pictures[row] for row in rows.tolist()]


def _marks(source: Source, rows: Int64[np.ndarray, " n"], values: bool) -> Iterator[bytes]:
    """A hash of what each picture stores: of the file's bytes, or of the values in it."""
    return in_order(_mark_of_values if values else _mark_of_bytes, _chosen(source, rows))


def _mark_of_bytes(picture: Picture) -> bytes:
    try:
        content = file_bytes(picture) if isinstance(picture, Path) else picture
        content = content if isinstance(content, bytes | np.ndarray) else content.fetch()
    except DataError as error:
        return str(error).encode()  # its turn to be refused comes when it is decoded
    return hashlib.sha256(content if isinstance(content, bytes) else content.tobytes()).digest()


def _mark_of_values(picture: Picture) -> bytes:
    try:
        values = read(picture, ImageSpec()).values
    except DataError as error:
        return str(error).encode()
    return hashlib.sha256(f"{values.dtype} {values.shape} ".encode() + values.tobytes()).digest()
