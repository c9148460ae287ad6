"""Read Hugging Face datasets: from the Hub, a folder of `save_to_disk`, or a Dataset in memory.

No code of a dataset is ever run: the library refuses scripts, and images are decoded by our decoder, so that an image
is the same from every source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ...errors import DataError
from ...formatting import format_count
from ..compact_strings import RelativePaths
from ..labels.columns import quote_for_shell, quote_names
from ..labels.tasks import InferredTask
from ..settings import DataSettings, check_supported_settings
from ..source import SPLIT_NAMES, SPLITS, Source
from .column_roles import read_memory_table
from .label_input import build_source
from .lazy_sequences import ConcatSequence, DeferredImages, NumberedNames
from .manifest import locate_images

USUAL_LABEL_COLUMNS = ("label", "labels")
"""Names by which one of several columns of class labels is chosen."""


def build_hf_source(
    name: str, parts: Mapping[str, Any], settings: DataSettings, where: str, notes: tuple[str, ...], home: Path | None
) -> Source:
    """Build a source from tables by split ("" if there are no official ones); images are read row by row on demand.

    Args:
        home: the folder of relative image paths in a column, as in a manifest; None if unknown.

    Raises:
        DataError: no column of images or labels, tables whose columns differ, or a path that leads out of `home`.
    """
    check_supported_settings(settings, "tables", where)
    tables = _HfTables({split: table.with_format(None) for split, table in parts.items()}, where)
    notes = (*notes, *tables.drop_unlabelled_splits(settings))
    image = tables.find_image_column(settings.path)
    label = tables.find_label_column(settings, image)
    labels = tables.infer_class_labels(label, settings) if label else None
    if label:
        settings = replace(settings, targets=(label,))
    rows, names = tables.split_rows(), tables.list_plain_columns(image, settings)
    path_column, read = read_memory_table(names, tables.read_cells, image, settings, where, labels, bool(rows))
    annotations = replace(read, splits=read.splits or rows, notes=(*notes, *read.notes))
    ids = ConcatSequence[str]([NumberedNames(split, len(table)) for split, table in tables.parts.items()])
    if image:
        stacks = [_lazy_table_images(table, split, image) for split, table in tables.parts.items()]
        return build_source(name, stacks[0] if len(stacks) == 1 else ConcatSequence(stacks), ids, annotations)
    if home is None:
        raise DataError(
            f"{where} names its pictures by their paths in column {path_column!r}. Say below which folder they lie: "
            "--data-root FOLDER."
        )
    paths = [str(cell) for cell in tables.read_cells(path_column)]
    located, _ = locate_images(home, paths, settings, lambda row: f"{where}, row {row:,}")
    return build_source(name, RelativePaths(home, located), ids, annotations)


def _lazy_table_images(table: Any, split: str, image: str) -> DeferredImages:
    """Images fetched on demand from the table's memory-mapped file; thread-safe."""
    images = import_datasets().Image
    encoded = table.select_columns([image])
    if isinstance(table.features[image], images):
        encoded = encoded.cast_column(image, images(decode=False))  # our own decoder reads the bytes
    fingerprint = getattr(table, "_fingerprint", "")

    def get(row: int) -> object:
        cell = encoded[row][image]
        return np.asarray(cell) if isinstance(cell, list) else cell

    return DeferredImages(NumberedNames(split, len(table)), lambda row: f"{fingerprint} {row}", get)


class _HfTables:
    """Tables with equal columns, one per split."""

    def __init__(self, parts: dict[str, Any], where: str):
        self.parts = parts
        self.where = where
        self.features = next(iter(parts.values())).features
        for split, table in parts.items():
            if not len(table):
                raise DataError(f"{where} has no rows{f' in {split}' if split else ''}.")
            for name, feature in self.features.items():
                if table.features.get(name) != feature:
                    raise DataError(
                        f"{where}: column {name!r} of {split} is not of the kind that {next(iter(parts))} has, so its "
                        "values may mean something else. Cast both to the same features."
                    )

    def split_rows(self) -> dict[str, np.ndarray]:
        """Row indices of the official splits."""
        ends = np.cumsum([len(table) for table in self.parts.values()])
        pairs = zip(self.parts.items(), ends.tolist(), strict=True)
        return {split: np.arange(end - len(table), end) for (split, table), end in pairs if split}

    def find_image_column(self, path_setting: str) -> str:
        """The column of images, from the settings or by its type; "" if images may be given as paths."""
        if path_setting:
            is_path = path_setting not in self.features or self._dtype(path_setting) in ("string", "large_string")
            return "" if is_path else path_setting
        kinds = ("Image", "Array2D", "Array3D")
        columns = [name for name, feature in self.features.items() if type(feature).__name__ in kinds]
        columns = columns or [name for name in self.features if self._dtype(name) in ("binary", "large_binary")]
        if len(columns) > 1:
            raise DataError(
                f"{self.where} has several columns of pictures: {quote_names(columns)}. Name one with "
                f"--data.path {quote_for_shell(columns[0])}."
            )
        return columns[0] if columns else ""

    def find_label_column(self, settings: DataSettings, image: str) -> str:
        """The target column of type ClassLabel; "" if the task must be inferred from cells."""
        typed_so = [name for name in self.features if name != image and self._class_names(name)]
        if settings.targets:
            return settings.targets[0] if len(settings.targets) == 1 and settings.targets[0] in typed_so else ""
        usual = [name for name in USUAL_LABEL_COLUMNS if name in typed_so]
        if len(typed_so) > 1 and len(usual) != 1:
            raise DataError(
                f"{self.where} has several columns of class labels: {quote_names(typed_so)}. Name one with "
                f"--data.targets {quote_for_shell(typed_so[0])}."
            )
        return usual[0] if usual else (typed_so or [""])[0]

    def drop_unlabelled_splits(self, settings: DataSettings) -> list[str]:
        """Drop splits whose class labels were not published: all of them are -1 or empty."""
        notes = []
        names = [
            name for name in settings.targets or self.features if name in self.features and self._class_names(name)
        ]
        for split in [split for split in self.parts if split and len(self.parts) > 1]:
            for name in names:
                column = _read_column(self.parts[split], name)
                if all(value in (None, -1) for value in column):
                    del self.parts[split]
                    notes.append(
                        f"Left out the split {split} ({format_count(len(column), 'row')}): its "
                        f"{name!r} was not published."
                    )
                    break
        return notes

    def infer_class_labels(self, name: str, settings: DataSettings) -> InferredTask | None:
        """Labels of a ClassLabel column or of lists of them; None where the settings name another task."""
        names, values = self._class_names(name), self._read_all(name)
        if hasattr(self.features[name], "names"):
            fits = settings.label_task in ("auto", "classification")
            return _encode_class_label(name, names, values, settings, self.where) if fits else None
        fits = settings.label_task in ("auto", "multilabel")
        return _encode_class_label_lists(name, names, values, self.where) if fits else None

    def list_plain_columns(self, image: str, settings: DataSettings) -> list[str]:
        """Columns of plain values, and the column of the images."""
        named = {*settings.targets, settings.split_column, settings.group, image}
        kinds = ("Value", "ClassLabel")
        return [name for name, feature in self.features.items() if name in named or type(feature).__name__ in kinds]

    def read_cells(self, name: str) -> list[object]:
        """All values of a column; class labels by name."""
        names, values = self._class_names(name), self._read_all(name)
        return [_label_to_name(value, names) for value in values] if names else values

    def _read_all(self, name: str) -> list[object]:
        return [value for table in self.parts.values() for value in _read_column(table, name)]

    def _dtype(self, name: str) -> str:
        return str(getattr(self.features[name], "dtype", ""))

    def _class_names(self, name: str) -> list[str]:
        """Class names of a ClassLabel, or of a list of them."""
        feature = self.features[name]
        inner = feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", feature)
        names = getattr(inner, "names", None)
        return list(names) if type(inner).__name__ == "ClassLabel" and names else []


def _read_column(table: Any, name: str) -> list[object]:
    return table.select_columns([name])[:][name]


def _label_to_name(value: object, names: Sequence[str]) -> object:
    if isinstance(value, list):
        return [_label_to_name(each, names) for each in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


def _encode_class_label(
    name: str, names: Sequence[str], values: Sequence[object], settings: DataSettings, where: str
) -> InferredTask:
    """Encode a ClassLabel column as class indices in its own order, with all of its classes."""
    targets = np.array([-1 if value is None else value for value in values], dtype=np.int64)
    known = (targets >= 0) & (targets < len(names))
    reason = (
        f"Column {name!r} is a ClassLabel of {len(names)} names, so a picture has one of "
        f"{format_count(len(names), 'class', 'classes')}."
    )
    if known.all():
        return InferredTask("classification", tuple(names), targets, reason)
    unknown = format_count(int((~known).sum()), "row")
    if settings.uncertain != "ignore":
        first = int(np.flatnonzero(~known)[0])
        raise DataError(
            f"{where}, row {first:,}: {name!r} is {values[first]}, in {unknown} in all: no class is known there. Leave "
            "such rows out with --data.uncertain ignore."
        )
    note = f"Left out {unknown} whose {name!r} is empty or -1 (--data.uncertain ignore)."
    kept = np.flatnonzero(known)
    return InferredTask("classification", tuple(names), targets[kept], reason, (note,), kept)


def _encode_class_label_lists(name: str, names: Sequence[str], values: Sequence[object], where: str) -> InferredTask:
    """Encode lists of ClassLabel as multilabel targets; rows without a list are unknown (NaN)."""
    targets = np.zeros((len(values), len(names)), dtype=np.float32)
    for row, labels in enumerate(values):
        if not isinstance(labels, list):
            targets[row] = np.nan
            continue
        if not all(isinstance(label, int) and 0 <= label < len(names) for label in labels):
            raise DataError(f"{where}, row {row:,}: {name!r} is {labels}, but there are classes 0..{len(names) - 1}.")
        targets[row, labels] = 1
    reason = f"Column {name!r} holds lists of ClassLabel, so a picture may have several: labels."
    return InferredTask("multilabel", tuple(names), targets, reason)


# -- Loading datasets.

HUB_NAME_PATTERN = re.compile(r"(\w[\w.-]*(?:/\w[\w.-]*)?)(?::([\w.+-]+))?")


def open_hub_dataset(name: str, settings: DataSettings) -> Source:
    """Open a dataset of the Hub, from the library's cache if possible: OWNER/NAME, or OWNER/NAME:CONFIGURATION.

    Raises:
        DataError: it is not cached and cannot be fetched, or cannot be used.
    """
    datasets = import_datasets()
    matched = HUB_NAME_PATTERN.fullmatch(name)
    if matched is None:
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
        reason = _describe_error(error)
        if "config" in reason.lower() and "missing" in reason.lower():
            raise DataError(
                f"hf:{name} has several configurations ({reason}). Name one: hf:{repository}:CONFIGURATION."
            ) from error
        raise DataError(
            f"hf:{name} is not in the cache of the datasets library and cannot be fetched ({reason}). Where there is a "
            f"network, run python -c \"import datasets; datasets.load_dataset('{repository}').save_to_disk('FOLDER')\""
            ", and give that FOLDER here."
        ) from error
    return _build_from_loaded(name.rpartition("/")[2].replace(":", "-"), loaded, settings, f"hf:{name}", None)


def open_saved_dataset(path: Path, settings: DataSettings) -> Source:
    """Open a folder written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`.

    Raises:
        DataError: the library cannot read it, or it cannot be used.
    """
    try:
        loaded = import_datasets().load_from_disk(str(path))
    except DataError:
        raise
    except Exception as error:  # damaged tables raise anything
        raise DataError(
            f"{path} cannot be read as a folder of the datasets library ({_describe_error(error)}). Write it again "
            "with save_to_disk, or give a folder of class folders or a manifest."
        ) from error
    return _build_from_loaded(path.resolve().name, loaded, settings, str(path), path)


def open_hf_dataset(dataset: Any, settings: DataSettings) -> Source:
    """Open a Dataset or DatasetDict in memory."""
    import_datasets()
    anywhere = replace(settings, allow_outside_root=True)  # a Python program may read its own files
    return _build_from_loaded("dataset", dataset, anywhere, f"This {type(dataset).__name__}", Path())


def import_datasets() -> ModuleType:
    """Import the datasets library, an optional extra.

    Raises:
        DataError: it is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError("Data sets of the Hub need the datasets library: pip install 'vitrail[data]'.") from error
    return datasets


def _build_from_loaded(name: str, loaded: Any, settings: DataSettings, where: str, home: Path | None) -> Source:
    """Build a source from a Dataset or DatasetDict; relative image paths belong to `home`."""
    home = Path(settings.data_root).expanduser() if settings.data_root else home
    parts, notes = _tables_by_split(loaded, where) if isinstance(loaded, Mapping) else ({"": loaded}, ())
    return build_hf_source(name, parts, settings, where, notes, home)


def _tables_by_split(loaded: Mapping[str, Any], where: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Tables of a DatasetDict by our names of splits; a single table without a split name is split later."""
    tables: dict[str, Any] = {}
    notes = []
    for theirs, table in loaded.items():
        ours = SPLIT_NAMES.get(str(theirs).lower(), "")
        if ours in tables:
            raise DataError(f"{where} has two splits for {ours}: {', '.join(map(str, loaded))}. Remove one.")
        if ours and len(table):
            tables[ours] = table
        else:
            what = "it is empty" if ours else "it is none of train, validation and test"
            notes.append(f"Left out the split {theirs!r} ({format_count(len(table), 'row')}): {what}.")
    if len(loaded) == 1 and not tables:
        return {"": next(iter(loaded.values()))}, ()
    if not tables:
        raise DataError(f"{where} has no split called train, validation or test. It has {', '.join(map(str, loaded))}.")
    if len(tables) == 1 and "test" not in tables:
        return {"": next(iter(tables.values()))}, tuple(notes)
    return {split: tables[split] for split in SPLITS if split in tables}, tuple(notes)


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
