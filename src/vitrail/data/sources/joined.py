"""Join sources of their own for train, val and test into one source, with the classes of the training images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...formatting import format_count
from ..compact_strings import CompactStrings
from ..labels.codes import take_rows
from ..labels.tasks import InferredTask
from ..source import SPLITS, ImageInput, Source
from .arrays import SplitArrays, concat_stacks
from .label_input import Annotations, build_source
from .lazy_sequences import ConcatSequence, SubsetSequence


def join_sources(sources: Mapping[str, Source]) -> Source:
    """Join the sources of train, and of val, test or both; ids begin with the split, as train/cat/0.png.

    A source for val or test that has splits itself gives that of the same name; of a source for train they are kept,
    unless they are given apart.

    Raises:
        DataError: sources of different tasks, a class, label or column that only val or test has, a split given twice,
            or arrays of different types.
    """
    parts = _list_parts(sources)
    train = sources["train"]
    for split, source in sources.items():
        if source.task != train.task:
            raise DataError(f"The pictures for train have the task {train.task}, those for {split} {source.task}.")
    if any(source.legend != train.legend for source in sources.values()):
        raise DataError(
            "The masks of train, val and test need the same classes in the same order. Write the same labels into all "
            "files, one that does not occur too."
        )
    classes, targets, notes = _join_targets(parts)
    ends = np.cumsum([len(source) for _, source in parts])
    rows = {split: np.arange(end - len(source), end) for (split, source), end in zip(parts, ends, strict=True)}
    groups, note = _join_groups(parts)
    annotations = Annotations(
        labels=InferredTask(train.task, classes, targets, train.reason),
        groups=groups,
        splits=rows,
        metadata={
            column: ConcatSequence([source.metadata[column] for _, source in parts])
            for column in train.metadata
            if all(column in source.metadata for _, source in parts)
        },
        notes=(*_join_notes(sources), *notes, *note),
    )
    ids = CompactStrings(_name_in_split(split, name) for split, source in parts for name in source.ids)
    joined = build_source(train.name, _join_images(parts), ids, annotations)
    return replace(joined, blocks=_join_blocks(parts), legend=train.legend)


Parts = list[tuple[str, Source]]
"""Splits in order, each with the source of its pictures alone."""


def _list_parts(sources: Mapping[str, Source]) -> Parts:
    train, found = sources["train"], dict[str, Source]()
    for split, rows in train.splits.items():
        if split != "train" and split in sources:
            raise DataError(
                f"{train.name} has a {split} split of its own ({format_count(len(rows), 'picture')}), and pictures for "
                f"{split} were given apart. Leave one of them out."
            )
        found[split] = _take_source_rows(train, rows)
    if "train" not in train.splits:
        published = np.concatenate([*train.splits.values(), np.zeros(0, np.int64)])
        found["train"] = _take_source_rows(train, np.setdiff1d(np.arange(len(train)), published))
    for split in [split for split in sources if split != "train"]:
        source = sources[split]
        if source.splits and split not in source.splits:
            raise DataError(
                f"{source.name}, given for {split}, has splits of its own ({', '.join(source.splits)}) and none called "
                f"{split}. Give the pictures of one split."
            )
        found[split] = _take_source_rows(source, source.splits[split]) if source.splits else source
    return [(split, found[split]) for split in SPLITS if split in found]


def _take_source_rows(source: Source, rows: NDArray[np.int64]) -> Source:
    """These rows of a source, without its splits."""
    if len(rows) == len(source) and np.array_equal(rows, np.arange(len(source))):
        return replace(source, splits={})
    images = source.images
    return replace(
        source,
        images=images[rows] if isinstance(images, np.ndarray) else SubsetSequence[ImageInput](images, rows),
        targets=source.targets[rows],
        ids=take_rows(source.ids, rows),
        groups=None if source.groups is None else source.groups[rows],
        splits={},
        metadata={column: take_rows(values, rows) for column, values in source.metadata.items()},
        blocks=None if source.blocks is None else source.blocks[rows],
    )


def _join_targets(parts: Parts) -> tuple[tuple[str, ...], np.ndarray, list[str]]:
    """Classes, targets and notes. A class that train does not have comes last, for `build_source` to refuse by name."""
    known = list(dict(parts)["train"].classes)
    hard = all(source.targets.ndim == 1 for _, source in parts)
    classes, notes, joined = [*known], list[str](), list[np.ndarray]()
    for split, source in parts:
        unknown = [name for name in source.classes if name not in known]
        if hard:
            used = set(np.unique(source.targets).tolist())
            unknown = [name for name in unknown if source.classes.index(name) in used and name not in classes]
            classes += unknown
        elif unknown:
            what = {"classification": "classes", "multilabel": "labels", "regression": "columns"}[source.task]
            raise DataError(
                f"{split} has {what} that train does not have: {', '.join(map(repr, unknown[:10]))}. Train has "
                f"{', '.join(map(repr, known[:10]))}; rename them, or leave them out."
            )
        places = np.array([classes.index(name) if name in classes else -1 for name in source.classes], np.int64)
        if hard:
            joined.append(places[source.targets])
            continue
        if source.task == "classification":
            rows = source.targets if source.has_soft_labels else np.eye(len(places), dtype=np.float32)[source.targets]
            fill = 0.0
        else:
            rows, fill = source.targets, np.nan
            if lacking := [name for name in known if name not in source.classes]:
                notes.append(f"{split} does not say {', '.join(map(repr, lacking[:10]))}, which is unknown there.")
        targets = np.full((len(source), len(known)), fill, rows.dtype)
        targets[:, places] = rows
        joined.append(targets)
    return tuple(classes), np.concatenate(joined), notes


def _join_images(parts: Parts) -> Sequence[ImageInput] | np.ndarray:
    stacks = [
        SplitArrays(split, source.images, source.targets, None)
        for split, source in parts
        if isinstance(source.images, np.ndarray)
    ]
    if len(stacks) == len(parts):
        return concat_stacks("The sources", stacks)
    return ConcatSequence([source.images for _, source in parts])


def _join_groups(parts: Parts) -> tuple[np.ndarray | None, list[str]]:
    """The groups of all rows, None without groups; and a note where a part has none."""
    if all(source.groups is None for _, source in parts):
        return None, []
    alone = [split for split, source in parts if source.groups is None]
    groups = [
        np.array([f"({split}, row {row:,})" for row in range(len(source))], object)
        if source.groups is None
        else source.groups.astype(object)
        for split, source in parts
    ]
    note = f"{' and '.join(alone)} names no groups, so each of its pictures counts as a group of its own."
    return np.concatenate(groups), [note] if alone else []


def _join_blocks(parts: Parts) -> np.ndarray | None:
    """The shards of all rows, numbered on from part to part; a part without shards is one."""
    if all(source.blocks is None for _, source in parts):
        return None
    blocks, start = [], 0
    for _, source in parts:
        own = np.zeros(len(source), np.int64) if source.blocks is None else source.blocks
        blocks.append(own + start)
        start += int(own.max(initial=-1)) + 1
    return np.concatenate(blocks)


def _join_notes(sources: Mapping[str, Source]) -> list[str]:
    """The notes of train, and those of the others with the split's name, unless they say the same."""
    notes = list(sources["train"].notes)
    others = [(split, note) for split, source in sources.items() for note in source.notes]
    return notes + [f"{split}: {note}" for split, note in others if note not in notes]


def _name_in_split(split: str, name: str) -> str:
    return name if name.startswith(f"{split}/") else f"{split}/{name}"
