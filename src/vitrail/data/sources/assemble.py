"""The last step of readers of objects and arrays: rows that the answers leave out are left out of everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import DataError
from ..labels.tasks import Answers
from ..source import Picture, Source
from .rows import Chosen


def assemble(
    name: str,
    pictures: Sequence[Picture] | np.ndarray,
    ids: Sequence[str],
    answers: Answers,
    *,
    groups: np.ndarray | None = None,
    splits: Mapping[str, np.ndarray] | None = None,
    metadata: Mapping[str, Sequence[str]] | None = None,
    notes: Sequence[str] = (),
) -> Source:
    """A source of all rows, or of `answers.kept`; every other argument is of all rows."""
    kept = answers.kept
    splits, metadata = dict(splits or {}), dict(metadata or {})
    if kept is not None:
        numbers = np.full(len(ids), -1)
        numbers[kept] = np.arange(len(kept))
        pictures = pictures[kept] if isinstance(pictures, np.ndarray) else Chosen(pictures, kept)
        ids = Chosen(ids, kept)
        groups = None if groups is None else groups[kept]
        splits = {split: numbers[rows][numbers[rows] >= 0] for split, rows in splits.items()}
        metadata = {column: Chosen(values, kept) for column, values in metadata.items()}
    source = Source(
        name=name,
        task=answers.task,
        classes=answers.classes,
        pictures=pictures,
        targets=answers.targets,
        ids=ids,
        groups=groups,
        splits=splits,
        reason=answers.reason,
        metadata=metadata,
        notes=(*notes, *answers.notes),
    )
    check_classes(source)
    return source


def check_classes(source: Source, name: str = "") -> None:
    """Refuse a class that is judged but never shown: it cannot be learnt.

    Args:
        name: what messages call the source; its own name if empty.

    Raises:
        DataError: val or test has a class that train does not have.
    """
    if source.task != "classes" or source.soft or "train" not in source.splits:
        return
    learnt = np.bincount(source.targets[source.splits["train"]], minlength=len(source.classes))
    for split, rows in source.splits.items():
        counts = np.bincount(source.targets[rows], minlength=len(source.classes))
        unknown = np.flatnonzero((counts > 0) & (learnt == 0)).tolist()
        if unknown:
            names = ", ".join(f"{source.classes[number]!r} ({counts[number]:,} pictures)" for number in unknown[:10])
            more = f" and {len(unknown) - 10:,} more" if len(unknown) > 10 else ""
            raise DataError(
                f"{split} of {name or source.name} has classes that train does not have: {names}{more}. A model "
                "cannot learn them; add them to train, or remove or rename them."
            )
