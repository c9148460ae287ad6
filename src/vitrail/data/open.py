"""Which reader a SOURCE belongs to: a name that Vitrail knows, a folder, a file, or an object in memory."""

from __future__ import annotations

import glob
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

from ..errors import DataError
from ..files.suggest import suggest_path
from .honoured import Kind, refuse_others
from .settings import DataSettings
from .source import Source
from .table_names import MANIFESTS

Reader = Callable[[Path, DataSettings], Source]
HUB = "hf:"
SHARDS = ".tar"
PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def open_source(source: object, settings: DataSettings | None = None) -> Source:
    """The pictures and labels behind a name, a path or an object; a folder called like a built-in set is `./digits`.

    Args:
        source: text or a path; or, in Python, a torch Dataset, a DataFrame, a list of (picture, label) pairs, or a pair
            of arrays (pictures, labels).
        settings: how it is to be read; its own `source` is not looked at.

    Raises:
        UsageError: a setting that this kind of source cannot follow.
        DataError: nothing there, or its contents cannot be used.
    """
    settings = settings or DataSettings()
    if isinstance(source, Source):
        refuse_others(settings, "opened", f"{source.name}, which is open already,")
        return source
    if not isinstance(source, str | Path):
        from .sources.objects import open_object

        return open_object(source, settings)
    name = str(source)
    if isinstance(source, str) and name in BUILT_IN:
        kind: Kind = "built-in set" if name in MADE else "usual set"
        refuse_others(settings, kind, f"the set {name}")
        return BUILT_IN[name](settings)
    if name.startswith(HUB):
        from .sources.hf_datasets import open_hub

        return open_hub(name.removeprefix(HUB), settings)
    path = Path(name).expanduser()
    if path.is_dir():
        return folder_reader(path)(path, settings)
    if path.is_file():
        return file_reader(path)(path, settings)
    if _shards(name):
        from .sources.shards import open_shards

        return open_shards(_shards(name), settings)
    raise DataError(_nothing(name))


def is_memory(source: object) -> bool:
    """Whether a source is an object that only this process has, so that no command can name it again."""
    return not isinstance(source, str | Path)


def folder_reader(folder: Path) -> Reader:
    """The reader that a folder's own files ask for; class folders where none of them does."""
    names = {entry.name for entry in folder.iterdir()}
    if names & {"dataset_info.json", "dataset_dict.json"}:
        from .sources.hf_datasets import open_folder

        return open_folder
    if any(name.startswith("Data_Entry_2017") and name.endswith(".csv") for name in names):
        from .sources.chest_xray14 import open_chest_xray14

        return open_chest_xray14
    if _holds_shards(folder, names):
        from .sources.shards import open_folder as open_folder_of_shards

        return open_folder_of_shards
    from .sources.class_folders import open_class_folders

    return open_class_folders


def _holds_shards(folder: Path, names: Iterable[str]) -> bool:
    """Whether tar shards lie in a folder, or in its folders called train, val or test."""
    from .names import SPLIT_NAMES

    inside = [folder / name for name in names if name.lower() in SPLIT_NAMES and (folder / name).is_dir()]
    return any(entry.name.endswith(SHARDS) for place in (folder, *inside) for entry in place.iterdir())


def file_reader(path: Path) -> Reader:
    """The reader for a file, by its ending.

    Raises:
        DataError: no reader takes such a file.
    """
    ending = path.suffix.lower()
    if ending in MANIFESTS:
        from .sources.manifest import open_manifest

        return open_manifest
    if ending in ARRAYS:
        from .sources.arrays import open_arrays

        return open_arrays
    if ending == SHARDS:
        from .sources.shards import open_file

        return open_file
    if path.name.lower().endswith(PACKED):
        raise DataError(
            f"{path} is packed, and shards are read in place. If it holds samples, unpack it once (gzip -d, xz "
            "-d or zstd -d) and give the .tar; if it holds folders of pictures, tar -xf and give the folder."
        )
    from .decoding.endings import ENDINGS

    if ending in ENDINGS:
        raise DataError(
            f"{path} is one picture. A source is a folder with one folder per class, or a table of pictures; to "
            f"ask a trained model about one: vitrail predict RUN {shlex.quote(str(path))}"
        )
    raise DataError(
        f"{path} is a file of no kind that holds a data set. Expected a manifest ({', '.join(MANIFESTS)}), arrays "
        f"({', '.join(ARRAYS)}), a tar shard ({SHARDS}), a folder, or one of {', '.join(BUILT_IN)}."
    )


def _shards(name: str) -> list[Path]:
    """The files that a pattern of shards names: `data-*.tar`, or `data-{0000..0099}.tar`."""
    if not name.endswith(SHARDS):
        return []
    if "{" in name:
        from .sources.shards import braces

        return [Path(each).expanduser() for each in braces(name)]
    return [Path(each) for each in sorted(glob.glob(str(Path(name).expanduser())))] if glob.has_magic(name) else []


def _nothing(name: str) -> str:
    return (
        f"There is nothing at {name}. Expected a folder with one folder per class, a manifest "
        f"({', '.join(MANIFESTS)}), arrays ({', '.join(ARRAYS)}), tar shards, {HUB}NAME, or one of "
        f"{', '.join(BUILT_IN)}.{suggest_path(name, BUILT_IN)}"
    )


def _digits(settings: DataSettings) -> Source:
    from .sources.digits import open_digits

    return open_digits()


def _planted(settings: DataSettings) -> Source:
    from .sources.planted import open_planted

    return open_planted()


def _fashion_mnist(settings: DataSettings) -> Source:
    from .sources.idx import open_fashion_mnist

    return open_fashion_mnist(_root(settings))


def _mnist(settings: DataSettings) -> Source:
    from .sources.idx import open_mnist

    return open_mnist(_root(settings))


def _cifar10(settings: DataSettings) -> Source:
    from .sources.cifar import open_cifar10

    return open_cifar10(_root(settings))


def _cifar100(settings: DataSettings) -> Source:
    from .sources.cifar import open_cifar100

    return open_cifar100(_root(settings))


def _root(settings: DataSettings) -> Path | None:
    return Path(settings.data_root).expanduser() if settings.data_root else None


ARRAYS = (".npz", ".npy")
MADE = ("digits", "planted")
"""Sets that come with Vitrail, without files of their own."""
BUILT_IN: dict[str, Callable[[DataSettings], Source]] = {
    "digits": _digits,
    "planted": _planted,
    "mnist": _mnist,
    "fashion-mnist": _fashion_mnist,
    "cifar10": _cifar10,
    "cifar100": _cifar100,
}
