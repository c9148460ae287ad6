"""Data sets of the `datasets` library: by their name on the Hub, from a folder of `save_to_disk`, or loaded already.

Nothing of a data set is ever run: scripts are refused by the library, and its own picture decoder is not used, so that
a picture looks the same from every source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ...errors import DataError
from ..names import SPLIT_NAMES
from ..settings import DataSettings
from ..source import SPLITS, Source

NAME = re.compile(r"(\w[\w.-]*(?:/\w[\w.-]*)?)(?::([\w.+-]+))?")


def open_hub(name: str, settings: DataSettings) -> Source:
    """A data set of the Hub, from the library's cache if it is there: OWNER/NAME, or OWNER/NAME:CONFIGURATION.

    Raises:
        DataError: it is not there and cannot be fetched, or cannot be used.
    """
    datasets = library()
    if (matched := NAME.fullmatch(name)) is None:
        raise DataError(f"hf:{name} is no name of a data set. Expected hf:OWNER/NAME or hf:OWNER/NAME:CONFIGURATION.")
    repository, configuration = matched.groups()
    if Path(repository).exists():
        raise DataError(
            f"hf:{name}: {repository} is also a file or folder here, which the datasets library would read instead. "
            f"Give ./{repository} to read that, or run in another folder."
        )
    try:
        loaded = datasets.load_dataset(repository, configuration)
    except Exception as error:  # network, cache, formats: everything that a library of that size can raise
        raise DataError(_not_loaded(name, repository, error)) from error
    return _source(name.rpartition("/")[2].replace(":", "-"), loaded, settings, f"hf:{name}", None)


def open_folder(path: Path, settings: DataSettings) -> Source:
    """A folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote.

    Raises:
        DataError: the library cannot read it, or it cannot be used.
    """
    try:
        loaded = library().load_from_disk(str(path))
    except DataError:
        raise
    except Exception as error:  # damaged tables raise anything
        raise DataError(
            f"{path} cannot be read as a folder of the datasets library ({_said(error)}). Write it again with "
            "save_to_disk, or give a folder of class folders or a manifest."
        ) from error
    return _source(path.resolve().name, loaded, settings, str(path), path)


def open_loaded(given: Any, settings: DataSettings) -> Source:
    """A Dataset or DatasetDict in memory."""
    library()
    anywhere = replace(settings, allow_outside_root=True)  # the program that handed it over may read its own files
    return _source("dataset", given, anywhere, f"This {type(given).__name__}", Path())


def library() -> ModuleType:
    """The datasets library.

    Raises:
        DataError: it is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError("Data sets of the Hub need the datasets library: pip install 'vitrail[data]'.") from error
    return datasets


def _source(name: str, loaded: Any, settings: DataSettings, where: str, home: Path | None) -> Source:
    """A source of a table, or of one a split; pictures that it names by their paths lie below `home`."""
    from .hf_columns import source_of

    home = Path(settings.data_root).expanduser() if settings.data_root else home
    if not isinstance(loaded, Mapping):  # a DatasetDict is a dictionary
        return source_of(name, {"": loaded}, settings, where, (), home)
    parts, notes = _splits(loaded, where)
    return source_of(name, parts, settings, where, notes, home)


def _splits(loaded: Mapping[str, Any], where: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Tables by our names of splits; a single one is all there is and is parted later."""
    found: dict[str, Any] = {}
    notes = []
    for theirs, table in loaded.items():
        ours = SPLIT_NAMES.get(str(theirs).lower(), "")
        if ours in found:
            raise DataError(f"{where} has two splits for {ours}: {', '.join(map(str, loaded))}. Remove one.")
        if ours and len(table):
            found[ours] = table
        else:
            what = "it is empty" if ours else "it is none of train, validation and test"
            notes.append(f"Left out the split {theirs!r} ({len(table):,} rows): {what}.")
    if len(loaded) == 1 and not found:
        return {"": next(iter(loaded.values()))}, ()
    if not found:
        raise DataError(f"{where} has no split called train, validation or test. It has {', '.join(map(str, loaded))}.")
    if len(found) == 1 and "test" not in found:
        return {"": next(iter(found.values()))}, tuple(notes)
    return {split: found[split] for split in SPLITS if split in found}, tuple(notes)


def _not_loaded(name: str, repository: str, error: Exception) -> str:
    said = _said(error)
    if "config" in said.lower() and "missing" in said.lower():
        return f"hf:{name} has several configurations ({said}). Name one: hf:{repository}:CONFIGURATION."
    return (
        f"hf:{name} is not in the cache of the datasets library and cannot be fetched ({said}). Where there is a "
        f"network, run python -c \"import datasets; datasets.load_dataset('{repository}').save_to_disk('FOLDER')\", "
        "and give that FOLDER here."
    )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
