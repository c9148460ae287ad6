"""Infer the column roles of a table in memory, and read its labels, splits, groups and metadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...errors import DataError
from ..labels.codes import encode_categorical, format_column
from ..labels.columns import drop_split_column, infer_column_roles, quote_names, read_groups, rows_by_split
from ..labels.tasks import InferredTask, infer_task
from ..settings import DataSettings
from .label_input import Annotations, infer_labels

MAX_SAMPLE_CELLS = 10_000
"""Rows from which column roles are inferred."""
Cells = Callable[[str], Sequence[object]]
"""All cells of a column."""


def read_memory_table(
    names: Sequence[str],
    cells: Cells,
    image: str,
    settings: DataSettings,
    where: str,
    labels: InferredTask | None = None,
    has_official_splits: bool = False,
) -> tuple[str, Annotations]:
    """Infer the roles of columns and read them; also returns the column of the images.

    Args:
        names: columns of plain cells, and that of the images.
        image: the column of the images, where it is known from its type; "" to infer it.
        where: the name of the table in messages.
        labels: the labels, where they are known already, and so is their column.
        has_official_splits: the splits are known already, unless the settings name their column.

    Raises:
        DataError: no images or labels among the columns, or a column that does not hold what it should.
    """
    sample = {name: [""] if name == image else list(cells(name)[:MAX_SAMPLE_CELLS]) for name in names}
    if image:
        settings = replace(settings, path=image)
    roles = infer_column_roles(names, sample, settings, where)
    roles = drop_split_column(roles, settings) if has_official_splits else roles
    if not roles.path:
        raise DataError(
            f"{where} has no column of pictures. Its columns: {quote_names(names)}. Name it with --data.path."
        )
    if labels is None and not roles.targets:
        raise DataError(
            f"{where} has no column of labels. Its columns: {quote_names(names)}. Name it with --data.targets."
        )

    def place(row: int) -> str:
        return f"{where}, row {row:,}"

    groups, note = read_groups(roles.group, cells(roles.group), place) if roles.group else (None, "")
    if labels is None and len(roles.targets) == 1:
        column = cells(roles.targets[0])
        labels = infer_labels(column, len(column), settings, where, column=roles.targets[0])
    elif labels is None:
        labels = infer_task({name: cells(name) for name in roles.targets}, settings, place)
    splits, split_notes = rows_by_split(roles.split, cells(roles.split) if roles.split else (), place, settings)
    return roles.path, Annotations(
        labels=labels,
        groups=groups,
        splits=splits,
        metadata={name: format_column(encode_categorical(cells(name))) for name in roles.metadata},
        notes=(*roles.notes, *split_notes, *([note] if note else ())),
    )
