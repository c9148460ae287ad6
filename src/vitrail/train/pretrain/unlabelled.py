"""The pictures of pre-training: those of the training split, and further ones that nobody has labelled."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from ...data.decoding.decode import read_file_bytes, read_image
from ...data.decoding.decoded_image import IMAGE_EXTENSIONS, SIGNATURE_BYTES, sniff_format
from ...data.loader import ImageStore, InMemoryImageStore, load_images
from ...data.open import BUILT_IN, find_folder_reader, open_source
from ...data.parallel import map_in_order
from ...data.preprocess import preprocess_image
from ...data.random_crop import RandomResizedCrop
from ...data.settings import DataSettings
from ...data.source import MANIFEST_EXTENSIONS, ImageInput, Source
from ...data.sources.class_folders import open_class_folders
from ...errors import DataError
from ...spec import ImageSpec
from ..dataset import MEMORY, RESIDENT_BYTES, Dataset
from ..plan import Plan


@dataclass(frozen=True)
class Shown:
    """What pre-training looks at."""

    pictures: ImageStore
    blocks: Int64[np.ndarray, " n"] | None
    names: Sequence[str]
    """Of the rows that `pictures` are read by."""
    notes: tuple[str, ...] = ()
    digest: str = ""
    """A hash of the further pictures; empty where there are none."""


def shown(plan: Plan, dataset: Dataset, trained_on: ImageStore, cut: RandomResizedCrop | None) -> Shown:
    """The pictures of the train split and those of `pretrain.pictures` that are not in the data, in whichever split.

    What --exclude or --skip-bad has taken out of the data is not taken in again.

    Raises:
        DataError: `pretrain.pictures` cannot be opened, holds none, or holds one that cannot be read.
    """
    if plan.pretrain.pictures:
        return _with_more(plan, dataset, cut)
    blocks, names = dataset.blocks("train"), dataset.source.ids
    if isinstance(trained_on, InMemoryImageStore):  # the same pixels, cut in another way
        spec = plan.image
        again = InMemoryImageStore(trained_on.images, trained_on.indices, cut, spec.interpolation, spec.antialias)
        return Shown(again, blocks, names)
    return Shown(dataset.training_pictures(plan.image, cut, plan.compute.workers), blocks, names)


def _with_more(plan: Plan, dataset: Dataset, cut: RandomResizedCrop | None) -> Shown:
    more = further(plan.pretrain.pictures, plan.data)
    arrays = plan.data.source == MEMORY or any(_holds_values(each) for each in (dataset.source, more))
    known = set(_marks(dataset.source, arrays))
    marks = list(_marks(more, arrays))
    new = np.array([row for row, mark in enumerate(marks) if mark not in known], dtype=np.int64)
    left = {"that are in the data already": len(more) - len(new)}
    if plan.data.skip_bad:
        good = np.fromiter(map_in_order(partial(_is_readable, spec=plan.image), _chosen(more, new)), bool, len(new))
        left["that cannot be read"] = int((~good).sum())
        new = new[good]
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
    told = " and ".join(f"{count:,} {why}" for why, count in left.items() if count)
    rows = np.arange(len(pictures))
    try:
        loaded = load_images(source, rows, plan.image, RESIDENT_BYTES, plan.compute.workers, cut, training=True)
    except DataError as error:
        raise DataError(f"{error} Mend or remove it, or leave out what cannot be read with --skip-bad.") from error
    digest = hashlib.sha256(b"".join(marks[row] for row in new.tolist())).hexdigest()
    notes = (*more.notes, f"{note}{f', and leaves out {told}' if told else ''}.")
    return Shown(loaded, None, source.ids, notes, digest)


def further(name: str, settings: DataSettings) -> Source:
    """Pictures from a folder, however they lie in it, or from a source; of the folder's labels nothing is asked.

    Raises:
        DataError: there is nothing of that name, it holds no pictures, or cannot be read.
    """
    path = Path(name).expanduser()
    if path.is_dir() and find_folder_reader(path) is open_class_folders:
        return _folder(path)
    try:
        return open_source(name, DataSettings(source=name, data_root=settings.data_root if name in BUILT_IN else ""))
    except DataError as error:
        other = (
            " Without labels, name the folder of its pictures." if path.suffix.lower() in MANIFEST_EXTENSIONS else ""
        )
        raise DataError(
            "--pretrain.pictures takes a folder of pictures, however they lie in it, or what a training takes as its "
            f"SOURCE. {error}{other}"
        ) from error


def _folder(folder: Path) -> Source:
    """All pictures in a folder and its folders, by their endings, or by their first bytes where they have none."""
    files, links = [], 0
    for place, inside, names in os.walk(folder):
        links += sum(Path(place, each).is_symlink() for each in inside)
        files += [path for path in (Path(place, name) for name in names) if _is_picture(path)]
    linked = f"Links to folders are not followed: {links:,} in {folder}. Name what they lead to by itself."
    if not files:
        raise DataError(
            f"There are no pictures in {folder} or its folders. {f'{linked} ' if links else ''}"
            "Leave --pretrain.pictures out, or name others."
        )
    files.sort()
    return Source(
        name=folder.resolve().name,
        classes=("",),
        pictures=files,
        targets=np.zeros(len(files), np.int64),
        ids=[str(file.relative_to(folder)) for file in files],
        notes=(linked,) if links else (),
    )


def _is_picture(path: Path) -> bool:
    if path.name[0] == "." or path.suffix:
        return path.name[0] != "." and path.suffix.lower() in IMAGE_EXTENSIONS
    if not path.is_file():  # a pipe would be waited for
        return False
    try:
        with path.open("rb") as file:
            return sniff_format(file.read(SIGNATURE_BYTES)) is not None
    except OSError:
        return False


def _chosen(source: Source, rows: Int64[np.ndarray, " n"]) -> Sequence[ImageInput]:
    return [source.pictures[row] for row in rows.tolist()]


def _is_readable(picture: ImageInput, spec: ImageSpec) -> bool:
    try:
        preprocess_image(picture, spec)
    except DataError:
        return False
    return True


def _holds_values(source: Source) -> bool:
    """Whether a source gives pixels, and not encoded files: the first of its pictures that can be had tells."""
    for picture in source.pictures:
        try:
            return isinstance(_stored(picture), np.ndarray)
        except DataError:
            continue
    return False


def _marks(source: Source, values: bool) -> Iterator[bytes]:
    """A hash of what each picture stores: of the file's bytes, or of the values in it."""
    return map_in_order(_mark_of_values if values else _mark_of_bytes, source.pictures)


def _stored(picture: ImageInput) -> bytes | np.ndarray:
    if isinstance(picture, np.ndarray):
        return picture
    return read_file_bytes(picture) if isinstance(picture, Path) else picture.fetch()


def _mark_of_bytes(picture: ImageInput) -> bytes:
    try:
        content = _stored(picture)
    except DataError as error:
        return str(error).encode()  # its turn to be refused comes when it is decoded
    return hashlib.sha256(content if isinstance(content, bytes) else content.tobytes()).digest()


def _mark_of_values(picture: ImageInput) -> bytes:
    try:
        values = read_image(picture, ImageSpec()).values
    except DataError as error:
        return str(error).encode()
    return hashlib.sha256(f"{values.dtype} {values.shape} ".encode() + values.tobytes()).digest()
