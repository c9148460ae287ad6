"""A model's headline figure for every value of a source's further columns, such as view, age or camera."""

from __future__ import annotations

from collections.abc import Sequence

from ..data.source import Source
from ..errors import UsageError
from ..evaluate.prediction_tables import TaskPredictions
from ..evaluate.subgroups import SubgroupReport, compute_subgroups
from .evaluation import Labelled, groups_of, rows_of

ALL = "all"


def by_columns(labelled: Labelled, answers: TaskPredictions, asked: str) -> SubgroupReport:
    """The headline figure for every value of some columns.

    Args:
        asked: the name of a column, several with commas between them, or "all".

    Raises:
        UsageError: a column that the source does not have.
    """
    source = labelled.source
    rows = rows_of(labelled, answers).tolist()
    cells = {name: [str(source.metadata[name][row]) for row in rows] for name in chosen(source, asked)}
    return compute_subgroups(answers, cells, groups_of(labelled, answers))


def chosen(source: Source, asked: str) -> Sequence[str]:
    """The columns that were asked for, in that order.

    Raises:
        UsageError: one that the source does not have.
    """
    there = list(source.metadata)
    if asked == ALL and there:
        return there
    names = [asked] if asked in there else [name.strip() for name in asked.split(",")]
    if missing := [name for name in names if name not in there]:
        has = f"It has {', '.join(map(repr, there))}" if there else "It has none"
        raise UsageError(
            f"{source.name} has no further column {missing[0]!r} to part the pictures by. {has}; columns come from a "
            "manifest, beside the path and what is learnt."
        )
    return names
