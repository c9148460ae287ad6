"""The images of pre-training: the training split, and further images without labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from ...data.compact_strings import CompactStrings, RelativePaths
from ...data.content_hashes import read_content
from ...data.decoding.decode import read_image
from ...data.loader import ImageStore, InMemoryImageStore, load_images
from ...data.open import BUILT_IN, find_folder_reader, open_source
from ...data.parallel import map_in_order
from ...data.preprocess import preprocess_image
from ...data.random_crop import RandomResizedCrop
from ...data.settings import MEMORY, DataSettings
from ...data.source import MANIFEST_EXTENSIONS, ImageInput, Source
from ...data.sources.class_folders import open_class_folders
from ...data.sources.image_files import SkippedFiles, find_images
from ...errors import DataError
from ...formatting import format_count
from ...spec import ImageSpec
from ..dataset import RESIDENT_BYTES, Dataset
from ..plan import Plan


@dataclass(frozen=True)
class PretrainingImages:
    """The images of pre-training."""

    images: ImageStore
    shard_ids: Int64[np.ndarray, " n"] | None
    image_names: Sequence[str]
    """By row of `images`."""
    notes: tuple[str, ...] = ()
    extra_images_hash: str = ""
    """A hash of the extra images; empty if there are none."""


def gather_pretraining_images(
    plan: Plan, dataset: Dataset, training_images: ImageStore, cut: RandomResizedCrop | None
) -> PretrainingImages:
    """The images of the train split, and those of `pretrain.extra_images` that are in no split of the data.

    Images that --exclude or --skip-bad has removed are not added again.

    Raises:
        DataError: `pretrain.extra_images` cannot be opened, is empty, or has an unreadable image.
    """
    if plan.pretrain.extra_images:
        return _add_extra_images(plan, dataset, cut)
    blocks, names = dataset.shard_ids("train"), dataset.source.ids
    if isinstance(training_images, InMemoryImageStore):  # the same pixels with another crop
        spec = plan.image
        again = InMemoryImageStore(
            training_images.images, training_images.indices, cut, spec.interpolation, spec.antialias
        )
        return PretrainingImages(again, blocks, names)
    return PretrainingImages(dataset.load_training_images(plan.image, cut, plan.compute.num_workers), blocks, names)


def _add_extra_images(plan: Plan, dataset: Dataset, cut: RandomResizedCrop | None) -> PretrainingImages:
    extra = open_extra_images(plan.pretrain.extra_images, plan.data)
    arrays = plan.data.source == MEMORY or any(_stores_pixels(each) for each in (dataset.source, extra))
    known_hashes = set(_hash_images(dataset.source, arrays))
    hashes = list(_hash_images(extra, arrays))
    new = np.array([row for row, image_hash in enumerate(hashes) if image_hash not in known_hashes], dtype=np.int64)
    skipped = {"that are in the data already": len(extra) - len(new)}
    if plan.data.skip_bad:
        readable = np.fromiter(
            map_in_order(partial(_is_readable, spec=plan.image), _select_images(extra, new)), bool, len(new)
        )
        skipped["that cannot be read"] = int((~readable).sum())
        new = new[readable]
    train = dataset.splits["train"]
    all_images = [*_select_images(dataset.source, train), *_select_images(extra, new)]
    source = Source(
        name=extra.name,
        classes=("",),
        images=all_images,
        targets=np.zeros(len(all_images), np.int64),
        ids=[*(dataset.source.ids[row] for row in train.tolist()), *(extra.ids[row] for row in new.tolist())],
    )
    note = (
        f"Pre-training adds {format_count(len(new), 'picture')} of {plan.pretrain.extra_images} to "
        f"{len(train):,} for training"
    )
    left_out = " and ".join(f"{count:,} {why}" for why, count in skipped.items() if count)
    rows = np.arange(len(all_images))
    try:
        loaded = load_images(source, rows, plan.image, RESIDENT_BYTES, plan.compute.num_workers, cut, training=True)
    except DataError as error:
        raise DataError(f"{error} Mend or remove it, or leave out what cannot be read with --skip-bad.") from error
    digest = hashlib.sha256(b"".join(hashes[row] for row in new.tolist())).hexdigest()
    notes = (*extra.notes, f"{note}{f', and leaves out {left_out}' if left_out else ''}.")
    return PretrainingImages(loaded, None, source.ids, notes, digest)


def open_extra_images(name: str, settings: DataSettings) -> Source:
    """Open all images of a folder and its subfolders, or a source; labels are ignored.

    Raises:
        DataError: nothing of that name exists, it has no images, or cannot be read.
    """
    path = Path(name).expanduser()
    if path.is_dir() and find_folder_reader(path) is open_class_folders:
        return _open_image_folder(path)
    try:
        return open_source(name, DataSettings(source=name, data_root=settings.data_root if name in BUILT_IN else ""))
    except DataError as error:
        other = (
            " Without labels, name the folder of its pictures." if path.suffix.lower() in MANIFEST_EXTENSIONS else ""
        )
        raise DataError(
            "--pretrain.extra_images takes a folder of pictures, however they lie in it, or what a training takes "
            f"as its SOURCE. {error}{other}"
        ) from error


def _open_image_folder(folder: Path) -> Source:
    """All images in a folder and the folders below it, as `find_images` finds them."""
    skipped = SkippedFiles(folder)
    names = find_images(folder, skipped)
    notes = [f"Left out of {folder}: {files}" for files in [skipped.describe_files()] if files]
    notes += [links for links in [skipped.describe_linked_folders()] if links]
    if not names:
        why = "".join(f" {note}" for note in notes)
        raise DataError(
            f"There are no pictures in {folder} or its folders.{why} Leave --pretrain.extra_images out, or name others."
        )
    return Source(
        name=folder.resolve().name,
        classes=("",),
        images=RelativePaths(folder, CompactStrings(names)),
        targets=np.zeros(len(names), np.int64),
        ids=CompactStrings(names),
        notes=tuple(notes),
    )


def _select_images(source: Source, rows: Int64[np.ndarray, " n"]) -> Sequence[ImageInput]:
    return [source.images[row] for row in rows.tolist()]


def _is_readable(image: ImageInput, spec: ImageSpec) -> bool:
    try:
        preprocess_image(image, spec)
    except DataError:
        return False
    return True


def _stores_pixels(source: Source) -> bool:
    """Whether a source has pixel arrays and not encoded files; the first readable image decides."""
    for image in source.images:
        try:
            return isinstance(read_content(image), np.ndarray)
        except DataError:
            continue
    return False


def _hash_images(source: Source, by_values: bool) -> Iterator[bytes]:
    """A hash of each image: of its file's bytes, or of its decoded values."""
    return map_in_order(_hash_values if by_values else _hash_bytes, source.images)


def _hash_bytes(image: ImageInput) -> bytes:
    try:
        content = read_content(image)
    except DataError as error:
        return str(error).encode()  # refused later, when it is decoded
    return hashlib.sha256(content if isinstance(content, bytes) else content.tobytes()).digest()


def _hash_values(image: ImageInput) -> bytes:
    try:
        values = read_image(image, ImageSpec()).values
    except DataError as error:
        return str(error).encode()
    return hashlib.sha256(f"{values.dtype} {values.shape} ".encode() + values.tobytes()).digest()
