"""Columns of the `datasets` library: which holds the pictures, undecoded, and what its types say of the labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ...plural import counted
from ..honoured import refuse_others
from ..labels.columns import listed, typed
from ..labels.tasks import Answers
from ..settings import DataSettings
from ..source import Picture, Source
from ..texts import Files
from .assemble import assemble
from .hf_datasets import library
from .locate import locate
from .rows import Items, Joined, Numbered
from .tabled import Tabled, read_table

USUAL = ("label", "labels")
"""Of several columns of class labels, one called so is meant."""


def source_of(
    name: str, parts: Mapping[str, Any], settings: DataSettings, where: str, notes: tuple[str, ...], home: Path | None
) -> Source:
    """A source of tables by split ("" if there are no official ones), read row by row when pictures are needed.

    Args:
        home: where pictures lie that a column names by their paths, as in a manifest; None if nobody said.

    Raises:
        DataError: no column of pictures or labels, tables whose columns differ, or a path that leads out of `home`.
    """
    refuse_others(settings, "tables", where)
    tables = _Tables({split: table.with_format(None) for split, table in parts.items()}, where)
    notes = (*notes, *tables.without_labels(settings))
    picture = tables.picture(settings.path)
    label = tables.label(settings, picture)
    answers = tables.answers(label, settings) if label else None
    if label:
        settings = replace(settings, targets=(label,))
    read = read_table(
        tables.plain(picture, settings), tables.cells, picture, settings, where, answers, bool(tables.rows())
    )
    pictures, ids = _pictures(tables, read, picture, settings, home)
    return assemble(
        name,
        pictures,
        ids,
        read.answers,
        groups=read.groups,
        splits=read.splits or tables.rows(),
        metadata=read.metadata,
        notes=(*notes, *read.notes),
    )


def _pictures(
    tables: _Tables, read: Tabled, picture: str, settings: DataSettings, home: Path | None
) -> tuple[Sequence[Picture], Sequence[str]]:
    ids = Joined[str]([Numbered(split, len(table)) for split, table in tables.parts.items()])
    if not picture:  # a column of paths
        if home is None:
            raise DataError(
                f"{tables.where} names its pictures by their paths in column {read.path!r}. Say below which folder "
                "they lie: --data-root FOLDER."
            )
        names = [str(cell) for cell in tables.cells(read.path)]
        return Files(home, locate(home, names, settings, lambda row: f"{tables.where}, row {row:,}").names), ids
    parts = [_items(table, split, picture) for split, table in tables.parts.items()]
    return (parts[0] if len(parts) == 1 else Joined(parts)), ids


def _items(table: Any, split: str, picture: str) -> Items:
    """Rows that are fetched from the table's file, which is mapped; several threads may."""
    images = library().Image
    encoded = table.select_columns([picture])
    if isinstance(table.features[picture], images):
        encoded = encoded.cast_column(picture, images(decode=False))  # our own decoder reads the bytes
    fingerprint = getattr(table, "_fingerprint", "")

    def get(row: int) -> object:
        found = encoded[row][picture]
        return np.asarray(found) if isinstance(found, list) else found

    return Items(Numbered(split, len(table)), lambda row: f"{fingerprint} {row}", get)


class _Tables:
    """Tables of one kind, one a split."""

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

    def rows(self) -> dict[str, np.ndarray]:
        """Row numbers of the official splits."""
        ends = np.cumsum([len(table) for table in self.parts.values()])
        pairs = zip(self.parts.items(), ends.tolist(), strict=True)
        return {split: np.arange(end - len(table), end) for (split, table), end in pairs if split}

    def picture(self, told: str) -> str:
        """The column of pictures: told, or of that type; "" if they may be paths."""
        if told:
            return "" if told not in self.features or self._is_text(told) else told
        kinds = ("Image", "Array2D", "Array3D")
        found = [name for name, feature in self.features.items() if type(feature).__name__ in kinds]
        found = found or [name for name in self.features if self._dtype(name) in ("binary", "large_binary")]
        if len(found) > 1:
            raise DataError(
                f"{self.where} has several columns of pictures: {listed(found)}. Name one with "
                f"--data.path {typed(found[0])}."
            )
        return found[0] if found else ""

    def label(self, settings: DataSettings, picture: str) -> str:
        """The column whose type names classes, if one is to be learnt; "" if the cells must tell."""
        typed_so = [name for name in self.features if name != picture and self._names(name)]
        if settings.targets:
            return settings.targets[0] if len(settings.targets) == 1 and settings.targets[0] in typed_so else ""
        usual = [name for name in USUAL if name in typed_so]
        if len(typed_so) > 1 and len(usual) != 1:
            raise DataError(
                f"{self.where} has several columns of class labels: {listed(typed_so)}. Name one with "
                f"--data.targets {typed(typed_so[0])}."
            )
        return usual[0] if usual else (typed_so or [""])[0]

    def without_labels(self, settings: DataSettings) -> list[str]:
        """Leave out splits whose class labels were never published: all of them -1 or empty."""
        notes = []
        names = [name for name in settings.targets or self.features if name in self.features and self._names(name)]
        for split in [split for split in self.parts if split and len(self.parts) > 1]:
            for name in names:
                column = self._column(self.parts[split], name)
                if all(value in (None, -1) for value in column):
                    del self.parts[split]
                    notes.append(f"Left out the split {split} ({len(column):,} rows): its {name!r} was not published.")
                    break
        return notes

    def answers(self, name: str, settings: DataSettings) -> Answers | None:
        """What a column of class labels, or of lists of them, says; None where the settings want something else."""
        names = self._names(name)
        values = [value for table in self.parts.values() for value in self._column(table, name)]
        if hasattr(self.features[name], "names"):
            return _one(name, names, values, settings, self.where) if settings.task in ("auto", "classes") else None
        return _several(name, names, values, self.where) if settings.task in ("auto", "labels") else None

    def plain(self, picture: str, settings: DataSettings) -> list[str]:
        """Columns of plain values, and that of the pictures."""
        told = {*settings.targets, settings.split, settings.group, picture}
        kinds = ("Value", "ClassLabel")
        return [name for name, feature in self.features.items() if name in told or type(feature).__name__ in kinds]

    def cells(self, name: str) -> list[object]:
        """All values of a column; class labels by name."""
        values = [value for table in self.parts.values() for value in self._column(table, name)]
        names = self._names(name)
        if not names:
            return values
        return [_named(value, names) for value in values]

    def _column(self, table: Any, name: str) -> list[object]:
        return table.select_columns([name])[:][name]

    def _dtype(self, name: str) -> str:
        return str(getattr(self.features[name], "dtype", ""))

    def _is_text(self, name: str) -> bool:
        return self._dtype(name) in ("string", "large_string")

    def _names(self, name: str) -> list[str]:
        """Names of the classes of a ClassLabel, or of a list of such."""
        feature = self.features[name]
        inner = feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", feature)
        found = getattr(inner, "names", None)
        return list(found) if type(inner).__name__ == "ClassLabel" and found else []


def _named(value: object, names: Sequence[str]) -> object:
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


def _one(name: str, names: Sequence[str], values: Sequence[object], settings: DataSettings, where: str) -> Answers:
    """A ClassLabel: the numbers of its classes, in its own order, those without a picture too."""
    targets = np.array([-1 if value is None else value for value in values], dtype=np.int64)
    known = (targets >= 0) & (targets < len(names))
    reason = f"Column {name!r} is a ClassLabel of {len(names)} names, so a picture has one of {len(names)} classes."
    if known.all():
        return Answers("classes", tuple(names), targets, reason)
    first = int(np.flatnonzero(~known)[0])
    if settings.uncertain != "ignore":
        raise DataError(
            f"{where}, row {first:,}: {name!r} is {values[first]}, in {counted(int((~known).sum()), 'row')} in all: no "
            "class is known there. Leave such rows out with --data.uncertain ignore."
        )
    note = f"Left out {counted(int((~known).sum()), 'row')} whose {name!r} is empty or -1 (--data.uncertain ignore)."
    kept = np.flatnonzero(known)
    return Answers("classes", tuple(names), targets[kept], reason, (note,), kept)


def _several(name: str, names: Sequence[str], values: Sequence[object], where: str) -> Answers:
    """Lists of ClassLabel: 1 for each that is in the list; without a list, nothing is known."""
    targets = np.zeros((len(values), len(names)), dtype=np.float32)
    for row, labels in enumerate(values):
        if not isinstance(labels, list):
            targets[row] = np.nan
            continue
        if not all(isinstance(label, int) and 0 <= label < len(names) for label in labels):
            raise DataError(f"{where}, row {row:,}: {name!r} is {labels}, but there are classes 0..{len(names) - 1}.")
        targets[row, labels] = 1
    reason = f"Column {name!r} holds lists of ClassLabel, so a picture may have several: labels."
    return Answers("labels", tuple(names), targets, reason)
