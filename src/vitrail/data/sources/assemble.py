"""The last step of readers of objects and arrays: rows that the answers leave out are left out of everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import DataError, UsageError
from ..labels.tasks import Answers
from ..settings import DataSettings
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


def check_classes(source: Source) -> None:
    """Refuse a class that is judged but never shown: it cannot be learnt.

    Raises:
        DataError: val or test has a class that train does not have.
    """
    if source.task != "classes" or source.soft or "train" not in source.splits:
        return
    shown = np.unique(source.targets[source.splits["train"]])
    for split, rows in source.splits.items():
        unknown = np.setdiff1d(source.targets[rows], shown).tolist()
        if unknown:
            names = ", ".join(repr(source.classes[number]) for number in unknown[:5])
            raise DataError(
                f"{split} of {source.name} has {len(unknown):,} classes that train does not have: {names}. A model "
                "cannot learn them; add them to train, or leave them out."
            )


def refuse_settings(settings: DataSettings, where: str, *names: str) -> None:
    """Refuse what only folders of classes have, and those settings that name columns where there are none.

    Args:
        names: of path, targets, split and group, those that say nothing about this kind of source.

    Raises:
        UsageError: one of them is set.
    """
    if settings.keep_empty:
        raise UsageError(f"--data.keep_empty true keeps class folders without pictures; {where} has no folders.")
    told = {"path": settings.path, "targets": ", ".join(settings.targets), "split": settings.split}
    told["group"] = settings.group
    for name in names:
        if told[name]:
            raise UsageError(f"--data.{name} {told[name]} names a column, and {where} has no columns.")
