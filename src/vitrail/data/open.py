"""Open a dataset from a name that Vitrail knows, a folder, a file, or an object in memory.

Most readers are imported where they are used: they import torch, and the command line reads the names below without
waiting for it (tests/end_to_end/test_help_time.py).
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import DataError, UsageError
from ..files.suggest import suggest_path
from .decoding.decoded_image import CSV_HINT, IMAGE_EXTENSIONS, WORKBOOK_EXTENSIONS
from .labels.defects import split_good_from_defects
from .settings import DataSettings, SourceKind, check_supported_settings
from .source import MANIFEST_EXTENSIONS, SPLIT_NAMES, Source
from .sources.class_folders import open_class_folders
from .sources.mask_folders import VOC_MASKS_FOLDER, open_mask_folders

Reader = Callable[[Path, DataSettings], Source]
HUB_PREFIX = "hf:"
SHARD_EXTENSION = ".tar"
PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
ARRAY_EXTENSIONS = (".npz", ".npy")
ANNOTATION_EXTENSIONS = (".json", ".xml")
BUNDLED_SETS = ("digits", "planted")
"""Datasets that come with Vitrail, without files of their own."""
BUILT_IN = (*BUNDLED_SETS, "mnist", "fashion-mnist", "cifar10", "cifar100")


@dataclass(frozen=True)
class SplitSources:
    """A source of its own for each split, as `open_source` takes it; None where the training images are split."""

    train: object
    val: object | None = None
    test: object | None = None


def open_source(source: object, settings: DataSettings | None = None) -> Source:
    """Open the dataset behind a name, a path or an object; a folder named like a built-in dataset is `./digits`.

    Args:
        source: text or a path; or, in Python, a torch Dataset, a DataFrame, a list of (image, label) pairs, a pair of
            arrays (images, labels), or `SplitSources` of such.
        settings: how to read it; `settings.source` is ignored.

    Raises:
        UsageError: a setting that this kind of source does not support.
        DataError: it does not exist, or its contents cannot be used.
    """
    settings = settings or DataSettings()
    opened = _read_source(source, settings)
    if settings.task == "segmentation" and isinstance(source, Source) and source.legend is not None:
        return opened
    if settings.task == "segmentation":
        from .labels.masks import read_masks

        return read_masks(opened, settings)
    return split_good_from_defects(opened, settings) if settings.task == "anomaly" else opened


def _read_source(source: object, settings: DataSettings) -> Source:
    """As `open_source`, with the classes as they are written."""
    if not isinstance(source, SplitSources) and (settings.val_source or settings.test_source):
        source = SplitSources(source, settings.val_source or None, settings.test_source or None)
    if isinstance(source, SplitSources):
        return _open_split_sources(source, replace(settings, val_source="", test_source=""))
    if isinstance(source, Source):
        check_supported_settings(settings, "opened", f"{source.name}, which is open already,")
        return source
    if settings.task == "segmentation" and not _may_have_masks(source):
        raise UsageError(
            "--task segmentation reads a folder with images/ and masks/, a manifest with a column mask, or annotations "
            f"of COCO, Label Studio (.json) or CVAT (.xml). Got "
            f"{source if isinstance(source, str | Path) else f'a {type(source).__name__}'}."
        )
    if not isinstance(source, str | Path):
        from .sources.in_memory import open_object

        return open_object(source, settings)
    name = str(source)
    if isinstance(source, str) and name in BUILT_IN:
        kind: SourceKind = "built-in set" if name in BUNDLED_SETS else "usual set"
        check_supported_settings(settings, kind, f"the set {name}")
        return _open_built_in(name, Path(settings.data_root).expanduser() if settings.data_root else None)
    if name.startswith(HUB_PREFIX):
        from .sources.huggingface import open_hub_dataset

        return open_hub_dataset(name.removeprefix(HUB_PREFIX), settings)
    path = Path(name).expanduser()
    if path.is_dir() and settings.task == "segmentation":
        if (path / VOC_MASKS_FOLDER).is_dir():
            from .sources.voc import open_voc

            return open_voc(path, settings)
        return open_mask_folders(path, settings)
    if path.suffix.lower() in ANNOTATION_EXTENSIONS and path.is_file() and settings.task == "segmentation":
        return _open_annotations(path, settings)
    if path.is_dir():
        return find_folder_reader(path)(path, settings)
    if path.is_file():
        return find_file_reader(path)(path, settings)
    if shards := _expand_shard_pattern(name):
        from .sources.webdataset import open_shards

        return open_shards(shards, settings)
    raise DataError(
        f"There is nothing at {name}. Expected a folder with one folder per class, a manifest "
        f"({', '.join(MANIFEST_EXTENSIONS)}), arrays ({', '.join(ARRAY_EXTENSIONS)}), tar shards, {HUB_PREFIX}NAME, or "
        f"one of {', '.join(BUILT_IN)}.{suggest_path(name, BUILT_IN)}"
    )


def _open_annotations(path: Path, settings: DataSettings) -> Source:
    """A file of CVAT, Label Studio or COCO, by what it holds."""
    from .sources import coco, cvat, label_studio
    from .sources.mask_annotations import read_annotation_json

    if path.suffix.lower() == ".xml":
        return cvat.open_cvat(path, settings)
    content = read_annotation_json(path)
    if isinstance(content, list):
        return label_studio.open_label_studio(path, content, settings)
    if isinstance(content, dict):
        return coco.open_coco(path, content, settings)
    raise DataError(f"{path} holds neither the list of tasks of Label Studio nor the fields of COCO.")


def _open_split_sources(sources: SplitSources, settings: DataSettings) -> Source:
    """Open each source, those of val and test with the task of the training pictures, and join them."""
    from .sources.joined import join_sources

    opened = {"train": _read_source(sources.train, settings)}
    for split, source in (("val", sources.val), ("test", sources.test)):
        if source is not None:
            try:
                task = settings.task if settings.task in ("anomaly", "segmentation") else opened["train"].task
                opened[split] = _read_source(source, replace(settings, task=task))
            except (DataError, UsageError) as error:
                raise type(error)(f"The source of the {split} pictures: {error}") from error
    joined = join_sources(opened)
    if isinstance(sources.train, str | Path) and joined.name.lower() in SPLIT_NAMES:  # flowers/train
        return replace(joined, name=Path(sources.train).expanduser().absolute().parent.name or joined.name)
    return joined


def _may_have_masks(source: object) -> bool:
    """Whether a source may hold masks: what is there as a folder or manifest, or is not there at all."""
    if not isinstance(source, str | Path) or str(source).startswith(HUB_PREFIX):
        return False
    path = Path(source).expanduser()
    known = (*MANIFEST_EXTENSIONS, *ANNOTATION_EXTENSIONS)
    return path.suffix.lower() in known if path.is_file() else source not in BUILT_IN


def is_in_memory(source: object) -> bool:
    """Whether a source is an object of this process, which no command can name."""
    return not isinstance(source, str | Path)


def gather_objects(source: object, val: object | None = None, test: object | None = None) -> object | None:
    """The sources of a training as one object, if one of them is an object of this process; None if all are paths."""
    given = [each for each in (source, val, test) if each is not None]
    if not any(map(is_in_memory, given)):
        return None
    return source if val is None and test is None else SplitSources(source, val, test)


def find_folder_reader(folder: Path) -> Reader:
    """The reader for a folder, by its files; class folders by default."""
    names = {entry.name for entry in folder.iterdir()}
    if names & {"dataset_info.json", "dataset_dict.json"}:
        from .sources.huggingface import open_saved_dataset

        return open_saved_dataset
    if any(name.startswith("Data_Entry_2017") and name.endswith(".csv") for name in names):
        from .sources.chest_xray14 import open_chest_xray14

        return open_chest_xray14
    if _has_shards(folder, names):
        from .sources.webdataset import open_shard_folder

        return open_shard_folder
    return open_class_folders


def _has_shards(folder: Path, names: Iterable[str]) -> bool:
    """Whether a folder, or its folders called train, val or test, contain tar shards."""
    inside = [folder / name for name in names if name.lower() in SPLIT_NAMES and (folder / name).is_dir()]
    return any(entry.name.endswith(SHARD_EXTENSION) for place in (folder, *inside) for entry in place.iterdir())


def find_file_reader(path: Path) -> Reader:
    """The reader for a file, by its extension.

    Raises:
        DataError: there is no reader for it.
    """
    ending = path.suffix.lower()
    if ending in MANIFEST_EXTENSIONS:
        from .sources.manifest import open_manifest

        return open_manifest
    if ending in ARRAY_EXTENSIONS:
        from .sources.arrays import open_arrays

        return open_arrays
    if ending == SHARD_EXTENSION:
        from .sources.webdataset import open_shard

        return open_shard
    if path.name.lower().endswith(PACKED):
        raise DataError(
            f"{path} is packed, and shards are read in place. If it holds samples, unpack it once (gzip -d, xz "
            "-d or zstd -d) and give the .tar; if it holds folders of pictures, tar -xf and give the folder."
        )
    if ending in IMAGE_EXTENSIONS:
        raise DataError(
            f"{path} is one picture. A source is a folder with one folder per class, or a table of pictures; to "
            f"ask a trained model about one: vitrail predict RUN {shlex.quote(str(path))}"
        )
    if ending in WORKBOOK_EXTENSIONS:
        raise DataError(f"{path} is a workbook, which is not read: {CSV_HINT}.")
    raise DataError(
        f"{path} is a file of no kind that holds a data set. Expected a manifest ({', '.join(MANIFEST_EXTENSIONS)}), "
        f"arrays ({', '.join(ARRAY_EXTENSIONS)}), a tar shard ({SHARD_EXTENSION}), a folder, or one of "
        f"{', '.join(BUILT_IN)}."
    )


def _expand_shard_pattern(name: str) -> list[Path]:
    """The files of a shard pattern: `data-*.tar`, or `data-{0000..0099}.tar`."""
    if not name.endswith(SHARD_EXTENSION):
        return []
    if "{" in name:
        from .sources.webdataset import expand_braces

        return [Path(each).expanduser() for each in expand_braces(name)]
    return [Path(each) for each in sorted(glob.glob(str(Path(name).expanduser())))] if glob.has_magic(name) else []


def _open_built_in(name: str, data_root: Path | None) -> Source:
    if name == "planted":
        from .sources.synthetic import open_synthetic

        return open_synthetic()
    from .sources import builtin

    if name == "digits":
        return builtin.open_digits()
    readers = {
        "mnist": builtin.open_mnist,
        "fashion-mnist": builtin.open_fashion_mnist,
        "cifar10": builtin.open_cifar10,
        "cifar100": builtin.open_cifar100,
    }
    return readers[name](data_root)
